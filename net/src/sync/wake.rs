//! Waking a thread that may be about to sleep, without losing a wake-up and without paying while it is awake.
//!
//! Dekker's handshake: the owner announces its sleep and *then* looks once more for work; others publish work and *then* look
//! for the announcement. A full fence between the two steps on each side makes it impossible that both miss.

use super::primitive::{AtomicU32, Ordering, UnsafeCell, fence, ord, thread};

/// Nothing says how to wake the owner.
const DETACHED: u32 = 0;
/// The action is being written.
const ATTACHING: u32 = 1;
const AWAKE: u32 = 2;
const ASLEEP: u32 = 3;
/// The owner has left for good.
const CLOSED: u32 = 4;

/// How a sleeping owner is woken. Waking one that is awake must be remembered until it sleeps, as an unpark or an event
/// descriptor is.
pub trait Wake: Send + Sync {
    /// Wakes the owner.
    fn wake(&self);
}

/// The place where a sleeper and its wakers meet.
///
/// The owner: [`prepare`](WakeSlot::prepare), look for work once more, sleep unless there is some, [`finish`](WakeSlot::finish).
/// Another thread: publish work, then [`wake`](WakeSlot::wake).
///
/// An owner that leaves says so by [`close`](WakeSlot::close), and then takes what is left of the work; who publishes after that
/// learns it from `wake`.
pub struct WakeSlot {
    state: AtomicU32,
    /// Written once, before the state becomes [`AWAKE`]; read by those who find it [`ASLEEP`].
    action: UnsafeCell<Option<Box<dyn Wake>>>,
}

// SAFETY: the action is written by the one thread that took the state from DETACHED, and shared afterwards; actions are `Sync`.
unsafe impl Sync for WakeSlot {}

impl WakeSlot {
    /// A slot whose owner can't sleep yet: [`WakeSlot::attach`] says how to wake it.
    pub fn new() -> WakeSlot {
        WakeSlot { state: AtomicU32::new(DETACHED), action: UnsafeCell::new(None) }
    }

    /// A slot whose owner is woken by `action`.
    pub fn with(action: impl Wake + 'static) -> WakeSlot {
        WakeSlot { state: AtomicU32::new(AWAKE), action: UnsafeCell::new(Some(Box::new(action))) }
    }

    /// Sets how the owner is woken, before it first sleeps. `false` if that was set before; then nothing changes.
    pub fn attach(&self, action: impl Wake + 'static) -> bool {
        let first = self.state.compare_exchange(DETACHED, ATTACHING, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first {
            // SAFETY: only one thread ever takes the state from DETACHED, and nobody reads before the store below.
            self.action.with_mut(|place| unsafe { *place = Some(Box::new(action)) });
            // Fails if the owner has left meanwhile.
            let _ = self.state.compare_exchange(ATTACHING, AWAKE, ord!(Release, "wake-attach"), Ordering::Relaxed);
        }
        first
    }

    /// Is it known how the owner is woken, and is it still there?
    pub fn is_attached(&self) -> bool {
        matches!(self.state.load(ord!(Acquire, "wake-attached")), AWAKE | ASLEEP)
    }

    /// Owner: says that it is going to sleep. It must look for work once more before it does: what was published before that
    /// look is found by it, what comes later wakes the owner.
    ///
    /// # Panics
    ///
    /// If nothing says how to wake the owner, or it has left: it would sleep for ever.
    pub fn prepare(&self) {
        assert!(self.is_attached(), "nothing is attached that could wake the owner");
        // Release: who sees the announcement sees the attached action.
        self.state.store(ASLEEP, ord!(Release, "wake-prepare"));
        fence(ord!(SeqCst, "wake-announce"));
    }

    /// Owner: is awake again, or has found work and will not sleep.
    pub fn finish(&self) {
        // A store would do: a waker's exchange comes right after the announcement that it read. The model checker does not know
        // that rule, and next to a sleep the exchange costs nothing.
        let _ = self.state.compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Owner: leaves for good. What was published by those whom `wake` told nothing is found by whoever looks after this.
    pub fn close(&self) {
        self.state.swap(CLOSED, Ordering::Relaxed);
        fence(ord!(SeqCst, "wake-close"));
    }

    /// Has the owner left? Of one that is just leaving, only [`WakeSlot::wake`] tells for sure.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLOSED
    }

    /// Wakes the owner if it has announced that it sleeps; of several callers, one. Work must be published before. `false` if the
    /// owner has left, perhaps without having seen the work.
    #[inline]
    pub fn wake(&self) -> bool {
        fence(ord!(SeqCst, "wake-check"));
        match self.state.load(Ordering::Relaxed) {
            CLOSED => return false,
            // If it has left since, it will look once more: it announced that after our fence.
            ASLEEP => _ = self.wake_sleeper(),
            _ => {}
        }
        true
    }

    /// [`WakeSlot::wake`] by a caller that has made a full fence since it published its work. `true` if it was this call that
    /// ended the owner's sleep.
    #[inline]
    pub(super) fn wake_fenced(&self) -> bool {
        self.is_asleep() && self.wake_sleeper()
    }

    /// Has the owner announced that it sleeps?
    pub fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASLEEP
    }

