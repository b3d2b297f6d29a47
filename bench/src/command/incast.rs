//! `incast`: many clients send to one server at once through a shallow switch, and datacenters' mixes of message sizes load its link; all of
//! it simulated, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use tautline_bench::error::BenchError;
use tautline_bench::fabric::{Answer, BANDWIDTH, DELAY, Done, Fabric, MTU, QUEUE, wire_bytes};
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
    let mut least: Vec<(usize, f64)> =
        first_packets(&calls, &due).zip(&calls).map(|(wait, (size, _))| (*size, 1.0 + wait as f64 / alone[size] as f64)).collect();
    least.sort_by_key(|(size, _)| *size);
    let offered = calls.iter().map(|(size, _)| wire_bytes(*size)).sum::<f64>() * 8.0 / due[count - 1].since(start).as_secs_f64();
    let longest = shortest[shortest.len() - 1].0;
    let (p50, p99) = (quantile(shortest, 0.5), quantile(shortest, 0.99));
    let name = mix.name;
    report.figure(format!("{name}: offered"), offered / 1e9, "Gb/s", Some(offered / BANDWIDTH as f64));
    report.figure(format!("  slowdown of the shortest tenth (to {longest} B), p50"), p50, "", None);
    report.figure("  p99", p99, "", None);
    report.figure("  p99 if only first packets queued", quantile(&least[..count / 10], 0.99), "", None);
    report.figure(format!("  of all {count}, p99"), quantile(&by_size, 0.99), "", None);
    report.figure("  packets the switch dropped", (fabric.dropped() - dropped) as f64, "", None);
    report.bound(format!("{name}: p99 slowdown of the shortest tenth"), p99, 3.0);
    Ok(())
}

/// How long each call's first packet waits at the switch, in nanoseconds, if nothing but first packets came there: each is sent when its call is
/// due, and whatever else is to be sent yields to them all. Without priorities in the switch, hosts that do not know when others send come no nearer.
fn first_packets(calls: &[(usize, usize)], due: &[Time]) -> impl Iterator<Item = u64> {
    let nanos = |bytes: f64| (bytes * 8e9 / BANDWIDTH as f64) as u64;
    let mut packets: Vec<(Time, u64, usize)> = calls
        .iter()
        .zip(due)
        .enumerate()
        .map(|(call, ((size, _), due))| {
            let length = nanos(wire_bytes(*size).min(MTU as f64));
            (due.plus_nanos(length), length, call)
        })
        .collect();
    packets.sort_unstable();
    let (mut free, mut waits) = (Time::ZERO, vec![0; calls.len()]);
    for (at, length, call) in packets {
        waits[call] = free.nanos_since(at);
        free = free.max(at).plus_nanos(length);
    }
    waits.into_iter()
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
    fn a_first_packet_waits_for_those_before_it_and_no_others() {
        // However much follows, a packet is no longer than the MTU.
        let long = nanos_of(wire_bytes(1 << 20).min(MTU as f64));
        let short = nanos_of(wire_bytes(600));
        let at = |nanos: u64| Time::from_nanos(1_000_000 + nanos);
        let calls = [(1 << 20, 0), (600, 1), (600, 2)];
        // The first two packets are there at the same time.
        let waits: Vec<u64> = first_packets(&calls, &[at(0), at(long - short), at(100_000)]).collect();
        assert!(waits == [short, 0, 0] || waits == [0, long, 0], "{waits:?}");
    }

    fn nanos_of(bytes: f64) -> u64 {
        (bytes * 8e9 / BANDWIDTH as f64) as u64
    }

    #[test]
    fn a_quantile_is_by_nearest_rank() {
        let values: Vec<(usize, f64)> = (1..=100).rev().map(|n| (n, n as f64)).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.99)), (50.0, 99.0));
        assert!(quantile(&[], 0.5).is_nan());
    }
}
