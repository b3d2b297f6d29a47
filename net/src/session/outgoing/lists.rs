//! The lists of what waits for its turn. A session that sends no faster than its peer takes it, or nothing, needs none: they are made for the first
//! that waits.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::slots::{Slots, Ticket, Waiting};
use crate::class::Class;
use crate::endpoint::CONTROL_SLOTS;

#[derive(Debug)]
pub(super) struct Lists {
    /// Control messages with something to send.
    pub(super) urgent: VecDeque<Ticket>,
    /// Single-packet messages with something to send, by class.
    pub(super) small: [VecDeque<Ticket>; Class::COUNT],
    /// Longer messages with something to send, by class.
    pub(super) large: [Vec<Ticket>; Class::COUNT],
    /// Messages that wait for a slot, by class.
    pub(super) waiting: [VecDeque<Waiting>; Class::COUNT],
}

/// What stands for lists that there are not yet.
const EMPTY: &Lists = &Lists::new();

impl Lists {
    const fn new() -> Lists {
        Lists {
            urgent: VecDeque::new(),
            small: [const { VecDeque::new() }; Class::COUNT],
            large: [const { Vec::new() }; Class::COUNT],
            waiting: [const { VecDeque::new() }; Class::COUNT],
        }
    }
}

/// Lists that read as empty until one is changed.
#[derive(Debug, Default)]
pub(super) struct OnDemand(Option<Box<Lists>>);

impl Deref for OnDemand {
    type Target = Lists;

    #[inline]
    fn deref(&self) -> &Lists {
        self.0.as_deref().unwrap_or(EMPTY)
    }
}

impl DerefMut for OnDemand {
    #[inline]
    fn deref_mut(&mut self) -> &mut Lists {
        self.0.get_or_insert_with(|| Box::new(Lists::new()))
    }
}

/// The slots of control messages, of which most sessions never send one.
#[derive(Debug, Default)]
pub(super) struct ControlSlots(Option<Box<Slots>>);

/// What stands for slots that there are not yet.
static NONE: Slots = Slots::new(0, CONTROL_SLOTS);

impl Deref for ControlSlots {
    type Target = Slots;

    #[inline]
    fn deref(&self) -> &Slots {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for ControlSlots {
    #[inline]
    fn deref_mut(&mut self) -> &mut Slots {
        self.0.get_or_insert_with(|| Box::new(Slots::new(0, CONTROL_SLOTS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_makes_no_lists_and_the_first_change_does() {
        let mut lists = OnDemand::default();
        assert!(lists.small.iter().all(VecDeque::is_empty) && lists.0.is_none());
        lists.large[1].push(Ticket { slot: 9, sequence: 1 });
        assert_eq!(lists.large.each_ref().map(Vec::len), [0, 1, 0, 0]);
        assert!(EMPTY.large.iter().all(Vec::is_empty));
    }
}
