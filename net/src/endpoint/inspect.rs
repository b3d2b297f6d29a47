//! What an owner may ask of its endpoint and of the sessions in it.

use std::time::Duration;

use super::Endpoint;
use super::event::{EndpointCounters, RoundTrip, SessionId};
use crate::clock::Time;
use crate::port::{Address, PortCounters};
use crate::session::Session;

impl Endpoint {
    /// The address that peers reach this endpoint by.
    pub fn local_address(&self) -> Address {
        self.port.local_address()
    }

    /// The number that tells this endpoint from an earlier one at the same address.
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }

    /// Largest message accepted here, in bytes.
    pub fn max_message(&self) -> usize {
        self.shared.config.max_message
    }

    /// The session's measured round trip; `None` before the first measurement.
    pub fn round_trip(&self, session: SessionId) -> Option<RoundTrip> {
        self.sessions.get(session)?.round_trip()
    }

    /// The address of the session's other side; `None` once the session is over.
    pub fn peer(&self, session: SessionId) -> Option<Address> {
        self.sessions.get(session).map(|session| session.peer)
    }

    /// Whether the session's handshake is complete and it has not ended.
    pub fn is_established(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(Session::is_established)
    }

    /// How long the session's other side has owed a sign of life: it was sent something, or asked to open the session, and nothing at all was
    /// heard since. Zero where nothing is owed; `None` once the session is over.
    ///
    /// A peer's endpoint acknowledges what arrives whatever its owner is busy with, so much more than a round trip of silence means that
    /// the peer is gone, stopped or cut off, and not that it is slow. After [`peer_timeout`](super::EndpointConfig::peer_timeout) of it the session ends.
    pub fn silence(&self, session: SessionId, now: Time) -> Option<Duration> {
        Some(self.sessions.get(session)?.silence(now, &self.shared))
    }

    /// How many sessions there are, those still opening or closing included.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Bytes held for incomplete incoming messages.
    pub fn reassembly_bytes(&self) -> usize {
        self.shared.budget.used
    }

    /// Bytes of messages held for sending, all sessions together.
    pub fn send_bytes(&self) -> usize {
        self.shared.held + self.pen.bytes()
    }

    /// What was counted since the endpoint was made.
    pub fn counters(&self) -> EndpointCounters {
        let counted = self.shared.counters;
        EndpointCounters { messages_sent: counted.messages_sent + self.pen.messages() as u64, ..counted }
    }

    /// What the port counted.
    pub fn port_counters(&self) -> PortCounters {
        self.port.counters()
    }
}
