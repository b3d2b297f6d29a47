//! A hierarchical timing wheel over small indices (Varghese and Lauck, SOSP 1987): insert, move and cancel in constant time.

use crate::clock::Time;

/// Nanoseconds of a tick, as a power of two: about 4 us. A timer never fires early, and at most one tick late.
const TICK_BITS: u32 = 12;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Six levels of 64 slots reach 2^48 ns, over three days; anything later waits in the last level and is looked at again.
const LEVELS: usize = 6;
const NIL: u32 = u32::MAX;

/// Timers named by small dense indices (session slots, call slots): one timer each, later insertions replacing earlier ones.
/// Memory: 24 bytes for each index up to the largest used.
#[derive(Debug)]
pub struct Wheel {
    /// Ticks up to which everything has fired.
    elapsed: u64,
    heads: Box<[[u32; SLOTS]; LEVELS]>,
    occupied: [u64; LEVELS],
    entries: Vec<Entry>,
    armed: usize,
    /// No timer is due before this: a lower bound, so that asking costs one comparison.
    soonest: Time,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    due: u64,
    next: u32,
    previous: u32,
    /// Level times 64 plus slot; `NIL` while not armed.
    place: u32,
}

impl Default for Wheel {
    fn default() -> Wheel {
        Wheel::new()
    }
}

impl Wheel {
    /// A wheel with no timers.
    pub fn new() -> Wheel {
        Wheel {
            elapsed: 0,
            heads: Box::new([[NIL; SLOTS]; LEVELS]),
            occupied: [0; LEVELS],
            entries: Vec::new(),
            armed: 0,
            soonest: Time::NEVER,
        }
    }

