//! Sessions in the order of their time. Where all wait for equally long that is the order in which they come, and they need neither a timer each nor
//! a look at the others: who comes is put at the end, who is due is taken off the front.

use crate::clock::Time;

/// How many need no allocation.
const FEW: usize = 64;

/// An entry may be out of date, or of a session that is over: whoever takes it looks at what its session says.
#[derive(Debug)]
pub(super) struct Lineup {
    /// Those before `first` were taken.
    entries: Vec<(Time, u32)>,
    first: usize,
    soonest: Time,
}

impl Lineup {
    pub(super) fn new() -> Lineup {
        // Room for a few from the start: later, a first one may come when nobody expects an allocation.
        Lineup { entries: Vec::with_capacity(FEW), first: 0, soonest: Time::NEVER }
    }

    /// The time of who comes first; `NEVER` if nobody is there.
    #[inline]
    pub(super) fn soonest(&self) -> Time {
        self.soonest
    }

    /// Adds one; times come in order but for a few.
    #[inline]
    pub(super) fn add(&mut self, slot: u32, due: Time) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        match self.entries.last() {
            Some((last, _)) if due < *last => self.add_between(slot, due),
            _ => self.entries.push((due, slot)),
        }
        self.soonest = self.soonest.min(due);
    }

    #[cold]
    fn add_between(&mut self, slot: u32, due: Time) {
        let waiting = &self.entries[self.first..];
        let at = self.first + waiting.partition_point(|(other, _)| *other <= due);
        self.entries.insert(at, (due, slot));
    }

    /// Moves those that wait to the front, where those that were taken are as many at least: else there will be room for twice as many.
    #[cold]
    fn make_room(&mut self) {
        if self.first * 2 >= self.entries.len() {
            self.entries.drain(..self.first);
            self.first = 0;
        }
    }

    /// Takes the first if its time is not later than `by`.
    #[inline]
    pub(super) fn take(&mut self, by: Time) -> Option<(Time, u32)> {
        if self.soonest > by {
            return None;
        }
        let taken = self.entries.get(self.first).copied();
        self.first += 1;
        match self.entries.get(self.first) {
            Some((due, _)) => self.soonest = *due,
            None => {
                self.entries.clear();
                (self.first, self.soonest) = (0, Time::NEVER);
            }
        }
        taken
    }

    /// The one so many places behind the first.
    #[inline]
    pub(super) fn ahead(&self, count: usize) -> Option<u32> {
        self.entries.get(self.first + count).map(|(_, slot)| *slot)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.len() - self.first
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
