//! Memory that a session needs only while something of it is under way. Where there are many sessions, of which most are only kept, they pass it
//! on to each other: who takes it finds it near, for another had it just now, and who is idle has none.

use super::Session;
use super::fifo::Fifo;
use super::outgoing::SpareSlots;
use super::recovery::Flight;

/// So many sessions' worth is kept at most; who gives more back frees it.
const MOST: usize = 4096;

/// So much is kept without an allocation.
const FEW: usize = 64;

/// What sessions gave back.
#[derive(Debug)]
pub(crate) struct Spare {
    /// Whether sessions give anything back: where they are few, each keeps its own.
    pub(crate) many: bool,
    lent: Fifo<Lent>,
}

/// What one session gave back.
#[derive(Debug, Default)]
struct Lent {
    slots: SpareSlots,
    flight: Flight,
}

impl Spare {
    pub(crate) fn new() -> Spare {
        Spare { many: false, lent: Fifo::with_places(FEW) }
    }
}

impl Session {
    /// Takes what is needed to send something, if there is any and the session has none.
    #[inline(always)]
    pub(super) fn borrow(&mut self, spare: &mut Spare) {
        if self.outgoing.has_no_slots() {
            self.borrow_now(spare);
        }
    }

    fn borrow_now(&mut self, spare: &mut Spare) {
        if !spare.lent.is_empty() {
            let Lent { slots, flight } = spare.lent.pop_back();
            self.outgoing.take_slots(slots);
            self.recovery.take_flight(flight);
        }
    }

    /// Gives back what is not needed until something is sent again.
    #[inline(always)]
    pub(super) fn give_back(&mut self, spare: &mut Spare) {
        if spare.many && !self.recovery.is_waiting() {
            self.give_back_now(spare);
        }
    }

    fn give_back_now(&mut self, spare: &mut Spare) {
        if let Some(slots) = self.outgoing.give_slots() {
            let flight = self.recovery.give_flight();
            if spare.lent.len() < MOST {
                let lent = spare.lent.begin();
                // Part by part, over what holds nothing.
                std::mem::forget(std::mem::replace(&mut lent.slots, slots));
                std::mem::forget(std::mem::replace(&mut lent.flight, flight));
            }
        }
    }
}
