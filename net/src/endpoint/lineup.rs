//! Sessions in the order of their time. Where all wait for equally long that is the order in which they come, and they need neither a timer each nor
//! a look at the others: who comes is put at the end, who is due is taken off the front.

use std::collections::VecDeque;

use crate::clock::Time;

/// How many need no allocation.
const FEW: usize = 64;

/// An entry may be out of date, or of a session that is over: whoever takes it looks at what its session says.
#[derive(Debug)]
pub(super) struct Lineup {
    entries: VecDeque<(Time, u32)>,
    /// The first one's time; `NEVER` while there is none.
    soonest: Time,
}

impl Lineup {
    pub(super) fn new() -> Lineup {
        // Room for a few from the start: later, a first one may come when nobody expects an allocation.
        Lineup { entries: VecDeque::with_capacity(FEW), soonest: Time::NEVER }
    }

    /// When the first one is due.
    #[inline]
    pub(super) fn soonest(&self) -> Time {
        self.soonest
    }

    /// Adds the session in a slot: to the end, unless it is due before others.
    #[inline]
    pub(super) fn add(&mut self, slot: u32, due: Time) {
        match self.entries.back() {
            Some((last, _)) if due < *last => {
                let at = self.entries.partition_point(|(other, _)| *other <= due);
                self.entries.insert(at, (due, slot));
            }
            _ => self.entries.push_back((due, slot)),
        }
        self.soonest = self.soonest.min(due);
    }

    /// Takes the first one that is due by then, with its time.
    #[inline]
    pub(super) fn take(&mut self, by: Time) -> Option<(Time, u32)> {
        if self.soonest > by {
            return None;
        }
        let first = self.entries.pop_front();
        self.soonest = self.entries.front().map_or(Time::NEVER, |(due, _)| *due);
        first
    }

    /// The slot that is taken so many after the next one.
    #[inline]
    pub(super) fn ahead(&self, count: usize) -> Option<u32> {
        self.entries.get(count).map(|(_, slot)| *slot)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_come_in_the_order_of_their_time_and_none_before_it(dues in prop::collection::vec(0u64..50, 0..60), steps in 1u64..10) {
            let mut lineup = Lineup::new();
            for (slot, due) in dues.iter().enumerate() {
                lineup.add(slot as u32, Time::from_nanos(*due));
                prop_assert_eq!(Some(lineup.soonest().as_nanos()), dues[..=slot].iter().min().copied());
            }
            // Of equal times the first comes first: as a stable sort has it.
            let mut expected: Vec<(u64, u32)> = (0..).zip(&dues).map(|(slot, due)| (*due, slot)).collect();
            expected.sort_by_key(|(due, _)| *due);
            let mut taken = Vec::new();
            for by in (0..=50 + steps).step_by(steps as usize) {
                while let Some((due, slot)) = lineup.take(Time::from_nanos(by)) {
                    prop_assert!(due.as_nanos() <= by);
                    taken.push((due.as_nanos(), slot));
                }
                prop_assert!(lineup.soonest().as_nanos() > by, "one that is due was left");
            }
            prop_assert_eq!(taken, expected);
            prop_assert_eq!((lineup.len(), lineup.soonest()), (0, Time::NEVER));
        }
    }
}
