//! The wake slot alone: work is a relaxed flag, so that nothing but the slot's own fences can save a wake-up.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use tautline_net::sync::wake::{Wake, WakeSlot};

use crate::{UNBOUNDED, model};

struct Shared {
    work: AtomicU32,
    slot: WakeSlot,
}

/// Sleeps until `work` is at least `wanted`. loom reports a sleep that nobody ends as a deadlock.
fn sleep_until(shared: &Shared, wanted: u32) {
    loop {
        shared.slot.prepare();
        if shared.work.load(Relaxed) >= wanted {
            shared.slot.finish();
            return;
        }
        thread::park();
        shared.slot.finish();
    }
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { work: AtomicU32::new(0), slot: WakeSlot::with(thread::current()) })
}

/// Preemptions: unbounded.
#[test]
fn a_wake_up_is_never_lost() {
    model(UNBOUNDED, || {
        let shared = shared();
        let waker = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.work.fetch_add(1, Relaxed);
                shared.slot.wake();
            })
        };
        sleep_until(&shared, 1);
        waker.join().unwrap();
    });
}

/// Preemptions: 4. The second wake-up races with the sleep after the first.
#[test]
fn two_wakers_and_two_sleeps_lose_none() {
    model(4, || {
        let shared = shared();
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.work.fetch_add(1, Relaxed);
                    shared.slot.wake();
                })
            })
            .collect();
        sleep_until(&shared, 1);
        sleep_until(&shared, 2);
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

struct Count(std::sync::Arc<std::sync::atomic::AtomicU32>);

impl Wake for Count {
    fn wake(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Preemptions: unbounded. A wake-up can cost a system call: of two wakers one makes it, and while the owner is awake none.
#[test]
fn one_sleep_is_ended_once() {
    model(UNBOUNDED, || {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let slot = Arc::new(WakeSlot::with(Count(count.clone())));
        slot.wake();
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 0);
        slot.prepare();
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let slot = slot.clone();
                thread::spawn(move || slot.wake())
            })
            .collect();
        for waker in wakers {
            waker.join().unwrap();
        }
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    });
}

/// Preemptions: unbounded. A third thread says how to wake the owner, who must know before it sleeps; so must the waker before
/// it wakes.
#[test]
fn an_attached_action_is_there_when_it_is_needed() {
    model(UNBOUNDED, || {
        let shared = Arc::new(Shared { work: AtomicU32::new(0), slot: WakeSlot::new() });
        let waker = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.work.store(1, Relaxed);
                shared.slot.wake();
            })
        };
        let owner = thread::current();
        let attacher = {
            let shared = shared.clone();
            thread::spawn(move || assert!(shared.slot.attach(owner)))
        };
        while !shared.slot.is_attached() {
            thread::yield_now();
        }
        sleep_until(&shared, 1);
        waker.join().unwrap();
        attacher.join().unwrap();
    });
}
