//! Messages on their way out: which fragment of which leaves next.
//!
//! The schedule is by class, then shortest remaining first (SRPT; Homa, SIGCOMM 2018, section 3.3), with every sixteenth packet given to
//! the oldest message whatever its class, some at a time, so that nothing starves.

mod lists;
mod message;
mod picking;
mod slots;

use zerocopy::little_endian::{U16, U32};

use self::lists::{ControlSlots, OnDemand};
use self::slots::{Slot, Slots, Waiting};
use super::bundle;
use super::recovery::Part;
use crate::class::Class;
use crate::endpoint::{CONTROL_SLOTS, EndpointConfig, MessageId, SendError};
use crate::wire::{DATA_OVERHEAD, Fragment, Header};

pub(crate) use self::message::{Message, NewMessage, Unacknowledged, Unscheduled};
pub(crate) use self::picking::Picked;
pub(crate) use self::slots::{SpareSlots, Ticket};

/// Of so many packets the first few, a turn of one session, are the oldest message's.
const OLDEST_AFTER: u8 = 128;

#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Bytes of payload in each data packet but a message's last.
    fragment: u32,
    /// Bytes of a packet with whole messages at most.
    longest: u32,
    /// Bytes of a packet with a bundle at most.
    longest_bundle: u32,
    control: ControlSlots,
    data: Slots,
    lists: OnDemand,
    /// Bit n: class n's last long message was the one with least left when it was picked, and none came or grew since: it still is.
    shortest_last: u8,
    /// Bit n: class n has something to send.
    ready: u8,
    /// Messages that wait for a slot.
    waiting_count: u32,
    /// Messages bundled with another.
    bundled: u32,
    /// Bytes of the messages held.
    bytes: usize,
    next_order: u64,
    /// Packets until the oldest message goes first.
    until_oldest: u8,
    /// Fragments sent again since this was last asked.
    resent: u32,
}

impl Outgoing {
    pub(crate) fn new(fragment: usize, peer_slots: u16) -> Outgoing {
        Outgoing {
            fragment: fragment as u32,
            longest: (DATA_OVERHEAD + fragment) as u32,
            longest_bundle: 0,
            control: ControlSlots::default(),
            data: Slots::new(CONTROL_SLOTS as u8, usable(peer_slots)),
            lists: OnDemand::default(),
            shortest_last: 0,
            ready: 0,
            waiting_count: 0,
            bundled: 0,
            bytes: 0,
            next_order: 0,
            until_oldest: OLDEST_AFTER,
            resent: 0,
        }
    }

    /// Takes the peer's limits, known when the handshake is complete. Nothing was sent before.
    pub(crate) fn establish(&mut self, fragment: usize, longest_message: usize, peer_slots: u16, unscheduled: Unscheduled) {
        let longest = DATA_OVERHEAD + fragment.min(longest_message);
        self.fragment = fragment as u32;
        self.longest = longest as u32;
        self.longest_bundle = longest.min(DATA_OVERHEAD + bundle::LONGEST) as u32;
        self.data.limit = usable(peer_slots);
        if self.waiting_count == 0 {
            return;
        }
        for class in Class::ALL {
            while let Some(waiting) = self.lists.waiting[class.index()].pop_front() {
                self.waiting_count -= 1;
                if !self.place(class, waiting, unscheduled) {
                    break;
                }
            }
        }
    }

    /// Accepts a message of one packet, and writes it after the header's place in `packet`, without any list between: the common case, where
    /// nothing else wants to be sent. Gives the packet's length, and what it carries. `None`: it is not that case, and nothing was done.
    #[inline]
    pub(crate) fn push_and_emit(&mut self, new: &NewMessage<'_>, packet: &mut [u8]) -> Option<(MessageId, usize, Part)> {
        let total = new.len();
        let end = DATA_OVERHEAD + total;
        if end > self.longest as usize || self.is_busy() && self.stands_before(new.class) {
            return None;
        }
        let order = self.next_order;
        let place = packet.get_mut(Header::LEN..end)?;
        let part = emit_now(&mut self.data, new.class.index() as u8, new.token, order, (new.head, new.body), place)?;
        self.next_order += 1;
        self.bytes += total;
        Some((MessageId(order), end, part))
    }

