//! An endpoint: a port, its sessions and their timers. Its owner calls `poll`, takes the events, sends, and calls `flush`.
//!
//! One idea a file: what happens on arrival is in `arrive`, how sessions are accepted in `accept`, what leaves next in `depart`, how small messages
//! share a packet in `pen`, acknowledgements in `acks`, which incoming messages are granted more in `grants`, what is shown of packets before all that
//! in `preview` and what is done about them after in `late`, what is written before its moment in `drafts`, the sessions' places in `table`, when
//! they are looked at in `timers` (both this and what they owe stand in a `lineup`), how their memory is asked for ahead in `ahead`, what is in use
//! in `usage`, and what else an owner may ask in `inspect`.

mod accept;
mod acks;
mod ahead;
mod arrive;
mod config;
mod depart;
mod drafts;
mod event;
mod grants;
mod inspect;
mod late;
mod lineup;
#[cfg(test)]
mod pair;
mod pen;
mod preview;
mod table;
mod timers;
mod usage;

use std::hint::cold_path;
use std::io;
use std::sync::Arc;

use zerocopy::little_endian::{U16, U32};

use self::acks::Acks;
use self::depart::Departures;
use self::drafts::Draft;
use self::late::Late;
use self::pen::Pen;
use self::table::Table;
use self::timers::Timers;
use crate::class::Class;
use crate::clock::Time;
use crate::payload::Payload;
use crate::port::{Address, Datagram, Port};
use crate::session::{
    Budget, Credit, Crowd, Fifo, Handled, Inflow, Message, NewMessage, Session, Shared, Spare, Tokens, bundled_len,
    least_beside_small, write_bundled, write_bundled_words,
};
use crate::wire::{MIN_MTU, Parameters};

pub(crate) use self::config::CONTROL_SLOTS;
pub use self::config::EndpointConfig;
pub use self::drafts::Drafts;
pub use self::event::{CloseReason, ConnectError, EndpointCounters, Event, MessageId, RoundTrip, SendError, SessionId};
pub use self::usage::EndpointUsage;
pub use crate::session::{Batch, Messages};

/// Longest head that [`Endpoint::send`] takes beside the body, in bytes.
pub const MAX_HEAD: usize = 512;
/// Longest control message, in bytes. It fits one packet of the smallest MTU.
pub const MAX_CONTROL: usize = MIN_MTU - crate::wire::DATA_OVERHEAD;

/// A port, its sessions and their timers. It belongs to one thread, and does nothing unless it is called.
pub struct Endpoint {
    port: Box<dyn Port>,
    /// Whether the port protects datagrams from damage.
    integrity: bool,
    shared: Shared,
    tokens: Tokens,
    sessions: Table,
    timers: Timers,
    departures: Departures,
    acks: Acks,
    pen: Pen,
    arrivals: Vec<Datagram>,
    late: Late,
    /// Control messages in the burst that wait for a moment.
    drafts: Vec<Draft>,
    last_poll: Time,
    /// How many of the messages that wait for grants were not looked at since something changed, while nothing is on its way.
    unseen: usize,
}

impl Endpoint {
    /// An endpoint on `port`.
    ///
    /// # Panics
    ///
    /// If the port's MTU is below [`MIN_MTU`], which ports refuse when they are opened.
    pub fn new(port: Box<dyn Port>, config: EndpointConfig, now: Time) -> Endpoint {
        let capabilities = port.capabilities();
        assert!(capabilities.mtu >= MIN_MTU, "ports refuse MTUs below {MIN_MTU}");
        let config = config.clamped();
        let mut random = config.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let parameters = Parameters {
            mtu: U32::new(capabilities.mtu as u32),
            max_message: U32::new(config.max_message as u32),
            unscheduled: U32::new(config.unscheduled as u32),
            slots: U16::new(config.message_slots),
            reserved: U16::ZERO,
            ack_delay: U32::new(config.ack_delay.as_micros() as u32),
            peer_timeout: U32::new(config.peer_timeout.as_millis() as u32),
        };
        let tokens = Tokens::new((random.u64(..), random.u64(..)));
        Endpoint {
            integrity: capabilities.integrity,
            tokens,
            sessions: Table::new(config.max_sessions, random.fork()),
            timers: Timers::new(now),
            departures: Departures::new(capabilities.integrity),
            acks: Acks::new(),
            pen: Pen::new(),
            arrivals: Vec::with_capacity(config.burst),
            late: Late::new(config.burst),
            drafts: Vec::new(),
            last_poll: now,
            unseen: 0,
            shared: Shared {
                incarnation: random.u64(1..),
                parameters,
                ack_delay: config.ack_delay.as_nanos() as u64,
                resumed: now,
                quiet: config.peer_timeout.as_nanos() as u64 / 3,
                batches: Fifo::new(),
                counters: EndpointCounters::default(),
                budget: Budget::new(config.reassembly_bytes),
                held: 0,
                anybodys: config.send_bytes_total / 2,
                granting: Default::default(),
                inflow: Inflow::default(),
                credit: Credit::new(config.grant_window / 16, capabilities.mtu),
                crowd: Crowd::new(),
                grants_due: false,
                small_excess: 0,
                mixed_until: Time::ZERO,
                least_beside_small: least_beside_small(capabilities.segmentation),
                latest: 0,
                company_until: Time::ZERO,
                copy_out: false,
                spare: Spare::new(),
                config,
            },
            port,
        }
    }

