//! Which packet numbers were received, what to acknowledge, and when.

use zerocopy::little_endian::U16;

use crate::clock::Time;
use crate::wire::{Header, expand_number};

/// Acknowledge at once after this many packets. With as many as one burst brings besides that is less than what an acknowledgement tells of: as
/// far as nothing is missing, 128 packets below the largest.
const ACK_EVERY: u32 = 32;
/// Numbers that far below the largest are too old to tell new from duplicate.
const HISTORY: u64 = 128;

#[derive(Debug)]
pub(crate) struct Received {
    largest: u64,
    /// Bit n: `largest - 1 - n` was received, or there is no such number.
    below: u128,
    /// When `largest` came.
    at: Time,
    /// Packets that want an acknowledgement since the last one left.
    owed: u32,
    /// When the owed acknowledgement leaves on its own; `NEVER` if none is owed.
    due: Time,
}

impl Received {
    pub(crate) fn new() -> Received {
        Received { largest: 0, below: u128::MAX, at: Time::ZERO, owed: 0, due: Time::NEVER }
    }

    /// The full number of a packet, and whether it is new. Nothing is recorded yet.
    #[inline]
    pub(crate) fn check(&self, low: u32) -> (u64, bool) {
        let number = expand_number(low, self.largest.wrapping_add(1));
        let new = if number > self.largest {
            true
        } else {
            let back = self.largest - number;
            back != 0 && back <= HISTORY && number != 0 && self.below >> (back - 1) & 1 == 0
        };
        (number, new)
    }

    /// Records a new number. `eliciting`: the packet wants an acknowledgement; `delay`: how long that may wait.
    #[inline]
    pub(crate) fn record(&mut self, number: u64, now: Time, eliciting: bool, delay: u64) {
        let in_order = number == self.largest + 1;
        if in_order {
            self.below = self.below << 1 | 1;
            self.largest = number;
            self.at = now;
        } else if number > self.largest {
            let by = number - self.largest;
            self.below = if by > HISTORY {
                0
            } else if by == HISTORY {
                1 << (HISTORY - 1)
            } else {
                self.below << by | 1 << (by - 1)
            };
            self.largest = number;
            self.at = now;
        } else {
            self.below |= 1 << (self.largest - number - 1);
        }
        if eliciting {
            // A gap, or a late packet: the sender should know soon. Otherwise wait for something to ride on.
            self.owe(1, if in_order { now.plus_nanos(delay) } else { Time::ZERO });
        }
    }

    /// An acknowledgement of so many packets is owed, by then.
    #[inline(always)]
    fn owe(&mut self, count: u32, by: Time) {
        self.owed += count;
        self.due = if self.owed >= ACK_EVERY { Time::ZERO } else { self.due.min(by) };
    }

    /// The acknowledgement that was last built does not leave; it was [due](Received::due) then.
    pub(crate) fn owe_again(&mut self, due: Time) {
        if due != Time::NEVER {
            self.owe(1, due);
        }
    }

    /// Whether the latest packet's number has this low half.
    #[inline]
    pub(crate) fn is_latest(&self, low: u32) -> bool {
        self.largest as u32 == low
    }

    /// Records the `count` numbers that follow the latest, as [`Received::record`] does one by one.
    pub(crate) fn record_following(&mut self, count: u32, now: Time, delay: u64) {
        self.below = self.below.unbounded_shl(count) | !u128::MAX.unbounded_shl(count);
        self.largest += u64::from(count);
        self.at = now;
        self.owe(count, now.plus_nanos(delay));
    }

