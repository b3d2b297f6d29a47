//! The wake slot alone. Work is a relaxed number, so that nothing but the slot's own fences can save a wake-up.

use std::sync::atomic::AtomicU32 as Plain;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use tautline_net::sync::wake::{Wake, WakeSlot};

use crate::{Seen, model};

struct Shared {
    work: AtomicU32,
    slot: WakeSlot,
}

fn shared(slot: WakeSlot) -> Arc<Shared> {
    Arc::new(Shared { work: AtomicU32::new(0), slot })
}

/// Another thread that does one piece of work and wakes the owner.
fn waker(shared: &Arc<Shared>) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || {
        shared.work.fetch_add(1, Relaxed);
        shared.slot.wake();
    })
}

/// Sleeps until `work` is at least `wanted`. loom reports a sleep that nobody ends as a deadlock.
fn sleep_until(shared: &Shared, wanted: u32, seen: &Seen) {
    loop {
        shared.slot.prepare();
        if shared.work.load(Relaxed) >= wanted {
            seen.note("found work");
            shared.slot.finish();
            return;
        }
        thread::park();
        seen.note("slept");
        shared.slot.finish();
    }
}

/// Preemptions: 5.
#[test]
fn a_wake_up_is_never_lost() {
    model(5, &["slept", "found work"], |seen| {
        let shared = shared(WakeSlot::with(thread::current()));
        let waker = waker(&shared);
        sleep_until(&shared, 1, seen);
        waker.join().unwrap();
    });
}

/// Preemptions: 4. The second wake-up races with the sleep after the first.
#[test]
fn two_wakers_and_two_sleeps_lose_none() {
    model(4, &["slept", "found work"], |seen| {
        let shared = shared(WakeSlot::with(thread::current()));
        let wakers = [waker(&shared), waker(&shared)];
        sleep_until(&shared, 1, seen);
        sleep_until(&shared, 2, seen);
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

struct Count(std::sync::Arc<Plain>);

impl Wake for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Preemptions: 5. A wake-up can cost a system call: of two wakers one makes it, and while the owner is awake none.
#[test]
fn one_sleep_is_ended_once() {
    model(5, &[], |_| {
        let count = std::sync::Arc::new(Plain::new(0));
        let slot = Arc::new(WakeSlot::with(Count(count.clone())));
        slot.wake();
        assert_eq!(count.load(Relaxed), 0);
        slot.prepare();
        let wakers = [(); 2].map(|()| {
            let slot = slot.clone();
            thread::spawn(move || slot.wake())
        });
        for waker in wakers {
            waker.join().unwrap();
        }
        assert_eq!(count.load(Relaxed), 1);
    });
}

/// Preemptions: 3. A third thread says how to wake the owner; the owner must know before it sleeps, a waker before it wakes.
#[test]
fn an_attached_action_is_there_when_it_is_needed() {
    model(3, &["slept", "found work"], |seen| {
        let shared = shared(WakeSlot::new());
        let waker = waker(&shared);
        let attacher = {
            let (shared, owner) = (shared.clone(), thread::current());
            thread::spawn(move || assert!(shared.slot.attach(owner)))
        };
        while !shared.slot.is_attached() {
            thread::yield_now();
        }
        sleep_until(&shared, 1, seen);
        waker.join().unwrap();
        attacher.join().unwrap();
    });
}

/// Preemptions: 5. An owner leaves while somebody publishes: either finds the work, or both.
#[test]
fn work_for_an_owner_that_leaves_is_found_by_one_of_the_two() {
    model(5, &["the owner did", "the waker did", "both did"], |seen| {
        let shared = shared(WakeSlot::with(thread::current()));
        let waker = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.work.store(1, Relaxed);
                !shared.slot.wake()
            })
        };
        shared.slot.close();
        let owner = shared.work.load(Relaxed) == 1;
        match (owner, waker.join().unwrap()) {
            (true, false) => seen.note("the owner did"),
            (false, true) => seen.note("the waker did"),
            (true, true) => seen.note("both did"),
            (false, false) => panic!("the work was lost"),
        }
    });
}

/// Preemptions: 5. A waker that is about to wake the owner does not bring back one that leaves.
#[test]
fn an_owner_that_leaves_stays_away() {
    model(5, &[], |_| {
        let shared = shared(WakeSlot::with(thread::current()));
        let wakers = [waker(&shared), waker(&shared)];
        shared.slot.prepare();
        shared.slot.finish();
        shared.slot.close();
        for waker in wakers {
            waker.join().unwrap();
        }
        assert!(shared.slot.is_closed());
        assert!(!shared.slot.wake());
    });
}
