//! Start, cancel, deadline and completion racing for one queue entry.
//!
//! Where a model is about what the table itself orders, tickets reach the other threads through a relaxed atomic, which orders
//! nothing. (In a node they come through queues, which order more.)

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use tautline_net::sync::claim::{ClaimTable, Outcome, State, Ticket};
use tautline_net::sync::queue::Queue;

use crate::model;

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

/// Preemptions: 5. A worker, a canceller and the poller at the entry's deadline: one gets the value.
#[test]
fn of_a_start_a_cancel_and_a_deadline_one_wins() {
    model(5, &["started", "cancelled", "expired", "too late"], |seen| {
        let table = Arc::new(ClaimTable::new(1));
        let ticket = table.insert(5).unwrap();
        let worker = {
            let table = table.clone();
            thread::spawn(move || {
                let value = table.start(ticket)?;
                assert_eq!(table.cancel(ticket), Outcome::AlreadyStarted);
                assert!(table.finish(ticket), "the winner finishes");
                Some(value)
            })
        };
        let canceller = {
            let (table, seen) = (table.clone(), seen.clone());
            thread::spawn(move || match table.cancel(ticket) {
                Outcome::Cancelled(value) => Some(value),
                Outcome::AlreadyStarted => {
                    seen.note("too late");
                    None
                }
                Outcome::Gone => None,
            })
        };
        let expired = cancelled(table.cancel(ticket));
        let values = [worker.join().unwrap(), canceller.join().unwrap(), expired];
        let winners: Vec<_> = ["started", "cancelled", "expired"].into_iter().zip(values).filter(|(_, v)| v.is_some()).collect();
        assert_eq!(winners.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [Some(5)]);
        seen.note(winners[0].0);
        assert_eq!((table.state(ticket), table.len()), (State::Gone, 0));
    });
}

/// Preemptions: 5. The worker that started an entry and the poller both finish it: `true` once, and the slot is freed once.
#[test]
fn an_entry_finishes_once() {
    model(5, &["here", "there"], |seen| {
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
        seen.note(if here { "here" } else { "there" });
        let tickets = [table.insert(6).unwrap(), table.insert(7).unwrap()];
        assert_ne!(tickets[0].slot, tickets[1].slot);
        assert_eq!(table.insert(8), Err(8));
    });
}

/// Preemptions: 5. What an inserter wrote is seen by whoever starts the entry, though it learnt of it from an unordered notice.
#[test]
fn a_started_value_is_the_inserted_one() {
    model(5, &["here", "there"], |seen| {
        let shared = Arc::new((ClaimTable::new(1), Notice::default()));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.start(shared.1.read()))
        };
        let ticket = shared.0.insert(5).unwrap();
        shared.1.post(ticket);
        let (here, there) = (shared.0.start(ticket), worker.join().unwrap());
        seen.note(if here.is_some() { "here" } else { "there" });
        assert_eq!(here.xor(there), Some(5));
    });
}

/// Preemptions: 5. The same for whoever cancels it.
#[test]
fn a_cancelled_value_is_the_inserted_one() {
    model(5, &["here", "there"], |seen| {
        let shared = Arc::new((ClaimTable::new(1), Notice::default()));
        let canceller = {
            let shared = shared.clone();
            thread::spawn(move || cancelled(shared.0.cancel(shared.1.read())))
        };
        let ticket = shared.0.insert(5).unwrap();
        shared.1.post(ticket);
        let (here, there) = (cancelled(shared.0.cancel(ticket)), canceller.join().unwrap());
        seen.note(if here.is_some() { "here" } else { "there" });
        assert_eq!(here.xor(there), Some(5));
    });
}

/// Preemptions: 5. One thread starts an entry, another finishes it and puts the next into its slot: the first one's read of the
/// value is over before the second one's write.
#[test]
fn a_slot_is_not_reused_under_its_reader() {
    model(5, &["not yet started"], |seen| {
        let table = Arc::new(ClaimTable::new(1));
        let ticket = table.insert(5).unwrap();
        let starter = {
            let table = table.clone();
            thread::spawn(move || assert_eq!(table.start(ticket), Some(5)))
        };
        while !table.finish(ticket) {
            seen.note("not yet started");
            thread::yield_now();
        }
        let next = table.insert(6).unwrap();
        assert_eq!(table.start(next), Some(6));
        starter.join().unwrap();
    });
}

