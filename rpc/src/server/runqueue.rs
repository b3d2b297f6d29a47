//! The run queue that the poller and the workers share: tickets by class, and the claim table that says who gets an entry.
//!
//! A ticket in a queue is a promise to look, not a right to run: whoever pops it must win the entry's claim. So an entry is cancelled in
//! O(1), whatever queue its ticket is in, and demoted by adding a ticket to a lower queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::sync::claim::{ClaimTable, State, Ticket};
use tautline_net::sync::crew::Crew;
use tautline_net::sync::queue::Queue;

use crate::mail::Mail;
use crate::request::Request;
use crate::service::{HandlerResult, WorkerHandler};

/// What an entry holds until it starts.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// The handler, if a worker is to run it.
    pub(crate) work: Option<WorkerHandler>,
    pub(crate) arrived: Time,
    /// Whether the poller wants to hear of the start.
    pub(crate) announce: bool,
}

/// What a worker tells the poller.
pub(crate) enum Note {
    /// The claim was won, at this time.
    Started { ticket: Ticket, at: Time },
    /// The claim was won too late.
    Expired { ticket: Ticket },
    /// The handler ran.
    Finished { ticket: Ticket, answer: HandlerResult, panicked: bool, started: Time, ended: Time },
}

/// Shared by the poller and the workers.
pub(crate) struct RunQueue {
    pub(crate) claims: ClaimTable<Job>,
    queues: [Queue<Ticket>; Class::COUNT],
    /// The class of each entry now. Tickets in queues above it are void.
    classes: Box<[AtomicU8]>,
    /// The workers: who searches, and who sleeps.
    pub(crate) crew: Crew,
    /// How long the entries that workers started have waited, since the poller last took the sum; and how many they were.
    waited: [(AtomicU64, AtomicU64); Class::COUNT],
    pub(crate) mail: Arc<Mail>,
}

impl RunQueue {
    pub(crate) fn new(capacity: usize, workers: usize, mail: Arc<Mail>) -> Arc<RunQueue> {
        Arc::new(RunQueue {
            claims: ClaimTable::new(capacity),
            // Cancelled entries leave tickets behind: room for some before they are swept out.
            queues: std::array::from_fn(|_| Queue::new(capacity * 2)),
            classes: (0..capacity).map(|_| AtomicU8::new(0)).collect(),
            crew: Crew::new(workers),
            waited: Default::default(),
            mail,
        })
    }

    /// Poller: the class of an entry, set before its ticket is queued.
    pub(crate) fn set_class(&self, ticket: Ticket, class: Class) {
        self.classes[ticket.slot as usize].store(class.index() as u8, Ordering::Relaxed);
    }

    /// Poller: queues a ticket for the workers and sees to it that one looks. `false` if there is no room.
    pub(crate) fn push(&self, ticket: Ticket, class: Class) -> bool {
        let queue = &self.queues[class.index()];
        if queue.push(ticket).is_err() {
            self.sweep(class);
            if queue.push(ticket).is_err() {
                return false;
            }
        }
        self.crew.notify();
        true
    }

    /// Poller: a ticket was queued in a lower class; from now on only that one counts. (In this order, so that at every moment
    /// one of the two does.)
    pub(crate) fn demoted(&self, ticket: Ticket, class: Class) {
        self.set_class(ticket, class);
    }

    /// Takes void tickets out of a full queue. It costs one look at each, and happens once for as many cancellations.
    #[cold]
    fn sweep(&self, class: Class) {
        let queue = &self.queues[class.index()];
        for _ in 0..queue.len() {
            let Some(ticket) = queue.pop() else { break };
            if !self.is_void(ticket, class) && self.claims.state(ticket) == State::Queued && queue.push(ticket).is_err() {
                // Only the poller pushes and the pop made room.
                debug_assert!(false, "no room where a ticket was just taken");
            }
        }
        // A worker may have seen the queue empty meanwhile.
        self.crew.notify();
    }

    /// The next ticket worth a try, most urgent class first, of the classes above `limit`.
    fn next(&self, limit: usize) -> Option<Ticket> {
        for class in Class::ALL.into_iter().take(limit) {
            while let Some(ticket) = self.queues[class.index()].pop() {
                if !self.is_void(ticket, class) {
                    return Some(ticket);
                }
            }
        }
        None
    }

    fn is_void(&self, ticket: Ticket, class: Class) -> bool {
        usize::from(self.classes[ticket.slot as usize].load(Ordering::Relaxed)) > class.index()
    }

    fn has_tickets(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Worker: a ticket, if there is one.
    pub(crate) fn search(&self) -> Option<Ticket> {
        self.next(Class::COUNT)
    }

    /// Worker, in the middle of a job of `class`: a ticket of a more urgent class, if there is one.
    pub(crate) fn search_above(&self, class: Class) -> Option<Ticket> {
        self.next(class.index())
    }

    /// Worker: has found a ticket. If it was the last that looked, and there are more, another will.
    pub(crate) fn found(&self) {
        self.crew.found(|| self.has_tickets());
    }

    /// Worker: has found none, and sleeps until there is one.
    pub(crate) fn sleep(&self, worker: usize) {
        self.crew.sleep(worker, || self.has_tickets());
    }

    /// Worker: an entry that arrived at `arrived` was started at `at`.
    pub(crate) fn observe(&self, class: Class, arrived: Time, at: Time) {
        let (nanos, count) = &self.waited[class.index()];
        nanos.fetch_add(at.nanos_since(arrived), Ordering::Relaxed);
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Poller: takes the sum of delays and their number. (Not one atomic step: an entry may count half now and half next time.)
    pub(crate) fn take_observed(&self, class: Class) -> (u64, u64) {
        let (nanos, count) = &self.waited[class.index()];
        if count.load(Ordering::Relaxed) == 0 {
            return (0, 0);
        }
        (nanos.swap(0, Ordering::Relaxed), count.swap(0, Ordering::Relaxed))
    }
}

impl std::fmt::Debug for RunQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunQueue").field("entries", &self.claims.len()).field("crew", &self.crew).finish_non_exhaustive()
    }
}