    /// Where a packet must end to which messages may be added now: nowhere, if something stands before them.
    #[inline]
    pub(crate) fn longest_bundle(&self) -> usize {
        if self.is_busy() { 0 } else { self.longest_bundle as usize }
    }

    /// Messages with these tokens were bundled with `part`, accepted by [`Outgoing::push_and_emit`] just before: they are in `packet` from
    /// `start` on.
    #[inline]
    pub(crate) fn joined(&mut self, part: Part, tokens: &[u64], packet: &mut [u8], start: usize) {
        let Some(slot) = self.data.find(Ticket { slot: part.slot, sequence: part.sequence }) else { return };
        slot.join(tokens, &packet[start..]);
        write_header(slot, part.slot, slot.mark(0), &mut packet[Header::LEN..]);
        self.next_order += tokens.len() as u64;
        self.bundled += tokens.len() as u32;
        self.bytes += packet.len() - start;
    }

    /// Whether something waits to be sent.
    #[inline]
    pub(crate) fn has_something_to_send(&self) -> bool {
        self.is_busy() || self.has_urgent()
    }

    /// Whether anything may stand before a new message.
    #[inline(always)]
    fn is_busy(&self) -> bool {
        self.ready != 0 || self.waiting_count != 0
    }

    /// Whether something is to leave before a new message of one packet.
    fn stands_before(&self, class: Class) -> bool {
        let class = class.index();
        // A longer message of the same class has more left to send.
        self.ready & ((1 << class) - 1) != 0 || !self.lists.small[class].is_empty() || self.waiting_count != 0
    }

    /// The same for a control message: its length, and what it carries.
    #[inline]
    pub(crate) fn push_control_and_emit(&mut self, payload: &[u8], packet: &mut [u8]) -> Option<(usize, Part)> {
        if self.has_urgent() || payload.len() > self.fragment() {
            return None;
        }
        let end = DATA_OVERHEAD + payload.len();
        let place = &mut packet[Header::LEN..end];
        let part = emit_now(&mut self.control, Fragment::CONTROL, 0, self.next_order, (payload, &[]), place)?;
        self.next_order += 1;
        Some((end, part))
    }

