//! Round-trip time, as RFC 6298 and RFC 9002 (section 5) estimate it, in nanoseconds.

use std::time::Duration;

use crate::endpoint::RoundTrip;

/// Timers below this are not worth setting: a poll loop may come round no faster. It is a granularity (RFC 9002's `kGranularity`), not a
/// guess of any path's delay.
const GRANULARITY: u64 = 100_000;
/// The probe time-out before anything was measured.
const INITIAL_PROBE: u64 = 5_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: u64,
    variation: u64,
    minimum: u64,
    latest: u64,
}

impl Rtt {
    /// Takes one measurement. `ack_delay` is what the peer says it held the acknowledgement back.
    #[inline]
    pub(crate) fn sample(&mut self, measured: u64, ack_delay: u64) {
        let measured = measured.max(1);
        if self.smoothed == 0 {
            *self = Rtt { smoothed: measured, variation: measured / 2, minimum: measured, latest: measured };
            return;
        }
        self.minimum = self.minimum.min(measured);
        // A peer can't make the path look shorter than it ever was.
        let sample = if measured >= self.minimum + ack_delay { measured - ack_delay } else { measured };
        self.latest = sample;
        let deviation = self.smoothed.abs_diff(sample);
        self.variation = self.variation - self.variation / 4 + deviation / 4;
        self.smoothed = self.smoothed - self.smoothed / 8 + sample / 8;
    }

    /// The latest measurement.
    #[inline]
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// The smallest; 0 before any.
    #[inline]
    pub(crate) fn minimum(&self) -> u64 {
        self.minimum
    }

    /// How long an unanswered packet waits before a probe.
    #[inline]
    pub(crate) fn probe_timeout(&self, peer_ack_delay: u64) -> u64 {
        if self.smoothed == 0 {
            return INITIAL_PROBE;
        }
        self.smoothed + (4 * self.variation).max(GRANULARITY) + peer_ack_delay
    }

    /// How long after its sending a packet older than an acknowledged one counts as lost.
    #[inline]
    pub(crate) fn loss_delay(&self) -> u64 {
        let rtt = self.smoothed.max(self.latest);
        (rtt + rtt / 8).max(GRANULARITY)
    }

    #[cfg(test)]
    fn smoothed(&self) -> u64 {
        self.smoothed
    }

    pub(crate) fn round_trip(&self) -> Option<RoundTrip> {
        (self.smoothed > 0).then(|| RoundTrip {
            smoothed: Duration::from_nanos(self.smoothed),
            variation: Duration::from_nanos(self.variation),
            minimum: Duration::from_nanos(self.minimum),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_converges_on_a_steady_path_and_subtracts_the_peers_delay() {
        let mut rtt = Rtt::default();
        rtt.sample(30_000, 0);
        for _ in 0..200 {
            rtt.sample(80_000, 50_000);
        }
        let smoothed = rtt.smoothed();
        assert!(smoothed.abs_diff(30_000) < 1_000, "{smoothed}");
        assert!(rtt.probe_timeout(0) >= smoothed + GRANULARITY);
    }

    #[test]
    fn a_lying_ack_delay_can_not_push_the_estimate_below_the_minimum() {
        let mut rtt = Rtt::default();
        for _ in 0..100 {
            rtt.sample(20_000, 19_999);
        }
        assert!(rtt.smoothed() >= 19_000, "{}", rtt.smoothed());
    }

    #[test]
    fn the_probe_timeout_follows_the_path() {
        let (mut near, mut far) = (Rtt::default(), Rtt::default());
        for _ in 0..50 {
            near.sample(5_000, 0);
            far.sample(50_000_000, 0);
        }
        assert!(near.probe_timeout(100_000) < 1_000_000);
        assert!(far.probe_timeout(100_000) > 50_000_000);
    }
}
