//! The places that a peer's messages arrive in. Most sessions never use more than the first: that one is part of the session.

use std::ops::{Index, IndexMut};

use thin_vec::ThinVec;

use super::Slot;
use crate::endpoint::CONTROL_SLOTS;

/// The number of the place that a peer uses for data as long as it has one message under way.
const FIRST: usize = CONTROL_SLOTS as usize;

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Places {
    first: Slot,
    /// Those with larger numbers, and with smaller ones: for data, and for control messages.
    others: ThinVec<Slot>,
    control: ThinVec<Slot>,
}

impl Places {
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Slot> {
        match at {
            FIRST => Some(&self.first),
            0..FIRST => self.control.get(at),
            _ => self.others.get(at - FIRST - 1),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        match at {
            FIRST => Some(&mut self.first),
            0..FIRST => self.control.get_mut(at),
            _ => self.others.get_mut(at - FIRST - 1),
        }
    }

    /// The place with this number, which is made if it is not there.
    #[inline]
    pub(super) fn make(&mut self, at: usize) -> &mut Slot {
        let (list, at) = match at {
            FIRST => return &mut self.first,
            0..FIRST => (&mut self.control, at),
            _ => (&mut self.others, at - FIRST - 1),
        };
        if at >= list.len() {
            if list.is_empty() {
                // Most sessions never need more.
                list.reserve_exact(at + 1);
            }
            list.extend(std::iter::repeat_with(Slot::default).take(at + 1 - list.len()));
        }
        &mut list[at]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        std::iter::once(&self.first).chain(&self.others).chain(&self.control)
    }

    /// The numbers of all places that there are.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.control.len()).chain(FIRST..=FIRST + self.others.len())
    }
}

impl Index<usize> for Places {
    type Output = Slot;

    #[inline]
    fn index(&self, at: usize) -> &Slot {
        self.get(at).expect("a place that was made")
    }
}

impl IndexMut<usize> for Places {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        self.get_mut(at).expect("a place that was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_place_of_its_own() {
        let mut places = Places::default();
        assert_eq!(places.numbers().collect::<Vec<_>>(), [FIRST]);
        for at in [FIRST, 1, FIRST - 1, FIRST + 1, FIRST + 100] {
            places.make(at).sequence = at as u32 + 1;
        }
        for at in 0..FIRST + 110 {
            let known = [FIRST, 1, FIRST - 1, FIRST + 1, FIRST + 100].contains(&at);
            let expected = (at <= FIRST + 100).then_some(if known { at as u32 + 1 } else { 0 });
            assert_eq!(places.get(at).map(|slot| slot.sequence), expected, "{at}");
            assert_eq!(places.get_mut(at).map(|slot| slot.sequence), expected, "{at}");
        }
        assert_eq!(places.numbers().collect::<Vec<_>>(), (0..=FIRST + 100).collect::<Vec<_>>());
        assert_eq!(places.iter().filter(|slot| slot.sequence > 0).count(), 5);
    }
}
