//! `sessions`: what many open sessions cost: the rate of messages into any of them, and the memory that each takes.

use std::time::Duration;

use tautline_net::clock::Clock;
use tautline_net::port::PortUrl;

use tautline_bench::company::Company;
use tautline_bench::crowd::{Crowd, config, resident};
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::message::MessageEcho;
use tautline_bench::pin::{Cores, pin};
use tautline_bench::rate::{measure, median};
use tautline_bench::report::Report;
use tautline_bench::rounds;

use crate::cli::{PortKind, Sessions};

/// What the many are compared with.
const FEW: usize = 16;
const WINDOW: usize = 64;

const SPAN: Duration = Duration::from_millis(100);
const WARM_UP: Duration = Duration::from_millis(20);

/// Of the rate with few sessions.
const BOUND: f64 = 0.7;
/// Bytes an idle session, on either side.
const AIM: f64 = 512.0;

pub(crate) fn run(args: &Sessions) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let company = Company::start();
    let count = args.sessions;
    let theirs = clock.clone();
    const ANY: &str = "udp://127.0.0.1:0";
    let (server_urls, client_urls) = match args.port {
        PortKind::Udp => ([ANY; 2], [ANY; 2]),
        PortKind::Mem => (
            ["mem://sessions-few-server", "mem://sessions-many-server"],
            ["mem://sessions-few-client", "mem://sessions-many-client"],
        ),
    };
    let (mut duo, servers) = Duo::start(cores.server, move || {
        let [few, many] = [(server_urls[0], FEW), (server_urls[1], count)]
            .map(|(at, sessions)| MessageEcho::with(&url(at), theirs.clone(), config(sessions)));
        let (few, many) = (few?, many?);
        let addresses = [few.address(), many.address()];
        Ok((vec![Box::new(few) as Box<dyn Serve>, Box::new(many)], addresses))
    })?;
    pin(cores.client)?;
    let mut crowds =
        [Crowd::open(&url(client_urls[0]), &clock, FEW, WINDOW)?, Crowd::open(&url(client_urls[1]), &clock, count, WINDOW)?];
    let connect = |crowd: &mut Crowd, stage: usize, duo: &mut Duo, sessions: usize| {
        duo.during(stage, || {
            crowd.connect(servers[stage], sessions)?;
            // Whatever a first message allocates belongs to no session; the few of this crowd pay for it.
            measure("a message", &clock, Duration::ZERO, WARM_UP, || crowd.turn())?;
            drain(crowd)
        })
    };
    connect(&mut crowds[0], 0, &mut duo, FEW)?;
    // The ports and endpoints of the many exist, and have carried messages: what comes on top is the sessions'.
    connect(&mut crowds[1], 1, &mut duo, FEW)?;
    let (before, opening) = (resident(), clock.now());
    duo.during(1, || crowds[1].connect(servers[1], count - FEW))?;
    let (opened, took) = (resident(), clock.now().since(opening));

    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let mut rates = [0.0; 2];
        for (stage, crowd) in crowds.iter_mut().enumerate() {
            rates[stage] = duo.during(stage, || {
                let rate = measure("a message", &clock, WARM_UP, SPAN, || crowd.turn())?;
                drain(crowd)?;
                Ok(rate.per_second())
            })?;
        }
        Ok(rates)
    })?;
    let used = resident();

    let mut report = Report::new(
        format!("sessions --port {} --sessions {count}", args.port.name()),
        format!(
            "32-byte messages echoed through sessions at random between two endpoints over {}, a core each, {WINDOW} outstanding",
            args.port.name()
        ),
    );
    report.placed(&kept, cores);
    let [few, many] = [0, 1].map(|stage| median(kept.rounds.iter().map(|rates| rates[stage])));
    report.figure(format!("{FEW} sessions"), few / 1e6, "M/s", None);
    report.figure(format!("{} sessions", crowds[1].sessions()), many / 1e6, "M/s", Some(many / few));
    report.at_least(format!("rate of {count} sessions / of {FEW}"), many / few, BOUND);
    let each = |after: Option<u64>| Some(after?.saturating_sub(before?) as f64 / (count - FEW) as f64 / 2.0);
    if let (Some(idle), Some(used)) = (each(opened), each(used)) {
        report.figure("an idle session, each side", idle, "bytes", Some(idle / AIM));
        report.figure("  after its share of the messages", used, "bytes", Some(used / AIM));
        report.note(format!(
            "Bytes: growth of the resident set over the sessions and both sides. The ratio there is to the aim, {AIM}."
        ));
    }
    report.note(format!("Opening {} sessions took {:.0} ms.", count - FEW, took.as_secs_f64() * 1e3));
    report.note_company(&company);
    Ok(report)
}

fn drain(crowd: &mut Crowd) -> Result<(), BenchError> {
    while crowd.outstanding() > 0 {
        crowd.collect()?;
    }
    Ok(())
}

fn url(text: &str) -> PortUrl {
    text.parse().expect("a literal URL")
}
