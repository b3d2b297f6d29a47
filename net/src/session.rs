//! The protocol between two endpoints, sans-IO: packets and time come in by argument, packets and events go out.
//!
//! A session is one of many of its [`Endpoint`](crate::endpoint::Endpoint), which owns what they share ([`Shared`]) and moves their packets.
//! One idea a file: [`received`] numbers, [`recovery`] of what was lost, [`rtt`], [`congestion`], [`outgoing`] and [`incoming`]
//! messages; [`handshake`] opens a session and [`token`] keeps that stateless.

mod bits;
mod congestion;
mod handshake;
mod incoming;
mod outgoing;
mod received;
mod recovery;
mod rtt;
mod token;

use std::collections::VecDeque;

use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use self::congestion::{Congestion, Window};
use self::handshake::Opening;
use self::incoming::{Arrival, Incoming};
use self::outgoing::{Outgoing, Ticket};
use self::received::Received;
use self::recovery::{Content, Progress, Recovery, Verdict};
use crate::clock::Time;
use crate::endpoint::{CloseReason, EndpointConfig, EndpointCounters, Event, MessageId, RoundTrip, SendError, SessionId};
use crate::frame::Frame;
use crate::payload::Payload;
use crate::port::Address;
use crate::wire::{CloseCode, DATA_OVERHEAD, Fragment, Header, Item, ItemKind, Kind, Parameters, WireError};

pub(crate) use self::handshake::{FIRST_PAUSE, Proven};
pub(crate) use self::incoming::Budget;
pub(crate) use self::outgoing::Message;
pub(crate) use self::token::Tokens;

/// Control items in one packet at most.
const ITEMS_A_PACKET: usize = 16;
/// Data packets that a probe may send beyond the window.
const PROBE_PACKETS: u8 = 2;
/// No timer but those of a handshake or a suspected loss is set for sooner than this, in nanoseconds.
pub(crate) const SOONEST: u64 = 50_000;
/// A message that stands still for this many peer time-outs, although its sender may go on, ends its session.
const STALL_FACTOR: u64 = 4;
/// A packet that stays unacknowledged for this many peer time-outs ends its session.
const ACK_FACTOR: u64 = 3;

/// What the sessions of one endpoint share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EndpointConfig,
    pub(crate) incarnation: u64,
    /// What this side tells every peer.
    pub(crate) parameters: Parameters,
    /// Longest that an acknowledgement waits, in nanoseconds.
    pub(crate) ack_delay: u64,
    /// Silence after which a peer is pinged, in nanoseconds.
    pub(crate) quiet: u64,
    /// When this side last came back from not being polled for long: nobody else is to blame for the silence before.
    pub(crate) resumed: Time,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: EndpointCounters,
    pub(crate) budget: Budget,
    /// Bytes of messages that all sessions hold for sending.
    pub(crate) held: usize,
    /// Incoming messages that need grants: session, the peer's slot, its sequence number.
    pub(crate) granting: Vec<(SessionId, u16, u32)>,
    /// Something changed that grants depend on.
    pub(crate) grants_due: bool,
    /// Receive frames run low: payloads are copied out of them.
    pub(crate) copy_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A client's, before the welcome.
    Opening,
    Established,
    /// No more is accepted for sending; the close follows what was accepted.
    Draining,
    /// The close was sent.
    Closing,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) peer: Address,
    /// The peer's id for this session; 0 until it is known.
    pub(crate) remote: u64,
    /// The peer's incarnation; 0 until it is known.
    pub(crate) remote_incarnation: u64,
    pub(crate) incoming_side: bool,
    /// When the peer proved to be there: a hello made before that is out of date.
    pub(crate) proven: Time,
    state: State,
    opening: Option<Box<Opening>>,
    /// What the peer is told last, if it may still listen.
    farewell: Option<Farewell>,
    /// The peer's limits.
    limits: Limits,
    received: Received,
    recovery: Recovery,
    window: Window,
    outgoing: Outgoing,
    incoming: Incoming,
    items: SmallVec<[Item; 2]>,
    /// What of [`Shared::held`] is this session's.
    held: usize,
    probe_packets: u8,
    /// When to look for messages that stand still; `NEVER` while none is incomplete.
    stall_check: Time,
    last_heard: Time,
    last_ping: Time,
    /// Which of the endpoint's departure lists the session stands on.
    pub(crate) ready: u8,
    /// The time that the endpoint's wheel is set to for this session.
    pub(crate) armed: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    /// The acknowledgement of its close.
    Acknowledge,
    /// A close.
    Close(CloseCode),
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    max_message: u32,
    unscheduled: u32,
    ack_delay: u64,
}

