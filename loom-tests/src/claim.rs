//! Start, cancel, deadline and completion racing for one queue entry.
//!
//! Where a model is about what the table itself orders, tickets reach the other threads through a relaxed atomic, which orders
//! nothing. (In a node they come through queues, which order more.)

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use tautline_net::sync::claim::{ClaimTable, Outcome, State, Ticket};
use tautline_net::sync::queue::Queue;

use crate::{UNBOUNDED, model};

/// A ticket that a thread can learn without learning anything else.
#[derive(Default)]
struct Notice(AtomicU64);

impl Notice {
    fn post(&self, ticket: Ticket) {
        self.0.store(u64::from(ticket.generation) << 32 | u64::from(ticket.slot), Relaxed);
    }

    fn read(&self) -> Ticket {
        let bits = self.0.load(Relaxed);
        Ticket { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

fn cancelled<T>(outcome: Outcome<T>) -> Option<T> {
    match outcome {
        Outcome::Cancelled(value) => Some(value),
        Outcome::AlreadyStarted | Outcome::Gone => None,
    }
}

/// Preemptions: unbounded. A worker, a canceller and the poller at the entry's deadline: one gets the value.
#[test]
fn of_a_start_a_cancel_and_a_deadline_one_wins() {
    model(UNBOUNDED, || {
        let table = Arc::new(ClaimTable::new(1));
        let ticket = table.insert(5).unwrap();
        let worker = {
            let table = table.clone();
            thread::spawn(move || {
                let value = table.start(ticket);
                if value.is_some() {
                    assert_eq!(table.cancel(ticket), Outcome::AlreadyStarted);
                    assert!(table.finish(ticket), "the winner finishes");
                }
                value
            })
        };
        let canceller = {
            let table = table.clone();
            thread::spawn(move || cancelled(table.cancel(ticket)))
        };
        let expired = cancelled(table.cancel(ticket));
        let values = [worker.join().unwrap(), canceller.join().unwrap(), expired];
        assert_eq!(values.iter().flatten().collect::<Vec<_>>(), [&5]);
        assert_eq!((table.state(ticket), table.len()), (State::Gone, 0));
    });
}

/// Preemptions: unbounded. A worker starts, and both it and the poller finish: `true` once, and the slot is freed once.
#[test]
fn an_entry_finishes_once() {
    model(UNBOUNDED, || {
        let table = Arc::new(ClaimTable::new(2));
        let ticket = table.insert(5).unwrap();
        let worker = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(table.start(ticket), Some(5));
                table.finish(ticket)
            })
        };
        let here = table.finish(ticket);
        let there = worker.join().unwrap();
        assert!(here ^ there);
        let tickets = [table.insert(6).unwrap(), table.insert(7).unwrap()];
        assert_ne!(tickets[0].slot, tickets[1].slot);
        assert_eq!(table.insert(8), Err(8));
    });
}

/// Preemptions: unbounded. What an inserter wrote is seen by whoever starts the entry, though it learnt of it from an unordered notice.
#[test]
fn a_started_value_is_the_inserted_one() {
    model(UNBOUNDED, || {
        let shared = Arc::new((ClaimTable::new(1), Notice::default()));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.start(shared.1.read()))
        };
        let ticket = shared.0.insert(5).unwrap();
        shared.1.post(ticket);
        match worker.join().unwrap() {
            Some(value) => assert_eq!(value, 5),
            None => assert_eq!(shared.0.start(ticket), Some(5)),
        }
    });
}

/// Preemptions: unbounded. The same for whoever cancels it.
#[test]
fn a_cancelled_value_is_the_inserted_one() {
    model(UNBOUNDED, || {
        let shared = Arc::new((ClaimTable::new(1), Notice::default()));
        let canceller = {
            let shared = shared.clone();
            thread::spawn(move || cancelled(shared.0.cancel(shared.1.read())))
        };
        let ticket = shared.0.insert(5).unwrap();
        shared.1.post(ticket);
        match canceller.join().unwrap() {
            Some(value) => assert_eq!(value, 5),
            None => assert_eq!(shared.0.cancel(ticket), Outcome::Cancelled(5)),
        }
    });
}

