//! `echo`: a 64-byte call between two spinning nodes, beside the raw path and the messages below the calls.

use tautline_net::clock::Clock;
use tautline_net::port::PortUrl;

use tautline_bench::call::{CallClient, CallEcho};
use tautline_bench::company::Company;
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::floor::ring;
use tautline_bench::floor::udp::{UdpClient, UdpEcho};
use tautline_bench::floor::{PingPong, sample};
use tautline_bench::message::{MessageClient, MessageEcho};
use tautline_bench::pin::{Cores, pin};
use tautline_bench::report::{Report, Row};
use tautline_bench::rounds;
use tautline_bench::samples::Samples;

use crate::cli::{Echo, PortKind};

/// Stages, in the order of their servers: the floor, the messages, the calls.
const STAGES: usize = 3;
const CALL: usize = 2;

/// Where a kind of port is measured, and what is asked of it.
struct Path {
    floor: &'static str,
    bound: f64,
    trips: usize,
    servers: [&'static str; 2],
    clients: [&'static str; 2],
}

impl Path {
    fn of(kind: PortKind) -> Path {
        const ANY: &str = "udp://127.0.0.1:0";
        match kind {
            PortKind::Udp => Path { floor: "raw UDP", bound: 1.25, trips: 5_000, servers: [ANY; 2], clients: [ANY; 2] },
            PortKind::Mem => Path {
                floor: "raw ring",
                bound: 3.0,
                trips: 50_000,
                servers: ["mem://message-server", "mem://call-server"],
                clients: ["mem://message-client", "mem://call-client"],
            },
        }
    }
}

pub(crate) fn run(args: &Echo) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let path = Path::of(args.port);
    let company = Company::start();
    let (ring, ring_echo) = ring::pair(clock.clone());
    let (kind, [message_url, call_url], theirs) = (args.port, path.servers, clock.clone());
    let (mut duo, (udp_address, message_address, call_address)) = Duo::start(cores.server, move || {
        let udp = UdpEcho::open()?;
        let message = MessageEcho::open(&url(message_url), theirs.clone())?;
        let call = CallEcho::open(call_url, &theirs)?;
        let addresses = (udp.address()?, message.address(), call.address());
        let floor: Box<dyn Serve> = match kind {
            PortKind::Udp => Box::new(udp),
            PortKind::Mem => Box::new(ring_echo),
        };
        Ok((vec![floor, Box::new(message), Box::new(call)], addresses))
    })?;
    pin(cores.client)?;
    let floor: Box<dyn PingPong> = match args.port {
        PortKind::Udp => Box::new(UdpClient::connect(udp_address, clock.clone())?),
        PortKind::Mem => Box::new(ring),
    };
    let [message_url, call_url] = path.clients;
    let mut clients: [Box<dyn PingPong>; STAGES] = [
        floor,
        Box::new(MessageClient::connect(&url(message_url), message_address, clock.clone())?),
        Box::new(CallClient::connect(call_url, call_address, clock.clone())?),
    ];

    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let mut round: [Samples; STAGES] = Default::default();
        for (stage, client) in clients.iter_mut().enumerate() {
            round[stage] = duo.during(stage, || sample(&clock, path.trips / 10, path.trips, client.as_mut()))?;
        }
        Ok(round)
    })?;

    let mut all: [Samples; STAGES] = Default::default();
    for round in &kept.rounds {
        all.iter_mut().zip(round).for_each(|(all, stage)| all.merge(stage));
    }
    let names = [path.floor, "message", "call"];
    let mut rows = all.iter_mut().zip(names).map(|(samples, name)| Row::of(name, samples));
    let mut report =
        Report::new(format!("echo --port {}", args.port.name()), "64-byte round trips, client and server spinning on a core each");
    report.placed(&kept, cores);
    let floor = rows.next().expect("the floor is the first stage");
    let floor_us = floor.p50_us;
    let rows: Vec<Row> = std::iter::once(floor).chain(rows.map(|row| row.over(floor_us))).collect();
    let ratio = rows[CALL].p50_us / floor_us;
    report.bound(format!("call p50 / {} p50", path.floor), ratio, path.bound);
    rows.into_iter().for_each(|row| report.row(row));
    report.note_company(&company);
    Ok(report)
}

fn url(text: &str) -> PortUrl {
    text.parse().expect("a literal URL")
}