    /// Opens a session to `peer`. It returns at once: messages may be sent into the session right away, and leave when the handshake is
    /// complete ([`Event::Established`]); if it fails, [`Event::Closed`] says why.
    pub fn connect(&mut self, peer: Address, now: Time) -> Result<SessionId, ConnectError> {
        if !self.port.local_address().reaches(peer) {
            return Err(ConnectError::WrongKind { peer });
        }
        let limit = self.shared.config.max_sessions;
        let id = self.sessions.reserve().ok_or(ConnectError::TooManySessions { limit })?;
        self.sessions.fill(id, Session::client(id, peer, now, &self.shared));
        self.schedule(id.slot, now);
        Ok(id)
    }

    /// Closes a session: what was accepted for sending is delivered first, then both sides get [`Event::Closed`].
    pub fn close(&mut self, session: SessionId, now: Time) {
        self.put_down(now);
        let Some(entry) = self.sessions.get_mut(session) else { return };
        let handled = entry.close(&mut self.shared);
        self.after(session.slot, handled, now);
    }

    /// Accepts a message, `head` followed by `body`, for delivery to the session's other side: once, or not at all if the session ends
    /// first ([`Event::Undelivered`] with `token`).
    ///
    /// Small messages to one session and of one class, sent one after the other with no other call that changes anything between, share a packet: at
    /// most 64 of them, in 2 KiB or the MTU if that is less. Nothing waits for more to come: the packet leaves with the next [`Endpoint::flush`], as
    /// a single message's would. If it is lost all of them wait until it was sent again.
    #[inline]
    pub fn send(
        &mut self,
        session: SessionId,
        class: Class,
        head: &[u8],
        body: Payload,
        token: u64,
        now: Time,
    ) -> Result<MessageId, SendError> {
        // The common case of many small messages to one peer, small enough itself to be part of its caller.
        let len = bundled_len(head.len(), body.len());
        if head.len() <= MAX_HEAD
            && let Some((id, place)) = self.pen.add(session, class, token, len)
        {
            write_bundled(head, &body, place);
            return Ok(id);
        }
        self.send_apart(session, class, head, body, token, now)
    }

    /// [`Endpoint::send`] with a head of little-endian words, at most [`MAX_HEAD`] bytes, for those who have it in registers.
    #[inline(always)]
    pub fn send_words<const N: usize>(
        &mut self,
        session: SessionId,
        class: Class,
        head: [u64; N],
        body: Payload,
        token: u64,
        now: Time,
    ) -> Result<MessageId, SendError> {
        const { assert!(8 * N <= MAX_HEAD) };
        let len = bundled_len(8 * N, body.len());
        if let Some((id, place)) = self.pen.add(session, class, token, len) {
            write_bundled_words(head, &body, place);
            return Ok(id);
        }
        let words = head.map(u64::to_le_bytes);
        self.send_apart(session, class, words.as_flattened(), body, token, now)
    }

    /// The packet that is being written is finished.
    #[inline(always)]
    fn put_down(&mut self, now: Time) {
        if !self.pen.is_down() {
            self.pen.put_down(&mut self.sessions, &mut self.departures, now, &mut self.shared);
        }
    }

    /// Accepts a message that does not share the packet before it.
    #[inline(never)]
    fn send_apart(
        &mut self,
        session: SessionId,
        class: Class,
        head: &[u8],
        body: Payload,
        token: u64,
        now: Time,
    ) -> Result<MessageId, SendError> {
        if head.len() > MAX_HEAD {
            cold_path();
            return Err(SendError::TooLarge { len: head.len(), limit: MAX_HEAD });
        }
        self.put_down(now);
        let entry = self.sessions.get_mut(session).ok_or(SendError::UnknownSession)?;
        if let Some(frame) = self.departures.frame_for_now(class, self.port.as_mut(), &mut self.shared.counters) {
            let new = NewMessage { class, head, body: &body, token };
            let buffer = self.pen.take_up(frame);
            if let Some((id, part, len)) = entry.send_now(&new, buffer, now, &mut self.shared) {
                self.pen.begin(entry, class, id, part, len, &self.shared);
                // It is open, so that it has a timer for all that it waits for besides.
                self.timers.sent(entry, now);
                return Ok(id);
            }
            if let Some(frame) = self.pen.give_back() {
                self.departures.give_back(frame);
            }
        }
        self.send_later(session, class, head, body, token, now)
    }

