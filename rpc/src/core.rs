//! Everything of a node that its thread shares between the poll loop, handlers and futures: one cell, borrowed for single steps.
//!
//! No foreign code runs while it is borrowed. Wakers, cancellation callbacks and the drops of tasks may come back for another
//! step at once, so they are put off ([`Deferred`]) until the borrow has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::{CloseReason, Endpoint, SessionId};
use tautline_net::port::Address;
use tautline_net::sync::claim::Ticket;

use crate::cancel::{CancelReason, CancelToken};
use crate::client::call::CallResult;
use crate::client::endings::OwedCancels;
use crate::client::submit::Client;
use crate::executor::Abort;
use crate::handle::RemoteSlot;
use crate::local::Presence;
use crate::metrics::Metrics;
use crate::server::Server;
use crate::sleep::Sleeps;

/// What waits for the end of a borrow.
#[derive(Debug)]
pub(crate) enum Deferred {
    Wake(Waker),
    Drop(Waker),
    Fire(CancelToken, CancelReason),
    Retire(CancelToken),
    Abort(Abort),
    Complete(Arc<RemoteSlot>, CallResult),
}

impl Deferred {
    pub(crate) fn run(self) {
        match self {
            Deferred::Wake(waker) => waker.wake(),
            Deferred::Drop(waker) => drop(waker),
            Deferred::Fire(token, reason) => {
                token.cancel(reason);
            }
            Deferred::Retire(token) => token.retire(),
            Deferred::Abort(task) => drop(task),
            Deferred::Complete(slot, result) => slot.complete(result),
        }
    }
}

/// A caller that wants to know that its call has started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notify {
    pub(crate) session: SessionId,
    pub(crate) call: u64,
    /// How long it waited here.
    pub(crate) waited: Duration,
}

/// What a hook is to be told, when the poll loop comes by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HookNote {
    /// `notify`: the caller wants to know, after the hook.
    Started {
        tag: u8,
        ticket: Ticket,
        at: Time,
        notify: Option<Notify>,
    },
    Finished {
        tag: u8,
        ticket: Ticket,
        at: Time,
    },
}

/// What is known of one session, by its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionState {
    pub(crate) id: SessionId,
    pub(crate) address: Address,
    pub(crate) established: bool,
}

/// The node's state.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    pub(crate) clock: Clock,
    /// The time of this turn, or of the last look at the clock since.
    pub(crate) now: Time,
    /// Whether `now` was read since the last turn ended.
    pub(crate) fresh: bool,
    pub(crate) sessions: Vec<Option<SessionState>>,
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) sleeps: Sleeps,
    pub(crate) metrics: Metrics,
    pub(crate) deferred: VecDeque<Deferred>,
    pub(crate) hook_notes: VecDeque<HookNote>,
    /// Cancels that their sessions had no room for.
    pub(crate) owed_cancels: OwedCancels,
    /// Scratch for expired timers.
    pub(crate) expired: Vec<u32>,
    pub(crate) stopped: bool,
}

