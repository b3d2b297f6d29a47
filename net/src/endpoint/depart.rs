//! What leaves next: sessions with something urgent first, then by their most urgent class, taking turns within it.

use std::collections::VecDeque;

use super::Endpoint;
use super::event::EndpointCounters;
use super::lineup::Lineup;
use crate::class::Class;
use crate::clock::Time;
use crate::frame::Frame;
use crate::port::{Address, Datagram, Port, Purpose};
use crate::session::Session;
use crate::wire::Header;

/// Packets handed to the port by one call.
const BURST: usize = 48;
/// Messages of one packet handed to the port by one call, wherever several share packets: the peer can begin with them.
const MESSAGES: usize = 64;
/// Packets that one session sends in a row, so that a burst to one peer can leave as one segmented send.
const TURN: usize = 8;
/// Packets sent by one flush; the rest waits until what arrived meanwhile was looked at.
const FLUSH: usize = 256;
/// Frames borrowed from the port at a time.
const BORROW: usize = 48;
/// How long to wait before a port that was full is tried again, in nanoseconds.
const RETRY: u64 = 50_000;

/// Bits of [`Session::ready`]: the lists that a session stands on. `DATA` is shifted by the class.
const URGENT: u8 = 1;
const DATA: u8 = 2;
pub(super) const DUE: u8 = 0x40;
/// Not a list of departures: packets for the session came in this burst.
pub(super) const TOUCHED: u8 = 0x20;
pub(super) const OWING: u8 = 0x80;

#[derive(Debug)]
pub(super) struct Departures {
    /// Whether the port protects datagrams from damage; else they get a checksum.
    integrity: bool,
    urgent: VecDeque<u32>,
    data: [VecDeque<u32>; Class::COUNT],
    /// Bit n: class n's list is not empty.
    listed: u8,
    /// Sessions that owe an acknowledgement, by the time at which it leaves alone unless something else does before.
    pub(super) owing: Lineup,
    /// Those whose acknowledgement should not wait.
    pub(super) due: Vec<u32>,
    /// The first of those that wait has waited long enough.
    overdue: bool,
    burst: Vec<Datagram>,
    /// Messages of one packet in the burst.
    messages: usize,
    transmit_frames: Vec<Frame>,
    control_frames: Vec<Frame>,
    /// The port took less than all in the last flush.
    blocked: bool,
    /// Frames ran out in the last flush.
    pub(super) starved: bool,
}

impl Departures {
    pub(super) fn new(integrity: bool) -> Departures {
        Departures {
            integrity,
            urgent: VecDeque::with_capacity(BURST),
            data: Default::default(),
            listed: 0,
            owing: Lineup::new(),
            due: Vec::with_capacity(BURST),
            overdue: false,
            burst: Vec::with_capacity(2 * BURST),
            messages: 0,
            transmit_frames: Vec::with_capacity(BORROW),
            control_frames: Vec::with_capacity(BORROW),
            blocked: false,
            starved: false,
        }
    }

    /// Puts a session that owes an acknowledgement where it belongs.
    #[inline]
    pub(super) fn owe(&mut self, session: &mut Session, now: Time) {
        let due = session.acknowledgement_due();
        if due == Time::NEVER {
            return;
        }
        if due <= now {
            if session.ready & DUE == 0 {
                session.ready |= DUE;
                self.due.push(session.id.slot);
            }
        } else if session.ready & OWING == 0 {
            session.ready |= OWING;
            self.owing.add(session.id.slot, due);
        }
    }

    /// Puts a session that has something to send on the lists where it belongs, once on each.
    pub(super) fn enlist(&mut self, session: &mut Session, now: Time, mixed: bool) {
        if session.ready & URGENT == 0 && session.has_urgent(now) {
            session.ready |= URGENT;
            self.urgent.push_back(session.id.slot);
        }
        if let Some(class) = session.data_class(mixed)
            && session.ready & DATA << class == 0
        {
            session.ready |= DATA << class;
            self.listed |= 1 << class;
            self.data[class].push_back(session.id.slot);
        }
    }

