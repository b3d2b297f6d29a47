//! An endpoint under watch: what it says about sessions and messages is held against what it was asked, and its bounds are checked at
//! each turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{Endpoint, EndpointConfig, Event, MessageId, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::Address;

use crate::wire::{Packet, Wire};

/// Largest message that the endpoints take, in bytes.
pub const MAX_MESSAGE: usize = 100_000;
/// Sessions that a peer may open.
pub const SESSIONS_PER_PEER: usize = 4;
/// Frames in each pool: few, so that they run out, and that a leak is noticed.
const FRAMES: usize = 48;
/// Bytes of messages held for sending.
const SEND_BYTES: usize = 300_000;
/// Turns without the clock moving, after which an endpoint that still wants another is going round in circles.
const ROUNDS: usize = 2_000;
/// Steps from timer to timer, after which one that still has sessions won't come to an end.
const STEPS: usize = 50_000;

/// Small limits, so that an input of a few hundred bytes reaches them.
pub fn config(seed: u64) -> EndpointConfig {
    EndpointConfig {
        max_message: MAX_MESSAGE,
        max_sessions: 12,
        max_sessions_per_peer: SESSIONS_PER_PEER,
        message_slots: 70,
        send_queue: 20,
        send_bytes: SEND_BYTES / 2,
        send_bytes_total: SEND_BYTES,
        unscheduled: 4_000,
        reassembly_bytes: 150_000,
        peer_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(500),
        seed: Some(seed),
        ..EndpointConfig::default()
    }
}

/// An endpoint, its wire, and what is known of it.
pub struct Host {
    endpoint: Option<Endpoint>,
    /// The fuzzer's end of its port.
    pub wire: Wire,
    /// Where it is.
    pub address: Address,
    config: EndpointConfig,
    /// Sessions that were opened or announced, and did not end.
    sessions: BTreeSet<SessionId>,
    /// Messages that may still be said to be undelivered, by token.
    messages: BTreeMap<u64, (SessionId, MessageId)>,
    next_token: u64,
}

impl Host {
    /// An endpoint at `address`.
    pub fn new(address: Address, config: EndpointConfig, mtu: usize, integrity: bool, now: Time) -> Host {
        let wire = Wire::new(FRAMES, mtu, integrity);
        let endpoint = Endpoint::new(wire.port(address), config.clone(), now);
        let (sessions, messages) = Default::default();
        Host { endpoint: Some(endpoint), wire, address, config, sessions, messages, next_token: 1 }
    }

