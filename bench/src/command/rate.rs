//! `rate`: small calls a second with a window of them outstanding, beside messages that are moved over the same path without a protocol.

use std::time::Duration;

use tautline_net::clock::Clock;
use tautline_net::wire::DATA_OVERHEAD;

use tautline_bench::call::CallEcho;
use tautline_bench::company::Company;
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::floor::ring::RingLoop;
use tautline_bench::floor::segmented::{BatchClient, BatchEcho};
use tautline_bench::pin::{Cores, pin};
use tautline_bench::pipeline::{Back, Pipeline, SMALL, Solo};
use tautline_bench::placement::Distance;
use tautline_bench::rate::{Rate, measure, median};
use tautline_bench::report::Report;
use tautline_bench::rounds;
use tautline_rpc::NodeConfig;

use crate::cli::{PortKind, RateArgs};

/// The windows measured over mem, beside the one asked for.
const WINDOWS: [usize; 3] = [1, 8, 32];

/// A call's head on the wire, beside that of the packet.
const CALL_HEAD: usize = 24;

const SPAN: Duration = Duration::from_millis(100);
const WARM_UP: Duration = Duration::from_millis(20);

/// Over mem: of the rate at which one core moves bare messages (what the calls below are of a ring that does 130 M/s), and in calls a
/// second where the cores are near.
const MEM_SHARE: f64 = 0.023;
const MEM_CALLS: f64 = 3e6;
/// Over udp: ten times tonic's.
const UDP_CALLS: f64 = 0.6e6;

/// A window's rates, a round each.
struct Rates {
    window: usize,
    floor: Vec<Rate>,
    calls: Vec<Rate>,
}

impl Rates {
    fn floor(&self) -> f64 {
        median(self.floor.iter().map(|rate| rate.per_second()))
    }

    fn calls(&self) -> f64 {
        median(self.calls.iter().map(|rate| rate.per_second()))
    }

    fn ratio(&self) -> f64 {
        self.calls() / self.floor()
    }
}

pub(crate) fn run(args: &RateArgs) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    match args.port {
        PortKind::Mem => mem(args, cores),
        PortKind::Udp => udp(args, cores),
    }
}

fn mem(args: &RateArgs, cores: Cores) -> Result<Report, BenchError> {
    let clock = Clock::tsc();
    let company = Company::start();
    pin(cores.client)?;
    let urls = ["mem://rate-client", "mem://rate-server"];
    let mut solo = Solo::open(urls, &clock, &NodeConfig::default(), args.window, SMALL)?;
    let mut ring = RingLoop::new(clock.clone());
    let mut windows: Vec<usize> = WINDOWS.into_iter().filter(|window| *window < args.window).collect();
    windows.push(args.window);
    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        windows
            .iter()
            .map(|&window| {
                let floor = measure("the ring floor", &clock, WARM_UP / 4, SPAN / 4, || Ok(ring.turn(window)))?;
                solo.set_window(window);
                let calls = measure("a call", &clock, WARM_UP, SPAN, || solo.turn())?;
                solo.drain()?;
                Ok((floor, calls))
            })
            .collect::<Result<Vec<_>, BenchError>>()
    })?;
    let mut report = Report::new(
        command(args),
        format!("{SMALL}-byte calls a second, client and server together on one core, a window outstanding"),
    );
    report.placed(&kept, cores);
    let mut points = Vec::new();
    for (n, &window) in windows.iter().enumerate() {
        let column = kept.rounds.iter().map(|round| round[n]);
        let (floor, calls) = column.unzip();
        let rates = Rates { window, floor, calls };
        add(&mut report, &rates, "raw ring, there and back");
        points.push((window as f64, rates.calls() / 1e6));
        if window == args.window {
            report.at_least(format!("calls / raw ring, window {window}"), rates.ratio(), MEM_SHARE);
            match kept.distance {
                Distance::Near => report.at_least("calls (M/s)", rates.calls() / 1e6, MEM_CALLS / 1e6),
                Distance::Far => report.note(format!(
                    "{:.2} M calls/s; the bound of {} M is for cores that are near.",
                    rates.calls() / 1e6,
                    MEM_CALLS / 1e6
                )),
            }
        }
    }
    report.curve("calls over mem, both sides on one core", "calls outstanding", "M calls/s", points);
    report.note_company(&company);
    Ok(report)
}

fn udp(args: &RateArgs, cores: Cores) -> Result<Report, BenchError> {
    const ANY: &str = "udp://127.0.0.1:0";
    const FLOOR: usize = 0;
    const CALLS: usize = 1;
    let clock = Clock::tsc();
    let company = Company::start();
    let size = DATA_OVERHEAD + CALL_HEAD + SMALL;
    let theirs = clock.clone();
    let (mut duo, (floor, server)) = Duo::start(cores.server, move || {
        let (floor, calls) = (BatchEcho::open(size)?, CallEcho::open(ANY, &theirs)?);
        let known = (floor.address()?, calls.address());
        Ok((vec![Box::new(floor) as Box<dyn Serve>, Box::new(calls)], known))
    })?;
    pin(cores.client)?;
    let mut floor = BatchClient::connect(floor, size, args.window)?;
    let mut client = Pipeline::connect(ANY, server, &clock, &NodeConfig::default(), args.window, SMALL, Back::Everything)?;
    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let raw = duo.during(FLOOR, || measure("the UDP floor", &clock, WARM_UP, SPAN, || floor.turn()))?;
        floor.restart()?;
        let calls = duo.during(CALLS, || {
            let calls = measure("a call", &clock, WARM_UP, SPAN, || client.turn())?;
            client.drain()?;
            Ok(calls)
        })?;
        Ok((raw, calls))
    })?;
    let mut report =
        Report::new(command(args), format!("{SMALL}-byte calls a second to one server, a core each side, a window outstanding"));
    report.placed(&kept, cores);
    let (floor, calls) = kept.rounds.iter().copied().unzip();
    let rates = Rates { window: args.window, floor, calls };
    add(&mut report, &rates, &format!("raw UDP (GSO, GRO), {size} bytes there and back"));
    report.at_least("calls (M/s)", rates.calls() / 1e6, UDP_CALLS / 1e6);
    report.note_company(&company);
    Ok(report)
}

fn add(report: &mut Report, rates: &Rates, floor: &str) {
    report.figure(format!("window {:>3}: {floor}", rates.window), rates.floor() / 1e6, "M/s", None);
    report.figure(format!("window {:>3}: calls", rates.window), rates.calls() / 1e6, "M/s", Some(rates.ratio()));
}

fn command(args: &RateArgs) -> String {
    format!("rate --port {} --window {}", args.port.name(), args.window)
}