    /// Accepts a message that can't leave as it is, or not now.
    #[inline(never)]
    fn send_later(
        &mut self,
        session: SessionId,
        class: Class,
        head: &[u8],
        body: Payload,
        token: u64,
        now: Time,
    ) -> Result<MessageId, SendError> {
        // What a packet acknowledged makes room.
        if self.catch_up(now) {
            return self.send_apart(session, class, head, body, token, now);
        }
        let entry = self.sessions.get_mut(session).ok_or(SendError::UnknownSession)?;
        let id = entry.send(Message { class, head, body, token }, now, &mut self.shared)?;
        self.shared.counters.messages_sent += 1;
        self.schedule(session.slot, now);
        Ok(id)
    }

    /// Accepts a control message of up to [`MAX_CONTROL`] bytes: it has slots, frames and a class of its own, and waits for no data,
    /// credit or window. Delivered at most once; lost if the session ends.
    pub fn send_control(&mut self, session: SessionId, payload: &[u8], now: Time) -> Result<(), SendError> {
        if payload.len() > MAX_CONTROL {
            return Err(SendError::TooLarge { len: payload.len(), limit: MAX_CONTROL });
        }
        self.put_down(now);
        let entry = self.sessions.get_mut(session).ok_or(SendError::UnknownSession)?;
        if let Some(mut frame) = self.departures.control_frame_for_now(self.port.as_mut()) {
            if entry.send_control_now(payload, &mut frame, now) {
                self.departures.push(frame, entry.peer);
                self.timers.set(entry, now, &self.shared);
                return Ok(());
            }
            self.departures.give_back_control(frame);
        }
        let sent = entry.send_control(payload);
        // What a packet acknowledged makes room.
        if sent == Err(SendError::Full) && self.catch_up(now) {
            return self.send_control(session, payload, now);
        }
        sent?;
        self.schedule(session.slot, now);
        Ok(())
    }

    /// The same, and flushes: for a message that can't wait. What is to be kept of it is kept after it has left.
    pub fn send_control_at_once(&mut self, session: SessionId, payload: &[u8], now: Time) -> Result<(), SendError> {
        if payload.len() <= MAX_CONTROL
            && self.pen.is_down()
            && !self.departures.is_waiting()
            && let Some(entry) = self.sessions.get_mut(session)
            && let Some(mut frame) = self.departures.control_frame_for_now(self.port.as_mut())
        {
            if let Some(sent) = entry.emit_control(payload, &mut frame, now) {
                self.departures.push(frame, entry.peer);
                self.departures.transmit(self.port.as_mut(), &mut self.shared.counters);
                entry.control_sent(sent, now);
                self.timers.set(entry, now, &self.shared);
                return Ok(());
            }
            self.departures.give_back_control(frame);
        }
        let sent = self.send_control(session, payload, now);
        self.flush(now);
        sent
    }

