//! The protocol between two endpoints, sans-IO: packets and time come in by argument, packets and events go out.
//!
//! A session is one of many of its [`Endpoint`](crate::endpoint::Endpoint), which owns what they share ([`Shared`]) and moves their packets.
//! One idea a file: what a session does on receiving a packet ([`receiving`]), when it is to send one ([`sending`]), and when its time has
//! come ([`timing`]); of what these are made: [`received`] numbers, [`recovery`] of what was lost, [`rtt`], [`congestion`], [`outgoing`] and [`incoming`]
//! messages, the queue that packets pass through ([`fifo`]), and what the peers together may send: [`inflow`], [`credit`], [`crowd`];
//! [`handshake`] opens a session and [`token`] keeps that stateless.

mod bits;
mod buffers;
mod bundle;
mod congestion;
mod credit;
mod crowd;
mod fifo;
mod following;
mod handshake;
mod incoming;
mod inflow;
mod outgoing;
mod received;
mod receiving;
mod recovery;
mod rtt;
mod sending;
mod share;
mod spare;
mod timing;
mod token;

use std::collections::VecDeque;
use std::hint::cold_path;

use thin_vec::ThinVec;

use self::congestion::Window;
use self::handshake::Opening;
use self::incoming::Incoming;
use self::outgoing::{Outgoing, Unscheduled};
use self::received::Received;
use self::recovery::Recovery;
use self::share::Pace;
use crate::class::Class;
use crate::clock::Time;
use crate::endpoint::{CloseReason, EndpointConfig, EndpointCounters, Event, RoundTrip, SessionId};
use crate::frame::Frame;
use crate::payload::Payload;
use crate::port::Address;
use crate::wire::{CloseCode, DATA_OVERHEAD, Item, Parameters};

pub(crate) use self::bundle::{BUNDLE_MOST, bundled_len, write_bundled, write_bundled_words};
pub use self::bundle::{Batch, Messages};
pub(crate) use self::congestion::least_beside_small;
pub(crate) use self::credit::Credit;
pub(crate) use self::crowd::Crowd;
pub(crate) use self::fifo::Fifo;
pub(crate) use self::following::PartHead;
pub(crate) use self::handshake::{FIRST_PAUSE, Proven};
pub(crate) use self::incoming::{Budget, Need};
pub(crate) use self::inflow::Inflow;
pub(crate) use self::outgoing::{Message, NewMessage};
pub(crate) use self::recovery::Part;
pub(crate) use self::spare::Spare;
pub(crate) use self::token::Tokens;

/// Control items in one packet at most.
const ITEMS_A_PACKET: usize = 16;
/// Data packets that a probe may send beyond the window.
const PROBE_PACKETS: u8 = 2;
/// Shortest delay of acknowledgements, in nanoseconds.
pub(crate) const SOONEST: u64 = 50_000;
/// So many more small messages than long ones are a mixture.
const MIXTURE: u32 = 8;
/// How long after a small message others are expected, in nanoseconds.
const MIXED: u64 = 1_000_000;
/// How long after packets of different sessions more of them are expected, in nanoseconds.
const COMPANY: u64 = 1_000_000;
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
    pub(crate) batches: Fifo<Option<Batch>>,
    pub(crate) counters: EndpointCounters,
    pub(crate) budget: Budget,
    /// Bytes of messages that all sessions hold for sending, and how many any of them may hold without a question asked.
    pub(crate) held: usize,
    pub(crate) anybodys: usize,
    /// Incoming messages that need grants: session, the peer's slot, its sequence number. Those of trusted sessions, and those of sessions on
    /// probation; the latest in front.
    pub(crate) granting: [VecDeque<(SessionId, u16, u32)>; 2],
    /// How fast long messages arrive.
    pub(crate) inflow: Inflow,
    /// How much may be on its way of long messages while they compete with each other and with small ones.
    pub(crate) credit: Credit,
    /// How many peers begin long messages at once.
    pub(crate) crowd: Crowd,
    /// Something changed that grants depend on.
    pub(crate) grants_due: bool,
    /// How many more messages of one packet than long ones were seen of late.
    pub(crate) small_excess: u32,
    /// Until when small messages count as being about: what long ones have in flight is kept short meanwhile.
    pub(crate) mixed_until: Time,
    /// Bytes of long messages that a session may have in flight beside small ones, at least.
    pub(crate) least_beside_small: usize,
    /// The session that the latest packets came for, by its slot.
    pub(crate) latest: u32,
    /// Until when packets count as coming from several peers.
    pub(crate) company_until: Time,
    /// Receive frames run low: payloads are copied out of them.
    pub(crate) copy_out: bool,
    pub(crate) spare: Spare,
}