    /// How many timers are armed.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Whether `index` has a timer.
    pub fn is_armed(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.place != NIL)
    }

    /// Arms the timer of `index` for `due`, in place of an earlier one. [`Time::NEVER`] disarms it.
    pub fn insert(&mut self, index: u32, due: Time) {
        self.cancel(index);
        if due == Time::NEVER {
            return;
        }
        if self.entries.len() <= index as usize {
            self.entries.resize(index as usize + 1, Entry { due: 0, next: NIL, previous: NIL, place: NIL });
        }
        let ticks = due.as_nanos().div_ceil(1 << TICK_BITS);
        self.link(index, ticks);
        self.armed += 1;
        self.soonest = self.soonest.min(due);
    }

    /// Whether [`Wheel::expire`] may have something to do.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.soonest <= now
    }

    /// Disarms the timer of `index`, if it has one.
    pub fn cancel(&mut self, index: u32) {
        if self.is_armed(index) {
            self.unlink(index);
            self.armed -= 1;
        }
    }

    /// Appends to `fired`, earliest first to within a tick, the indices whose timers are due at `now`, and disarms them.
    pub fn expire(&mut self, now: Time, fired: &mut Vec<u32>) {
        let target = now.as_nanos() >> TICK_BITS;
        while let Some((level, slot, start)) = self.earliest() {
            if start > target {
                break;
            }
            self.elapsed = self.elapsed.max(start);
            let mut index = std::mem::replace(&mut self.heads[level][slot], NIL);
            self.occupied[level] &= !(1 << slot);
            while index != NIL {
                let Entry { due, next, .. } = self.entries[index as usize];
                self.entries[index as usize].place = NIL;
                if due <= target {
                    self.armed -= 1;
                    fired.push(index);
                } else {
                    self.link(index, due);
                }
                index = next;
            }
        }
        self.elapsed = self.elapsed.max(target);
        self.soonest = self.earliest().map_or(Time::NEVER, |(_, _, start)| start_of(start));
    }

    /// When to call [`Wheel::expire`] next: not later than the earliest timer, possibly earlier.
    pub fn next(&self) -> Option<Time> {
        self.earliest().map(|(_, _, start)| start_of(start).max(self.soonest))
    }

    /// The first occupied slot: level, slot, and the tick at which it begins (for level 0 the due tick itself).
    fn earliest(&self) -> Option<(usize, usize, u64)> {
        if self.armed == 0 {
            return None;
        }
        let mut best: Option<(usize, usize, u64)> = None;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let position = (self.elapsed >> shift) as u32 & (SLOTS as u32 - 1);
            let ahead = u64::from(self.occupied[level].rotate_right(position).trailing_zeros());
            let slot = (u64::from(position) + ahead) as usize & (SLOTS - 1);
            let start = (((self.elapsed >> shift) + ahead) << shift).max(self.elapsed);
            if best.is_none_or(|(_, _, earliest)| start < earliest) {
                best = Some((level, slot, start));
            }
        }
        best
    }

    fn link(&mut self, index: u32, due: u64) {
        let ticks = due.max(self.elapsed);
        // The level whose slots are just fine enough to tell `ticks` from now.
        let distance = (ticks ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = (((63 - distance.leading_zeros()) / SLOT_BITS) as usize).min(LEVELS - 1);
        let shift = SLOT_BITS * level as u32;
        // Beyond the last level's reach: as far ahead as it goes, to be looked at again there.
        let position = (ticks >> shift).min((self.elapsed >> shift) + SLOTS as u64 - 1);
        let slot = position as usize & (SLOTS - 1);
        let head = self.heads[level][slot];
        if head != NIL {
            self.entries[head as usize].previous = index;
        }
        self.entries[index as usize] = Entry { due: ticks, next: head, previous: NIL, place: (level * SLOTS + slot) as u32 };
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Entry { next, previous, place, .. } = self.entries[index as usize];
        let (level, slot) = (place as usize / SLOTS, place as usize % SLOTS);
        if previous == NIL {
            self.heads[level][slot] = next;
            if next == NIL {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.entries[previous as usize].next = next;
        }
        if next != NIL {
            self.entries[next as usize].previous = previous;
        }
        self.entries[index as usize].place = NIL;
    }
}

fn start_of(tick: u64) -> Time {
    Time::from_nanos(tick.saturating_mul(1 << TICK_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_timer_fires_once_never_early_and_at_most_a_tick_late() {
        let mut wheel = Wheel::new();
        wheel.insert(3, Time::from_nanos(1_000_000));
        let mut fired = Vec::new();
        wheel.expire(Time::from_nanos(999_999), &mut fired);
        assert!(fired.is_empty());
        wheel.expire(Time::from_nanos(1_000_000 + (1 << TICK_BITS)), &mut fired);
        assert_eq!(fired, [3]);
        wheel.expire(Time::from_nanos(1 << 40), &mut fired);
        assert_eq!(fired, [3]);
    }

    #[test]
    fn a_timer_beyond_the_horizon_still_fires_in_its_time() {
        let mut wheel = Wheel::new();
        let due = Time::from_nanos(1 << 52);
        wheel.insert(0, due);
        let (mut fired, mut steps) = (Vec::new(), 0);
        while fired.is_empty() {
            let next = wheel.next().unwrap();
            assert!(next <= due + std::time::Duration::from_nanos(1 << TICK_BITS));
            wheel.expire(next, &mut fired);
            steps += 1;
        }
        assert!(steps < 1000, "{steps} looks to wait for one timer");
    }

    proptest! {
        #[test]
        fn the_wheel_agrees_with_a_sorted_map(steps in prop::collection::vec((0u32..20, 0u64..1 << 34, 0u8..4), 1..200)) {
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0u64;
            for (index, span, action) in steps {
                match action {
                    0 => { wheel.cancel(index); model.remove(&index); }
                    1 | 2 => {
                        let due = now + (span >> (index % 4 * 8));
                        wheel.insert(index, Time::from_nanos(due));
                        model.insert(index, due);
                    }
                    _ => {
                        now += span >> (index % 4 * 8);
                        let mut fired = Vec::new();
                        wheel.expire(Time::from_nanos(now), &mut fired);
                        for index in fired {
                            let due = model.remove(&index).expect("fired twice, or without being armed");
                            prop_assert!(due <= now, "fired early");
                        }
                        for due in model.values() {
                            prop_assert!(*due + (1 << TICK_BITS) > now, "missed");
                        }
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                prop_assert!(model.values().all(|due| *due + (1 << TICK_BITS) > now || wheel.is_due(Time::from_nanos(now))));
                if let (Some(next), Some(earliest)) = (wheel.next(), model.values().min()) {
                    prop_assert!(next.as_nanos() < earliest + (1 << TICK_BITS));
                }
            }
        }
    }
}
