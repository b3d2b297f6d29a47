//! `abuse`: an honest peer's messages alone, and beside a flood from a thousand hostile peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tautline_net::clock::Clock;

use tautline_bench::company::Company;
use tautline_bench::crowd::resident;
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::pin::{Cores, pin};
use tautline_bench::report::{Report, Row};
use tautline_bench::rounds;
use tautline_bench::samples::Samples;
use tautline_bench::siege::{Peaks, Siege, Victim};
use tautline_testing::mob::{Abuse, limits};

use crate::cli::AbuseArgs;

const WARM_UP: u64 = 20_000_000;
const NANOS: u64 = 200_000_000;
/// Until the mob has its sessions and holds what it can.
const LAYING: u64 = 500_000_000;

const BOUND: f64 = 3.0;

pub(crate) fn run(args: &AbuseArgs) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let company = Company::start();
    let peaks = Arc::<Peaks>::default();
    let (theirs, record) = (clock.clone(), peaks.clone());
    let (mut duo, server) = Duo::start(cores.server, move || {
        let victim = Victim::open(&"udp://127.0.0.1:0".parse().expect("a literal URL"), theirs, record)?;
        let address = victim.address();
        Ok((vec![Box::new(victim) as Box<dyn Serve>], address))
    })?;
    pin(cores.client)?;
    let mut siege = Siege::lay(&clock, server, args.peers, &Abuse::ALL)?;
    let mut phase = |flood, warm_up, nanos| duo.during(0, || siege.phase(flood, warm_up, nanos));
    phase(0, WARM_UP, WARM_UP)?;
    let before = resident();
    phase(args.flood, LAYING, LAYING)?;
    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        Ok([phase(0, WARM_UP, NANOS)?, phase(args.flood, WARM_UP, NANOS)?])
    })?;
    let after = resident();
    let (mut alone, mut beside) = (Samples::default(), Samples::default());
    for [quiet, flooded] in &kept.rounds {
        alone.merge(quiet);
        beside.merge(flooded);
    }
    let alone = Row::of("64 B alone", &mut alone);
    let beside = Row::of(format!("64 B beside {} peers", args.peers), &mut beside).over(alone.p50_us);
    let mut report = Report::new(
        format!("abuse --peers {} --flood {}", args.peers, args.flood),
        format!("64-byte messages over UDP beside {} packets/s from {} hostile peers", args.flood, args.peers),
    );
    report.placed(&kept, cores);
    report.bound("p99 beside / alone", beside.p99_us / alone.p99_us, BOUND);
    let limits = limits();
    let used = [
        ("reassembly memory", peaks.reassembly.load(Ordering::Relaxed), limits.reassembly_bytes),
        ("memory for sending", peaks.sending.load(Ordering::Relaxed), limits.send_bytes_total),
        ("sessions", peaks.sessions.load(Ordering::Relaxed), limits.max_sessions),
    ];
    for (what, most, limit) in used {
        report.bound(format!("{what}: most in use / limit"), most as f64 / limit as f64, 1.0);
    }
    if let (Some(before), Some(after)) = (before, after) {
        report.figure("growth of the process", after.saturating_sub(before) as f64 / f64::from(1 << 20), "MiB", None);
    }
    report.note(format!("The hostile peers sent {} packets and have {} sessions.", siege.sent, siege.sessions()));
    report.note_company(&company);
    report.row(alone);
    report.row(beside);
    Ok(report)
}