    /// When the acknowledgement leaves on its own; `NEVER` if none is owed.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Whether nothing is missing of all that an acknowledgement can tell of.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.below == u128::MAX
    }

    /// What the header says: largest, bitmap, and for how long this was held back with whether the 64 below the bitmap are there. Clears
    /// what is owed.
    #[inline]
    pub(crate) fn acknowledge(&mut self, now: Time) -> (u32, u64, U16) {
        let run = (self.below >> 64) as u64 == u64::MAX;
        let (largest, held_back) = self.acknowledge_all(now);
        (largest, self.below as u64, Header::held_back(held_back, run))
    }

    /// The same where nothing is missing: the largest, and for how many nanoseconds this was held back.
    #[inline]
    pub(crate) fn acknowledge_all(&mut self, now: Time) -> (u32, u64) {
        self.owed = 0;
        self.due = Time::NEVER;
        (self.largest as u32, now.nanos_since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::Kind;

    #[test]
    fn a_run_in_order_is_acknowledged_after_the_delay_and_a_gap_at_once() {
        let mut received = Received::new();
        received.record(1, Time::from_nanos(10), true, 100);
        assert_eq!(received.due(), Time::from_nanos(110));
        received.record(2, Time::from_nanos(50), true, 100);
        assert_eq!(received.due(), Time::from_nanos(110));
        received.record(4, Time::from_nanos(60), true, 100);
        assert_eq!(received.due(), Time::ZERO);
        let (largest, bits, _) = received.acknowledge(Time::from_nanos(60));
        assert_eq!((largest, bits & 0b111), (4, 0b110));
        assert_eq!(received.due(), Time::NEVER);
    }

    #[test]
    fn what_can_not_wait_takes_along_what_can_and_what_can_wait_delays_nothing() {
        let mut received = Received::new();
        received.record(1, Time::from_nanos(10), true, 100);
        received.record(2, Time::from_nanos(20), true, 0);
        assert_eq!(received.due(), Time::from_nanos(20));
        received.record_following(1, Time::from_nanos(30), 100);
        assert_eq!(received.due(), Time::from_nanos(20));
        received.acknowledge(Time::from_nanos(40));
        received.record(4, Time::from_nanos(50), true, 100);
        received.record_following(2, Time::from_nanos(60), 0);
        assert_eq!(received.due(), Time::from_nanos(60));
    }

    #[test]
    fn numbers_that_follow_are_recorded_together_as_one_by_one() {
        for (before, count) in [(0, 1), (1, 31), (5, 32), (40, 64), (3, 127), (3, 128), (3, 200)] {
            let mut one_by_one = Received::new();
            one_by_one.record(2 + before, Time::from_nanos(7), true, 100);
            one_by_one.acknowledge(Time::from_nanos(8));
            let mut together = Received { ..one_by_one };
            for number in 1..=u64::from(count) {
                one_by_one.record(2 + before + number, Time::from_nanos(10), true, 100);
            }
            together.record_following(count, Time::from_nanos(10), 100);
            assert!(together.is_latest(2 + before as u32 + count));
            assert_eq!(format!("{together:?}"), format!("{one_by_one:?}"), "{count} after {before}");
        }
    }

    proptest! {
        #[test]
        fn every_number_is_new_exactly_once(numbers in prop::collection::vec(1u64..300, 1..400)) {
            let mut received = Received::new();
            let mut seen = BTreeSet::new();
            let mut largest = 0;
            for number in numbers {
                let (full, new) = received.check(number as u32);
                prop_assert_eq!(full, number);
                let too_old = number + HISTORY < largest;
                prop_assert_eq!(new, !too_old && !seen.contains(&number), "{}", number);
                if new {
                    received.record(number, Time::ZERO, true, 0);
                    seen.insert(number);
                    largest = largest.max(number);
                    let (ack, bits, delay) = received.acknowledge(Time::ZERO);
                    let run = Header { ack_delay: delay, ..Header::new(Kind::Ack) }.ack_run();
                    prop_assert_eq!(run, (65..=128).all(|back| back >= largest || seen.contains(&(largest - back))));
                    prop_assert_eq!(u64::from(ack), largest);
                    for back in 1..=64u64.min(largest - 1) {
                        prop_assert_eq!(bits >> (back - 1) & 1 == 1, seen.contains(&(largest - back)));
                    }
                }
            }
        }
    }
}