    /// Whether something waits to be sent.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.has_listed() || !self.burst.is_empty() || !self.due.is_empty() || self.overdue
    }

    /// Looks whether acknowledgements have waited long enough.
    #[inline]
    pub(super) fn look_at_owing(&mut self, now: Time) {
        self.overdue = self.owing.soonest() <= now;
    }

    /// Whether acknowledgements leave alone now.
    #[inline]
    pub(super) fn owes_now(&self) -> bool {
        self.overdue || !self.due.is_empty()
    }

    /// When the first acknowledgement has waited long enough; `NEVER` if none waits.
    pub(super) fn next_owing(&self) -> Time {
        self.owing.soonest()
    }

    /// Whether a session stands on a list.
    #[inline]
    fn has_listed(&self) -> bool {
        self.listed != 0 || !self.urgent.is_empty()
    }

    /// When to flush again.
    pub(super) fn retry_at(&self, now: Time) -> Time {
        if self.blocked || self.starved { now.plus_nanos(RETRY) } else { now }
    }

    /// A frame for a control packet.
    pub(super) fn control_frame(&mut self, port: &mut dyn Port) -> Option<Frame> {
        if self.control_frames.is_empty() {
            port.allocate(Purpose::Control, &mut self.control_frames, BORROW);
        }
        self.control_frames.pop()
    }

    fn transmit_frame(&mut self, port: &mut dyn Port) -> Option<Frame> {
        if self.transmit_frames.is_empty() {
            port.allocate(Purpose::Transmit, &mut self.transmit_frames, BORROW);
            // The first is used first: what leaves together lies together.
            self.transmit_frames.reverse();
        }
        // Not as an `Option`: looking into that takes the frame apart, and putting it together again waits for it.
        let last = self.transmit_frames.len().checked_sub(1)?;
        Some(self.transmit_frames.swap_remove(last))
    }

    /// A frame for a packet of this class that may leave at once: nothing more urgent waits, and the port takes packets.
    #[inline]
    pub(super) fn frame_for_now(&mut self, class: Class, port: &mut dyn Port, counters: &mut EndpointCounters) -> Option<Frame> {
        let full = self.burst.len() >= BURST || self.messages >= MESSAGES;
        if self.more_urgent(class) || full && !self.transmit(port, counters) {
            return None;
        }
        self.transmit_frame(port)
    }

    #[inline]
    fn more_urgent(&self, class: Class) -> bool {
        self.listed & ((1 << class.index()) - 1) != 0 || !self.urgent.is_empty()
    }

    /// A frame for a control packet that may leave at once: no other waits.
    #[inline]
    pub(super) fn control_frame_for_now(&mut self, port: &mut dyn Port) -> Option<Frame> {
        if self.urgent.is_empty() { self.control_frame(port) } else { None }
    }

    /// Takes back a control packet's frame that was not used.
    pub(super) fn give_back_control(&mut self, frame: Frame) {
        self.control_frames.push(frame);
    }

    /// Takes back a frame that was not used.
    pub(super) fn give_back(&mut self, frame: Frame) {
        self.transmit_frames.push(frame);
    }

    /// Queues a packet that is built there: moving it when it was just written would wait until the writes are done.
    #[inline]
    pub(super) fn begin(&mut self, frame: Frame, peer: &Address) -> &mut Frame {
        Datagram::push(&mut self.burst, frame, peer)
    }

    /// The same, of so many messages.
    #[inline]
    pub(super) fn begin_messages(&mut self, frame: Frame, peer: &Address, count: usize) -> &mut Frame {
        self.messages += count;
        self.begin(frame, peer)
    }

    /// The packet that was begun is finished.
    #[inline]
    pub(super) fn finish(&mut self) {
        if !self.integrity
            && let Some(datagram) = self.burst.last_mut()
        {
            Header::seal(datagram.frame.data_mut());
        }
    }

    /// Nothing was written into the packet that was begun.
    fn cancel(&mut self) {
        self.transmit_frames.extend(self.burst.pop().map(|datagram| datagram.frame));
    }

    /// Takes back the frame of the control packet that was begun last.
    #[cold]
    pub(super) fn take_back_control(&mut self) {
        self.control_frames.extend(self.burst.pop().map(|datagram| datagram.frame));
    }

    /// Whether no packet waits for [`Departures::transmit`].
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.burst.is_empty()
    }

    /// Those that do.
    #[inline]
    pub(super) fn packets(&mut self) -> impl Iterator<Item = &mut Frame> {
        self.burst.iter_mut().map(|datagram| &mut datagram.frame)
    }

    /// Queues a finished packet.
    #[inline(always)]
    pub(super) fn push(&mut self, frame: Frame, peer: Address) {
        self.begin(frame, &peer);
        self.finish();
    }

    /// Hands what is queued to the port. `false`: it did not take all.
    #[inline]
    pub(super) fn transmit(&mut self, port: &mut dyn Port, counters: &mut EndpointCounters) -> bool {
        if !self.burst.is_empty() {
            match port.transmit(&mut self.burst) {
                Ok(sent) => counters.packets_sent += sent as u64,
                Err(error) => {
                    if counters.port_errors == 0 {
                        tracing::warn!(%error, "the port failed to send");
                    }
                    counters.port_errors += 1;
                    // What the port neither took nor will ever take must not stay in front; it is recovered as a loss.
                    self.burst.clear();
                }
            }
        }
        self.blocked = !self.burst.is_empty();
        if !self.blocked {
            self.messages = 0;
        }
        !self.blocked
    }
}

impl Endpoint {
    /// Sends what is due, as far as the port takes it.
    #[inline]
    pub fn flush(&mut self, now: Time) {
        if self.is_waiting() {
            self.flush_waiting(now);
        }
    }

