//! `hol`: how long a small call waits for large ones on the same session (head-of-line blocking), and what that costs the large ones.

use tautline_net::clock::Clock;

use tautline_bench::call::CallEcho;
use tautline_bench::company::Company;
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::hol::{LARGE, Load, Mixed, OUTSTANDING};
use tautline_bench::pin::{Cores, pin};
use tautline_bench::rate::median;
use tautline_bench::report::{Report, Row};
use tautline_bench::rounds;
use tautline_bench::samples::Samples;

use crate::cli::{Hol, PortKind};

const WARM_UP: u64 = 20_000_000;
const NANOS: u64 = 200_000_000;

/// The large calls keep at least so much of what they have alone.
const KEPT: f64 = 0.5;

pub(crate) fn run(args: &Hol) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let company = Company::start();
    let ([client_url, server_url], [p50, p99]) = match args.port {
        PortKind::Udp => (["udp://127.0.0.1:0"; 2], [4.0, 6.0]),
        PortKind::Mem => (["mem://hol-client", "mem://hol-server"], [6.0, 12.0]),
    };
    let theirs = clock.clone();
    let (mut duo, server) = Duo::start(cores.server, move || {
        let echo = CallEcho::open(server_url, &theirs)?;
        let address = echo.address();
        Ok((vec![Box::new(echo) as Box<dyn Serve>], address))
    })?;
    pin(cores.client)?;
    let mut client = Mixed::connect(client_url, server, &clock)?;
    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let mut phase = |small, large| duo.during(0, || client.phase(Load { small, large }, WARM_UP, NANOS));
        Ok([phase(true, false)?, phase(false, true)?, phase(true, true)?])
    })?;
    let (mut alone, mut beside) = (Samples::default(), Samples::default());
    for [small, _, both] in &kept.rounds {
        alone.merge(&small.small);
        beside.merge(&both.small);
    }
    let alone = Row::of("small alone", &mut alone);
    let beside = Row::of(format!("small beside {OUTSTANDING} x {} MiB", LARGE >> 20), &mut beside).over(alone.p50_us);
    let mut report = Report::new(
        format!("hol --port {}", args.port.name()),
        format!("64-byte calls beside {OUTSTANDING} outstanding {} MiB echoes of the same class on the same session", LARGE >> 20),
    );
    report.placed(&kept, cores);
    report.bound("p50 beside / alone", beside.p50_us / alone.p50_us, p50);
    report.bound("p99 beside / alone", beside.p99_us / alone.p99_us, p99);
    // Each way: what was sent comes back.
    let large = |phase: usize| median(kept.rounds.iter().map(|round| round[phase].large.per_second())) / 1e9;
    let (bulk_alone, bulk_beside) = (large(1), large(2));
    report.figure("large echoes alone, each way", bulk_alone, "GB/s", None);
    report.figure("large echoes beside small calls", bulk_beside, "GB/s", Some(bulk_beside / bulk_alone));
    report.at_least("large echoes beside / alone", bulk_beside / bulk_alone, KEPT);
    // Before the rows: a small call that waits for large ones is no sign of company.
    report.note_company(&company);
    report.row(alone);
    report.row(beside);
    Ok(report)
}