    /// The endpoint.
    ///
    /// # Panics
    ///
    /// If it was stopped.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("a host is used until it is stopped")
    }

    /// The sessions that did not end.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().copied()
    }

    /// The session of this number, counted round.
    pub fn session(&self, number: u8) -> Option<SessionId> {
        self.sessions.iter().nth(usize::from(number) % self.sessions.len().max(1)).copied()
    }

    /// Opens a session.
    pub fn connect(&mut self, peer: Address, now: Time) -> Option<SessionId> {
        let full = self.sessions.len() >= self.config.max_sessions;
        let session = self.endpoint().connect(peer, now).ok();
        assert!(session.is_some() || full, "no session, though there was room");
        if let Some(session) = session {
            assert!(self.sessions.insert(session), "a session got the id of another");
        }
        session
    }

    /// Sends a message: its token, and the answer.
    pub fn send(&mut self, session: SessionId, class: Class, body: Vec<u8>, now: Time) -> (u64, Result<MessageId, SendError>) {
        let token = self.next_token;
        self.next_token += 1;
        let answer = self.endpoint().send(session, class, b"", Payload::from(body), token, now);
        if let Ok(message) = answer {
            assert!(self.sessions.contains(&session), "a message was taken for a session that has ended");
            self.messages.insert(token, (session, message));
        }
        (token, answer)
    }

    /// The token of a message that was not given up: the one of this number, counted round.
    pub fn message(&self, number: u8) -> Option<u64> {
        self.messages.keys().nth(usize::from(number) % self.messages.len().max(1)).copied()
    }

    /// Gives a message up: nothing is to be heard of it again.
    pub fn abandon(&mut self, token: u64, now: Time) {
        if let Some((session, message)) = self.messages.remove(&token) {
            self.endpoint().abandon(session, message, now);
        }
    }

    /// Polls and flushes until there is nothing left to do at `now`. Gives what happened.
    ///
    /// # Panics
    ///
    /// If the endpoint does not come to rest, breaks a promise, or exceeds a bound.
    pub fn turn(&mut self, now: Time) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..ROUNDS {
            let endpoint = self.endpoint();
            endpoint.poll(now);
            let told = events.len();
            while let Some(event) = endpoint.next_event() {
                events.push(event);
            }
            endpoint.flush(now);
            let due = endpoint.next_timeout(now);
            events[told..].iter().for_each(|event| self.note(event));
            self.check_bounds();
            assert!(due.is_some() || self.sessions.is_empty(), "sessions are open, and no timer is set");
            if !self.wire.is_arriving() && due.is_none_or(|due| due > now) {
                return events;
            }
        }
        let due = self.endpoint().next_timeout(now);
        panic!("no rest at {now:?}: the next timer is {due:?}, {:#?}", self.endpoint());
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Established { session, incoming, .. } => {
                assert_eq!(self.sessions.insert(*session), *incoming, "established: {event:?}");
            }
            Event::Message { session, payload, .. } => {
                assert!(self.sessions.contains(session), "a message of no session");
                assert!(payload.len() <= self.config.max_message, "a message of {} bytes", payload.len());
            }
            Event::Control { session, .. } => assert!(self.sessions.contains(session), "a control message of no session"),
            Event::Undelivered { session, token, .. } => {
                let message = self.messages.remove(token);
                assert_eq!(message.map(|(session, _)| session), Some(*session), "said of message {token}: {event:?}");
            }
            Event::Closed { session, .. } => {
                assert!(self.sessions.remove(session), "a session ended twice");
                self.messages.retain(|_, (of, _)| of != session);
            }
        }
    }

    fn check_bounds(&mut self) {
        let (sessions, config) = (self.sessions.len(), self.config.clone());
        let endpoint = self.endpoint();
        assert_eq!(endpoint.session_count(), sessions, "sessions that nobody was told of, or that nobody remembers");
        assert!(sessions <= config.max_sessions, "{sessions} sessions");
        assert!(endpoint.reassembly_bytes() <= config.reassembly_bytes, "{} bytes to reassemble", endpoint.reassembly_bytes());
        // One message is always accepted.
        let most = config.send_bytes_total + config.max_message;
        assert!(endpoint.send_bytes() <= most, "{} bytes to send", endpoint.send_bytes());
    }

    /// Goes from timer to timer, with nobody answering, until every session has ended; then stops the endpoint. Gives the time, and
    /// what happened.
    ///
    /// # Panics
    ///
    /// If that does not come to an end, or something was not given back.
    pub fn fall_silent(&mut self, mut now: Time) -> (Time, Vec<Event>) {
        self.wire.set_room(usize::MAX);
        let mut events = self.turn(now);
        for step in 0.. {
            let Some(due) = self.endpoint().next_timeout(now).filter(|_| !self.sessions.is_empty()) else { break };
            assert!(step < STEPS, "sessions are left after {STEPS} timers, at {now:?}: {:#?}", self.endpoint());
            now = due.max(now.plus_nanos(1));
            events.extend(self.turn(now));
            self.wire.sent();
        }
        let endpoint = self.endpoint();
        assert_eq!((endpoint.reassembly_bytes(), endpoint.send_bytes()), (0, 0), "memory was not given back");
        self.stop();
        (now, events)
    }

    /// Stops the endpoint. Gives the last packets that it sent.
    pub fn stop(&mut self) -> Vec<Packet> {
        self.wire.set_room(usize::MAX);
        self.endpoint = None;
        self.wire.sent()
    }
}