/// Preemptions: 5. One thread withdraws an entry, which this one may start, another vacates it: of all of them one gets the value, as it was
/// inserted, though they learnt of it from an unordered notice.
#[test]
fn a_withdrawn_value_is_the_inserted_one_and_one_takes_it() {
    model(5, &["started", "vacated", "vacated later"], |seen| {
        let shared = Arc::new((ClaimTable::new(1), Notice::default()));
        let withdrawer = {
            let shared = shared.clone();
            thread::spawn(move || drop(shared.0.withdraw(shared.1.read())))
        };
        let vacater = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.vacate(shared.1.read()))
        };
        let ticket = shared.0.insert(5).unwrap();
        shared.1.post(ticket);
        let started = shared.0.start(ticket);
        withdrawer.join().unwrap();
        let (vacated, later, left) = (vacater.join().unwrap(), shared.0.vacate(ticket), cancelled(shared.0.cancel(ticket)));
        let takers = ["started", "vacated", "vacated later", "cancelled"].into_iter().zip([started, vacated, later, left]);
        let winners: Vec<_> = takers.filter_map(|(who, value)| Some((who, value?))).collect();
        assert_eq!(winners.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [5]);
        seen.note(winners[0].0);
    });
}

/// Preemptions: 5. One thread withdraws an entry and vacates it, another puts the next one into its slot: the first one's read of the value is over before
/// the second one's write.
#[test]
fn a_vacated_slot_is_not_reused_under_its_reader() {
    model(5, &["full"], |seen| {
        let table = Arc::new(ClaimTable::new(1));
        let ticket = table.insert(5).unwrap();
        let vacater = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(table.withdraw(ticket), Outcome::Cancelled(()));
                table.vacate(ticket)
            })
        };
        let next = loop {
            match table.insert(6) {
                Ok(ticket) => break ticket,
                Err(_) => {
                    seen.note("full");
                    thread::yield_now();
                }
            }
        };
        assert_eq!(table.start(next), Some(6));
        assert_eq!(vacater.join().unwrap(), Some(5));
    });
}

/// Preemptions: 3. An entry's slot gets its next entry while others still act on the old ticket.
#[test]
fn stale_tickets_touch_nothing() {
    model(3, &["started", "cancelled", "finished by the canceller", "stale"], |seen| {
        let table = Arc::new(ClaimTable::new(1));
        let stale = table.insert(5).unwrap();
        let starter = {
            let table = table.clone();
            thread::spawn(move || (table.start(stale), table.finish(stale)))
        };
        let canceller = {
            let table = table.clone();
            thread::spawn(move || (cancelled(table.cancel(stale)), table.finish(stale)))
        };
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
        let ((started, finished), (cancelled, finished_too)) = (starter.join().unwrap(), canceller.join().unwrap());
        assert_eq!(started.xor(cancelled), Some(5));
        assert_eq!(started.is_some(), finished ^ finished_too);
        seen.note(if started.is_some() { "started" } else { "cancelled" });
        seen.note(if finished_too { "finished by the canceller" } else { "stale" });
        assert!(table.finish(fresh), "an old ticket finished the new entry");
    });
}

/// Preemptions: 5. A table that goes drops what is queued and nothing that was claimed: loom reports an `Arc` that is leaked.
#[test]
fn a_dropped_table_drops_what_is_queued() {
    model(5, &["started", "cancelled"], |seen| {
        let witness = Arc::new(());
        let table = Arc::new(ClaimTable::new(2));
        let ticket = table.insert(witness.clone()).unwrap();
        let left = table.insert(witness.clone()).unwrap();
        let canceller = {
            let table = table.clone();
            thread::spawn(move || drop(table.cancel(ticket)))
        };
        seen.note(if table.start(ticket).is_some() { "started" } else { "cancelled" });
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
    model(3, &["ran both", "cancelled one", "full"], |seen| {
        let shared = Arc::new((ClaimTable::new(1), Queue::new(2)));
        let (table, queue) = &*shared;
        let first = table.insert(1).unwrap();
        queue.push(first).unwrap();
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (table, queue) = &*shared;
                let ticket = queue.pop().expect("the first ticket is there");
                let value = table.start(ticket)?;
                assert!(table.finish(ticket));
                Some(value)
            })
        };
        let canceller = {
            let shared = shared.clone();
            thread::spawn(move || cancelled(shared.0.cancel(first)))
        };
        let second = loop {
            match table.insert(2) {
                Ok(ticket) => break ticket,
                Err(_) => {
                    seen.note("full");
                    thread::yield_now();
                }
            }
        };
        queue.push(second).unwrap();
        let (ran, cancelled) = (worker.join().unwrap(), canceller.join().unwrap());
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).filter_map(|ticket| table.start(ticket)).collect();
        assert_eq!((ran.xor(cancelled), &rest[..]), (Some(1), &[2][..]));
        seen.note(if ran.is_some() { "ran both" } else { "cancelled one" });
        assert!(table.finish(second) && table.is_empty());
    });
}
