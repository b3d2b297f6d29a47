//! The node as code on its own thread sees it: handlers, futures, and whoever drives the poll loop.

use std::cell::{Ref, RefCell};
use std::fmt;
use std::future::Future;
use std::hint::cold_path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::EndpointUsage;
use tautline_net::payload::Payload;
use tautline_net::port::{Address, AddressError};

use crate::client::call::{CallId, Sink};
use crate::client::future::{Call, TypedCall};
use crate::client::peers::{Peer, ToAddress, reachable};
use crate::client::submit::Completion;
use crate::codec::{Codec, CodecError, Rpc};
use crate::core::Core;
use crate::error::{CallError, SpawnError};
use crate::executor::{Executor, Task};
use crate::handle::Handle;
use crate::hook::ControlError;
use crate::mail::Mail;
use crate::method::Method;
use crate::metrics::{Below, Metrics};
use crate::options::CallOptions;
use crate::sleep::{Sleep, YieldNow};
use crate::usage::Usage;

/// What the node and its [`Local`]s share.
pub(crate) struct Shared {
    pub(crate) core: RefCell<Core>,
    pub(crate) mail: Arc<Mail>,
    pub(crate) executor: Executor,
}

impl Shared {
    /// One step on the core, and then whatever it put off.
    #[inline]
    pub(crate) fn with<R>(&self, step: impl FnOnce(&mut Core) -> R) -> R {
        let (result, settled) = {
            let mut core = self.core.borrow_mut();
            (step(&mut core), core.deferred.is_empty())
        };
        if !settled {
            self.settle();
        }
        result
    }