    /// Bytes of a control message from `at` on are others now.
    #[inline]
    pub(crate) fn control_stamped(&mut self, part: Part, at: usize, bytes: &[u8]) {
        self.control.get_mut(part.slot).head[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A control message whose packet was built does not leave.
    pub(crate) fn control_dropped(&mut self, part: Part) {
        self.control.release(part.slot);
    }

    /// Accepts a message. `open`: the session is established; before that, all wait.
    pub(crate) fn push(
        &mut self,
        message: Message<'_>,
        unscheduled: Unscheduled,
        open: bool,
        config: &EndpointConfig,
    ) -> Result<MessageId, SendError> {
        let total = message.len();
        let Message { class, head, body, token } = message;
        let order = self.next_order;
        let index = class.index();
        if open && self.lists.waiting[index].is_empty() && total <= self.fragment() {
            // The common case: one packet, a slot is free, nothing waits.
            if let Some(number) = self.data.allocate() {
                self.data.get_mut(number).begin(index as u8, token, order, head, &body);
                self.next_order += 1;
                self.bytes += total;
                self.list(number);
                return Ok(MessageId(order));
            }
        }
        if self.waiting_count as usize >= config.send_queue || self.bytes > 0 && self.bytes + total > config.send_bytes {
            return Err(SendError::Full);
        }
        self.next_order += 1;
        self.bytes += total;
        let waiting = Waiting { order, token, head: head.to_vec(), body };
        if !open || !self.lists.waiting[index].is_empty() {
            self.lists.waiting[index].push_back(waiting);
            self.waiting_count += 1;
        } else {
            self.place(class, waiting, unscheduled);
        }
        Ok(MessageId(order))
    }

    /// Accepts a control message: one packet, in slots of its own.
    pub(crate) fn push_control(&mut self, payload: &[u8]) -> Result<(), SendError> {
        if payload.len() > self.fragment() {
            return Err(SendError::TooLarge { len: payload.len(), limit: self.fragment() });
        }
        let number = self.control.allocate().ok_or(SendError::Full)?;
        self.control.get_mut(number).begin(Fragment::CONTROL, 0, self.next_order, payload, &[]);
        self.next_order += 1;
        self.list(number);
        Ok(())
    }

    /// Whether there is memory for no message.
    #[inline(always)]
    pub(crate) fn has_no_slots(&self) -> bool {
        self.data.len() == 0
    }

    /// Takes memory for a message, where there is none.
    pub(crate) fn take_slots(&mut self, slots: SpareSlots) {
        self.data.take(slots);
    }

    /// Gives the memory for messages away, if none is under way and there never were more than a few at once.
    pub(crate) fn give_slots(&mut self) -> Option<SpareSlots> {
        // Lists may still have tickets of messages that are over.
        if self.is_busy() { None } else { self.data.give() }
    }

    /// Whether a control message waits to be sent.
    #[inline]
    pub(crate) fn has_urgent(&self) -> bool {
        !self.lists.urgent.is_empty()
    }

    /// Bytes of payload that a packet holds.
    #[inline]
    pub(crate) fn fragment(&self) -> usize {
        self.fragment as usize
    }

    /// Bytes of the messages held.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fragments sent again since this was last asked.
    #[inline]
    pub(crate) fn take_resent(&mut self) -> u64 {
        u64::from(std::mem::take(&mut self.resent))
    }

    /// Whether no message is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting_count == 0 && self.data.is_idle() && self.control.is_idle()
    }

    /// Messages that are not acknowledged, control messages included.
    pub(crate) fn len(&self) -> usize {
        (self.waiting_count + self.bundled) as usize + self.data.in_use() + self.control.in_use()
    }

    /// Writes the next control message's packet after the header's place in `packet`: its length, and what it carries.
    pub(crate) fn emit_urgent(&mut self, packet: &mut [u8]) -> Option<(usize, Part)> {
        let fragment = self.fragment();
        while self.has_urgent()
            && let Some(ticket) = self.lists.urgent.pop_front()
        {
            let Some(slot) = self.control.find(ticket) else { continue };
            slot.listed = false;
            if let Some((len, part, again)) = emit_next(slot, ticket.slot, fragment, packet) {
                self.resent += u32::from(again);
                return Some((len, part));
            }
        }
        None
    }

    /// Picks the message of which data leaves next: [`Outgoing::emit_data`] gives its packets, as many as may leave, and then
    /// [`Outgoing::end_data`] puts it back. `only_small`: not one of several packets.
    #[inline]
    pub(crate) fn begin_data(&mut self, only_small: bool) -> Option<Picked> {
        loop {
            let picked = if only_small { self.pick_small()? } else { self.pick()? };
            let fragment = self.fragment();
            if let Some(slot) = self.data.find(picked.ticket) {
                slot.listed = false;
                if slot.is_sendable(fragment) {
                    return Some(Picked { is_long: slot.long.is_some(), ..picked });
                }
            }
            self.look_ready(picked.class);
        }
    }

    /// Writes the next packet of that message after the header's place in `packet`: its length, and what it carries. `None`: no more may
    /// leave of it.
    #[inline]
    pub(crate) fn emit_data(&mut self, picked: &Picked, packet: &mut [u8]) -> Option<(usize, Part)> {
        let (number, fragment) = (picked.ticket.slot, self.fragment());
        let (len, part, again) = emit_next(self.data.get_mut(number), number, fragment, packet)?;
        self.resent += u32::from(again);
        self.until_oldest = self.until_oldest.saturating_sub(1);
        Some((len, part))
    }

    /// Enough was sent of that message for now.
    #[inline]
    pub(crate) fn end_data(&mut self, picked: Picked) {
        let Picked { ticket, class, shortest, is_long } = picked;
        let fragment = self.fragment();
        if is_long && self.data.get(ticket.slot).is_sendable(fragment) {
            self.list(ticket.slot);
            if shortest {
                self.shortest_last |= 1 << class;
            }
        }
        self.look_ready(class);
    }

    /// A fragment was acknowledged. When its message is complete the slot is free again, for [`Outgoing::place_waiting`].
    #[inline]
    pub(crate) fn acknowledged(&mut self, part: Part) {
        let Part { slot, sequence, fragment } = part;
        let slots = if slot < CONTROL_SLOTS { &mut self.control } else { &mut self.data };
        let Some(place) = slots.find(Ticket { slot, sequence }) else { return };
        if place.acknowledged(fragment) {
            // What a window of data has no part in counts no bytes.
            self.bytes -= if slot < CONTROL_SLOTS { 0 } else { place.total as usize };
            self.bundled -= u32::from(place.count - 1);
            slots.release(slot);
        }
    }

    /// A fragment was lost, or is to be sent again to be sure.
    pub(crate) fn lost(&mut self, part: Part) {
        let Part { slot, sequence, fragment } = part;
        if self.slots_of(slot).find(Ticket { slot, sequence }).is_some_and(|place| place.lost(fragment)) {
            self.shortest_last = 0;
            self.list(slot);
        }
    }

    /// More of a message may be sent.
    pub(crate) fn granted(&mut self, ticket: Ticket, upto: u32) {
        let fragment = self.fragment();
        let Some(slot) = self.slots_of(ticket.slot).find(ticket) else { return };
        slot.granted(upto);
        if slot.is_sendable(fragment) {
            self.list(ticket.slot);
        }
    }

    /// The peer kept nothing of a message: it starts over when it is granted. `false` if that news is out of date.
    pub(crate) fn defer(&mut self, ticket: Ticket) -> bool {
        self.shortest_last = 0;
        self.slots_of(ticket.slot).find(ticket).is_some_and(Slot::defer)
    }

    /// Gives a message up. If part of it was sent, the ticket to tell the peer of.
    pub(crate) fn abandon(&mut self, id: MessageId, unscheduled: Unscheduled) -> Option<Ticket> {
        for queue in &mut self.lists.waiting {
            if let Some(at) = queue.iter().position(|waiting| waiting.order == id.0) {
                let waiting = queue.remove(at).expect("the position was just found");
                self.waiting_count -= 1;
                self.bytes -= waiting.head.len() + waiting.body.len();
                return None;
            }
        }
        let (number, slot) = self.data.active_mut().find(|(_, slot)| slot.holds(id.0))?;
        if slot.count > 1 {
            // The others of its bundle still have to arrive.
            slot.give_up(id.0);
            return None;
        }
        let ticket = Ticket { slot: number, sequence: slot.sequence };
        let partly = slot.transmitted && slot.long.is_some();
        let class = usize::from(slot.class);
        self.release(number, unscheduled);
        self.drop_stale(class);
        partly.then_some(ticket)
    }

    /// Every data message still held, oldest first; none is held afterwards.
    pub(crate) fn drain(&mut self) -> Vec<Unacknowledged> {
        let mut held: Vec<(u64, Unacknowledged)> = Vec::new();
        for (_, slot) in self.data.active() {
            held.extend(slot.messages().map(|(order, token)| (order, Unacknowledged { token, transmitted: slot.transmitted })));
        }
        for waiting in self.lists.waiting.iter_mut().flat_map(|queue| queue.drain(..)) {
            held.push((waiting.order, Unacknowledged { token: waiting.token, transmitted: false }));
        }
        held.sort_unstable_by_key(|(order, _)| *order);
        *self = Outgoing::new(self.fragment(), self.data.limit);
        held.into_iter().map(|(_, message)| message).collect()
    }

    /// Puts a message into a slot, or back to the front of its queue if none is free.
    fn place(&mut self, class: Class, waiting: Waiting, unscheduled: Unscheduled) -> bool {
        let index = class.index();
        let Some(number) = self.data.allocate() else {
            self.lists.waiting[index].push_front(waiting);
            self.waiting_count += 1;
            return false;
        };
        let fragment = self.fragment();
        let slot = self.data.get_mut(number);
        if waiting.head.len() + waiting.body.len() <= fragment {
            slot.begin(index as u8, waiting.token, waiting.order, &waiting.head, &waiting.body);
        } else {
            slot.begin_long(index as u8, waiting, fragment, unscheduled);
        }
        self.list(number);
        true
    }

    /// Frees a data message's slot.
    fn release(&mut self, number: u16, unscheduled: Unscheduled) {
        let slot = self.data.get(number);
        self.bytes -= slot.total as usize;
        self.bundled -= u32::from(slot.count - 1);
        self.data.release(number);
        self.place_waiting(unscheduled);
    }

    /// Whether a message waits for a slot.
    #[inline(always)]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting_count > 0
    }

