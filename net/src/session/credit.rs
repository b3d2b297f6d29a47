//! How much an endpoint lets all its senders have on their way to it, while several of them compete and small messages are about.
//!
//! A switch's queue before a host holds whatever the host's senders may send beyond what its cable takes, and every small message waits behind
//! that. So the receiver bounds the *sum* of what it has granted and not yet received, as SIRD does ("A Sender-Informed, Receiver-Driven
//! Datacenter Transport Protocol", NSDI 2025, section 4: one bucket of credit a receiver, of about one and a half times what the path holds),
//! and gives it to the shortest message first. How much is right depends on what comes without being asked for: where small messages take
//! half the cable, half the credit is a queue. That shows in how long a grant takes to bring its first byte, beyond the path's shortest
//! round trip; the credit follows that delay as Swift's window does (SIGCOMM 2020, section 3.1): it shrinks in proportion to the
//! excess, once a round trip and by half at most, and grows by an eighth a round trip while it is what holds messages up.

use super::congestion::SLACK;
use crate::clock::Time;

/// Packets that are worth a grant however long the queue is.
const LEAST: usize = 4;

/// The bytes granted and not yet received that all senders share.
#[derive(Debug)]
pub(crate) struct Credit {
    bytes: usize,
    least: usize,
    /// It was not enough for what could have been sent, since it last grew.
    exhausted: bool,
    changed: Time,
}

impl Credit {
    /// A credit of `bytes` to begin with, for packets of up to `packet` bytes.
    pub(crate) fn new(bytes: usize, packet: usize) -> Credit {
        Credit { bytes, least: LEAST * packet, exhausted: false, changed: Time::ZERO }
    }

    /// The credit, which is never above `ceiling`.
    pub(crate) fn within(&mut self, ceiling: usize) -> usize {
        self.bytes = self.bytes.min(ceiling);
        self.bytes
    }

    /// Messages had to wait for credit.
    pub(crate) fn exhaust(&mut self) {
        self.exhausted = true;
    }

    /// A grant brought its first byte after `delay` nanoseconds, over a path whose shortest round trip is `trip`.
    pub(crate) fn answered(&mut self, delay: u64, trip: u64, now: Time) {
        if now < self.changed.plus_nanos(trip) {
            return;
        }
        let target = trip.saturating_add(SLACK);
        if delay > target {
            // Four fifths of the excess's share, and half at most: Swift's beta and max_mdf.
            let cut = (self.bytes as u128 * u128::from(delay - target) * 4 / (u128::from(delay) * 5)) as usize;
            self.bytes = (self.bytes - cut.min(self.bytes / 2)).max(self.least);
        } else if std::mem::take(&mut self.exhausted) {
            self.bytes += self.bytes / 8;
        } else {
            return;
        }
        self.changed = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: u64 = 10_000;

    fn answer(credit: &mut Credit, delay: u64, times: u64) -> usize {
        for n in 1..=times {
            let now = credit.changed.plus_nanos(TRIP);
            credit.exhaust();
            credit.answered(delay, TRIP, now);
            assert_eq!(credit.changed, now, "answer {n}");
        }
        credit.within(usize::MAX)
    }

    #[test]
    fn a_queue_shrinks_the_credit_to_some_packets_and_an_empty_one_lets_it_grow_to_the_ceiling() {
        let mut credit = Credit::new(100_000, 1_000);
        let little = answer(&mut credit, TRIP + SLACK + 1_000, 1);
        assert!((90_000..100_000).contains(&little), "a short queue took {little}");
        assert!(answer(&mut credit, 100 * TRIP, 1) >= little / 2);
        assert_eq!(answer(&mut credit, 100 * TRIP, 20), 4_000);
        assert!(answer(&mut credit, TRIP + SLACK, 40) > 200_000);
        assert_eq!(credit.within(64_000), 64_000);
    }

    #[test]
    fn it_changes_once_a_round_trip_and_does_not_grow_unless_it_was_too_little() {
        let mut credit = Credit::new(10_000, 1_000);
        credit.answered(TRIP, TRIP, Time::from_nanos(TRIP));
        assert_eq!(credit.within(usize::MAX), 10_000);
        credit.exhaust();
        credit.answered(TRIP, TRIP, Time::from_nanos(TRIP));
        assert_eq!(credit.within(usize::MAX), 11_250);
        credit.exhaust();
        credit.answered(TRIP, TRIP, Time::from_nanos(2 * TRIP - 1));
        credit.answered(100 * TRIP, TRIP, Time::from_nanos(2 * TRIP - 1));
        assert_eq!(credit.within(usize::MAX), 11_250);
    }
}
