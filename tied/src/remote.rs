//! A set of replicas as other threads see it, any async runtime among them: calls go to the node's thread through its inbox, and
//! answers come back through a slot of their own.
//!
//! The set itself stays on its thread, in a map that only code on that thread can look into; a handle has the key.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tautline_net::payload::Payload;
use tautline_rpc::{CallError, Fate, Handle, Limit, Local, Method};

use crate::call::{Answer, TiedError};
use crate::replicas::{Replicas, Shared, TiedOptions};

type CallResult = Result<Answer, TiedError>;

thread_local! {
    /// The sets of this thread that have handles.
    static SETS: RefCell<HashMap<u64, (Weak<Key>, Rc<Shared>)>> = RefCell::default();
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

    /// Calls a method at one of the replicas, or several, as [`Replicas::call`] does. It is under way at once, its deadline counts
    /// from when the node takes it up. Await the result or [wait](RemoteReplicaCall::wait) for it; dropping it cancels all copies.
    pub fn call(&self, method: Method, payload: impl Into<Payload>, options: &TiedOptions) -> RemoteReplicaCall {
        let (payload, options, key) = (payload.into(), *options, self.key.clone());
        let slot = Arc::new(Slot::default());
        let end = End { slot: slot.clone(), fate: Fate::NotSent };
        let sent = self.key.node.execute(move |local| start(local, &key, method, payload, &options, end));
        if !sent {
            // The node has told by dropping what it did not take; but not why.
            slot.replace(Err(TiedError::NotTaken(CallError::Full(Limit::Inbox))));
        }
        RemoteReplicaCall { slot }
    }

    /// The node that makes the calls.
    pub fn node(&self) -> &Handle {
        &self.key.node
    }
}
