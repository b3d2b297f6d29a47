//! What a handler is given, and what it gives back.

use std::cell::OnceCell;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::SessionId;
use tautline_net::payload::Payload;
use tautline_net::port::Address;

use crate::cancel::CancelToken;
use crate::method::Method;
use crate::options::CallOptions;

/// Whom something came from: a session, and the address at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The session. Sessions end and new ones begin; the address stays.
    pub session: SessionId,
    /// The address of the other side, proven by the session's handshake.
    pub address: Address,
}

/// A request, as its handler sees it.
#[derive(Debug)]
pub struct Request {
    pub(crate) payload: Payload,
    pub(crate) method: Method,
    pub(crate) class: Class,
    pub(crate) origin: Origin,
    pub(crate) deadline: Time,
    pub(crate) clock: Clock,
    pub(crate) token: OnceCell<CancelToken>,
}

impl Request {
    /// A request for nothing, to be filled in.
    pub(crate) fn blank(clock: Clock) -> Request {
        let address = Address::from(std::net::SocketAddr::from(([0, 0, 0, 0], 0)));
        Request {
            payload: Payload::empty(),
            method: Method::from_id(0),
            class: Class::Normal,
            origin: Origin { session: SessionId::from_u64(u64::MAX), address },
            deadline: Time::NEVER,
            clock,
            token: OnceCell::new(),
        }
    }

    /// Makes this another request, whose payload is here already: those that run where they are received come one at a time, and are too large to move about.
    #[inline(always)]
    pub(crate) fn refill(&mut self, method: Method, class: Class, origin: Origin, deadline: Time) {
        (self.method, self.class, self.origin, self.deadline) = (method, class, origin, deadline);
    }

    /// Lets go of what a request held that has been handled.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        if self.token.get().is_some() {
            self.retire_token();
        }
        if self.payload.is_something() {
            self.payload = Payload::empty();
        }
    }

    #[inline(never)]
    fn retire_token(&mut self) {
        if let Some(token) = self.token.take() {
            token.retire();
        }
    }

    /// The request's bytes. For a small request they lie in the packet that it came in, which goes back to its pool when the request
    /// is dropped.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Takes the bytes out, to keep them or to send them on.
    pub fn take_payload(&mut self) -> Payload {
        std::mem::take(&mut self.payload)
    }

    /// The method asked for.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The class that the caller gave it.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The caller's address.
    pub fn peer(&self) -> Address {
        self.origin.address
    }

    /// The session that it came in, and the caller's address.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// When the caller stops waiting, on this node's clock.
    pub fn deadline(&self) -> Option<Time> {
        (self.deadline != Time::NEVER).then_some(self.deadline)
    }

    /// What is left until the deadline; zero if it has passed, `None` if there is none. Reads the clock.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.since(self.clock.now()))
    }

    /// Tells whether the work is still wanted.
    pub fn cancellation(&self) -> &CancelToken {
        // A handler that runs at dispatch has no token until it asks for one: nothing but the deadline can end its request.
        self.token.get_or_init(|| self.new_token())
    }

    /// A token for this request.
    pub(crate) fn new_token(&self) -> CancelToken {
        CancelToken::with_deadline(self.deadline, self.deadline().map(|_| self.clock.clone()))
    }

    /// A point in long work where others may go first: on a worker thread, waiting requests of more urgent classes are served here and
    /// now. `false` if the work is no longer wanted: stop then. Futures have [`Local::yield_now`](crate::Local::yield_now) for the former.
    pub fn checkpoint(&self) -> bool {
        if self.cancellation().is_cancelled() {
            return false;
        }
        crate::server::workers::serve_above(self.class);
        !self.cancellation().is_cancelled()
    }

    /// Options for the handler's own calls: the same class, and a deadline not later than this request's.
    pub fn child_options(&self) -> CallOptions {
        CallOptions { class: self.class, expires: self.deadline(), ..CallOptions::default() }
    }
}

/// A handler's answer. Made from whatever a [`Payload`] is made from: `Ok(vec.into())`, `Ok(request.take_payload().into())`.
#[derive(Debug, Default)]
pub struct Reply {
    payload: Payload,
}

impl Reply {
    /// A reply without bytes.
    pub fn empty() -> Reply {
        Reply::default()
    }

    pub(crate) fn into_payload(self) -> Payload {
        self.payload
    }
}

impl<T: Into<Payload>> From<T> for Reply {
    fn from(bytes: T) -> Reply {
        Reply { payload: bytes.into() }
    }
}
