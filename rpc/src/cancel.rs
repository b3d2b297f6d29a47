//! Cancellation as a running handler sees it: a token that fires at most once, when the caller cancels, when the deadline passes,
//! or when the caller's node is gone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::guarded::guarded;

use tautline_net::clock::{Clock, Time};

/// Why a token fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CancelReason {
    /// The caller cancelled, or another copy of the request won.
    Cancelled = 1,
    /// The deadline passed.
    Deadline = 2,
    /// The caller's session ended: nobody waits for the reply.
    PeerGone = 3,
    /// The node is shutting down.
    Stopped = 4,
}

/// Tells a handler that its work is no longer wanted. Clones share the state, and may go to any thread.
///
/// Long work asks [`is_cancelled`](CancelToken::is_cancelled) between steps, futures await [`cancelled`](CancelToken::cancelled), and
/// work that blocks elsewhere registers a callback that stops it.
#[derive(Clone)]
pub struct CancelToken(Arc<Inner>);

struct Inner {
    /// 0, or the reason.
    fired: AtomicU8,
    deadline: Time,
    clock: Option<Clock>,
    /// Touched when something is registered and when the token fires, never by `is_cancelled`.
    watchers: Mutex<Watchers>,
}

#[derive(Default)]
struct Watchers {
    next_key: u64,
    callbacks: Vec<Callback>,
    wakers: Vec<(u64, Waker)>,
}

type Callback = Box<dyn FnOnce(CancelReason) + Send>;

impl CancelToken {
    /// A token that nothing fires but [`CancelToken::cancel`].
    pub fn new() -> CancelToken {
        CancelToken::with_deadline(Time::NEVER, None)
    }

    /// A token that counts as fired once `deadline` is past on `clock`.
    pub(crate) fn with_deadline(deadline: Time, clock: Option<Clock>) -> CancelToken {
        CancelToken(Arc::new(Inner { fired: AtomicU8::new(0), deadline, clock, watchers: Mutex::default() }))
    }

    /// Whether the work is no longer wanted. Costs one load, and a look at the clock where there is a deadline.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Why the work is no longer wanted.
    pub fn reason(&self) -> Option<CancelReason> {
        match self.0.fired.load(Ordering::Acquire) {
            0 => match &self.0.clock {
                Some(clock) if self.0.deadline <= clock.now() => Some(CancelReason::Deadline),
                _ => None,
            },
            1 => Some(CancelReason::Cancelled),
            2 => Some(CancelReason::Deadline),
            3 => Some(CancelReason::PeerGone),
            _ => Some(CancelReason::Stopped),
        }
    }

    /// Runs `callback` once when the token fires: on the thread that fires it, usually the poller, so it must be short. If the token
    /// has fired already it runs now. A callback whose request ends first is dropped without being run.
    pub fn on_cancel(&self, callback: impl FnOnce(CancelReason) + Send + 'static) {
        let mut watchers = self.watchers();
        match self.fired() {
            None => watchers.callbacks.push(Box::new(callback)),
            Some(reason) => {
                drop(watchers);
                callback(reason);
            }
        }
    }