    /// Slots may be free: for the most urgent messages that wait for one.
    #[cold]
    pub(crate) fn place_waiting(&mut self, unscheduled: Unscheduled) {
        for class in Class::ALL {
            while let Some(waiting) = self.lists.waiting[class.index()].pop_front() {
                self.waiting_count -= 1;
                if !self.place(class, waiting, unscheduled) {
                    return;
                }
            }
        }
    }

    #[inline]
    fn slots_of(&mut self, number: u16) -> &mut Slots {
        if number < CONTROL_SLOTS { &mut self.control } else { &mut self.data }
    }
}

/// How many of the slots that a peer offers have a number beside the control slots.
fn usable(peer_slots: u16) -> u16 {
    peer_slots.clamp(1, u16::MAX - CONTROL_SLOTS)
}

/// Takes a slot for a message of one packet, the two pieces of `bytes` after each other, and writes it to `place` after its header. `None`:
/// no slot.
#[inline(always)]
fn emit_now(slots: &mut Slots, class: u8, token: u64, order: u64, (head, body): (&[u8], &[u8]), place: &mut [u8]) -> Option<Part> {
    let (header, payload) = place.split_at_mut_checked(Fragment::LEN)?;
    let number = slots.allocate()?;
    let slot = slots.get_mut(number);
    let (first, rest) = payload.split_at_mut(head.len());
    first.copy_from_slice(head);
    rest.copy_from_slice(body);
    // From where they came: the copy just made can't be read in large pieces yet.
    slot.begin(class, token, order, head, body);
    slot.unsent = false;
    slot.transmitted = true;
    write_header(slot, number, (0, 0), header);
    Some(Part { slot: number, sequence: slot.sequence, fragment: 0 })
}