/// What a packet for a session came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// Go on.
    Open,
    /// The session is over; its events are out. The endpoint sends its last packet, if any, and forgets it.
    Closed,
}

impl Session {
    /// A session that this side opens.
    pub(crate) fn client(id: SessionId, peer: Address, now: Time, shared: &Shared) -> Session {
        let mut session = Session::new(id, peer, now, shared);
        session.opening = Some(Box::new(Opening::new(now, shared)));
        session
    }

    /// A session that the peer opened.
    pub(crate) fn server(id: SessionId, client: &Proven, now: Time, shared: &mut Shared) -> Session {
        let mut session = Session::new(id, client.peer, now, shared);
        session.incoming_side = true;
        session.proven = client.made;
        session.establish(client.session, client.incarnation, &client.parameters, client.round_trip, shared);
        session
    }

    fn new(id: SessionId, peer: Address, now: Time, shared: &Shared) -> Session {
        let own = &shared.parameters;
        let fragment = own.mtu.get() as usize - DATA_OVERHEAD;
        Session {
            id,
            peer,
            remote: 0,
            remote_incarnation: 0,
            incoming_side: false,
            proven: now,
            state: State::Opening,
            opening: None,
            farewell: None,
            limits: Limits { max_message: own.max_message.get(), unscheduled: 0, ack_delay: 0 },
            received: Received::new(),
            recovery: Recovery::new(),
            window: Window::new(shared.config.window, own.mtu.get() as usize),
            outgoing: Outgoing::new(fragment, 0),
            incoming: Incoming::new(fragment, own.slots.get(), own.max_message.get(), own.unscheduled.get()),
            items: SmallVec::new(),
            held: 0,
            probe_packets: 0,
            stall_check: Time::NEVER,
            last_heard: now,
            last_ping: now,
            ready: 0,
            armed: Time::NEVER,
        }
    }

    /// Both sides know each other.
    fn establish(&mut self, remote: u64, incarnation: u64, parameters: &Parameters, round_trip: Option<u64>, shared: &mut Shared) {
        self.remote = remote;
        self.remote_incarnation = incarnation;
        if self.state == State::Opening {
            self.state = State::Established;
        }
        self.opening = None;
        let mtu = parameters.mtu.get().min(shared.parameters.mtu.get()) as usize;
        let fragment = mtu - DATA_OVERHEAD;
        self.limits = Limits {
            max_message: parameters.max_message.get().min(shared.parameters.max_message.get()),
            unscheduled: parameters.unscheduled.get(),
            ack_delay: u64::from(parameters.ack_delay.get()).min(10_000) * 1_000,
        };
        self.window = Window::new(shared.config.window, mtu);
        self.incoming.establish(fragment);
        if let Some(round_trip) = round_trip {
            self.recovery.rtt.sample(round_trip, 0);
        }
        self.outgoing.establish(fragment, parameters.slots.get(), self.limits.unscheduled);
        shared.events.push_back(Event::Established { session: self.id, peer: self.peer, incoming: self.incoming_side });
    }

