//! Which message leaves next: by class, then the one with least left, with every so often the oldest.

use super::slots::Ticket;
use super::{OLDEST_SHARE, Outgoing};
use crate::class::Class;
use crate::endpoint::CONTROL_SLOTS;

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

    /// Takes the next message off its list, and says which class's. (It is listed again if it has more to send.)
    #[inline]
    pub(super) fn pick(&mut self) -> Option<(usize, Ticket)> {
        self.picks = self.picks.wrapping_add(1);
        if self.picks.is_multiple_of(OLDEST_SHARE)
            && let Some(picked) = self.pick_oldest()
        {
            self.shortest_last = 0;
            return Some(picked);
        }
        loop {
            let class = self.most_urgent()?;
            if let Some(ticket) = self.lists.small[class].pop_front() {
                return Some((class, ticket));
            }
            if self.shortest_last & 1 << class != 0
                && let Some(ticket) = self.lists.large[class].pop()
            {
                self.shortest_last &= !(1 << class);
                self.picked_shortest = true;
                return Some((class, ticket));
            }
            let data = &self.data;
            let remaining = |(_, ticket): &(usize, &Ticket)| data.get(ticket.slot).remaining(self.fragment());
            if let Some((at, _)) = self.lists.large[class].iter().enumerate().min_by_key(remaining) {
                self.picked_shortest = true;
                return Some((class, self.lists.large[class].swap_remove(at)));
            }
            self.look_ready(class);
        }
    }

    pub(super) fn pick_small(&mut self) -> Option<(usize, Ticket)> {
        let class = self.most_urgent_small()?;
        Some((class, self.lists.small[class].pop_front()?))
    }

    fn pick_oldest(&mut self) -> Option<(usize, Ticket)> {
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
        Some((class, ticket))
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
