//! Worker threads that share one source of work: who looks for some, who sleeps, and whom to wake.
//!
//! A worker *searches*, *works*, or *sleeps*. Whoever publishes work wakes a sleeper only if nobody searches, so that under load it
//! pays a fence and a load, and a wake-up costs a system call only when it is needed. (Go's scheduler and tokio's keep the same
//! count of searchers, for the same reason.) Nothing waits for longer than it must because of two rules:
//!
//! - A worker that stops searching looks once more *after* it is no longer counted. Work that was published while it was counted is
//!   found by this look; work that is published later finds the count without it.
//! - The last searcher that finds work passes the search on: if there is more, it wakes the next.
//!
//! Each look is Dekker's: write, full fence, read, on both sides. A sequentially consistent count alone would not do, because the
//! work is read by plain loads, which may pass it.

use super::primitive::{AtomicBool, AtomicUsize, CachePadded, Ordering, fence, ord, thread};
use super::wake::WakeSlot;

/// The workers of one source of work.
///
/// A worker's life: [`attach`](Crew::attach), [`begin_search`](Crew::begin_search), then either [`found`](Crew::found), its work, and
/// `begin_search` again; or [`sleep`](Crew::sleep), which returns searching. Whoever publishes work calls [`notify`](Crew::notify).
pub struct Crew {
    /// Workers that are counted as looking for work. Padded: each of them writes it, for each piece of work.
    searching: CachePadded<AtomicUsize>,
    /// One for each worker.
    slots: Box<[WakeSlot]>,
    stop: AtomicBool,
}