    /// [`Endpoint::flush`], but where nothing waits beside packets that are finished it puts off what is still to be done about what
    /// arrived, until the next one, which must follow before long: for answers that somebody waits for.
    #[inline]
    pub fn flush_answers(&mut self, now: Time) {
        if self.departures.has_listed() {
            self.flush(now);
        } else {
            self.transmit(now);
        }
    }

    /// Hands the port the packets that are finished, and leaves everything else to the next [`Endpoint::flush`], which must follow before long.
    #[inline]
    pub fn transmit(&mut self, now: Time) {
        if !self.pen.is_down() || !self.departures.burst.is_empty() {
            self.transmit_finished(now);
        }
    }

    #[inline(never)]
    fn transmit_finished(&mut self, now: Time) {
        self.put_down(now);
        self.departures.transmit(self.port.as_mut(), &mut self.shared.counters);
    }

    #[inline(never)]
    fn flush_waiting(&mut self, now: Time) {
        let mut packets = 0;
        self.departures.starved = false;
        self.put_down(now);
        let mut open = self.departures.transmit(self.port.as_mut(), &mut self.shared.counters);
        self.catch_up(now);
        while open {
            if packets >= FLUSH || !self.departures.has_listed() || !self.fill(now) {
                // What was sent has carried most acknowledgements along.
                self.acknowledge_due(now);
                self.departures.transmit(self.port.as_mut(), &mut self.shared.counters);
                return;
            }
            packets += self.departures.burst.len();
            open = self.departures.transmit(self.port.as_mut(), &mut self.shared.counters);
        }
    }

    /// Fills the burst with what is most urgent. `false`: there was nothing, or no frame for it.
    #[inline]
    fn fill(&mut self, now: Time) -> bool {
        while self.departures.burst.len() < BURST {
            if let Some(slot) = self.departures.urgent.pop_front() {
                if !self.depart_urgent(slot, now) {
                    break;
                }
            } else if self.departures.listed != 0 {
                if !self.depart_data(self.departures.listed.trailing_zeros() as usize, now) {
                    break;
                }
            } else {
                break;
            }
        }
        !self.departures.burst.is_empty()
    }

    /// Sends everything urgent of one session. `false`: no frame.
    fn depart_urgent(&mut self, slot: u32, now: Time) -> bool {
        let Some(session) = self.sessions.at_mut(slot) else { return true };
        session.ready &= !URGENT;
        while session.has_urgent(now) {
            let Some(mut frame) = self.departures.control_frame(self.port.as_mut()) else {
                session.ready |= URGENT;
                self.departures.urgent.push_front(slot);
                self.departures.starved = true;
                return false;
            };
            if session.emit_urgent(now, &mut frame, &mut self.shared) {
                let peer = session.peer;
                self.departures.push(frame, peer);
            } else {
                self.departures.control_frames.push(frame);
                break;
            }
        }
        self.schedule(slot, now);
        true
    }

    /// Sends a turn of data of the first session of a class. `false`: no frame.
    #[inline]
    fn depart_data(&mut self, class: usize, now: Time) -> bool {
        let list = &mut self.departures.data[class];
        let first = list.pop_front();
        if list.is_empty() {
            self.departures.listed &= !(1 << class);
        }
        let Some(slot) = first else { return true };
        let Some(session) = self.sessions.at_mut(slot) else { return true };
        session.ready &= !(DATA << class);
        let mixed = self.shared.is_mixed(now);
        let (peer, mut left) = (session.peer, TURN);
        while left > 0 && session.data_class(mixed).is_some_and(|ready| ready <= class) {
            let Some(mut frame) = self.departures.transmit_frame(self.port.as_mut()) else {
                session.ready |= DATA << class;
                self.departures.data[class].push_front(slot);
                self.departures.listed |= 1 << class;
                self.departures.starved = true;
                return false;
            };
            let Some(mut sending) = session.begin_data(now, mixed) else {
                self.departures.give_back(frame);
                break;
            };
            loop {
                if !sending.emit(self.departures.begin(frame, &peer)) {
                    self.departures.cancel();
                    break;
                }
                self.departures.finish();
                left -= 1;
                if left == 0 || !sending.goes_on() {
                    break;
                }
                match self.departures.transmit_frame(self.port.as_mut()) {
                    Some(next) => frame = next,
                    None => break,
                }
            }
            sending.end();
        }
        self.schedule(slot, now);
        true
    }

    /// Sends the last packet of a session that is over.
    pub(super) fn send_farewell(&mut self, session: &mut Session, now: Time) {
        if let Some(mut frame) = self.departures.control_frame(self.port.as_mut())
            && session.emit_farewell(now, &mut frame)
        {
            let peer = session.peer;
            self.departures.push(frame, peer);
        }
    }
}