/// Preemptions: unbounded. One thread starts, another finishes, a third puts the next entry into the slot: the first thread's read of
/// the value is over before the third writes.
#[test]
fn a_slot_is_not_reused_under_its_reader() {
    model(UNBOUNDED, || {
        let table = Arc::new(ClaimTable::new(1));
        let ticket = table.insert(5).unwrap();
        let starter = {
            let table = table.clone();
            thread::spawn(move || assert_eq!(table.start(ticket), Some(5)))
        };
        let finisher = {
            let table = table.clone();
            thread::spawn(move || table.finish(ticket))
        };
        let mut reused = table.insert(6).ok();
        starter.join().unwrap();
        let finished = finisher.join().unwrap() || table.finish(ticket);
        assert!(finished);
        let next = reused.take().unwrap_or_else(|| table.insert(6).unwrap());
        assert_eq!(table.start(next), Some(6));
    });
}

/// Preemptions: 4. A cancelled entry's slot gets its next entry while others still act on the old ticket.
#[test]
fn stale_tickets_touch_nothing() {
    model(4, || {
        let table = Arc::new(ClaimTable::new(1));
        let stale = table.insert(5).unwrap();
        let late: Vec<_> = [true, false]
            .into_iter()
            .map(|starts| {
                let table = table.clone();
                thread::spawn(move || {
                    let value = if starts { table.start(stale) } else { cancelled(table.cancel(stale)) };
                    (value, value.is_some() && starts, table.finish(stale))
                })
            })
            .collect();
        // The next entry, as soon as one of them has freed the slot.
        let fresh = loop {
            match table.insert(6) {
                Ok(ticket) => break ticket,
                Err(_) => thread::yield_now(),
            }
        };
        assert_ne!(stale, fresh);
        assert_eq!(table.state(stale), State::Gone);
        assert_eq!(table.start(fresh), Some(6), "an old ticket took the new entry");
        let late: Vec<_> = late.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(late.iter().filter_map(|(value, ..)| *value).collect::<Vec<_>>(), [5]);
        let count = |of: fn(&(Option<i32>, bool, bool)) -> bool| late.iter().filter(|result| of(result)).count();
        assert_eq!(count(|(_, started, _)| *started), count(|(.., finished)| *finished));
        assert!(table.finish(fresh), "an old ticket finished the new entry");
    });
}

/// Preemptions: unbounded. A table that goes drops what is queued and nothing that was claimed: loom reports an `Arc` that is leaked.
#[test]
fn a_dropped_table_drops_what_is_queued() {
    model(UNBOUNDED, || {
        let witness = Arc::new(());
        let table = Arc::new(ClaimTable::new(2));
        let ticket = table.insert(witness.clone()).unwrap();
        let left = table.insert(witness.clone()).unwrap();
        let canceller = {
            let table = table.clone();
            thread::spawn(move || drop((table.cancel(ticket), table)))
        };
        drop(table.start(ticket));
        assert_eq!(table.state(left), State::Queued);
        drop(table);
        canceller.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}

/// Preemptions: 3. A run queue as a node has it: tickets in a queue, a worker that takes them, a canceller that does not ask it,
/// and more entries than slots.
#[test]
fn a_run_queue_runs_each_entry_or_drops_it() {
    model(3, || {
        let shared = Arc::new((ClaimTable::new(1), Queue::new(2)));
        let (table, queue) = &*shared;
        let first = table.insert(1).unwrap();
        queue.push(first).unwrap();
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (table, queue) = &*shared;
                let mut ran = Vec::new();
                while let Some(ticket) = queue.pop() {
                    if let Some(value) = table.start(ticket) {
                        ran.push(value);
                        assert!(table.finish(ticket));
                    }
                }
                ran
            })
        };
        let canceller = {
            let shared = shared.clone();
            thread::spawn(move || cancelled(shared.0.cancel(first)))
        };
        let second = table.insert(2);
        if let Ok(ticket) = second {
            queue.push(ticket).unwrap();
        }
        let mut ran = worker.join().unwrap();
        ran.extend(canceller.join().unwrap());
        while let Some(ticket) = queue.pop() {
            ran.extend(table.start(ticket));
        }
        ran.sort();
        assert_eq!(ran, if second.is_ok() { vec![1, 2] } else { vec![1] });
    });
}