    /// Accepts a message for sending.
    pub(crate) fn send(&mut self, message: Message<'_>, shared: &mut Shared) -> Result<MessageId, SendError> {
        let open = match self.state {
            State::Opening => false,
            State::Established => true,
            State::Draining | State::Closing | State::Closed => return Err(SendError::UnknownSession),
        };
        let (len, limit) = (message.len(), self.limits.max_message as usize);
        if len > limit {
            return Err(SendError::TooLarge { len, limit });
        }
        if shared.held > 0 && shared.held + len > shared.config.send_bytes_total {
            return Err(SendError::Full);
        }
        let id = self.outgoing.push(message, self.limits.unscheduled, open, &shared.config)?;
        self.account(shared);
        Ok(id)
    }

    /// Brings the total of bytes held for sending up to date.
    #[inline]
    fn account(&mut self, shared: &mut Shared) {
        let held = self.outgoing.bytes();
        shared.held = shared.held - self.held + held;
        self.held = held;
        shared.counters.retransmitted += self.outgoing.take_resent();
    }

    /// Accepts a message and builds its only packet at once, where nothing stands before it; else `None`, and nothing was done.
    #[inline]
    pub(crate) fn send_now(
        &mut self,
        message: &Message<'_>,
        frame: &mut Frame,
        now: Time,
        shared: &mut Shared,
    ) -> Option<MessageId> {
        let room = self.recovery.in_flight() < self.window.window() && shared.held < shared.config.send_bytes_total / 2;
        if self.state != State::Established || !room || message.len() > self.limits.max_message as usize {
            return None;
        }
        let buffer = frame.buffer_mut();
        let (id, len, Ticket { slot, sequence }) = self.outgoing.push_and_emit(message, buffer)?;
        let number = self.emit_header(now, Kind::Data, buffer);
        self.recovery.sent(number, now, len, Content::Data { slot, sequence, fragment: 0 });
        frame.set_range(0, len);
        self.account(shared);
        Some(id)
    }

    /// Accepts a control message for sending.
    pub(crate) fn send_control(&mut self, payload: &[u8]) -> Result<(), SendError> {
        match self.state {
            State::Opening | State::Established => self.outgoing.push_control(payload),
            State::Draining | State::Closing | State::Closed => Err(SendError::UnknownSession),
        }
    }

    /// Gives a message up.
    pub(crate) fn abandon(&mut self, message: MessageId, shared: &mut Shared) {
        if let Some(ticket) = self.outgoing.abandon(message, self.limits.unscheduled) {
            self.items.push(Item::abandon(ticket.slot, ticket.sequence));
        }
        self.account(shared);
    }

    /// Closes the session once what was accepted is delivered. `Closed`: there was nothing to wait for.
    pub(crate) fn close(&mut self, shared: &mut Shared) -> Handled {
        match self.state {
            State::Opening => self.finish(CloseReason::Local, shared),
            State::Established => {
                self.state = State::Draining;
                self.close_when_drained();
                Handled::Open
            }
            _ => Handled::Open,
        }
    }

    /// Ends the session at once: what is undelivered, and why, go to the events.
    pub(crate) fn finish(&mut self, reason: CloseReason, shared: &mut Shared) -> Handled {
        if self.state != State::Closed {
            self.farewell = match reason {
                CloseReason::Remote => Some(Farewell::Acknowledge),
                CloseReason::Protocol => Some(Farewell::Close(CloseCode::Protocol)),
                CloseReason::PeerRestarted => Some(Farewell::Close(CloseCode::Superseded)),
                _ => None,
            };
            self.state = State::Closed;
            for message in self.outgoing.drain() {
                let (token, transmitted) = (message.token, message.transmitted);
                shared.events.push_back(Event::Undelivered { session: self.id, token, transmitted });
            }
            self.account(shared);
            self.incoming.clear(&mut shared.budget);
            shared.grants_due = true;
            shared.events.push_back(Event::Closed { session: self.id, reason });
        }
        Handled::Closed
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        !matches!(self.state, State::Opening | State::Closed)
    }

    pub(crate) fn round_trip(&self) -> Option<RoundTrip> {
        self.recovery.rtt.round_trip()
    }