    /// Stops sending a message, without effect if it was delivered. Its token gets no event.
    pub fn abandon(&mut self, session: SessionId, message: MessageId, now: Time) {
        self.put_down(now);
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.abandon(message, &mut self.shared);
            self.schedule(session.slot, now);
        }
    }

    /// The oldest event not yet taken.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(Batch::Messages(messages)) = self.shared.batches.front_mut()? {
            let (session, class) = (messages.session(), messages.class());
            let payload = messages.next();
            if messages.is_empty() {
                self.shared.batches.pop();
            }
            return Some(Event::Message { session, class, payload: payload.unwrap_or_default() });
        }
        match self.shared.batches.pop()? {
            Batch::Event(event) => Some(event),
            Batch::Messages(_) => None,
        }
    }

    /// The oldest events not yet taken: one, or all messages of a packet at once, which costs less than to take them one by one.
    #[inline(always)]
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.shared.batches.pop()
    }

    /// Whether [`Endpoint::next_event`] has something.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.shared.batches.is_empty()
    }

    /// Whether [`Endpoint::next_event`] has something, or [`Endpoint::flush`].
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_events() || self.is_waiting()
    }

    /// Whether something waits to be sent.
    #[inline]
    fn is_waiting(&self) -> bool {
        !self.pen.is_down() || !self.late.is_empty() || self.departures.is_waiting()
    }

    /// One turn: a burst from the port, less what was not taken of earlier ones ([`Endpoint::next_batch`]), and the timers that are due. Returns how
    /// many packets came.
    #[inline]
    pub fn poll(&mut self, now: Time) -> usize {
        self.poll_watching(now, &mut |_, _| {})
    }

    /// The same, and shows `watch` each new control message that came, with its session, before anything else is done about the burst: for
    /// what can't wait for the event. That follows, unless the packet turns out to be malformed. A message is shown again if its packet came twice in
    /// one burst; of messages that share a packet at most the first is shown.
    #[inline]
    pub fn poll_watching(&mut self, now: Time, watch: &mut dyn FnMut(SessionId, &[u8])) -> usize {
        self.put_down(now);
        self.catch_up(now);
        if now.nanos_since(self.last_poll) > self.shared.quiet {
            self.shared.resumed = now;
        }
        self.last_poll = now;
        let count = self.arrive(now, watch);
        self.departures.look_at_owing(now);
        // Where checks are on, always: tests with few sessions shall meet it too.
        self.shared.spare.many = self.sessions.len() >= ahead::MANY || cfg!(debug_assertions);
        if self.timers.is_due(now) {
            // Nothing may pass for lost of which the acknowledgement is here.
            self.take_lone(now);
            self.expire(now);
        }
        self.give_grants(now);
        count
    }

    #[inline(never)]
    fn expire(&mut self, now: Time) {
        let mut fired = self.timers.expire(now);
        for slot in fired.drain(..) {
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            session.armed = Time::NEVER;
            let handled =
                if session.timeout(&self.shared) <= now { session.on_timeout(now, &mut self.shared) } else { Handled::Open };
            self.after(slot, handled, now);
        }
        self.timers.fired(fired);
        while let Some(slot) = self.timers.take_watched(now) {
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            if self.timers.looked_at(session, now, &self.shared) {
                let handled = session.on_timeout(now, &mut self.shared);
                self.after(slot, handled, now);
            }
        }
    }

    /// Follows a change to a session: it is scheduled again, or said goodbye to and forgotten.
    #[inline]
    fn after(&mut self, slot: u32, handled: Handled, now: Time) {
        match handled {
            Handled::Open | Handled::Later => self.schedule(slot, now),
            Handled::Closed => self.forget(slot, now),
        }
    }

    fn forget(&mut self, slot: u32, now: Time) {
        self.timers.cancel(slot);
        if let Some(mut session) = self.sessions.remove(slot) {
            self.send_farewell(&mut session, now);
        }
    }

    /// Puts a session on the ready lists where it belongs, and sets its timer.
    #[inline]
    fn schedule(&mut self, slot: u32, now: Time) {
        let Some(session) = self.sessions.at_mut(slot) else { return };
        self.departures.owe(session, now);
        if session.is_calm() {
            self.timers.follow(session, now);
        } else {
            self.departures.enlist(session, now, self.shared.is_mixed(now));
            self.timers.set(session, now, &self.shared);
        }
    }

    /// When [`Endpoint::poll`] must be called next even if nothing arrives; `now` if packets wait to be sent.
    pub fn next_timeout(&self, now: Time) -> Option<Time> {
        if self.is_waiting() {
            return Some(self.departures.retry_at(now));
        }
        if self.shared.batches.len() >= self.shared.config.burst {
            return Some(now);
        }
        if self.unseen > 0 {
            return Some(now);
        }
        let owing = Some(self.departures.next_owing()).filter(|due| *due != Time::NEVER);
        self.timers.next().into_iter().chain(owing).min()
    }

    /// Prepares to block: sends the acknowledgements that still wait for something to ride on, and arms the port. `false`: packets are
    /// waiting already, don't block.
    pub fn before_wait(&mut self, now: Time) -> bool {
        self.put_down(now);
        self.catch_up(now);
        self.flush_acknowledgements(now);
        self.port.prepare_wait()
    }

    /// Ends what [`Endpoint::before_wait`] began.
    pub fn after_wait(&mut self) {
        self.port.finish_wait();
    }

    /// Registers what becomes ready when packets arrive; see [`Port::attach_wait`].
    pub fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()> {
        self.port.attach_wait(registry, token, waker)
    }
}

impl Drop for Endpoint {
    /// Tells every peer goodbye, once; who misses it notices by silence.
    fn drop(&mut self) {
        self.put_down(self.last_poll);
        for mut session in self.sessions.drain() {
            session.say_goodbye();
            // The time in a goodbye only scales its acknowledgement's delay, which no longer matters.
            self.send_farewell(&mut session, Time::ZERO);
        }
        self.departures.transmit(self.port.as_mut(), &mut self.shared.counters);
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.local_address())
            .field("sessions", &self.sessions)
            .field("departures", &self.departures)
            .finish_non_exhaustive()
    }
}
