//! How fast long messages arrive at an endpoint: with a path's round trip, what has to be granted ahead to keep it full.

use crate::clock::Time;

/// The rate is taken over so many nanoseconds at least.
const INTERVAL: u64 = 100_000;

/// A meter of the highest rate of late.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    bytes: u64,
    since: Time,
    /// Bytes a millisecond.
    peak: u64,
}

impl Inflow {
    /// So many bytes of a message arrived.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Takes the rate since the last time, if that was long enough ago. A peak is forgotten within some ten intervals in which less came.
    pub(crate) fn update(&mut self, now: Time) {
        let passed = now.nanos_since(self.since);
        if passed >= INTERVAL {
            let rate = self.bytes.saturating_mul(1_000_000) / passed;
            self.peak = rate.max(self.peak - self.peak / 16);
            (self.bytes, self.since) = (0, now);
        }
    }

    /// What arrives in one round trip of so many nanoseconds, in bytes.
    pub(crate) fn of_round_trip(&self, nanos: u64) -> u32 {
        u32::try_from(self.peak.saturating_mul(nanos) / 1_000_000).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_follows_a_rise_at_once_and_a_fall_slowly() {
        let mut inflow = Inflow::default();
        let mut now = Time::ZERO;
        let mut run = |inflow: &mut Inflow, bytes: usize, intervals: u32| {
            for _ in 0..intervals {
                inflow.count(bytes);
                now = now.plus_nanos(INTERVAL);
                inflow.update(now);
            }
            inflow.of_round_trip(INTERVAL) as usize
        };
        assert_eq!(run(&mut inflow, 10_000, 2), 10_000);
        assert!((9_000..10_000).contains(&run(&mut inflow, 10, 1)));
        assert!(run(&mut inflow, 10, 100) < 100);
    }

    #[test]
    fn what_comes_within_an_interval_is_counted_in_the_next_measurement() {
        let mut inflow = Inflow::default();
        inflow.count(500);
        inflow.update(Time::from_nanos(INTERVAL / 2));
        assert_eq!(inflow.of_round_trip(INTERVAL), 0);
        inflow.count(500);
        inflow.update(Time::from_nanos(INTERVAL));
        assert_eq!(inflow.of_round_trip(INTERVAL), 1000);
    }
}
