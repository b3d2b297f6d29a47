//! Which message leaves next: by class, then the one with least left, with every so often the oldest. Several packets of it leave in a row: the
//! pick is made once for them, and the peer takes them together.

use super::slots::Ticket;
use super::{OLDEST_AFTER, Outgoing};
use crate::class::Class;
use crate::endpoint::CONTROL_SLOTS;

/// The message of which data leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picked {
    pub(super) ticket: Ticket,
    pub(super) class: usize,
    /// It had least left in its class.
    pub(super) shortest: bool,
    /// It is of several packets.
    pub(super) is_long: bool,
}

impl Picked {
    fn new(class: usize, ticket: Ticket) -> Picked {
        Picked { ticket, class, shortest: false, is_long: false }
    }

    /// Whether the message is of several packets.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }
}

impl Outgoing {
    /// The most urgent class with something to send.
    #[inline]
    pub(crate) fn most_urgent(&self) -> Option<usize> {
        if self.ready == 0 { None } else { Some(self.ready.trailing_zeros() as usize) }
    }

    /// The most urgent class with a message of one packet to send.
    pub(crate) fn most_urgent_small(&self) -> Option<usize> {
        self.lists.small.iter().position(|list| !list.is_empty())
    }

    /// Brings a class's bit up to date, after something was taken off its lists.
    #[inline]
    pub(super) fn look_ready(&mut self, class: usize) {
        if self.lists.small[class].is_empty() && self.lists.large[class].is_empty() {
            self.ready &= !(1 << class);
        }
    }

    /// Takes the next message off its list. (It is listed again if it has more to send.)
    #[inline]
    pub(super) fn pick(&mut self) -> Option<Picked> {
        if self.until_oldest == 0 {
            self.until_oldest = OLDEST_AFTER;
            if let Some(picked) = self.pick_oldest() {
                self.shortest_last = 0;
                return Some(picked);
            }
        }
        loop {
            let class = self.most_urgent()?;
            if let Some(ticket) = self.lists.small[class].pop_front() {
                return Some(Picked::new(class, ticket));
            }
            if self.shortest_last & 1 << class != 0
                && let Some(ticket) = self.lists.large[class].pop()
            {
                self.shortest_last &= !(1 << class);
                return Some(Picked { shortest: true, ..Picked::new(class, ticket) });
            }
            let data = &self.data;
            let remaining = |(_, ticket): &(usize, &Ticket)| data.get(ticket.slot).remaining(self.fragment());
            if let Some((at, _)) = self.lists.large[class].iter().enumerate().min_by_key(remaining) {
                let ticket = self.lists.large[class].swap_remove(at);
                return Some(Picked { shortest: true, ..Picked::new(class, ticket) });
            }
            self.look_ready(class);
        }
    }

    pub(super) fn pick_small(&mut self) -> Option<Picked> {
        let class = self.most_urgent_small()?;
        Some(Picked::new(class, self.lists.small[class].pop_front()?))
    }

    fn pick_oldest(&mut self) -> Option<Picked> {
        let data = &self.data;
        let order = |ticket: &Ticket| data.get(ticket.slot).order;
        let small =
            (0..Class::COUNT).filter_map(|class| self.lists.small[class].front().map(|ticket| (order(ticket), class, None)));
        let large = (0..Class::COUNT)
            .flat_map(|class| self.lists.large[class].iter().enumerate().map(move |(at, ticket)| (ticket, class, at)))
            .map(|(ticket, class, at)| (order(ticket), class, Some(at)));
        let (_, class, at) = small.chain(large).min_by_key(|(order, ..)| *order)?;
        let ticket = match at {
            None => self.lists.small[class].pop_front()?,
            Some(at) => self.lists.large[class].swap_remove(at),
        };
        Some(Picked::new(class, ticket))
    }

    /// Forgets tickets of messages that were given up, once they are most of a list: while the window is closed nothing else would.
    pub(super) fn drop_stale(&mut self, class: usize) {
        let data = &mut self.data;
        let worth_it = |len: usize| len > 2 * data.len() + 16;
        self.shortest_last = 0;
        let (small, large) = (worth_it(self.lists.small[class].len()), worth_it(self.lists.large[class].len()));
        if small {
            self.lists.small[class].retain(|ticket| data.find(*ticket).is_some());
        }
        if large {
            self.lists.large[class].retain(|ticket| data.find(*ticket).is_some());
        }
        self.look_ready(class);
    }

    /// Puts a message on the list where it belongs, once.
    #[inline]
    pub(super) fn list(&mut self, number: u16) {
        let slot = self.slots_of(number).get_mut(number);
        if slot.listed {
            return;
        }
        slot.listed = true;
        let ticket = Ticket { slot: number, sequence: slot.sequence };
        let (class, is_long) = (slot.class, slot.long.is_some());
        if number < CONTROL_SLOTS {
            self.lists.urgent.push_back(ticket);
            return;
        }
        self.ready |= 1 << class;
        if is_long {
            self.shortest_last &= !(1 << class);
            self.lists.large[usize::from(class)].push(ticket);
        } else {
            self.lists.small[usize::from(class)].push_back(ticket);
        }
    }
}
