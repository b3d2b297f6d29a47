//! A node: one endpoint, the calls in flight, the run queue, and the loop that drives them. It is client and server at once, and
//! belongs to one thread; have one a core.
//!
//! [`builder`] makes it, [`turn`] is one pass of the loop, [`run`] how its handlers are run, [`wait`] what it does when there is
//! nothing to do.

pub(crate) mod builder;
pub(crate) mod config;
pub(crate) mod run;
pub(crate) mod turn;
pub(crate) mod wait;

use std::cell::{Ref, RefMut};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tautline_net::clock::Time;
use tautline_net::endpoint::{Endpoint, EndpointCounters, EndpointUsage};
use tautline_net::port::{Address, PortCounters};

use self::builder::Builder;
use self::run::Runner;
use self::wait::Waiting;
use crate::client::submit::Completion;
use crate::core::Core;
use crate::error::ServeError;
use crate::handle::Handle;
use crate::hook::Hook;
use crate::local::{Local, Shared};
use crate::mail::Mail;
use crate::method::Method;
use crate::metrics::Metrics;
use crate::request::Request;
use crate::server::workers::Workers;
use crate::server::{Kind, ServiceState};
use crate::service::{Handler, Service};
use crate::usage::Usage;

/// A node of the network: client and server at once. It does nothing unless its thread drives it, by [`run`](Node::run),
/// [`block_on`](Node::block_on) or [`poll`](Node::poll).
///
/// Dropping a node ends every call, tells every peer, and waits for handlers that run on worker threads to return.
pub struct Node {
    shared: Rc<Shared>,
    runners: Vec<Runner>,
    /// The request that a handler runs on where it was received.
    direct: Request,
    hooks: Vec<(u8, Box<dyn Hook>)>,
    workers: Workers,
    waiting: Waiting,
    /// Set when the future that `block_on` drives wants to be polled.
    root: Arc<Root>,
}

impl Node {
    /// Builds a node on the port that `url` names, like `udp://127.0.0.1:7000`.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url.into())
    }

    /// Serves a method. Refused if its number is taken.
    pub fn serve(&mut self, method: Method, service: Service) -> Result<(), ServeError> {
        let Service { handler, limit, finish_when_cancelled } = service;
        let (kind, runner) = match handler {
            Handler::Inline(handler) => (Kind::Inline, Runner::Inline(handler)),
            Handler::Workers(handler) => (Kind::Workers(handler.clone()), Runner::Workers(handler)),
            Handler::Future(handler) => (Kind::Future { abort: !finish_when_cancelled }, Runner::Future(handler)),
        };
        let mut core = self.core();
        core.server.methods.insert(method).map_err(|holder| ServeError::Taken { method, holder })?;
        core.server.services.push(ServiceState { method, kind, limit, outstanding: 0 });
        core.metrics.add_service(method);
        drop(core);
        self.runners.push(runner);
        Ok(())
    }

    /// Installs a hook for requests whose extension has `tag`, and for control messages with it.
    pub fn hook(&mut self, tag: u8, hook: impl Hook + 'static) -> Result<(), ServeError> {
        if tag == 0 {
            return Err(ServeError::HookZero);
        }
        if self.hooks.iter().any(|(taken, _)| *taken == tag) {
            return Err(ServeError::HookTaken(tag));
        }
        self.core().server.hooks.push(tag);
        self.hooks.push((tag, Box::new(hook)));
        Ok(())
    }

    /// The node for code on this thread.
    pub fn local(&self) -> Local {
        Local { shared: self.shared.clone() }
    }

    /// The node for other threads.
    pub fn handle(&self) -> Handle {
        self.local().handle()
    }

    /// The address that peers reach it by.
    pub fn address(&self) -> Address {
        self.shared.core.borrow().endpoint.local_address()
    }

    /// Runs until [`Handle::stop`]. Then the node is closed to other threads: their calls that are under way, and later ones, end with
    /// [`CallError::Stopped`](crate::CallError::Stopped), and running it again returns at once. It may still be polled.
    pub fn run(&mut self) {
        while !self.shared.mail.is_stopping() {
            let done = self.turn();
            self.idle(done);
        }
        self.shared.mail.refuse_commands();
        self.shared.with(Core::end_remote_calls);
    }

    /// Runs until `future` completes, and gives its output.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let root = self.root.clone();
        root.woken.store(true, Ordering::Release);
        let waker = Waker::from(root.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            let mut done = self.turn();
            if root.woken.swap(false, Ordering::AcqRel) {
                done += 1;
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
                // What the future sent leaves now, not after the next look at the port.
                let mut core = self.core();
                let now = core.now;
                core.endpoint.flush(now);
            }
            self.idle(done);
        }
    }

    /// One turn of the loop, without waiting: receives, serves, runs what is ready, sends. Says how many things were done; with
    /// zero there is nothing to do before [`next_timeout`](Node::next_timeout) or the next packet.
    pub fn poll(&mut self) -> usize {
        self.turn()
    }

    /// When [`poll`](Node::poll) must be called next, if no packet comes before; a time that has passed if there is work now.
    pub fn next_timeout(&self) -> Option<Time> {
        let core = self.shared.core.borrow();
        if core.server.own.has_runnable() || !self.shared.mail.is_empty() || !core.hook_notes.is_empty() {
            return Some(core.now);
        }
        core.next_timeout()
    }

    /// The oldest result of a call made with [`Local::submit`].
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.core().client.completions.pop()
    }

    /// What the node has counted.
    pub fn metrics(&self) -> Ref<'_, Metrics> {
        self.shared.metrics()
    }

    /// What the endpoint below has counted.
    pub fn endpoint_counters(&self) -> EndpointCounters {
        self.shared.core.borrow().endpoint.counters()
    }

    /// What the port below has counted.
    pub fn port_counters(&self) -> PortCounters {
        self.shared.core.borrow().endpoint.port_counters()
    }

    /// What is in use now; all zero when a node is at rest, but for sessions.
    pub fn usage(&self) -> Usage {
        self.shared.usage()
    }

    /// What the endpoint and the port below have in use now.
    pub fn endpoint_usage(&self) -> EndpointUsage {
        self.shared.core.borrow().endpoint.usage()
    }

    fn core(&self) -> RefMut<'_, Core> {
        self.shared.core.borrow_mut()
    }
}

/// Wakes the future that `block_on` drives.
#[derive(Debug)]
struct Root {
    woken: AtomicBool,
    mail: Arc<Mail>,
}

impl std::task::Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.mail.wake();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.workers.stop();
        self.shared.mail.close();
        {
            let mut core = self.core();
            core.stopped = true;
            core.read_clock();
            core.end_all_calls();
            core.stop_entries();
            let Core { sleeps, deferred, .. } = &mut *core;
            sleeps.wake_all(deferred);
        }
        self.shared.settle();
        // Futures go with everything they hold; those of handlers answer.
        self.shared.executor.close();
        self.workers.join();
        let notes = std::iter::from_fn(|| self.shared.mail.next_note());
        for note in notes {
            self.core().on_note(note);
        }
        self.shared.settle();
        let closed = {
            let mut core = self.core();
            let now = core.read_clock();
            core.endpoint.flush(now);
            // A `Local` somewhere may outlive the node; the port does not.
            let address = core.endpoint.local_address();
            let nowhere = Endpoint::new(Box::new(builder::NoPort::new(address)), Default::default(), now);
            std::mem::replace(&mut core.endpoint, nowhere)
        };
        drop(closed);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.address())
    }
}
