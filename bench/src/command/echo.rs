//! `echo`: a 64-byte call between two spinning nodes, beside the raw path and the messages below the calls.

use tautline_net::clock::Clock;
use tautline_net::port::PortUrl;

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

/// Stages, in the order of their servers.
const FLOOR: usize = 0;
const MESSAGE: usize = 1;

struct Path {
    bound: f64,
    floor: &'static str,
    trips: usize,
    server: PortUrl,
    client: PortUrl,
}

impl Path {
    fn of(kind: PortKind) -> Path {
        let url = |text: &str| text.parse().expect("a literal URL");
        match kind {
            PortKind::Udp => Path {
                bound: 1.4,
                floor: "raw UDP, 64 B",
                trips: 5_000,
                server: url("udp://127.0.0.1:0"),
                client: url("udp://127.0.0.1:0"),
            },
            PortKind::Mem => Path {
                bound: 5.0,
                floor: "raw ring, 64 B",
                trips: 50_000,
                server: url("mem://echo-server"),
                client: url("mem://echo-client"),
            },
        }
    }
}

pub(crate) fn run(args: &Echo) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let path = Path::of(args.port);
    let (ring, ring_echo) = ring::pair(clock.clone());
    let (kind, url, theirs) = (args.port, path.server.clone(), clock.clone());
    let (mut duo, (udp_address, message_address)) = Duo::start(cores.server, move || {
        let udp = UdpEcho::open()?;
        let message = MessageEcho::open(&url, theirs)?;
        let addresses = (udp.address()?, message.address());
        let floor: Box<dyn Serve> = match kind {
            PortKind::Udp => Box::new(udp),
            PortKind::Mem => Box::new(ring_echo),
        };
        Ok((vec![floor, Box::new(message)], addresses))
    })?;
    pin(cores.client)?;
    let mut floor: Box<dyn PingPong> = match args.port {
        PortKind::Udp => Box::new(UdpClient::connect(udp_address, clock.clone())?),
        PortKind::Mem => Box::new(ring),
    };
    let mut message = MessageClient::connect(&path.client, message_address, clock.clone())?;

    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let floor = duo.during(FLOOR, || sample(&clock, path.trips / 10, path.trips, floor.as_mut()))?;
        let message = duo.during(MESSAGE, || sample(&clock, path.trips / 10, path.trips, &mut message))?;
        Ok([floor, message])
    })?;
    let [mut floor, mut message] = [const { None }; 2].map(|none: Option<Samples>| none.unwrap_or_default());
    for [floor_round, message_round] in &kept.rounds {
        floor.merge(floor_round);
        message.merge(message_round);
    }
    let floor = Row::of(path.floor, &mut floor);
    let message = Row::of("message, 64 B", &mut message).over(floor.p50_us);
    let mut report =
        Report::new(format!("echo --port {}", args.port.name()), "64-byte round trips, client and server spinning on a core each");
    report.placed(&kept, cores);
    report.bound("message p50 / floor p50", message.ratio.unwrap_or(f64::NAN), path.bound);
    report.row(floor);
    report.row(message);
    Ok(report)
}
