//! What a session sends: messages are accepted, and packets built.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::congestion::Congestion;
use super::outgoing::{Message, NewMessage, Picked};
use super::recovery::{Items, Part};
use super::{Farewell, ITEMS_A_PACKET, Session, Shared, State};
use crate::clock::Time;
use crate::endpoint::{MessageId, SendError};
use crate::frame::Frame;
use crate::wire::{Acknowledgement, CloseCode, DATA_OVERHEAD, Header, Item, Kind};

impl Session {
    /// Accepts a message for sending.
    pub(crate) fn send(&mut self, message: Message<'_>, now: Time, shared: &mut Shared) -> Result<MessageId, SendError> {
        let open = match self.state {
            State::Opening => false,
            State::Established => true,
            State::Draining | State::Closing | State::Closed => return Err(SendError::UnknownSession),
        };
        let (len, limit) = (message.len(), self.limits.max_message as usize);
        if len > limit {
            return Err(SendError::TooLarge { len, limit });
        }
        if !self.may_hold(len, shared.held, now, &shared.config) {
            return Err(SendError::Full);
        }
        if len <= self.outgoing.fragment() {
            shared.saw_small(1, now);
        } else {
            shared.saw_long();
        }
        self.borrow(&mut shared.spare);
        let id = self.outgoing.push(message, self.limits.unscheduled, open, &shared.config)?;
        if len > self.outgoing.fragment() {
            self.pace.begin(self.held, len, now);
            self.paced = true;
        }
        self.account(shared);
        Ok(id)
    }

    /// Brings the total of bytes held for sending up to date.
    #[inline]
    pub(super) fn account(&mut self, shared: &mut Shared) {
        let held = self.outgoing.bytes();
        shared.held = shared.held - self.held + held;
        self.held = held;
        shared.counters.retransmitted += self.outgoing.take_resent();
    }

    /// Where a packet must end to which messages may be added now.
    #[inline]
    pub(crate) fn longest_bundle(&self, shared: &Shared) -> usize {
        if self.may_send_now(shared) { self.outgoing.longest_bundle() } else { 0 }
    }

    /// Messages with these tokens were added to the session's latest packet, from `start` on, where `part` had been alone.
    #[inline]
    pub(crate) fn joined(&mut self, part: Part, tokens: &[u64], packet: &mut [u8], start: usize, now: Time, shared: &mut Shared) {
        self.outgoing.joined(part, tokens, packet, start);
        self.recovery.sent_along(packet.len() - start);
        self.accepted_now(packet.len() - start, shared);
        shared.saw_small(tokens.len() as u32, now);
        shared.counters.messages_sent += tokens.len() as u64;
    }

    /// Accepts a message and builds its only packet at once in `buffer`, where nothing stands before it; else `None`, and nothing was done. Gives
    /// the packet's length too.
    #[inline]
    pub(crate) fn send_now(
        &mut self,
        new: &NewMessage<'_>,
        buffer: &mut [u8],
        now: Time,
        shared: &mut Shared,
    ) -> Option<(MessageId, Part, usize)> {
        if !self.may_send_now(shared) {
            return None;
        }
        self.borrow(&mut shared.spare);
        let (id, len, part) = self.outgoing.push_and_emit(new, buffer)?;
        let number = self.emit_header(now, Kind::Data, buffer);
        self.recovery.sent(number, now, len, part);
        self.accepted_now(len - DATA_OVERHEAD, shared);
        shared.saw_small(1, now);
        shared.counters.messages_sent += 1;
        Some((id, part, len))
    }

    #[inline(always)]
    fn may_send_now(&self, shared: &Shared) -> bool {
        self.state == State::Established && self.recovery.in_flight() < self.window.window() && shared.held < shared.anybodys
    }

    #[inline(always)]
    fn accepted_now(&mut self, bytes: usize, shared: &mut Shared) {
        self.held += bytes;
        shared.held += bytes;
    }

    /// Accepts a control message and builds its packet at once, where nothing stands before it; else `false`, and nothing was done.
    #[inline]
    pub(crate) fn send_control_now(&mut self, payload: &[u8], frame: &mut Frame, now: Time) -> bool {
        let sent = self.emit_control(payload, frame, now);
        sent.map(|sent| self.control_sent(sent, now)).is_some()
    }

    /// The first half of that. The packet's number and what it carries are for [`Session::control_sent`], when it has left.
    #[inline]
    pub(crate) fn emit_control(&mut self, payload: &[u8], frame: &mut Frame, now: Time) -> Option<(u64, Part)> {
        if self.state != State::Established || !self.items.is_empty() {
            return None;
        }
        let buffer = frame.buffer_mut();
        let (len, part) = self.outgoing.push_control_and_emit(payload, buffer)?;
        let number = self.emit_header(now, Kind::Data, buffer);
        frame.set_range(0, len);
        Some((number, part))
    }

    /// The second half.
    #[inline]
    pub(crate) fn control_sent(&mut self, (number, part): (u64, Part), now: Time) {
        self.recovery.sent(number, now, 0, part);
    }

    /// Eight bytes of what [`Session::emit_control`] built were changed since.
    #[inline]
    pub(crate) fn control_stamped(&mut self, part: Part, at: usize, bytes: &[u8]) {
        self.outgoing.control_stamped(part, at, bytes);
    }