impl Core {
    /// Looks at the clock, once a turn and once between two turns.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if !self.fresh {
            self.read_clock();
            self.fresh = true;
        }
    }

    /// Looks at the clock. Of this one copy is enough: what is called for every packet should be little code.
    #[inline(never)]
    pub(crate) fn read_clock(&mut self) -> Time {
        self.now = self.now.max(self.clock.now());
        self.now
    }

    #[inline]
    pub(crate) fn session(&self, id: SessionId) -> Option<&SessionState> {
        self.sessions.get(id.slot())?.as_ref().filter(|state| state.id == id)
    }

    pub(crate) fn add_session(&mut self, id: SessionId, address: Address) -> &mut SessionState {
        if self.sessions.len() <= id.slot() {
            self.sessions.resize(id.slot() + 1, None);
        }
        let place = &mut self.sessions[id.slot()];
        match place {
            Some(state) if state.id == id => {}
            // The endpoint announces the end of a session before its slot is used again.
            _ => *place = Some(SessionState { id, address, established: false }),
        }
        place.as_mut().expect("filled in above")
    }

    /// A handshake is complete.
    pub(crate) fn on_established(&mut self, id: SessionId, address: Address) {
        tracing::debug!(%address, session = id.as_u64(), "session established");
        self.add_session(id, address).established = true;
        // Calls and control messages to that address use the session, whoever opened it.
        if let Some(peer) = self.client.table.peers.find_mut(address)
            && peer.session.is_none()
        {
            peer.session = Some(id);
        }
        self.client.by_address.insert(address, id);
    }

    /// A session is over: its calls end, and what it asked for is not wanted any more.
    pub(crate) fn on_closed(&mut self, id: SessionId, reason: CloseReason) {
        let Some(state) = self.session(id).copied() else { return };
        tracing::debug!(address = %state.address, session = id.as_u64(), %reason, "session closed");
        self.end_session_calls(&state, reason);
        self.orphan_session(id);
        if self.client.by_address.get(&state.address) == Some(&id) {
            self.client.by_address.remove(&state.address);
        }
        self.sessions[id.slot()] = None;
    }

    /// Whether this turn has to do anything but look: what came, what is due, and what waits.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.endpoint.has_work() || self.has_jobs() || !self.server.withdrawn.is_empty() || self.server.credits_due(self.now)
    }

    /// Whether there is something to do beside what came.
    #[inline]
    pub(crate) fn has_jobs(&self) -> bool {
        self.timers_due() || self.server.own.has_runnable() || !self.is_settled()
    }

    #[inline]
    fn timers_due(&self) -> bool {
        let now = self.now;
        self.client.table.wheel.is_due(now) || self.server.wheel.is_due(now) || self.sleeps.is_due(now)
    }

    /// Whether nothing was put off.
    #[inline(always)]
    pub(crate) fn is_settled(&self) -> bool {
        self.deferred.is_empty() && self.hook_notes.is_empty()
    }

    /// Runs the timers that are due.
    #[inline]
    pub(crate) fn expire_timers(&mut self) {
        if self.timers_due() {
            self.expire_due();
        }
    }

    #[cold]
    fn expire_due(&mut self) {
        let now = self.now;
        let mut expired = std::mem::take(&mut self.expired);
        self.client.table.wheel.expire(now, &mut expired);
        for slot in expired.drain(..) {
            self.on_call_timer(slot);
        }
        self.server.wheel.expire(now, &mut expired);
        for slot in expired.drain(..) {
            self.on_entry_deadline(slot);
        }
        self.sleeps.expire(now, &mut expired, &mut self.deferred);
        self.expired = expired;
    }

    /// When something is due without anybody's doing.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        if self.endpoint.has_events() {
            return Some(self.now);
        }
        [self.endpoint.next_timeout(self.now), self.client.table.wheel.next(), self.server.next_timeout(), self.sleeps.next()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The session to an address, if there is one.
    pub(crate) fn session_to(&self, address: Address) -> Option<SessionId> {
        self.client
            .table
            .peers
            .find(address)
            .and_then(|peer| peer.session)
            .or_else(|| self.client.by_address.get(&address).copied())
    }

    pub(crate) fn presence(&self, address: Address) -> Presence {
        let Some(session) = self.session_to(address) else { return Presence::Unknown };
        let silent = self.endpoint.silence(session, self.now);
        // The session may be open already, and its event still to be taken.
        let open = self.session(session).is_some_and(|state| state.established) || self.endpoint.is_established(session);
        match (silent, open) {
            (Some(silent), true) => Presence::Open { silent },
            (Some(since), false) => Presence::Opening { since },
            (None, _) => Presence::Unknown,
        }
    }

    pub(crate) fn one_way_delay(&self, address: Address) -> Option<Duration> {
        Some(self.endpoint.round_trip(self.session_to(address)?)?.smoothed / 2)
    }
}