impl Shared {
    /// The owner is to hear of this.
    #[inline(always)]
    pub(crate) fn tell(&mut self, event: Event) {
        self.batches.push(Some(Batch::Event(event)));
    }

    /// The owner is to hear of the message that is behind a packet's headers.
    #[inline(always)]
    pub(crate) fn tell_message(&mut self, session: SessionId, class: Class, packet: Frame) {
        if self.copy_out {
            cold_path();
            let payload = Payload::copy_from(&packet[DATA_OVERHEAD..]);
            return self.tell(Event::Message { session, class, payload });
        }
        // Where it lies then: moving what was just written would wait until that is done.
        let place = self.batches.begin();
        let event = Event::Message { session, class, payload: Payload::from_frame(packet) };
        // There is nothing to drop.
        std::mem::forget(place.replace(Batch::Event(event)));
        if let Some(Batch::Event(Event::Message { payload, .. })) = place {
            payload.trim_front(DATA_OVERHEAD);
        }
    }

    /// So many messages of one packet came or went. Those that only answer long ones do not make a mixture.
    #[inline]
    pub(crate) fn saw_small(&mut self, count: u32, now: Time) {
        self.small_excess = (self.small_excess + count).min(2 * MIXTURE);
        if self.small_excess > MIXTURE {
            self.mixed_until = now.plus_nanos(MIXED);
        }
    }

    /// A longer message came or was accepted.
    pub(crate) fn saw_long(&mut self) {
        self.small_excess = self.small_excess.saturating_sub(2);
    }

    /// A burst brought packets for the session in this slot.
    #[inline]
    pub(crate) fn heard(&mut self, slot: u32, now: Time) {
        if slot != self.latest {
            self.latest = slot;
            self.company_until = now.plus_nanos(COMPANY);
        }
    }

    /// Whether packets come from several peers. (Where there is one, it keeps its own messages in order.)
    pub(crate) fn in_company(&self, now: Time) -> bool {
        now < self.company_until
    }

    /// How long the acknowledgement of a long message's packet may wait, in nanoseconds: not at all while small messages are about, for then the
    /// sender has few of them in flight and stands still until it comes.
    #[inline]
    pub(crate) fn ack_delay_of_part(&self, now: Time) -> u64 {
        if self.is_mixed(now) { 0 } else { self.ack_delay }
    }

    /// Whether small messages are about.
    #[inline]
    pub(crate) fn is_mixed(&self, now: Time) -> bool {
        now < self.mixed_until
    }
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

/// What every message needs lies at the front and together, as little of it as may be: with many sessions it comes from far away each time.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// The peer's id for this session; 0 until it is known.
    pub(crate) remote: u64,
    pub(crate) peer: Address,
    received: Received,
    state: State,
    /// Which of the endpoint's departure lists the session stands on.
    pub(crate) ready: u8,
    probe_packets: u8,
    /// Whether [`Session::pace`] measures something.
    paced: bool,
    last_heard: Time,
    /// The time that the endpoint's wheel is set to for this session.
    pub(crate) armed: Time,
    /// When to look for messages that stand still; `NEVER` while none is incomplete.
    stall_check: Time,
    /// What of [`Shared::held`] is this session's.
    held: usize,
    recovery: Recovery,
    window: Window,
    outgoing: Outgoing,
    items: ThinVec<Item>,
    /// Its front is needed too.
    incoming: Incoming,
    pace: Pace,
    /// The peer's limits.
    limits: Limits,
    /// The handshake, as long as the state is [`State::Opening`].
    opening: Option<Box<Opening>>,
    last_ping: Time,
    /// The peer's incarnation; 0 until it is known.
    pub(crate) remote_incarnation: u64,
    /// When the peer proved to be there: a hello made before that is out of date.
    pub(crate) proven: Time,
    /// When the session was last counted among those that begin long messages at once.
    crowded: u32,
    pub(crate) incoming_side: bool,
    /// What the peer is told last, if it may still listen.
    farewell: Option<Farewell>,
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
    unscheduled: Unscheduled,
    ack_delay: u64,
}