    /// What was counted, and by the layers below until now.
    pub(crate) fn metrics(&self) -> Ref<'_, Metrics> {
        // Somebody may hold the metrics of before; then those below are as of then.
        if let Ok(mut core) = self.core.try_borrow_mut() {
            core.metrics.below = Some(Below {
                endpoint: core.endpoint.counters(),
                port: core.endpoint.port_counters(),
                usage: core.usage(self.executor.len()),
                endpoint_usage: core.endpoint.usage(),
            });
        }
        Ref::map(self.core.borrow(), |core| &core.metrics)
    }

    /// Runs what waited for the end of a borrow.
    pub(crate) fn settle(&self) {
        loop {
            // The borrow must end before the thing runs: it may come back.
            let next = self.core.borrow_mut().deferred.pop_front();
            match next {
                Some(deferred) => deferred.run(),
                None => break,
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// What a node knows of a peer's being there; see [`Local::presence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// There is no session, so nothing is known.
    Unknown,
    /// A session is being opened, and no answer has come for this long. None of the calls to the peer has been sent.
    Opening {
        /// Since the attempt began.
        since: Duration,
    },
    /// There is a session.
    Open {
        /// For how long the peer has owed an acknowledgement while nothing at all came from it; zero while it owes none. A peer acknowledges
        /// what arrives however busy its handlers are, so much more than a round trip means that it is gone, stopped or cut off.
        silent: Duration,
    },
}

/// A node, for code on its thread. Clone it into handlers and futures. After the node is gone, calls fail with
/// [`CallError::Stopped`].
#[derive(Clone)]
pub struct Local {
    pub(crate) shared: Rc<Shared>,
}

impl Local {
    /// Looks a peer up, to call it: by URL, [`Address`] or socket address. No packet is sent; the first call opens a session.
    pub fn peer(&self, name: impl ToAddress) -> Result<Peer, AddressError> {
        let address = reachable(&name)?;
        Ok(self.shared.core.borrow_mut().client.table.peers.handle(address))
    }

    /// Calls a method. The request is sent before this returns, if there is credit; see [`Call`] for the rest.
    pub fn call(&self, peer: Peer, method: Method, payload: impl Into<Payload>, options: CallOptions) -> Call {
        let payload = payload.into();
        let made = self.shared.with(|core| core.begin(&peer, method, payload, &options, || Sink::Future(None)));
        Call::new(self.shared.clone(), made)
    }

    /// [`Local::call`] with the types of `M`.
    pub fn call_typed<M: Rpc>(&self, peer: Peer, request: M::Request, options: CallOptions) -> TypedCall<M> {
        match <M::Codec as Codec<M::Request>>::encode(request) {
            Ok(payload) => self.call(peer, M::METHOD, payload, options).typed(),
            Err(CodecError(reason)) => Call::new(self.shared.clone(), Err(CallError::Encode(reason))).typed(),
        }
    }

    /// Calls a method without a future: the result comes as a [`Completion`] with `tag`. This is the path without allocation.
    #[inline]
    pub fn submit(
        &self,
        peer: Peer,
        method: Method,
        payload: impl Into<Payload>,
        options: &CallOptions,
        tag: u64,
    ) -> Result<CallId, CallError> {
        let mut core = self.shared.core.borrow_mut();
        let made = core.begin(&peer, method, payload.into(), options, || Sink::Tag(tag));
        let settled = core.deferred.is_empty();
        drop(core);
        if !settled {
            cold_path();
            self.shared.settle();
        }
        made
    }

    /// The oldest result of a submitted call.
    #[inline]
    pub fn next_completion(&self) -> Option<Completion> {
        self.shared.core.borrow_mut().client.completions.pop()
    }

    /// Cancels a submitted call: its completion says [`CallError::Cancelled`], and its server is told. `false` if it has ended.
    pub fn cancel(&self, call: CallId) -> bool {
        self.shared.with(|core| core.cancel_call(call))
    }

    /// Sends bytes to the hook with this tag at the node of `peer`: at most once, ahead of all data.
    pub fn send_control(&self, peer: Peer, tag: u8, bytes: &[u8]) -> Result<(), ControlError> {
        self.shared.with(|core| core.send_hook(peer.address, tag, bytes))
    }

    /// Completes at `due`, at most some microseconds later; also when the node stops.
    pub fn sleep_until(&self, due: Time) -> Sleep {
        Sleep::new(self.shared.clone(), due)
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let now = self.shared.core.borrow_mut().read_clock();
        self.sleep_until(now + duration)
    }

    /// Lets the poll loop make a turn: packets, cancels and other tasks get in. For futures with much to compute.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }

    /// Runs a future on the node's executor.
    pub fn spawn<F>(&self, future: F) -> Result<Task<F::Output>, SpawnError>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.shared.executor.spawn(future).map(Task::new)
    }

    /// The time, as of this turn of the poll loop or of the first look between two turns.
    pub fn now(&self) -> Time {
        let mut core = self.shared.core.borrow_mut();
        core.refresh();
        core.now
    }

    /// Half the smoothed round trip to a peer, once there is a session and a measurement.
    pub fn one_way_delay(&self, peer: Peer) -> Option<Duration> {
        self.shared.core.borrow().one_way_delay(peer.address)
    }

    /// Whether a peer is there, as far as this node knows now.
    pub fn presence(&self, peer: Peer) -> Presence {
        let mut core = self.shared.core.borrow_mut();
        core.refresh();
        core.presence(peer.address)
    }

    /// How many calls of a class the peer allows this node to have outstanding, as of its last reply; `None` if it was never called.
    pub fn credit_limit(&self, peer: Peer, class: Class) -> Option<u32> {
        let core = self.shared.core.borrow();
        Some(core.client.table.peers.find(peer.address)?.lanes[class.index()].account.limit())
    }

    /// The node's address.
    pub fn address(&self) -> Address {
        self.shared.core.borrow().endpoint.local_address()
    }

    /// The largest message in bytes that the node accepts; a call's head takes 24 of them, an extension its length.
    pub fn max_message(&self) -> usize {
        self.shared.core.borrow().endpoint.max_message()
    }

    /// Adds the metrics of something on this thread to the text of [`Metrics::prometheus`], for as long as it lives. `text` gives
    /// them in the same format, each family after its `# HELP`; families of several sources are joined, so their samples need a
    /// label to tell them apart. It must not call into the node, which is in use then.
    pub fn metrics_source<T: 'static>(&self, of: &Rc<T>, text: impl Fn(&T) -> String + 'static) {
        self.shared.core.borrow_mut().metrics.sources.add(of, text);
    }

    /// The node for other threads.
    pub fn handle(&self) -> Handle {
        Handle::new(self.shared.mail.clone(), self.address())
    }

    /// What the node has counted. Let go of it before the next call into the node.
    pub fn metrics(&self) -> Ref<'_, Metrics> {
        self.shared.metrics()
    }

    /// What the node has in use now; see [`Node::usage`](crate::Node::usage).
    pub fn usage(&self) -> Usage {
        self.shared.usage()
    }

    /// What the endpoint and the port below have in use now.
    pub fn endpoint_usage(&self) -> EndpointUsage {
        self.shared.core.borrow().endpoint.usage()
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Local")
    }
}
