//! What the poller runs itself: lines of tickets by class, one set for handlers that end before they return, one for futures.
//!
//! Futures run side by side, up to a limit; past it they wait here, where classes order them and where deadlines, cancels and hooks
//! reach them. What is not a future never waits for one.

use std::collections::VecDeque;

use tautline_net::class::Class;
use tautline_net::sync::claim::Ticket;

/// Which set of lines an entry of the poller's own waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Short = 0,
    Future = 1,
}

/// The lines. They hold void tickets too: of entries that have ended, or were demoted.
#[derive(Debug)]
pub(crate) struct Own {
    lines: [[VecDeque<Ticket>; Class::COUNT]; 2],
    /// Entries that wait in each lane.
    waiting: [usize; 2],
    /// Futures that have not ended, and how many may be.
    running: usize,
    concurrency: usize,
}

impl Own {
    pub(crate) fn new(concurrency: usize) -> Own {
        Own { lines: Default::default(), waiting: [0; 2], running: 0, concurrency: concurrency.max(1) }
    }

    /// An entry was made that waits in this lane.
    pub(crate) fn arrived(&mut self, lane: Lane) {
        self.waiting[lane as usize] += 1;
    }

    /// An entry waits no more: it was claimed, to run or to be dropped.
    pub(crate) fn left(&mut self, lane: Lane) {
        self.waiting[lane as usize] -= 1;
    }

    /// Whether there is an entry to run that may run.
    #[inline]
    pub(crate) fn has_runnable(&self) -> bool {
        // Without branches: this is asked for every request, and mostly there is neither.
        (self.waiting[Lane::Short as usize] > 0) | self.may_start_future()
    }

    #[inline]
    fn may_start_future(&self) -> bool {
        (self.waiting[Lane::Future as usize] > 0) & (self.running < self.concurrency)
    }

    /// Queues a ticket. `is_void` tells tickets that are of no use any more.
    pub(crate) fn push(&mut self, lane: Lane, class: Class, ticket: Ticket, is_void: impl Fn(Ticket) -> bool) {
        let line = &mut self.lines[lane as usize][class.index()];
        // As many void tickets as entries: time to sweep, at a cost of one look for each cancellation.
        if line.len() > 64 + 2 * self.waiting[lane as usize] {
            line.retain(|&ticket| !is_void(ticket));
        }
        line.push_back(ticket);
    }

    /// The next ticket that may run, most urgent class first, and the class of its line; it may be void.
    pub(crate) fn pop(&mut self) -> Option<(Ticket, Class)> {
        let lanes: &[Lane] = match (self.waiting[Lane::Short as usize] > 0, self.may_start_future()) {
            (true, true) => &[Lane::Short, Lane::Future],
            (true, false) => &[Lane::Short],
            (false, true) => &[Lane::Future],
            (false, false) => return None,
        };
        for class in Class::ALL {
            for &lane in lanes {
                if let Some(ticket) = self.lines[lane as usize][class.index()].pop_front() {
                    return Some((ticket, class));
                }
            }
        }
        None
    }

    /// A future's handler was called.
    pub(crate) fn future_begins(&mut self) {
        self.running += 1;
    }

    /// It has ended, in whatever way.
    pub(crate) fn future_ends(&mut self) {
        self.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(slot: u32) -> Ticket {
        Ticket { slot, generation: 1 }
    }

    fn arrive(own: &mut Own, lane: Lane, class: Class, slot: u32) {
        own.arrived(lane);
        own.push(lane, class, ticket(slot), |_| false);
    }

    #[test]
    fn a_short_entry_does_not_wait_for_a_future_and_the_classes_hold_across_lanes() {
        let mut own = Own::new(1);
        arrive(&mut own, Lane::Future, Class::Normal, 1);
        arrive(&mut own, Lane::Short, Class::Normal, 2);
        arrive(&mut own, Lane::Future, Class::Interactive, 3);
        assert_eq!(own.pop(), Some((ticket(3), Class::Interactive)));
        own.left(Lane::Future);
        own.future_begins();
        assert_eq!(own.pop(), Some((ticket(2), Class::Normal)));
        own.left(Lane::Short);
        assert!(!own.has_runnable());
        assert_eq!(own.pop(), None);
        own.future_ends();
        assert_eq!(own.pop(), Some((ticket(1), Class::Normal)));
    }

    #[test]
    fn void_tickets_do_not_pile_up() {
        let mut own = Own::new(1);
        for slot in 0..10_000 {
            own.arrived(Lane::Short);
            own.push(Lane::Short, Class::Bulk, ticket(slot), |_| true);
            own.left(Lane::Short);
        }
        assert!(own.lines[0][Class::Bulk.index()].len() < 100);
    }
}