/// Writes what leaves next of the message in a slot after the header's place in `packet`: the packet's length, what it carries, and whether that
/// left before.
#[inline(always)]
fn emit_next(slot: &mut Slot, number: u16, fragment_size: usize, packet: &mut [u8]) -> Option<(usize, Part, bool)> {
    let (fragment, again) = slot.take_next(fragment_size)?;
    slot.transmitted = true;
    let offset = fragment as usize * fragment_size;
    let len = fragment_size.min(slot.total as usize - offset);
    write_header(slot, number, slot.mark(offset as u32), &mut packet[Header::LEN..]);
    let end = DATA_OVERHEAD + len;
    slot.copy(offset, &mut packet[DATA_OVERHEAD..end]);
    Some((end, Part { slot: number, sequence: slot.sequence, fragment }, again))
}

/// Writes a fragment's header, with the shift and the offset that it says, to the front of `place`.
#[inline]
fn write_header(slot: &Slot, number: u16, (shift, offset): (u8, u32), place: &mut [u8]) {
    let header = Fragment {
        slot: U16::new(number),
        class: slot.class,
        shift,
        sequence: U32::new(slot.sequence),
        total: U32::new(slot.total),
        offset: U32::new(offset),
    };
    header.emit_along(place);
}

#[cfg(test)]
mod tests;
