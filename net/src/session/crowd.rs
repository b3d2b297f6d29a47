//! How many peers begin long messages at the same time: what each may send of one without a grant is cut down by that.
//!
//! What is sent without a grant, the receiver can't hold back: sixteen senders' 16 KiB meet in one switch's queue before any grant was given.
//! Homa measures its receivers' traffic to set how much of a message leaves unscheduled at which priority (SIGCOMM 2018, section 3.4);
//! where switches have no priorities there is only the amount. So that all together send about as much as one alone may, everyone is told
//! to halve it once for each doubling of the senders: in every grant, and at once where a message begins with more than that.

use crate::clock::Time;

/// Who begins within so many nanoseconds begins at the same time: a round trip, about.
const INTERVAL: u64 = 20_000;
/// A crowd is forgotten in so many nanoseconds.
const MEMORY: u64 = 10_000_000;
/// A sender, in the units of `peak`.
const ONE: u32 = 1 << 10;

/// A count of the peers that began long messages at the same time, of late.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// In the interval under way.
    senders: u32,
    /// The interval's number; never 0.
    interval: u32,
    since: Time,
    /// The largest of late, in parts of [`ONE`].
    peak: u32,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd { senders: 0, interval: 1, since: Time::ZERO, peak: 0 }
    }

    /// A peer begins a long message. `latest` is its own: the interval in which it was last counted, 0 at first.
    pub(crate) fn joined(&mut self, latest: &mut u32, now: Time) {
        let passed = now.nanos_since(self.since);
        if passed >= INTERVAL {
            let forgotten = u64::from(self.peak) * passed.min(MEMORY) / MEMORY;
            self.peak -= forgotten as u32;
            self.interval = self.interval.wrapping_add(1).max(1);
            (self.senders, self.since) = (0, now);
        }
        if *latest != self.interval {
            *latest = self.interval;
            self.senders += 1;
            self.peak = self.peak.max(self.senders.saturating_mul(ONE));
        }
    }

    /// The [`Fragment::shift`](crate::wire::Fragment::shift) that everyone should use.
    pub(crate) fn shift(&self) -> u8 {
        self.peak.div_ceil(ONE).max(1).next_power_of_two().trailing_zeros() as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some peers begin messages at once, again and again; what they are told each time.
    fn rounds(crowd: &mut Crowd, peers: &mut [u32], from: Time, count: u64) -> Vec<u8> {
        let mut told = Vec::new();
        for n in 0..count {
            let now = from.plus_nanos(n * 1_000_000);
            for latest in peers.iter_mut() {
                crowd.joined(latest, now);
                crowd.joined(latest, now);
            }
            told.push(crowd.shift());
        }
        told
    }

    #[test]
    fn one_peer_is_no_crowd_however_much_it_sends() {
        assert_eq!(rounds(&mut Crowd::new(), &mut [0], Time::ZERO, 5), [0; 5]);
    }

    #[test]
    fn each_doubling_of_the_senders_halves_what_each_may_send() {
        for (senders, shift) in [(2, 1), (3, 2), (4, 2), (5, 3), (16, 4), (17, 5)] {
            let mut peers = vec![0; senders];
            assert_eq!(rounds(&mut Crowd::new(), &mut peers, Time::ZERO, 3), [shift; 3], "{senders}");
        }
    }

    #[test]
    fn a_crowd_is_remembered_between_its_bursts_and_forgotten_afterwards() {
        let mut crowd = Crowd::new();
        rounds(&mut crowd, &mut [0; 16], Time::ZERO, 3);
        let told = rounds(&mut crowd, &mut [0], Time::from_nanos(4_000_000), 40);
        assert_eq!(told[0], 4);
        assert!(told.is_sorted_by(|before, after| before >= after), "{told:?}");
        assert_eq!(told[39], 0, "{told:?}");
        rounds(&mut crowd, &mut [0; 16], Time::from_nanos(60_000_000), 1);
        assert_eq!(rounds(&mut crowd, &mut [0], Time::from_nanos(80_000_000), 1), [0], "after a pause");
    }
}
