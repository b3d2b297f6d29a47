//! A set of replicas as other threads see it, any async runtime among them: calls go to the node's thread through its inbox, and
//! answers come back through a slot of their own.
//!
//! The set itself stays on its thread, in a map that only code on that thread can look into; a handle has the key.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tautline_net::payload::Payload;
use tautline_rpc::{CallError, Fate, Handle, Limit, Local, Method, SpawnError};

use crate::answer::{Answer, TiedError};
use crate::call::ReplicaCall;
use crate::replicas::{Replicas, Shared, TiedOptions};

type CallResult = Result<Answer, TiedError>;
type Sets = HashMap<u64, (Weak<Key>, Rc<Shared>)>;

thread_local! {
    /// The sets of this thread that have handles.
    static SETS: RefCell<Sets> = RefCell::default();
}

static NEXT_KEY: AtomicU64 = AtomicU64::new(0);

/// [`Replicas`] for other threads; see [`Replicas::handle`]. Cheap to clone. The set lives as long as one of its handles does, or its
/// node's thread; the node has to be [run](tautline_rpc::Node::run) by that.
#[derive(Clone)]
pub struct ReplicasHandle {
    key: Arc<Key>,
}

/// One set's place in the map.
struct Key {
    node: Handle,
    key: u64,
}

impl Drop for Key {
    fn drop(&mut self) {
        // If the node's inbox is full the place is given back when the next set wants one.
        self.node.execute(|_| forget_stale());
    }
}

/// Lets go of sets that have no handle any more.
fn forget_stale() {
    // A set may go with the last calls on it, which may be foreign code: not under the borrow.
    let stale: Vec<_> = SETS.with_borrow_mut(|sets| sets.extract_if(|_, (key, _)| key.strong_count() == 0).collect());
    drop(stale);
}

impl ReplicasHandle {
    pub(crate) fn new(shared: &Rc<Shared>) -> ReplicasHandle {
        forget_stale();
        let key = Arc::new(Key { node: shared.local.handle(), key: NEXT_KEY.fetch_add(1, Ordering::Relaxed) });
        SETS.with_borrow_mut(|sets| sets.insert(key.key, (Arc::downgrade(&key), shared.clone())));
        ReplicasHandle { key }
    }

    /// Calls a method at one of the replicas, or several, as [`Replicas::call`] does. It is under way at once, and its deadline counts
    /// from when the node takes it up; what is under way when the node stops ends when the node is dropped. Await the result or [wait](RemoteReplicaCall::wait) for it; dropping it cancels all copies.
    pub fn call(&self, method: Method, payload: impl Into<Payload>, options: &TiedOptions) -> RemoteReplicaCall {
        let (payload, options, key) = (payload.into(), *options, self.key.clone());
        let slot = Arc::new(Slot::default());
        let end = End { slot: slot.clone(), fate: Fate::NotSent };
        let sent = self.key.node.execute(move |local| start(local, &key, method, payload, &options, end));
        if !sent {
            let stopped = CallError::Stopped { fate: Fate::NotSent };
            let error = if self.key.node.is_closed() { stopped } else { CallError::Full(Limit::Inbox) };
            // Nobody has seen what the slot says since the node did not take it.
            slot.lock().result = Some(Err(TiedError::Node(error)));
        }
        RemoteReplicaCall { slot }
    }

    /// The node that makes the calls.
    pub fn node(&self) -> &Handle {
        &self.key.node
    }
}

impl fmt::Debug for ReplicasHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicasHandle({:?})", self.key.node)
    }
}

/// On the node's thread: makes the call.
fn start(local: &Local, key: &Key, method: Method, payload: Payload, options: &TiedOptions, end: End) {
    let Some(shared) = SETS.with_borrow(|sets| Some(sets.get(&key.key)?.1.clone())) else { return };
    let call = Replicas { shared }.call(method, payload, options);
    let end = Rc::new(Cell::new(Some(end)));
    if let Err(SpawnError::Full { .. }) = local.spawn(drive(call, end.clone()))
        && let Some(end) = end.take()
    {
        end.slot.complete(Err(TiedError::Node(CallError::Full(Limit::Tasks))));
    }
}

async fn drive(mut call: ReplicaCall, end: Rc<Cell<Option<End>>>) {
    let Some(mut end) = end.take() else { return };
    end.fate = Fate::MaybeExecuted;
    let ended = poll_fn(|cx| match end.slot.is_given_up(cx.waker()) {
        true => Poll::Ready(None),
        false => Pin::new(&mut call).poll(cx).map(Some),
    });
    if let Some(result) = ended.await {
        end.slot.complete(result);
    }
}

/// Ends a call that its node lets go of.
struct End {
    slot: Arc<Slot>,
    fate: Fate,
}

impl Drop for End {
    fn drop(&mut self) {
        self.slot.complete(Err(TiedError::Node(CallError::Stopped { fate: self.fate })));
    }
}

/// Where a call gets its result.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    ready: Condvar,
}

#[derive(Default)]
struct SlotState {
    result: Option<CallResult>,
    /// There is, or was, a result.
    over: bool,
    given_up: bool,
    /// Who waits for the result.
    caller: Option<Waker>,
    /// The task that makes the call.
    task: Option<Waker>,
}

impl Slot {
    /// Sets the result, the first time.
    fn complete(&self, result: CallResult) {
        let wakers = {
            let mut state = self.lock();
            if state.over {
                return;
            }
            (state.over, state.result) = (true, Some(result));
            (state.caller.take(), state.task.take())
        };
        self.ready.notify_all();
        if let (Some(caller), _) = wakers {
            caller.wake();
        }
    }

    /// Whether nobody wants the result; `task` is woken when that comes to be.
    fn is_given_up(&self, task: &Waker) -> bool {
        let mut state = self.lock();
        if state.task.as_ref().is_none_or(|known| !known.will_wake(task)) {
            state.task = Some(task.clone());
        }
        state.given_up
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A logical call made through a [`ReplicasHandle`]. Dropping it cancels every copy.
#[must_use = "a dropped call is cancelled"]
pub struct RemoteReplicaCall {
    slot: Arc<Slot>,
}

impl RemoteReplicaCall {
    /// Blocks the calling thread until the call ends. On the node's own thread that is never.
    pub fn wait(self) -> Result<Answer, TiedError> {
        let mut state = self.slot.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state = self.slot.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for RemoteReplicaCall {
    type Output = Result<Answer, TiedError>;

    /// # Panics
    ///
    /// If polled again after it completed.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        assert!(!state.over, "a call was polled after it had completed");
        let stale = state.caller.replace(cx.waker().clone());
        drop(state);
        drop(stale);
        Poll::Pending
    }
}

impl Drop for RemoteReplicaCall {
    fn drop(&mut self) {
        let task = {
            let mut state = self.slot.lock();
            state.given_up = true;
            state.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl fmt::Debug for RemoteReplicaCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteReplicaCall")
    }
}
