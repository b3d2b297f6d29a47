//! The life of one call, as one enum: whatever happens in whatever order, a call ends once and gives its credit back once.
//!
//! ```text
//! Free -> Waiting -> Sent -> (Ended) -> Free
//!            \-----------------^
//! ```

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{MessageId, SessionId};
use tautline_net::payload::Payload;

use super::table::NIL;
use crate::error::{CallError, Fate};
use crate::handle::RemoteSlot;
use crate::method::Method;
use crate::options::Extension;

/// A call of this node. Never reused: what arrives late for a call that has ended finds another generation in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl CallId {
    pub(crate) const fn as_u64(self) -> u64 {
        self.slot as u64 | (self.generation as u64) << 32
    }

    pub(crate) const fn from_u64(id: u64) -> CallId {
        CallId { slot: id as u32, generation: (id >> 32) as u32 }
    }
}

/// What a call's result is.
pub(crate) type CallResult = Result<Payload, CallError>;

/// Where a call is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is free.
    Free,
    /// Made, and not sent: it waits for a credit, or is about to be sent.
    Waiting,
    /// Given to the session; it holds a credit.
    Sent {
        /// The request's message.
        message: MessageId,
        /// The server said that the handler started.
        started: bool,
        /// The session said that no byte of it left.
        kept: bool,
    },
    /// Over; the result waits to be fetched.
    Ended,
}

/// What a call that just ended held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nothing: it had not been sent.
    Nothing,
    /// A credit, and a message under way.
    Credit { message: MessageId, kept: bool },
}

impl State {
    /// The call was given to its session, with a credit.
    pub(crate) fn send(&mut self, message: MessageId) {
        debug_assert_eq!(*self, State::Waiting);
        *self = State::Sent { message, started: false, kept: false };
    }

    /// The server started it. `true` the first time.
    pub(crate) fn start(&mut self) -> bool {
        match self {
            State::Sent { started, .. } => !std::mem::replace(started, true),
            _ => false,
        }
    }

    /// The session will end and never sent any of it.
    pub(crate) fn keep(&mut self) {
        if let State::Sent { kept, .. } = self {
            *kept = true;
        }
    }

    /// Ends the call: `Some` exactly once in a call's life, with what there is to give back.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<Held> {
        let held = match *self {
            State::Free | State::Ended => return None,
            State::Waiting => Held::Nothing,
            State::Sent { message, kept, .. } => Held::Credit { message, kept },
        };
        *self = State::Ended;
        Some(held)
    }

    /// The result was fetched, or nobody wants it.
    #[inline]
    pub(crate) fn free(&mut self) {
        debug_assert_eq!(*self, State::Ended);
        *self = State::Free;
    }
}

impl Held {
    /// What is known of a call that ended without a word from the server, if `connected` says whether its session was ever
    /// established: before that, messages wait at home.
    pub(crate) fn fate(self, connected: bool) -> Fate {
        match self {
            Held::Nothing | Held::Credit { kept: true, .. } => Fate::NotSent,
            Held::Credit { .. } if !connected => Fate::NotSent,
            Held::Credit { .. } => Fate::MaybeExecuted,
        }
    }
}

/// Who waits for a call.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A tag, given back with the completion.
    Tag(u64),
    /// A future on the node's thread.
    Future(Option<Waker>),
    /// A future or thread elsewhere.
    Remote(Arc<RemoteSlot>),
}

impl Sink {
    /// Puts another in the place of one that nobody waits by any more. In a free slot that is mostly a tag, which is nothing to drop.
    #[inline(always)]
    pub(crate) fn become_another(&mut self, new: Sink) {
        let old = std::mem::replace(self, new);
        if matches!(old, Sink::Tag(_)) {
            std::mem::forget(old);
        } else {
            discard(old);
        }
    }
}

#[inline(never)]
fn discard(sink: Sink) {
    drop(sink);
}

/// One call.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) state: State,
    pub(crate) class: Class,
    pub(crate) notify_start: bool,
    pub(crate) peer: u32,
    pub(crate) session: SessionId,
    /// Neighbours in the one list that the call is in: those waiting for a peer's credit, or those sent in a session.
    pub(crate) previous: u32,
    pub(crate) next: u32,
    pub(crate) series: u32,
    pub(crate) method: Method,
    pub(crate) begun: Time,
    pub(crate) due: Time,
    pub(crate) sink: Sink,
}

impl Slot {
    /// The call stands in neither list. (A new one that is sent at once gets its neighbours then.)
    pub(crate) fn in_no_list(&mut self) {
        (self.session, self.previous, self.next) = (SessionId::from_u64(u64::MAX), NIL, NIL);
    }

    /// A slot that was never used.
    pub(crate) fn free() -> Slot {
        Slot {
            generation: 0,
            state: State::Free,
            class: Class::Normal,
            notify_start: false,
            peer: 0,
            session: SessionId::from_u64(u64::MAX),
            previous: NIL,
            next: NIL,
            series: 0,
            method: Method::from_id(0),
            begun: Time::ZERO,
            due: Time::NEVER,
            sink: Sink::Tag(0),
        }
    }
}

/// What only some calls have, kept apart so that the others stay compact.
#[derive(Debug, Default)]
pub(crate) struct Cold {
    /// The request, while it waits for a credit.
    pub(crate) payload: Payload,
    pub(crate) extension: Option<Extension>,
    /// While it waits: its line's `moved` when its timer was set.
    pub(crate) moved: u32,
    /// The result, while it waits for its future.
    pub(crate) result: Option<CallResult>,
    /// What was heard of the start of this call, which may not be the slot's any more.
    pub(crate) start: Option<(CallId, Start)>,
}

/// What a caller knows of its call's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// When it heard of it.
    pub heard: Time,
    /// How long the request had waited at the server, by the server's own clock. What is left of the time until it was heard went by on the
    /// network and in waking threads.
    pub waited: Duration,
}