/// When to take what a packet acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledge {
    /// Before anything else that is in it.
    Now,
    /// By [`Session::receive_acknowledgement`], which must follow where the packet came to [`Handled::Later`].
    Later,
}

/// What a packet for a session came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// Go on.
    Open,
    /// The same, and what it acknowledges is still to be taken.
    Later,
    /// The session is over; its events are out. The endpoint sends its last packet, if any, and forgets it.
    Closed,
}

impl Session {
    /// So many bytes from a session's front are needed for every message.
    pub(crate) const BUSY: usize = std::mem::offset_of!(Session, incoming) + Incoming::BUSY;
    /// And so many to acknowledge what came.
    pub(crate) const FRONT: usize = std::mem::offset_of!(Session, last_heard);

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
            limits: Limits { max_message: own.max_message.get(), unscheduled: Unscheduled { most: 0, shift: 0 }, ack_delay: 0 },
            received: Received::new(),
            recovery: Recovery::new(),
            window: Window::new(shared.config.window, own.mtu.get() as usize, shared.least_beside_small),
            outgoing: Outgoing::new(fragment, 0),
            incoming: Incoming::new(fragment, own.slots.get(), own.max_message.get(), own.unscheduled.get()),
            items: ThinVec::new(),
            held: 0,
            pace: Pace::default(),
            paced: false,
            probe_packets: 0,
            crowded: 0,
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
            unscheduled: Unscheduled { most: parameters.unscheduled.get(), shift: 0 },
            ack_delay: u64::from(parameters.ack_delay.get()).min(10_000) * 1_000,
        };
        self.window = Window::new(shared.config.window, mtu, shared.least_beside_small);
        self.incoming.establish(fragment);
        if let Some(round_trip) = round_trip {
            self.recovery.rtt.sample(round_trip, 0);
        }
        let longest = self.limits.max_message as usize;
        self.outgoing.establish(fragment, longest, parameters.slots.get(), self.limits.unscheduled);
        shared.tell(Event::Established { session: self.id, peer: self.peer, incoming: self.incoming_side });
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
                shared.tell(Event::Undelivered { session: self.id, token, transmitted });
            }
            self.account(shared);
            self.incoming.clear(&mut shared.budget);
            shared.grants_due = true;
            shared.tell(Event::Closed { session: self.id, reason });
        }
        Handled::Closed
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        !matches!(self.state, State::Opening | State::Closed)
    }

    /// The shortest round trip seen, in nanoseconds; 0 before any.
    pub(crate) fn shortest_trip(&self) -> u64 {
        self.recovery.rtt.minimum()
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

    /// Messages under way: on their way out, and in.
    pub(crate) fn messages(&self) -> (usize, usize) {
        (self.outgoing.len(), self.incoming.incomplete())
    }

    #[inline]
    fn close_when_drained(&mut self) -> Handled {
        if self.state == State::Draining && self.outgoing.is_empty() {
            self.state = State::Closing;
            self.items.push(Item::close(CloseCode::Done));
        }
        if self.state == State::Closed { Handled::Closed } else { Handled::Open }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be tens of thousands, and most are only kept: what is rarely used is made when it is.
    #[test]
    fn a_session_is_short() {
        assert!(size_of::<Option<Session>>() <= 640, "a session takes {} bytes", size_of::<Option<Session>>());
        const { assert!(Session::BUSY <= 448) }
    }
}
