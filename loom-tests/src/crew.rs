//! A crew of workers. Work is a relaxed number, so that nothing but the crew's own fences can save a wake-up.
//!
//! What may never happen is that work waits while a worker sleeps. Where it matters that a *second* worker comes, a worker takes one
//! piece of work and is never seen again, as if its handler ran for ever: loom then reports a lost wake-up as a deadlock.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use tautline_net::sync::crew::Crew;
use tautline_net::sync::queue::Queue;

use crate::{Seen, model};

struct Shared {
    work: AtomicU32,
    crew: Crew,
}

impl Shared {
    fn new(workers: usize) -> Arc<Shared> {
        Arc::new(Shared { work: AtomicU32::new(0), crew: Crew::new(workers) })
    }

    /// Publishes this many pieces of work, and notifies once.
    fn publish(&self, pieces: u32) {
        self.work.fetch_add(pieces, Relaxed);
        self.crew.notify();
    }

    fn has_work(&self) -> bool {
        self.work.load(Relaxed) > 0
    }

    fn take(&self) -> bool {
        let left = self.work.load(Relaxed);
        left > 0 && self.work.compare_exchange(left, left - 1, Relaxed, Relaxed).is_ok()
    }

    /// A worker as a node has it, but one that ends when it has taken `pieces`.
    fn serve(&self, worker: usize, pieces: u32, seen: &Seen) {
        assert!(self.crew.attach(worker));
        self.crew.begin_search();
        for piece in 1..=pieces {
            while !self.take() {
                self.crew.sleep(worker, || self.has_work());
                seen.note("slept");
            }
            self.crew.found(|| self.has_work());
            if piece < pieces {
                self.crew.begin_search();
            }
        }
    }
}

fn spawn(shared: &Arc<Shared>, worker: usize, pieces: u32, seen: &Seen) -> thread::JoinHandle<()> {
    let (shared, seen) = (shared.clone(), seen.clone());
    thread::spawn(move || shared.serve(worker, pieces, &seen))
}

/// Preemptions: 3.
#[test]
fn one_worker_gets_all_work() {
    model(3, &["slept"], |seen| {
        let shared = Shared::new(1);
        let worker = spawn(&shared, 0, 2, seen);
        shared.publish(1);
        shared.publish(1);
        worker.join().unwrap();
    });
}

/// Preemptions: 2. The second piece may come while the worker that has found the first is still counted as searching.
#[test]
fn none_sleeps_beside_work_that_comes_as_another_finds_some() {
    model(2, &["slept"], |seen| {
        let shared = Shared::new(2);
        shared.publish(1);
        let workers = [0, 1].map(|worker| spawn(&shared, worker, 1, seen));
        shared.publish(1);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Preemptions: 2. The second piece may come while the worker that was woken for the first does not search yet, or works already.
#[test]
fn none_sleeps_beside_work_when_two_pieces_come() {
    model(2, &["slept"], |seen| {
        let shared = Shared::new(2);
        let workers = [0, 1].map(|worker| spawn(&shared, worker, 1, seen));
        shared.publish(1);
        shared.publish(1);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Preemptions: 2. Two pieces, one wake-up: the worker that gets it must pass the search on.
#[test]
fn one_wake_up_for_a_burst_brings_both_workers() {
    model(2, &["slept"], |seen| {
        let shared = Shared::new(2);
        let workers = [0, 1].map(|worker| spawn(&shared, worker, 1, seen));
        shared.publish(2);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Preemptions: 3. With the queue that a node has, which can say that a piece is there before it can be popped.
#[test]
fn a_worker_empties_a_queue() {
    model(3, &["slept"], |seen| {
        let shared = Arc::new((Queue::new(2), Crew::new(1)));
        let worker = {
            let (shared, seen) = (shared.clone(), seen.clone());
            thread::spawn(move || {
                let (queue, crew) = &*shared;
                assert!(crew.attach(0));
                let pop = || {
                    crew.begin_search();
                    loop {
                        if let Some(piece) = queue.pop() {
                            crew.found(|| !queue.is_empty());
                            return piece;
                        }
                        crew.sleep(0, || !queue.is_empty());
                        seen.note("slept");
                        thread::yield_now();
                    }
                };
                assert_eq!([pop(), pop()], [1, 2]);
            })
        };
        for piece in [1, 2] {
            shared.0.push(piece).unwrap();
            shared.1.notify();
        }
        worker.join().unwrap();
    });
}

/// Preemptions: 3.
#[test]
fn stopping_wakes_all() {
    model(3, &["slept", "stopped at once"], |seen| {
        let crew = Arc::new(Crew::new(2));
        let workers = [0, 1].map(|worker| {
            let (crew, seen) = (crew.clone(), seen.clone());
            thread::spawn(move || {
                assert!(crew.attach(worker));
                crew.begin_search();
                let mut naps = 0;
                while !crew.is_stopping() {
                    crew.sleep(worker, || false);
                    naps += 1;
                }
                seen.note(if naps == 0 { "stopped at once" } else { "slept" });
            })
        });
        crew.stop();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
