//! How near the two cores are right now.
//!
//! A virtual machine's host moves its processors about: two of them may be siblings of one core in one second and on different
//! dies in the next, and every latency that crosses them changes by a factor. A ping-pong of one cache line shows which it is. Each
//! round is measured between two probes, and one during which the placement changed is thrown away.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tautline_net::clock::Clock;

use crate::error::BenchError;
use crate::pin::{Cores, pin};

/// Batches a probe times; the median one counts, so that a preempted batch does not.
const BATCHES: usize = 9;
/// Round trips a batch.
const TRIPS: u64 = 1_000;
/// Two probes further apart than this saw two placements. (Near and far differ by a factor of two to four; probes of one
/// placement by some tens of percent.)
const CHANGE: f64 = 1.5;
/// With nothing to compare with, a round trip above this is called far.
const USUALLY_FAR_NS: f64 = 250.0;
/// A turn that takes longer than this means that the other thread is gone or starved.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one probe saw.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Placement {
    /// One cache line there and back, in nanoseconds.
    pub round_trip_ns: f64,
}

/// The two modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// Siblings of one core, or neighbours on one die.
    Near,
    /// Anything further.
    Far,
}

impl Placement {
    /// Whether `other` was measured with the cores in the same places.
    pub fn same_as(self, other: Placement) -> bool {
        let ratio = self.round_trip_ns / other.round_trip_ns;
        (1.0 / CHANGE..=CHANGE).contains(&ratio)
    }

    /// Near or far, by the ratio to the shortest round trip seen in this run; where this is the shortest, by what is usual.
    pub fn distance(self, shortest: Placement) -> Distance {
        let far =
            if self.same_as(shortest) { self.round_trip_ns > USUALLY_FAR_NS } else { self.round_trip_ns > shortest.round_trip_ns };
        if far { Distance::Far } else { Distance::Near }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Near => "near",
            Distance::Far => "far",
        })
    }
}

/// A cache line of its own (and the next one, which some processors fetch along with it).
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the placement of the two cores: takes some milliseconds, and expects the server's core to be idle.
pub fn probe(cores: Cores, clock: &Clock) -> Result<Placement, BenchError> {
    let line = Line(AtomicU64::new(0));
    let trips = BATCHES as u64 * TRIPS;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            pin(cores.server)?;
            // Odd values are the prober's; each is answered by the next even one.
            (0..trips).try_for_each(|trip| turn(&line.0, trip * 2 + 1, clock))
        });
        let asked = scope.spawn(|| {
            pin(cores.client)?;
            let mut batches = Vec::with_capacity(BATCHES);
            let mut value = 0;
            for _ in 0..BATCHES {
                let start = clock.now();
                for _ in 0..TRIPS {
                    line.0.store(value + 1, Ordering::Release);
                    value += 2;
                    wait_for(&line.0, value, clock)?;
                }
                batches.push(clock.now().nanos_since(start));
            }
            batches.sort_unstable();
            Ok(Placement { round_trip_ns: batches[BATCHES / 2] as f64 / TRIPS as f64 })
        });
        let asked = join(asked);
        join(echo)?;
        asked
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, BenchError>>) -> Result<T, BenchError> {
    thread.join().unwrap_or_else(|_| Err(BenchError::PartnerEnded { what: "placement probe", why: "it panicked".to_owned() }))
}

fn turn(line: &AtomicU64, awaited: u64, clock: &Clock) -> Result<(), BenchError> {
    wait_for(line, awaited, clock)?;
    line.store(awaited + 1, Ordering::Release);
    Ok(())
}

fn wait_for(line: &AtomicU64, awaited: u64, clock: &Clock) -> Result<(), BenchError> {
    loop {
        // The clock is asked only where a wait turns out long.
        for _ in 0..10_000 {
            if line.load(Ordering::Acquire) == awaited {
                return Ok(());
            }
        }
        let start = clock.now();
        while line.load(Ordering::Acquire) != awaited {
            if clock.now().since(start) > PATIENCE {
                return Err(BenchError::Silent { what: "the placement probe", seconds: PATIENCE.as_secs() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(round_trip_ns: f64) -> Placement {
        Placement { round_trip_ns }
    }

    #[test]
    fn a_probe_gives_a_plausible_round_trip() {
        let Ok(cores) = Cores::pick() else { return };
        let seen = probe(cores, &Clock::tsc()).unwrap();
        assert!(seen.round_trip_ns > 5.0 && seen.round_trip_ns.is_finite(), "{seen:?}");
    }

    #[test]
    fn a_factor_of_two_is_a_change_and_noise_is_not() {
        assert!(placement(120.0).same_as(placement(150.0)));
        assert!(!placement(120.0).same_as(placement(240.0)));
        assert!(!placement(440.0).same_as(placement(120.0)));
    }

    #[test]
    fn far_is_what_is_further_than_the_nearest_seen() {
        assert_eq!(placement(230.0).distance(placement(100.0)), Distance::Far);
        assert_eq!(placement(120.0).distance(placement(100.0)), Distance::Near);
        assert_eq!(placement(480.0).distance(placement(480.0)), Distance::Far);
    }
}