impl Crew {
    /// A crew of this many workers, none of which searches yet.
    pub fn new(workers: usize) -> Crew {
        Crew {
            searching: CachePadded::new(AtomicUsize::new(0)),
            slots: (0..workers).map(|_| WakeSlot::new()).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// How many workers the crew has room for.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Is there no room for any worker?
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Worker: the calling thread is number `worker`, from now on and alone. `false` if another thread was before.
    ///
    /// # Panics
    ///
    /// If the crew has no such number.
    pub fn attach(&self, worker: usize) -> bool {
        self.slots[worker].attach(thread::current())
    }

    /// Worker: begins to look for work.
    #[inline]
    pub fn begin_search(&self) {
        self.searching.fetch_add(1, Ordering::Relaxed);
    }

    /// Worker: has found work. If it was the last that searched and `more` says that there is more, another must: that one is woken.
    #[inline]
    pub fn found(&self, more: impl FnOnce() -> bool) {
        if self.searching.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Who published before this fence and saw us searching woke nobody: we see their work.
            fence(ord!(SeqCst, "crew-found"));
            if more() {
                self.notify();
            }
        }
    }

    /// Worker: has found nothing, and sleeps until there is work, unless `has_work` finds some at the last moment. It may return for
    /// no reason. Searches again when it returns.
    ///
    /// # Panics
    ///
    /// If no thread is attached as `worker`.
    pub fn sleep(&self, worker: usize, has_work: impl FnOnce() -> bool) {
        let slot = &self.slots[worker];
        // First out of the count, then asleep: so that the one fence in `prepare` is behind both.
        self.searching.fetch_sub(1, Ordering::Relaxed);
        slot.prepare();
        if !has_work() && !self.is_stopping() {
            thread::park();
        }
        slot.finish();
        self.begin_search();
    }

    /// Wakes a sleeping worker, unless one searches already. Work must be published before.
    #[inline]
    pub fn notify(&self) {
        fence(ord!(SeqCst, "crew-notify"));
        if self.searching.load(Ordering::Relaxed) == 0 {
            self.wake_one();
        }
    }

    /// Wakes one of those that sleep. It must not be content with one that only seems to: that one may have taken other work by now,
    /// while another sleeps.
    fn wake_one(&self) {
        let _woken = self.slots.iter().any(WakeSlot::wake_fenced);
    }

    /// Tells all workers to end, and wakes those that sleep.
    pub fn stop(&self) {
        // Published like work, by the fence in each slot's `wake`.
        self.stop.store(true, Ordering::Relaxed);
        for slot in &self.slots {
            slot.wake();
        }
    }

    /// Worker: shall it end?
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew")
            .field("workers", &self.slots.len())
            .field("searching", &self.searching.load(Ordering::Relaxed))
            .field("asleep", &self.slots.iter().filter(|slot| slot.is_asleep()).count())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::super::queue::Queue;
    use super::*;

    fn asleep(crew: &Crew) -> usize {
        crew.slots.iter().filter(|slot| slot.is_asleep()).count()
    }

    /// Waits until this many workers have announced that they sleep.
    fn wait_asleep(crew: &Crew, workers: usize) {
        while asleep(crew) != workers {
            thread::yield_now();
        }
    }

    #[test]
    fn a_sleeper_is_left_alone_while_another_searches() {
        let crew = Crew::new(1);
        let woken = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(crew.attach(0));
                crew.begin_search();
                crew.sleep(0, || false);
                woken.fetch_add(1, Ordering::Relaxed);
                crew.found(|| false);
            });
            wait_asleep(&crew, 1);
            crew.begin_search();
            crew.notify();
            assert_eq!(asleep(&crew), 1, "somebody searches: nobody is woken");
            // The searcher has found work, and there is more: now the sleeper must.
            crew.found(|| true);
        });
        assert_eq!(woken.into_inner(), 1);
    }

    #[test]
    fn a_worker_does_not_sleep_on_work_that_it_sees_at_the_last_moment() {
        let crew = Crew::new(1);
        assert!(crew.attach(0));
        assert!(!crew.attach(0), "the place is taken");
        crew.begin_search();
        crew.sleep(0, || true);
        assert_eq!((asleep(&crew), crew.searching.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn stopping_ends_the_sleepers_and_those_that_come_late() {
        let crew = Crew::new(3);
        thread::scope(|scope| {
            for worker in 0..2 {
                let crew = &crew;
                scope.spawn(move || {
                    assert!(crew.attach(worker));
                    crew.begin_search();
                    while !crew.is_stopping() {
                        crew.sleep(worker, || false);
                    }
                });
            }
            wait_asleep(&crew, 2);
            crew.stop();
        });
        assert!(crew.attach(2));
        crew.begin_search();
        crew.sleep(2, || false);
        assert!(crew.is_stopping());
    }

    #[test]
    fn work_that_needs_all_workers_at_once_gets_them_over_many_rounds() {
        const ROUNDS: u64 = 2_000;
        const WORKERS: usize = 3;
        let crew = Crew::new(WORKERS);
        let queue = Queue::new(WORKERS);
        // A piece of work ends when all of its round have started: one wake-up lost, and the round never ends.
        let started = AtomicU64::new(0);
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (crew, queue, started) = (&crew, &queue, &started);
                scope.spawn(move || {
                    assert!(crew.attach(worker));
                    crew.begin_search();
                    while !crew.is_stopping() {
                        let Some(round) = queue.pop() else {
                            crew.sleep(worker, || !queue.is_empty());
                            continue;
                        };
                        crew.found(|| !queue.is_empty());
                        started.fetch_add(1, Ordering::Relaxed);
                        while started.load(Ordering::Relaxed) < (round + 1) * WORKERS as u64 {
                            thread::yield_now();
                        }
                        crew.begin_search();
                    }
                });
            }
            for round in 0..ROUNDS {
                for _ in 0..WORKERS {
                    queue.push(round).expect("the round before has been taken");
                    crew.notify();
                }
                while started.load(Ordering::Relaxed) < (round + 1) * WORKERS as u64 {
                    thread::yield_now();
                }
            }
            crew.stop();
        });
        assert_eq!(started.into_inner(), ROUNDS * WORKERS as u64);
    }
}