    /// What a reset means here: a session that was being closed is simply over.
    pub(crate) fn reset_reason(&self) -> CloseReason {
        if self.state == State::Closing { CloseReason::Local } else { CloseReason::PeerRestarted }
    }

    /// Whether a packet number was one of the latest sent here: a reset must name one.
    pub(crate) fn sent_lately(&self, number: u32) -> bool {
        self.recovery.used_lately(number)
    }

    /// Takes a data, control or acknowledgement packet that is for this session.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        now: Time,
        header: Header,
        kind: Kind,
        mut frame: Frame,
        shared: &mut Shared,
    ) -> Result<Handled, WireError> {
        if !self.is_established() {
            shared.counters.stray += 1;
            return Ok(Handled::Open);
        }
        let (number, new) = self.received.check(header.number.get());
        self.last_heard = now;
        if !new {
            // A late duplicate; but its sender may lack our acknowledgement.
            shared.counters.duplicate_packets += 1;
            return Ok(Handled::Open);
        }
        self.take_acknowledgement(now, &header, shared)?;
        if self.state == State::Closed {
            return Ok(Handled::Closed);
        }
        let delay = shared.ack_delay;
        match kind {
            Kind::Data => {
                let (fragment, payload) = Fragment::parse(&frame)?;
                match self.incoming.receive(&fragment, payload, now, &mut shared.budget)? {
                    Arrival::Deferred { new } => {
                        shared.counters.deferred += 1;
                        if new {
                            let (slot, sequence) = (fragment.slot.get(), fragment.sequence.get());
                            self.push_item(Item::defer(slot, sequence));
                            shared.granting.push((self.id, slot, sequence));
                            shared.grants_due = true;
                        }
                        return Ok(Handled::Open);
                    }
                    Arrival::Duplicate => shared.counters.duplicate_data += 1,
                    Arrival::Partial { new } => {
                        if self.stall_check == Time::NEVER {
                            self.stall_check = now.plus_nanos(shared.quiet);
                        }
                        if new {
                            shared.granting.push((self.id, fragment.slot.get(), fragment.sequence.get()));
                        }
                        shared.grants_due = true;
                    }
                    Arrival::Single(class) => {
                        let payload = body(frame, shared.copy_out);
                        shared.counters.messages_received += 1;
                        shared.events.push_back(Event::Message { session: self.id, class, payload });
                    }
                    Arrival::Control => {
                        let payload = body(frame, shared.copy_out);
                        shared.events.push_back(Event::Control { session: self.id, payload });
                    }
                    Arrival::Complete(class, bytes) => {
                        shared.counters.messages_received += 1;
                        shared.grants_due = true;
                        shared.events.push_back(Event::Message { session: self.id, class, payload: Payload::from(bytes) });
                    }
                }
                self.received.record(number, now, true, delay);
            }
            Kind::Control => {
                let items: SmallVec<[Item; ITEMS_A_PACKET]> = Item::parse(frame.data_mut())?.iter().copied().collect();
                // Grants and pings are rare, and their sender has nothing else to send: answer at once.
                self.received.record(number, now, true, 0);
                for item in items {
                    if let Some(reason) = self.take_item(&item, shared) {
                        return Ok(self.finish(reason, shared));
                    }
                }
            }
            _ => self.received.record(number, now, false, delay),
        }
        Ok(self.close_when_drained())
    }

    #[inline]
    fn take_acknowledgement(&mut self, now: Time, header: &Header, shared: &mut Shared) -> Result<(), WireError> {
        let (outgoing, items, unscheduled) = (&mut self.outgoing, &mut self.items, self.limits.unscheduled);
        let mut closed = false;
        let progress = self
            .recovery
            .acknowledge(
                now,
                header.ack_largest.get(),
                header.ack_bits.get(),
                u64::from(header.ack_delay.get()) * 256,
                |verdict, content| closed |= settle(outgoing, items, unscheduled, verdict, content),
            )
            .ok_or(WireError::Field("acknowledgement"))?;
        self.react(now, progress, shared);
        if closed && self.state == State::Closing {
            self.finish(CloseReason::Local, shared);
        }
        Ok(())
    }

    #[inline]
    fn react(&mut self, now: Time, progress: Progress, shared: &mut Shared) {
        if progress.bytes > 0 {
            self.window.acknowledged(progress.bytes);
            self.account(shared);
        }
        if let Some(sent) = progress.lost_sent {
            shared.counters.lost += progress.lost;
            self.window.lost(sent.as_nanos(), now.as_nanos());
        }
    }

    fn take_item(&mut self, item: &Item, shared: &mut Shared) -> Option<CloseReason> {
        match item.kind() {
            Some(ItemKind::Grant) => {
                let upto = u32::try_from(item.value.get()).unwrap_or(u32::MAX);
                self.outgoing.granted(Ticket { slot: item.slot.get(), sequence: item.sequence.get() }, upto);
            }
            Some(ItemKind::Defer) => {
                let (slot, sequence) = (item.slot.get(), item.sequence.get());
                if self.outgoing.defer(Ticket { slot, sequence }) {
                    // What is on its way of it is dropped there: it neither fills the window nor counts as lost.
                    self.recovery.forget(slot, sequence);
                }
            }
            Some(ItemKind::Abandon) => {
                self.incoming.abandoned(item.slot.get(), item.sequence.get(), &mut shared.budget);
                shared.grants_due = true;
            }
            Some(ItemKind::Close) => {
                return Some(match item.value.get() {
                    code if code == CloseCode::Protocol as u64 => CloseReason::Protocol,
                    code if code == CloseCode::Superseded as u64 => CloseReason::PeerRestarted,
                    _ => CloseReason::Remote,
                });
            }
            Some(ItemKind::Ping) | None => {}
        }
        None
    }

    fn close_when_drained(&mut self) -> Handled {
        if self.state == State::Draining && self.outgoing.is_empty() {
            self.state = State::Closing;
            self.items.push(Item::close(CloseCode::Done));
        }
        if self.state == State::Closed { Handled::Closed } else { Handled::Open }
    }

    /// How far an incoming message is, for the grants; `None` once it needs none.
    pub(crate) fn need(&self, slot: u16, sequence: u32, budget: &Budget) -> Option<incoming::Need> {
        self.incoming.need(slot, sequence, budget).filter(|need| need.granted < need.total)
    }

    /// Makes room for a deferred message; `false` if there is none.
    pub(crate) fn admit(&mut self, slot: u16, sequence: u32, now: Time, budget: &mut Budget) -> bool {
        self.incoming.admit(slot, sequence, now, budget)
    }

    /// Grants an incoming message up to here.
    pub(crate) fn grant(&mut self, slot: u16, sequence: u32, upto: u32) {
        self.incoming.grant(slot, sequence, upto);
        self.push_item(Item::grant(slot, sequence, upto));
    }

    /// Queues an item about an incoming message, in place of an older one about the same slot: as many at most as the peer has slots.
    fn push_item(&mut self, item: Item) {
        match self.items.iter_mut().find(|other| other.kind == item.kind && other.slot == item.slot) {
            Some(other) => *other = item,
            None => self.items.push(item),
        }
    }

    /// Whether something must leave ahead of all data.
    #[inline]
    pub(crate) fn has_urgent(&self, now: Time) -> bool {
        match &self.opening {
            Some(opening) => opening.is_due(now),
            None => {
                !self.items.is_empty() || self.state != State::Closed && self.outgoing.has_urgent() || self.received.due() <= now
            }
        }
    }

    /// Whether an acknowledgement is owed that waits for something to ride on.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.opening.is_none() && self.received.is_owed()
    }

    /// The class index of the data that may leave now.
    #[inline]
    pub(crate) fn data_class(&self) -> Option<usize> {
        let closed = matches!(self.state, State::Opening | State::Closed);
        if closed || self.recovery.in_flight() >= self.window.window() && self.probe_packets == 0 {
            return None;
        }
        self.outgoing.most_urgent()
    }

    /// Builds the next urgent packet: handshake, control items, control messages, or an acknowledgement alone.
    pub(crate) fn emit_urgent(&mut self, now: Time, frame: &mut Frame, acknowledge: bool, shared: &mut Shared) -> bool {
        if let Some(opening) = &mut self.opening {
            return opening.emit(now, frame, self.id, shared);
        }
        let room = frame.capacity();
        let buffer = frame.buffer_mut();
        if !self.items.is_empty() {
            let count = self.items.len().min(ITEMS_A_PACKET).min((room - Header::LEN) / Item::LEN);
            let items: SmallVec<[Item; 1]> = self.items.drain(..count).collect();
            let len = Header::LEN + count * Item::LEN;
            buffer[Header::LEN..len].copy_from_slice(items.as_bytes());
            let number = self.emit_header(now, Kind::Control, buffer);
            self.recovery.sent(number, now, 0, Content::Items(items));
            frame.set_range(0, len);
            return true;
        }
        if let Some((len, ticket, fragment)) = self.outgoing.emit_urgent(buffer) {
            let number = self.emit_header(now, Kind::Data, buffer);
            let Ticket { slot, sequence } = ticket;
            self.recovery.sent(number, now, 0, Content::Data { slot, sequence, fragment });
            frame.set_range(0, len);
            return true;
        }
        if acknowledge || self.received.due() <= now {
            self.emit_header(now, Kind::Ack, buffer);
            frame.set_range(0, Header::LEN);
            return true;
        }
        false
    }

    /// Builds the next data packet.
    #[inline]
    pub(crate) fn emit_data(&mut self, now: Time, frame: &mut Frame) -> bool {
        let buffer = frame.buffer_mut();
        let Some((len, ticket, fragment)) = self.outgoing.emit_data(buffer) else { return false };
        let number = self.emit_header(now, Kind::Data, buffer);
        let Ticket { slot, sequence } = ticket;
        self.recovery.sent(number, now, len, Content::Data { slot, sequence, fragment });
        self.probe_packets = self.probe_packets.saturating_sub(1);
        frame.set_range(0, len);
        true
    }

    /// Makes a close the last packet: the endpoint itself goes away.
    pub(crate) fn say_goodbye(&mut self) {
        if self.is_established() {
            self.farewell = Some(Farewell::Close(CloseCode::Done));
        }
    }

    /// Builds the last packet of a session that is over, if there is something to say.
    pub(crate) fn emit_farewell(&mut self, now: Time, frame: &mut Frame) -> bool {
        let Some(farewell) = self.farewell.take().filter(|_| self.remote != 0) else { return false };
        let buffer = frame.buffer_mut();
        let len = match farewell {
            Farewell::Acknowledge => {
                self.emit_header(now, Kind::Ack, buffer);
                Header::LEN
            }
            Farewell::Close(code) => {
                let len = Header::LEN + Item::LEN;
                buffer[Header::LEN..len].copy_from_slice(Item::close(code).as_bytes());
                self.emit_header(now, Kind::Control, buffer);
                len
            }
        };
        frame.set_range(0, len);
        true
    }

    #[inline]
    fn emit_header(&mut self, now: Time, kind: Kind, buffer: &mut [u8]) -> u64 {
        let number = self.recovery.take_number();
        let (largest, bits, delay) = self.received.acknowledge(now);
        let header = Header {
            number: U32::new(number as u32),
            session: U64::new(self.remote),
            ack_largest: U32::new(largest),
            ack_bits: U64::new(bits),
            ack_delay: U16::new(delay),
            ..Header::new(kind)
        };
        header.emit(buffer);
        number
    }

    /// Whether a timer may be due sooner than [`SOONEST`] from the event that set it.
    #[inline]
    pub(crate) fn is_hasty(&self) -> bool {
        self.opening.is_some() || self.recovery.suspects_loss()
    }

    /// When to call [`Session::on_timeout`] at the latest.
    #[inline]
    pub(crate) fn timeout(&self, shared: &Shared) -> Time {
        match &self.opening {
            Some(opening) => opening.due(),
            None => {
                let keep_alive = self.last_heard.max(self.last_ping).plus_nanos(shared.quiet);
                self.recovery.due(self.limits.ack_delay).min(self.received.due()).min(keep_alive).min(self.stall_check)
            }
        }
    }

    /// Does what is due: probes, pings, and the end of a session whose peer is silent.
    pub(crate) fn on_timeout(&mut self, now: Time, shared: &mut Shared) -> Handled {
        if self.state == State::Closed {
            return Handled::Closed;
        }
        if let Some(opening) = &mut self.opening {
            return if opening.expired(now) { self.finish(CloseReason::TimedOut, shared) } else { Handled::Open };
        }
        let peer_timeout = shared.config.peer_timeout;
        if now >= self.last_heard.max(shared.resumed) + peer_timeout {
            let reason = if self.state == State::Closing { CloseReason::Local } else { CloseReason::PeerDead };
            return self.finish(reason, shared);
        }
        if now >= self.last_heard.max(self.last_ping).plus_nanos(shared.quiet) {
            self.last_ping = now;
            self.items.push(Item::ping());
        }
        let before = |time_outs: u64| Time::from_nanos(now.as_nanos().saturating_sub(peer_timeout.as_nanos() as u64 * time_outs));
        if now >= self.stall_check {
            if self.incoming.is_stalled(before(STALL_FACTOR)) {
                return self.finish(CloseReason::Protocol, shared);
            }
            let next = now.plus_nanos(shared.quiet);
            self.stall_check = if self.incoming.is_empty() { Time::NEVER } else { next };
        }
        // It talks, and acknowledges nothing: as good as dead, or worse.
        if self.recovery.oldest().is_some_and(|oldest| oldest.max(shared.resumed) < before(ACK_FACTOR)) {
            return self.finish(CloseReason::PeerDead, shared);
        }
        let (outgoing, items, unscheduled) = (&mut self.outgoing, &mut self.items, self.limits.unscheduled);
        let (progress, probe) = self.recovery.on_timeout(now, self.limits.ack_delay, |verdict, content| {
            settle(outgoing, items, unscheduled, verdict, content);
        });
        self.react(now, progress, shared);
        if probe {
            shared.counters.probes += 1;
            self.probe_packets = PROBE_PACKETS;
            if self.outgoing.most_urgent().is_none() && !self.outgoing.has_urgent() && self.items.is_empty() {
                self.items.push(Item::ping());
            }
        }
        self.close_when_drained()
    }
}