    /// Completes when the token fires.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled { token: self.clone(), key: None }
    }

    /// Fires the token, the first time; `false` if it had fired.
    pub fn cancel(&self, reason: CancelReason) -> bool {
        let (callbacks, wakers) = {
            let mut watchers = self.watchers();
            if self.fired().is_some() {
                return false;
            }
            self.0.fired.store(reason as u8, Ordering::Release);
            (std::mem::take(&mut watchers.callbacks), std::mem::take(&mut watchers.wakers))
        };
        for callback in callbacks {
            // It runs on the poller: its panic must not take the node along.
            if guarded(|| callback(reason)).is_none() {
                tracing::error!("a cancellation callback panicked; the node goes on");
            }
        }
        for (_, waker) in wakers {
            waker.wake();
        }
        true
    }

    /// The request is over: callbacks that did not run never will.
    pub(crate) fn retire(&self) {
        let callbacks = std::mem::take(&mut self.watchers().callbacks);
        drop(callbacks);
    }

    /// Fired by somebody, as opposed to: past its deadline but not yet noticed.
    fn fired(&self) -> Option<CancelReason> {
        match self.0.fired.load(Ordering::Acquire) {
            0 => None,
            _ => self.reason(),
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        // No callback runs under the lock, so a panic can't leave the lists half changed.
        self.0.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for CancelToken {
    fn default() -> CancelToken {
        CancelToken::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.reason()).finish()
    }
}

/// The future of [`CancelToken::cancelled`]; its output is the reason.
#[derive(Debug)]
pub struct Cancelled {
    token: CancelToken,
    key: Option<u64>,
}

impl Future for Cancelled {
    type Output = CancelReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CancelReason> {
        let this = &mut *self;
        let mut watchers = this.token.watchers();
        if let Some(reason) = this.token.reason() {
            return Poll::Ready(reason);
        }
        let known = this.key.and_then(|key| watchers.wakers.iter_mut().find(|(k, _)| *k == key));
        match known {
            Some((_, waker)) if waker.will_wake(cx.waker()) => {}
            Some((_, waker)) => {
                let stale = std::mem::replace(waker, cx.waker().clone());
                // As in `drop`: it may be the last handle to a task.
                drop(watchers);
                drop(stale);
            }
            None => {
                let key = watchers.next_key;
                watchers.next_key += 1;
                watchers.wakers.push((key, cx.waker().clone()));
                drop(watchers);
                this.key = Some(key);
            }
        }
        Poll::Pending
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut watchers = self.token.watchers();
            let at = watchers.wakers.iter().position(|(k, _)| *k == key);
            let waker = at.map(|at| watchers.wakers.swap_remove(at));
            // The waker may be the last handle to a task; that task's drop must not find the lock held.
            drop(watchers);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn callbacks_run_once_and_late_ones_run_at_once() {
        let token = CancelToken::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = |runs: &Arc<AtomicUsize>| {
            let runs = runs.clone();
            move |reason| {
                assert_eq!(reason, CancelReason::PeerGone);
                runs.fetch_add(1, Ordering::Relaxed);
            }
        };
        token.on_cancel(count(&runs));
        assert!(token.cancel(CancelReason::PeerGone));
        assert!(!token.cancel(CancelReason::Cancelled));
        token.on_cancel(count(&runs));
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_callback_may_use_its_own_token() {
        let token = CancelToken::new();
        let inner = token.clone();
        token.on_cancel(move |_| {
            assert!(inner.is_cancelled());
            inner.on_cancel(|_| ());
        });
        token.cancel(CancelReason::Cancelled);
    }

    #[test]
    fn a_waiting_future_is_woken_and_a_dropped_one_leaves_no_waker_behind() {
        let token = CancelToken::new();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut dropped = Box::pin(token.cancelled());
        let mut kept = Box::pin(token.cancelled());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert!(kept.as_mut().poll(&mut context).is_pending());
        assert!(kept.as_mut().poll(&mut context).is_pending());
        drop(dropped);
        assert_eq!(token.watchers().wakers.len(), 1);
        token.cancel(CancelReason::Cancelled);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(kept.as_mut().poll(&mut context), Poll::Ready(CancelReason::Cancelled));
    }

    /// The last handle to a task that awaits the token too.
    struct Handle(#[expect(dead_code, reason = "held, not read")] Mutex<Pin<Box<Cancelled>>>);

    impl Wake for Handle {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_that_is_replaced_may_be_the_last_handle_to_another_waiting_task() {
        let token = CancelToken::new();
        let (mut task, mut future) = (Box::pin(token.cancelled()), Box::pin(token.cancelled()));
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let handle = Waker::from(Arc::new(Handle(Mutex::new(task))));
        assert!(future.as_mut().poll(&mut Context::from_waker(&handle)).is_pending());
        drop(handle);
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(token.watchers().wakers.len(), 1, "the task was dropped, and did not find the lock held");
    }

    #[test]
    fn a_passed_deadline_counts_before_anybody_notices_it() {
        let clock = Clock::virtual_at(Time::ZERO);
        let token = CancelToken::with_deadline(Time::ZERO + Duration::from_millis(1), Some(clock.clone()));
        assert!(!token.is_cancelled());
        clock.advance_to(Time::ZERO + Duration::from_millis(1));
        assert_eq!(token.reason(), Some(CancelReason::Deadline));
    }

    #[test]
    fn a_retired_token_runs_no_callback() {
        let token = CancelToken::new();
        token.on_cancel(|_| panic!("ran after its request had ended"));
        token.retire();
        token.cancel(CancelReason::Cancelled);
    }
}
