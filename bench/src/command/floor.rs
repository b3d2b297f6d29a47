//! `floor`: what the paths cost without any protocol.

use tautline_net::clock::Clock;

use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::floor::ring::pair;
use tautline_bench::floor::sample;
use tautline_bench::floor::udp::{UdpClient, UdpEcho};
use tautline_bench::pin::{Cores, pin};
use tautline_bench::report::{Report, Row};
use tautline_bench::rounds;
use tautline_bench::samples::Samples;

use crate::cli::Floor;

const UDP_TRIPS: usize = 5_000;
const RING_TRIPS: usize = 50_000;

pub(crate) fn run(args: &Floor) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let (mut ring, ring_echo) = pair(clock.clone());
    let (mut duo, address) = Duo::start(cores.server, move || {
        let echo = UdpEcho::open()?;
        let address = echo.address()?;
        Ok((vec![Box::new(echo) as Box<dyn Serve>, Box::new(ring_echo)], address))
    })?;
    pin(cores.client)?;
    let mut udp = UdpClient::connect(address, clock.clone())?;
    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let udp = duo.during(0, || sample(&clock, UDP_TRIPS / 10, UDP_TRIPS, &mut udp))?;
        let ring = duo.during(1, || sample(&clock, RING_TRIPS / 10, RING_TRIPS, &mut ring))?;
        Ok((udp, ring))
    })?;
    let (mut udp, mut ring) = (Samples::default(), Samples::default());
    for (udp_round, ring_round) in &kept.rounds {
        udp.merge(udp_round);
        ring.merge(ring_round);
    }
    let mut report = Report::new("floor", "64-byte round trips without a protocol, both sides spinning");
    report.placed(&kept, cores);
    report.row(Row::of("raw UDP, loopback", &mut udp));
    report.row(Row::of("raw ring, shared memory", &mut ring));
    report.note("Each trip includes one reading of the clock (10 to 25 ns), here as in every comparison with these floors.");
    Ok(report)
}