    #[cold]
    fn wake_sleeper(&self) -> bool {
        let won = self.state.compare_exchange(ASLEEP, AWAKE, ord!(Acquire, "wake-claim"), Ordering::Relaxed).is_ok();
        if won {
            self.action.with(|action| {
                // SAFETY: nobody writes the action any more: it was attached before the owner could announce a sleep.
                if let Some(action) = unsafe { &*action } {
                    action.wake();
                }
            });
        }
        won
    }
}

impl Default for WakeSlot {
    fn default() -> WakeSlot {
        WakeSlot::new()
    }
}

impl std::fmt::Debug for WakeSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WakeSlot").field("asleep", &self.is_asleep()).finish_non_exhaustive()
    }
}

impl Wake for thread::Thread {
    fn wake(&self) {
        self.unpark();
    }
}

impl Wake for mio::Waker {
    fn wake(&self) {
        if let Err(error) = mio::Waker::wake(self) {
            // The event descriptor is the poll's own: it fails only where the poll itself is broken, and the poll says so.
            tracing::error!(%error, "could not wake a poller");
        }
    }
}

impl<W: Wake + ?Sized> Wake for std::sync::Arc<W> {
    fn wake(&self) {
        (**self).wake();
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_awake_owner_is_left_alone_and_a_sleeping_one_is_woken_once() {
        let count = Arc::new(Count::default());
        let slot = WakeSlot::with(count.clone());
        slot.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        slot.prepare();
        slot.wake();
        slot.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        slot.finish();
        slot.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_first_action_attached_stays() {
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let slot = WakeSlot::new();
        slot.wake();
        slot.finish();
        assert!(!slot.is_attached());
        assert_eq!((slot.attach(first.clone()), slot.attach(second.clone())), (true, false));
        slot.prepare();
        slot.wake();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn an_owner_that_left_is_not_woken_and_wakers_learn_it() {
        let count = Arc::new(Count::default());
        let slot = WakeSlot::with(count.clone());
        assert!(slot.wake());
        slot.prepare();
        slot.close();
        slot.finish();
        assert!(!slot.wake());
        assert_eq!((slot.is_closed(), slot.is_attached(), count.0.load(Ordering::Relaxed)), (true, false, 0));
        let never_attached = WakeSlot::new();
        never_attached.close();
        assert!(!never_attached.attach(count));
        assert!(!never_attached.wake());
    }

    #[test]
    #[should_panic(expected = "nothing is attached")]
    fn an_owner_that_nobody_could_wake_may_not_sleep() {
        WakeSlot::new().prepare();
    }

    #[test]
    fn a_mio_waker_ends_the_poll_of_a_sleeping_owner() {
        let mut poll = mio::Poll::new().unwrap();
        let slot = WakeSlot::with(mio::Waker::new(poll.registry(), mio::Token(7)).unwrap());
        slot.prepare();
        slot.wake();
        let mut events = mio::Events::with_capacity(4);
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert_eq!(events.iter().next().map(|event| event.token()), Some(mio::Token(7)));
    }

    #[test]
    fn no_wake_up_is_lost_over_many_rounds() {
        const ROUNDS: u64 = 5_000;
        let work = Arc::new(AtomicU64::new(0));
        let slot = Arc::new(WakeSlot::with(std::thread::current()));
        let done = Arc::new(AtomicU64::new(0));
        let waker = {
            let (work, slot, done) = (work.clone(), slot.clone(), done.clone());
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    work.store(round, Ordering::Relaxed);
                    slot.wake();
                    while done.load(Ordering::Relaxed) < round {
                        std::thread::yield_now();
                    }
                }
            })
        };
        for round in 1..=ROUNDS {
            slot.prepare();
            while work.load(Ordering::Relaxed) < round {
                let asleep = std::time::Instant::now();
                std::thread::park_timeout(Duration::from_secs(20));
                assert!(asleep.elapsed() < Duration::from_secs(20), "round {round}: the wake-up was lost");
            }
            slot.finish();
            done.store(round, Ordering::Relaxed);
        }
        waker.join().unwrap();
    }
}
