//! The node as other threads see it: commands through its inbox, results through a slot of their own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tautline_net::payload::Payload;
use tautline_net::port::Address;

use crate::client::call::CallResult;
use crate::client::peers::{ToAddress, reachable};
use crate::error::{CallError, Fate, Limit};
use crate::local::Local;
use crate::mail::{Mail, Refused};
use crate::method::Method;
use crate::options::CallOptions;

/// What another thread asks of a node.
pub(crate) enum Command {
    Call { peer: Address, method: Method, payload: Payload, options: CallOptions, slot: Arc<RemoteSlot> },
    Cancel { slot: Arc<RemoteSlot> },
    Execute(Box<dyn FnOnce(&Local) + Send>),
}

impl Command {
    /// The node is gone.
    pub(crate) fn fail(self) {
        if let Command::Call { slot, .. } = self {
            slot.complete(Err(CallError::Stopped { fate: Fate::NotSent }));
        }
    }
}

/// A node, for other threads. Cheap to clone; it does not keep the node alive.
#[derive(Clone)]
pub struct Handle {
    mail: Arc<Mail>,
    address: Address,
}

impl Handle {
    pub(crate) fn new(mail: Arc<Mail>, address: Address) -> Handle {
        Handle { mail, address }
    }

    /// The node's address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Calls a method of the node at `peer`, named as for [`Local::peer`]. Await the result or [wait](RemoteCall::wait) for it;
    /// dropping it cancels the call.
    pub fn call(&self, peer: impl ToAddress, method: Method, payload: impl Into<Payload>, options: CallOptions) -> RemoteCall {
        let slot = Arc::new(RemoteSlot::default());
        let peer = match reachable(&peer) {
            Ok(peer) => peer,
            Err(error) => {
                slot.complete(Err(error.into()));
                return RemoteCall { slot, mail: self.mail.clone() };
            }
        };
        let command = Command::Call { peer, method, payload: payload.into(), options, slot: slot.clone() };
        if let Err(refused) = self.mail.command(command) {
            slot.complete(Err(match refused {
                Refused::Full => CallError::Full(Limit::Inbox),
                Refused::Stopped => CallError::Stopped { fate: Fate::NotSent },
            }));
        }
        RemoteCall { slot, mail: self.mail.clone() }
    }

    /// Runs `work` on the node's thread, between two of its steps. `false` if the node has stopped or its inbox is full. If the node
    /// stops before it comes to it, `work` is dropped.
    pub fn execute(&self, work: impl FnOnce(&Local) + Send + 'static) -> bool {
        self.mail.command(Command::Execute(Box::new(work))).is_ok()
    }

    /// Whether the node has stopped or is gone: nothing more that is asked of it will be done.
    pub fn is_closed(&self) -> bool {
        self.mail.is_closed()
    }

    /// Ends [`Node::run`](crate::Node::run) at its next turn, for good: from now on calls of other threads fail with
    /// [`CallError::Stopped`].
    pub fn stop(&self) {
        self.mail.stop();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.address)
    }
}

/// Where a call from another thread gets its result.
#[derive(Debug, Default)]
pub(crate) struct RemoteSlot {
    state: Mutex<RemoteState>,
    ready: Condvar,
    /// The call's number at its node; zero until it has one.
    pub(crate) call: AtomicU64,
}

#[derive(Debug, Default)]
struct RemoteState {
    result: Option<CallResult>,
    waker: Option<Waker>,
    /// There is, or was, a result.
    over: bool,
}

impl RemoteSlot {
    /// Sets the result, the first time.
    pub(crate) fn complete(&self, result: CallResult) {
        let waker = {
            let mut state = self.lock();
            if state.over {
                return;
            }
            (state.over, state.result) = (true, Some(result));
            state.waker.take()
        };
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, RemoteState> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call made through a [`Handle`]. Dropping it cancels the call.
#[must_use = "a dropped call is cancelled"]
pub struct RemoteCall {
    slot: Arc<RemoteSlot>,
    mail: Arc<Mail>,
}

impl RemoteCall {
    /// Blocks the calling thread until the call ends. On the node's own thread that is never.
    pub fn wait(self) -> CallResult {
        let mut state = self.slot.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state = self.slot.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl RemoteCall {
    /// [`RemoteCall::wait`] for `limit` at most; after that the call itself, which goes on.
    pub fn wait_timeout(self, limit: Duration) -> Result<CallResult, RemoteCall> {
        let result = {
            let state = self.slot.lock();
            let waiting = |state: &mut RemoteState| state.result.is_none();
            let (mut state, _) = self.slot.ready.wait_timeout_while(state, limit, waiting).unwrap_or_else(PoisonError::into_inner);
            state.result.take()
        };
        result.ok_or(self)
    }
}

impl Future for RemoteCall {
    type Output = CallResult;

    /// # Panics
    ///
    /// If polled again after it completed.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let mut state = self.slot.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        assert!(!state.over, "a call was polled after it had completed");
        let stale = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(stale);
        Poll::Pending
    }
}

impl Drop for RemoteCall {
    fn drop(&mut self) {
        if !self.slot.lock().over {
            // If the inbox is full the call runs to its end, and its result is dropped.
            let _ = self.mail.command(Command::Cancel { slot: self.slot.clone() });
        }
    }
}

impl fmt::Debug for RemoteCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteCall(#{:x})", self.slot.call.load(Ordering::Relaxed))
    }
}
