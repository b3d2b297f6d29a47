//! `incast`: many clients send to one server at once through a shallow switch, and datacenters' mixes of message sizes load its link; all of
//! it simulated, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use tautline_bench::error::BenchError;
use tautline_bench::fabric::{Answer, BANDWIDTH, DELAY, Done, Fabric, QUEUE, wire_bytes};
use tautline_bench::rate::median;
use tautline_bench::report::{Report, Row};
use tautline_bench::samples::Samples;
use tautline_bench::sizes::Mix;
use tautline_bench::workload::Arrivals;
use tautline_rpc::Time;

use crate::cli::Incast;

const CLIENTS: usize = 16;
const LARGE: usize = 256 << 10;
const SMALL: usize = 64;
/// Of the server's link, headers included.
const LOAD: f64 = 0.8;

/// Small calls alone.
const ALONE: usize = 2_000;
/// Tags of what is not a large call or one of a mix.
const SMALL_TAG: u64 = u64::MAX;

pub(crate) fn run(args: &Incast) -> Result<Report, BenchError> {
    let mut report = Report::new(
        format!("incast --seed {}", args.seed),
        format!(
            "{CLIENTS} clients to one server, simulated: links of {} Gb/s, {} us from host to host, a switch queue of {} KiB without priorities",
            BANDWIDTH / 1_000_000_000,
            DELAY.as_micros(),
            QUEUE >> 10
        ),
    );
    let repeats = if args.common.quick { 5 } else { 30 };
    at_once(args.seed, repeats, &mut report)?;
    let (least, bytes) = if args.common.quick { (1_000.0, 30e6) } else { (4_000.0, 150e6) };
    for mix in Mix::all()? {
        loaded(args.seed, &mix, (bytes / mix.mean(wire_bytes)).clamp(least, 60_000.0) as usize, &mut report)?;
    }
    report.note("Virtual time: the figures are the protocol's, and repeat with the seed. Hosts compute in no time.");
    Ok(report)
}

/// All clients at once, over and over, and one more with small calls beside.
fn at_once(seed: u64, repeats: usize, report: &mut Report) -> Result<(), BenchError> {
    let mut fabric = Fabric::new(seed, CLIENTS + 1)?;
    let mut alone = Samples::with_capacity(ALONE);
    for _ in 0..ALONE {
        let start = fabric.now();
        fabric.call(CLIENTS, SMALL, Answer::Echo, SMALL_TAG)?;
        let done = fabric.run_dry()?;
        alone.record(done.last().map_or(0, |done| done.at.nanos_since(start)));
    }
    let dropped = fabric.dropped();
    let (mut beside, mut goodput) = (Samples::default(), Vec::with_capacity(repeats));
    for _ in 0..repeats {
        let start = fabric.now();
        (0..CLIENTS).try_for_each(|client| fabric.call(client, LARGE, Answer::Byte, client as u64))?;
        let (mut large, mut small_since, mut done) = (CLIENTS, None, Vec::new());
        let mut end = start;
        while large > 0 || small_since.is_some() {
            if large > 0 && small_since.is_none() {
                small_since = Some(fabric.now());
                fabric.call(CLIENTS, SMALL, Answer::Echo, SMALL_TAG)?;
            }
            fabric.step(Time::NEVER, &mut done)?;
            for Done { tag, at, .. } in done.drain(..) {
                match (tag, small_since) {
                    (SMALL_TAG, Some(since)) => {
                        beside.record(at.nanos_since(since));
                        small_since = None;
                    }
                    _ => {
                        large -= 1;
                        end = at;
                    }
                }
            }
        }
        goodput.push((CLIENTS * LARGE * 8) as f64 / end.since(start).as_secs_f64() / BANDWIDTH as f64);
    }
    let worst = goodput.iter().copied().fold(f64::INFINITY, f64::min);
    let goodput = median(goodput);
    let gigabits = BANDWIDTH as f64 / 1e9;
    report.figure(format!("{CLIENTS} x {} KiB at once: goodput, median", LARGE >> 10), goodput * gigabits, "Gb/s", Some(goodput));
    report.figure("  the slowest", worst * gigabits, "Gb/s", Some(worst));
    report.figure("  packets the switch dropped, each time", (fabric.dropped() - dropped) as f64 / repeats as f64, "", None);
    let alone = Row::of("64 B alone", &mut alone);
    let beside = Row::of("64 B beside the incast", &mut beside).over(alone.p50_us);
    report.at_least("incast goodput / link", goodput, 0.9);
    report.at_least("slowest incast's goodput / link", worst, 0.5);
    report.bound("small p99 beside / alone", beside.p99_us / alone.p99_us, 5.0);
    report.row(alone);
    report.row(beside);
    Ok(())
}