    /// What [`Session::emit_control`] built last does not leave; before it the acknowledgement that is owed was due then.
    #[cold]
    pub(crate) fn control_dropped(&mut self, (number, part): (u64, Part), due: Time) {
        self.outgoing.control_dropped(part);
        self.recovery.give_number_back(number);
        self.received.owe_again(due);
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

    /// Whether an acknowledgement changed more than what is held: something may leave, or seems lost.
    #[inline]
    pub(crate) fn is_stirred(&self) -> bool {
        !self.items.is_empty() || self.outgoing.has_something_to_send() || self.is_hasty()
    }

    /// Whether something must leave ahead of all data.
    #[inline]
    pub(crate) fn has_urgent(&self, now: Time) -> bool {
        match &self.opening {
            Some(opening) => opening.is_due(now),
            None => !self.items.is_empty() || self.outgoing.has_urgent(),
        }
    }

    /// When the acknowledgement that is owed leaves alone if nothing else did before; `NEVER` if none is owed.
    #[inline]
    pub(crate) fn acknowledgement_due(&self) -> Time {
        self.received.due()
    }

    /// Bytes of a packet that both sides take.
    pub(crate) fn longest_packet(&self) -> usize {
        DATA_OVERHEAD + self.outgoing.fragment()
    }

    /// The class index of the data that may leave now. `mixed`: small messages are about.
    #[inline]
    pub(crate) fn data_class(&self, mixed: bool) -> Option<usize> {
        if matches!(self.state, State::Opening | State::Closed) || !self.may_send_data() {
            return None;
        }
        if self.only_small(mixed) { self.outgoing.most_urgent_small() } else { self.outgoing.most_urgent() }
    }

    /// Whether the window has room, or a probe is to go beyond it.
    #[inline]
    fn may_send_data(&self) -> bool {
        self.recovery.in_flight() < self.window.window() || self.probe_packets > 0
    }

    /// Whether long messages must wait for what is in flight, because small ones would have to wait behind it.
    #[inline]
    fn only_small(&self, mixed: bool) -> bool {
        mixed && self.recovery.in_flight() >= self.window.beside_small() && self.probe_packets == 0
    }

    /// Builds the next urgent packet: handshake, control items, or a control message.
    pub(crate) fn emit_urgent(&mut self, now: Time, frame: &mut Frame, shared: &mut Shared) -> bool {
        if let Some(opening) = &mut self.opening {
            return opening.emit(now, frame, self.id, shared);
        }
        let room = frame.capacity();
        let buffer = frame.buffer_mut();
        if !self.items.is_empty() {
            let count = self.items.len().min(ITEMS_A_PACKET).min((room - Header::LEN) / Item::LEN);
            let items: Items = self.items.drain(..count).collect();
            let len = Header::LEN + count * Item::LEN;
            buffer[Header::LEN..len].copy_from_slice(items.as_bytes());
            let number = self.emit_header(now, Kind::Control, buffer);
            self.recovery.sent_items(number, now, items);
            frame.set_range(0, len);
            return true;
        }
        let Some((len, part)) = self.outgoing.emit_urgent(buffer) else { return false };
        let number = self.emit_header(now, Kind::Data, buffer);
        self.recovery.sent(number, now, 0, part);
        frame.set_range(0, len);
        true
    }

    /// Builds an acknowledgement that goes alone.
    pub(crate) fn emit_acknowledgement(&mut self, now: Time, frame: &mut Frame) {
        self.emit_header(now, Kind::Ack, frame.buffer_mut());
        frame.set_range(0, Header::LEN);
    }

    /// The acknowledgement that is owed, for a packet of another session's; `None` if there is more to say than it can.
    #[inline]
    pub(crate) fn acknowledge_along(&mut self, now: Time) -> Option<Acknowledgement> {
        self.received.is_complete().then(|| {
            let (largest, held_back) = self.received.acknowledge_all(now);
            Acknowledgement::new(self.remote, largest, held_back)
        })
    }

    /// Begins to send data, of one message: [`Session::data_class`] says that there is some.
    #[inline]
    pub(crate) fn begin_data(&mut self, now: Time, mixed: bool) -> Option<Sending<'_>> {
        let picked = self.outgoing.begin_data(self.only_small(mixed))?;
        // The headers of what leaves now differ in their number alone.
        let header = self.header(now, Kind::Data);
        Some(Sending { session: self, picked, header, now, mixed })
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
        let header = Header { number: U32::new(number as u32), ..self.header(now, kind) };
        header.emit(buffer);
        number
    }

    /// The header of a packet that leaves now, without its number. It says what is to be acknowledged: then nothing is owed.
    #[inline(always)]
    fn header(&mut self, now: Time, kind: Kind) -> Header {
        let (largest, bits, delay) = self.received.acknowledge(now);
        Header {
            session: U64::new(self.remote),
            ack_largest: U32::new(largest),
            ack_bits: U64::new(bits),
            ack_delay: delay,
            ..Header::new(kind)
        }
    }
}

/// Packets of one message that leave in a row.
pub(crate) struct Sending<'a> {
    session: &'a mut Session,
    picked: Picked,
    header: Header,
    now: Time,
    mixed: bool,
}

impl Sending<'_> {
    /// Builds the next packet. `false`: there is none.
    #[inline]
    pub(crate) fn emit(&mut self, frame: &mut Frame) -> bool {
        let session = &mut *self.session;
        let buffer = frame.buffer_mut();
        let Some((len, part)) = session.outgoing.emit_data(&self.picked, buffer) else { return false };
        let number = session.recovery.take_number();
        self.header.number = U32::new(number as u32);
        self.header.emit(buffer);
        session.recovery.sent(number, self.now, len, part);
        session.probe_packets = session.probe_packets.saturating_sub(1);
        frame.set_range(0, len);
        true
    }

    /// Whether another packet of the message may leave, as far as that is not the message's own affair.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        self.picked.is_long() && self.session.may_send_data() && !self.session.only_small(self.mixed)
    }

    /// Enough was sent of it for now.
    #[inline]
    pub(crate) fn end(self) {
        self.session.outgoing.end_data(self.picked);
    }
}