/// A message of one packet: the frame itself, or a copy where frames are scarce.
#[inline]
fn body(mut frame: Frame, copy_out: bool) -> Payload {
    if copy_out {
        return Payload::copy_from(&frame[DATA_OVERHEAD..]);
    }
    frame.trim_front(DATA_OVERHEAD);
    Payload::from_frame(frame)
}

/// What a packet's end means for what it carried. `true`: it carried the close, and that arrived.
#[inline]
fn settle(outgoing: &mut Outgoing, items: &mut SmallVec<[Item; 2]>, unscheduled: u32, verdict: Verdict, content: &Content) -> bool {
    match (verdict, content) {
        (Verdict::Acknowledged, Content::Data { slot, sequence, fragment }) => {
            outgoing.acknowledged(Ticket { slot: *slot, sequence: *sequence }, *fragment, unscheduled);
        }
        (Verdict::Lost, Content::Data { slot, sequence, fragment }) => {
            outgoing.lost(Ticket { slot: *slot, sequence: *sequence }, *fragment);
        }
        (Verdict::Acknowledged, Content::Items(sent)) => return sent.iter().any(|item| item.kind() == Some(ItemKind::Close)),
        (Verdict::Lost, Content::Items(sent)) => {
            // Grants, abandons and closes must arrive; a ping has done its work by being lost.
            items.extend(sent.iter().filter(|item| item.kind() != Some(ItemKind::Ping)).copied());
        }
    }
    false
}