/// A mix of sizes in open loop, each call from a client at random.
fn loaded(seed: u64, mix: &Mix, count: usize, report: &mut Report) -> Result<(), BenchError> {
    let mut fabric = Fabric::new(seed, CLIENTS)?;
    let mean = mix.mean(wire_bytes);
    let mut random = fastrand::Rng::with_seed(seed);
    let calls: Vec<(usize, usize)> = (0..count).map(|_| (mix.draw(&mut random), random.usize(..CLIENTS))).collect();
    let alone = alone(&mut fabric, calls.iter().map(|(size, _)| *size))?;

    let rate = LOAD * BANDWIDTH as f64 / 8.0 / mean;
    let start = fabric.now() + Duration::from_micros(100);
    let due: Vec<Time> = Arrivals::new(seed, rate).take(count).map(|offset| start + offset).collect();
    let dropped = fabric.dropped();
    let (mut next, mut done) = (0, Vec::new());
    let mut slowdowns = vec![0.0; count];
    while next < count || fabric.outstanding() > 0 {
        while next < count && due[next] <= fabric.now() {
            let (size, client) = calls[next];
            fabric.call(client, size, Answer::Byte, next as u64)?;
            next += 1;
        }
        fabric.step(due.get(next).copied().unwrap_or(Time::NEVER), &mut done)?;
        for Done { tag, at, .. } in done.drain(..) {
            let call = tag as usize;
            slowdowns[call] = at.nanos_since(due[call]) as f64 / alone[&calls[call].0] as f64;
        }
    }
    let mut by_size: Vec<(usize, f64)> = calls.iter().map(|(size, _)| *size).zip(slowdowns).collect();
    by_size.sort_by_key(|(size, _)| *size);
    let shortest = &by_size[..count / 10];
    let longest = shortest[shortest.len() - 1].0;
    let (p50, p99) = (quantile(shortest, 0.5), quantile(shortest, 0.99));
    let name = mix.name;
    report.figure(format!("{name}: slowdown of the shortest tenth (to {longest} B), p50"), p50, "", None);
    report.figure("  p99", p99, "", None);
    report.figure(format!("  of all {count}, p99"), quantile(&by_size, 0.99), "", None);
    report.figure("  packets the switch dropped", (fabric.dropped() - dropped) as f64, "", None);
    report.bound(format!("{name}: p99 slowdown of the shortest tenth"), p99, 3.0);
    Ok(())
}

/// How long a call of each size takes alone, in nanoseconds.
fn alone(fabric: &mut Fabric, sizes: impl Iterator<Item = usize>) -> Result<BTreeMap<usize, u64>, BenchError> {
    let mut times: BTreeMap<usize, u64> = sizes.map(|size| (size, 0)).collect();
    for (size, time) in &mut times {
        let start = fabric.now();
        fabric.call(0, *size, Answer::Byte, 0)?;
        let done = fabric.run_dry()?;
        *time = done.last().map_or(1, |done| done.at.nanos_since(start)).max(1);
    }
    Ok(times)
}

fn quantile(of: &[(usize, f64)], q: f64) -> f64 {
    let mut values: Vec<f64> = of.iter().map(|(_, slowdown)| *slowdown).collect();
    values.sort_by(f64::total_cmp);
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_light_load_slows_nothing_down_and_every_call_counts() {
        let mut fabric = Fabric::new(1, 2).unwrap();
        let times = alone(&mut fabric, [64, 64, 100_000].into_iter()).unwrap();
        assert_eq!(times.len(), 2);
        assert!(times[&64] < times[&100_000], "{times:?}");
        let again = alone(&mut fabric, [64].into_iter()).unwrap();
        let ratio = again[&64] as f64 / times[&64] as f64;
        assert!((0.5..2.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_quantile_is_by_nearest_rank() {
        let values: Vec<(usize, f64)> = (1..=100).rev().map(|n| (n, n as f64)).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.99)), (50.0, 99.0));
        assert!(quantile(&[], 0.5).is_nan());
    }
}
