//! Messages on their way out: slots, and which fragment leaves next.
//!
//! The schedule is by class, then shortest remaining first (SRPT; Homa, SIGCOMM 2018, section 3.3), with every sixteenth pick given to
//! the oldest message whatever its class, so that nothing starves.

use std::collections::VecDeque;

use zerocopy::little_endian::{U16, U32};

use super::bits::Bits;
use crate::class::Class;
use crate::endpoint::{CONTROL_SLOTS, EndpointConfig, MessageId, SendError};
use crate::payload::Payload;
use crate::wire::{DATA_OVERHEAD, Fragment};

/// Every so many picks, the oldest message goes first.
const OLDEST_SHARE: u32 = 16;
/// A slot's buffer larger than this is given back when its message is done.
const KEEP_BUFFER: usize = 2048;

#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Bytes of payload in each data packet but a message's last.
    fragment: usize,
    control: Slots,
    data: Slots,
    /// Control messages with something to send.
    urgent: VecDeque<Ticket>,
    /// Single-packet messages with something to send, by class.
    small: [VecDeque<Ticket>; Class::COUNT],
    /// Longer messages with something to send, by class.
    large: [Vec<Ticket>; Class::COUNT],
    /// Bit n: class n has something to send.
    ready: u8,
    /// Messages that wait for a slot, by class.
    waiting: [VecDeque<Waiting>; Class::COUNT],
    waiting_count: usize,
    /// Bytes of the messages held.
    bytes: usize,
    next_order: u64,
    picks: u32,
    /// Fragments sent again since this was last asked.
    resent: u64,
}

/// A message to send: `head` followed by `body`.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) class: Class,
    pub(crate) head: &'a [u8],
    pub(crate) body: Payload,
    /// The owner's name for it.
    pub(crate) token: u64,
}

impl Message<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// A message in a slot. Stale ones are told by the sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) slot: u16,
    pub(crate) sequence: u32,
}

#[derive(Debug)]
struct Slots {
    first: u16,
    limit: u16,
    slots: Vec<Slot>,
    free: Vec<u16>,
}

#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    active: bool,
    /// It stands in one of the lists of what has something to send.
    listed: bool,
    transmitted: bool,
    class: u8,
    token: u64,
    order: u64,
    /// The head, and the body too where both fit one packet.
    head: Vec<u8>,
    body: Payload,
    total: u32,
    fragments: u32,
    /// Next fragment never sent.
    next: u32,
    /// Bytes that may be sent.
    granted: u32,
    /// The peer granted more than the unscheduled bytes.
    grant_seen: bool,
    /// The peer had no memory for it: nothing may be sent until it grants.
    deferred: bool,
    resend: VecDeque<u32>,
    acknowledged: Bits,
    acknowledged_count: u32,
}

#[derive(Debug)]
struct Waiting {
    order: u64,
    token: u64,
    head: Vec<u8>,
    body: Payload,
}

/// A message that ended without being acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged {
    pub(crate) token: u64,
    pub(crate) transmitted: bool,
}

impl Outgoing {
    pub(crate) fn new(fragment: usize, peer_slots: u16) -> Outgoing {
        Outgoing {
            fragment,
            control: Slots { first: 0, limit: CONTROL_SLOTS, slots: Vec::new(), free: Vec::new() },
            data: Slots { first: CONTROL_SLOTS, limit: usable(peer_slots), slots: Vec::new(), free: Vec::new() },
            urgent: VecDeque::new(),
            small: Default::default(),
            large: Default::default(),
            ready: 0,
            waiting: Default::default(),
            waiting_count: 0,
            bytes: 0,
            next_order: 0,
            picks: 0,
            resent: 0,
        }
    }

    /// Takes the peer's limits, known when the handshake is complete. Nothing was sent before.
    pub(crate) fn establish(&mut self, fragment: usize, peer_slots: u16, unscheduled: u32) {
        self.fragment = fragment;
        self.data.limit = usable(peer_slots);
        for class in Class::ALL {
            while let Some(waiting) = self.waiting[class.index()].pop_front() {
                self.waiting_count -= 1;
                if !self.place(class, waiting, unscheduled) {
                    break;
                }
            }
        }
    }

    /// Accepts a message of one packet, and writes that packet after the header's place in `packet`, without any list between: the common
    /// case, where nothing else wants to be sent. `None`: it is not that case, and nothing was done.
    #[inline]
    pub(crate) fn push_and_emit(&mut self, message: &Message<'_>, packet: &mut [u8]) -> Option<(MessageId, usize, Ticket)> {
        let total = message.len();
        if self.ready != 0 || self.waiting_count != 0 || total > self.fragment {
            return None;
        }
        let number = self.data.allocate()?;
        let slot = self.data.get_mut(number);
        slot.head.clear();
        slot.head.extend_from_slice(message.head);
        slot.head.extend_from_slice(&message.body);
        slot.begin(message.class.index() as u8, message.token, self.next_order, total as u32, 1, total as u32);
        slot.next = 1;
        slot.transmitted = true;
        let header = Fragment {
            slot: U16::new(number),
            class: slot.class,
            reserved: 0,
            sequence: U32::new(slot.sequence),
            total: U32::new(slot.total),
            offset: U32::ZERO,
        };
        header.emit(packet);
        packet[DATA_OVERHEAD..DATA_OVERHEAD + total].copy_from_slice(&slot.head);
        let ticket = Ticket { slot: number, sequence: slot.sequence };
        let id = MessageId(self.next_order);
        self.next_order += 1;
        self.bytes += total;
        Some((id, DATA_OVERHEAD + total, ticket))
    }

    /// Accepts a message. `open`: the session is established; before that, all wait.
    pub(crate) fn push(
        &mut self,
        message: Message<'_>,
        unscheduled: u32,
        open: bool,
        config: &EndpointConfig,
    ) -> Result<MessageId, SendError> {
        let total = message.len();
        let Message { class, head, body, token } = message;
        let order = self.next_order;
        let index = class.index();
        if open && self.waiting[index].is_empty() && total <= self.fragment {
            // The common case: one packet, a slot is free, nothing waits.
            if let Some(slot) = self.data.allocate() {
                let place = self.data.get_mut(slot);
                place.head.clear();
                place.head.extend_from_slice(head);
                place.head.extend_from_slice(&body);
                place.begin(index as u8, token, order, total as u32, 1, total as u32);
                self.next_order += 1;
                self.bytes += total;
                self.list(slot);
                return Ok(MessageId(order));
            }
        }
        if self.waiting_count >= config.send_queue || self.bytes > 0 && self.bytes + total > config.send_bytes {
            return Err(SendError::Full);
        }
        self.next_order += 1;
        self.bytes += total;
        let waiting = Waiting { order, token, head: head.to_vec(), body };
        if !open || !self.waiting[index].is_empty() {
            self.waiting[index].push_back(waiting);
            self.waiting_count += 1;
        } else {
            self.place(class, waiting, unscheduled);
        }
        Ok(MessageId(order))
    }

    /// Accepts a control message: one packet, in slots of its own.
    pub(crate) fn push_control(&mut self, payload: &[u8]) -> Result<(), SendError> {
        if payload.len() > self.fragment {
            return Err(SendError::TooLarge { len: payload.len(), limit: self.fragment });
        }
        let slot = self.control.allocate().ok_or(SendError::Full)?;
        let place = self.control.get_mut(slot);
        place.head.clear();
        place.head.extend_from_slice(payload);
        place.begin(Fragment::CONTROL, 0, self.next_order, payload.len() as u32, 1, payload.len() as u32);
        self.next_order += 1;
        self.list(slot);
        Ok(())
    }

    /// Whether a control message waits to be sent.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// The most urgent class with something to send.
    #[inline]
    pub(crate) fn most_urgent(&self) -> Option<usize> {
        if self.ready == 0 { None } else { Some(self.ready.trailing_zeros() as usize) }
    }

    /// Bytes of the messages held.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fragments sent again since this was last asked.
    #[inline]
    pub(crate) fn take_resent(&mut self) -> u64 {
        std::mem::take(&mut self.resent)
    }

    /// Whether no message is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting_count == 0 && self.data.is_idle() && self.control.is_idle()
    }

    /// Writes the next control message's packet after the header's place in `packet`: its length, and what it carries.
    pub(crate) fn emit_urgent(&mut self, packet: &mut [u8]) -> Option<(usize, Ticket, u32)> {
        while let Some(ticket) = self.urgent.pop_front() {
            if let Some(sent) = self.emit(ticket, packet) {
                return Some(sent);
            }
        }
        None
    }

    /// Writes the next data packet after the header's place in `packet`: its length, and what it carries.
    #[inline]
    pub(crate) fn emit_data(&mut self, packet: &mut [u8]) -> Option<(usize, Ticket, u32)> {
        loop {
            let (class, ticket) = self.pick()?;
            let sent = self.emit(ticket, packet);
            if self.small[class].is_empty() && self.large[class].is_empty() {
                self.ready &= !(1 << class);
            }
            if sent.is_some() {
                return sent;
            }
        }
    }

    /// Takes the next message off its list, and says which class's. (It is listed again if it has more to send.)
    #[inline]
    fn pick(&mut self) -> Option<(usize, Ticket)> {
        self.picks = self.picks.wrapping_add(1);
        if self.picks.is_multiple_of(OLDEST_SHARE)
            && let Some(picked) = self.pick_oldest()
        {
            return Some(picked);
        }
        let class = self.most_urgent()?;
        if let Some(ticket) = self.small[class].pop_front() {
            return Some((class, ticket));
        }
        let data = &self.data;
        let shortest =
            self.large[class].iter().enumerate().min_by_key(|(_, ticket)| data.get(ticket.slot).remaining(self.fragment));
        let (at, _) = shortest?;
        Some((class, self.large[class].swap_remove(at)))
    }

    fn pick_oldest(&mut self) -> Option<(usize, Ticket)> {
        let data = &self.data;
        let order = |ticket: &Ticket| data.get(ticket.slot).order;
        let small = (0..Class::COUNT).filter_map(|class| self.small[class].front().map(|ticket| (order(ticket), class, None)));
        let large = (0..Class::COUNT)
            .flat_map(|class| self.large[class].iter().enumerate().map(move |(at, ticket)| (ticket, class, at)))
            .map(|(ticket, class, at)| (order(ticket), class, Some(at)));
        let (_, class, at) = small.chain(large).min_by_key(|(order, ..)| *order)?;
        let ticket = match at {
            None => self.small[class].pop_front()?,
            Some(at) => self.large[class].swap_remove(at),
        };
        Some((class, ticket))
    }

    #[inline]
    fn emit(&mut self, ticket: Ticket, packet: &mut [u8]) -> Option<(usize, Ticket, u32)> {
        let fragment_size = self.fragment;
        let slot = self.slot_mut(ticket)?;
        slot.listed = false;
        let again = slot.resend.pop_front();
        let number = match again {
            Some(number) => number,
            None if slot.may_send_next(fragment_size) => {
                slot.next += 1;
                slot.next - 1
            }
            None => return None,
        };
        slot.transmitted = true;
        let offset = number as usize * fragment_size;
        let len = fragment_size.min(slot.total as usize - offset);
        let header = Fragment {
            slot: U16::new(ticket.slot),
            class: slot.class,
            reserved: 0,
            sequence: U32::new(ticket.sequence),
            total: U32::new(slot.total),
            offset: U32::new(offset as u32),
        };
        header.emit(packet);
        slot.copy(offset, &mut packet[DATA_OVERHEAD..DATA_OVERHEAD + len]);
        let more = slot.is_sendable(fragment_size);
        self.resent += u64::from(again.is_some());
        if more {
            self.list(ticket.slot);
        }
        Some((DATA_OVERHEAD + len, ticket, number))
    }

    /// A fragment was acknowledged. When its message is complete the slot is free again.
    #[inline]
    pub(crate) fn acknowledged(&mut self, ticket: Ticket, fragment: u32, unscheduled: u32) {
        let Some(slot) = self.slot_mut(ticket) else { return };
        if fragment < slot.fragments && slot.acknowledged.insert(fragment) {
            slot.acknowledged_count += 1;
            if slot.acknowledged_count == slot.fragments {
                self.release(ticket.slot, unscheduled);
            }
        }
    }

    /// A fragment was lost, or is to be sent again to be sure. `false` if nobody needs it any more.
    pub(crate) fn lost(&mut self, ticket: Ticket, fragment: u32) -> bool {
        let Some(slot) = self.slot_mut(ticket) else { return false };
        if fragment >= slot.fragments || slot.acknowledged.contains(fragment) {
            return false;
        }
        if !slot.resend.contains(&fragment) {
            slot.resend.push_back(fragment);
        }
        self.list(ticket.slot);
        true
    }

    /// More of a message may be sent.
    pub(crate) fn granted(&mut self, ticket: Ticket, upto: u32) {
        let fragment = self.fragment;
        let Some(slot) = self.slot_mut(ticket) else { return };
        slot.granted = slot.granted.max(upto.min(slot.total));
        slot.grant_seen = true;
        slot.deferred = false;
        if slot.is_sendable(fragment) {
            self.list(ticket.slot);
        }
    }

    /// The peer kept nothing of a message: it starts over when it is granted. `false` if that news is out of date.
    pub(crate) fn defer(&mut self, ticket: Ticket) -> bool {
        let Some(slot) = self.slot_mut(ticket).filter(|slot| slot.fragments > 1 && !slot.grant_seen) else { return false };
        slot.next = 0;
        slot.granted = 0;
        slot.deferred = true;
        slot.resend.clear();
        slot.acknowledged.reset(slot.fragments);
        slot.acknowledged_count = 0;
        true
    }

    /// Gives a message up. If part of it was sent, the ticket to tell the peer of.
    pub(crate) fn abandon(&mut self, id: MessageId, unscheduled: u32) -> Option<Ticket> {
        for queue in &mut self.waiting {
            if let Some(at) = queue.iter().position(|waiting| waiting.order == id.0) {
                let waiting = queue.remove(at).expect("the position was just found");
                self.waiting_count -= 1;
                self.bytes -= waiting.head.len() + waiting.body.len();
                return None;
            }
        }
        let at = self.data.slots.iter().position(|slot| slot.active && slot.order == id.0)?;
        let slot = &self.data.slots[at];
        let ticket = Ticket { slot: self.data.first + at as u16, sequence: slot.sequence };
        let partly = slot.transmitted && slot.fragments > 1;
        self.release(ticket.slot, unscheduled);
        partly.then_some(ticket)
    }

    /// Every data message still held, oldest first; none is held afterwards.
    pub(crate) fn drain(&mut self) -> Vec<Unacknowledged> {
        let mut held: Vec<(u64, Unacknowledged)> = Vec::new();
        for slot in self.data.slots.iter_mut().filter(|slot| slot.active) {
            held.push((slot.order, Unacknowledged { token: slot.token, transmitted: slot.transmitted }));
        }
        for waiting in self.waiting.iter_mut().flat_map(|queue| queue.drain(..)) {
            held.push((waiting.order, Unacknowledged { token: waiting.token, transmitted: false }));
        }
        held.sort_unstable_by_key(|(order, _)| *order);
        *self = Outgoing::new(self.fragment, self.data.limit);
        held.into_iter().map(|(_, message)| message).collect()
    }

    /// Puts a message into a slot, or back to the front of its queue if none is free.
    fn place(&mut self, class: Class, waiting: Waiting, unscheduled: u32) -> bool {
        let index = class.index();
        let Some(slot) = self.data.allocate() else {
            self.waiting[index].push_front(waiting);
            self.waiting_count += 1;
            return false;
        };
        let total = waiting.head.len() + waiting.body.len();
        let fragments = total.div_ceil(self.fragment).max(1) as u32;
        let place = self.data.get_mut(slot);
        place.head = waiting.head;
        if fragments == 1 {
            place.head.extend_from_slice(&waiting.body);
        } else {
            place.body = waiting.body;
        }
        place.begin(index as u8, waiting.token, waiting.order, total as u32, fragments, (total as u32).min(unscheduled.max(1)));
        self.list(slot);
        true
    }

    fn release(&mut self, number: u16, unscheduled: u32) {
        if number < CONTROL_SLOTS {
            self.control.release(number);
            return;
        }
        self.bytes -= self.data.get(number).total as usize;
        self.data.release(number);
        if self.waiting_count > 0 {
            for class in Class::ALL {
                if let Some(waiting) = self.waiting[class.index()].pop_front() {
                    self.waiting_count -= 1;
                    self.place(class, waiting, unscheduled);
                    return;
                }
            }
        }
    }

    /// Puts a message on the list where it belongs, once.
    #[inline]
    fn list(&mut self, number: u16) {
        let slot = if number < CONTROL_SLOTS { self.control.get_mut(number) } else { self.data.get_mut(number) };
        if slot.listed {
            return;
        }
        slot.listed = true;
        let ticket = Ticket { slot: number, sequence: slot.sequence };
        if number < CONTROL_SLOTS {
            self.urgent.push_back(ticket);
            return;
        }
        self.ready |= 1 << slot.class;
        if slot.fragments == 1 {
            self.small[usize::from(slot.class)].push_back(ticket);
        } else {
            self.large[usize::from(slot.class)].push(ticket);
        }
    }

    #[inline]
    fn slot_mut(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slots = if ticket.slot < CONTROL_SLOTS { &mut self.control } else { &mut self.data };
        let slot = slots.slots.get_mut(usize::from(ticket.slot - slots.first))?;
        (slot.active && slot.sequence == ticket.sequence).then_some(slot)
    }
}

/// How many of the slots that a peer offers have a number beside the control slots.
fn usable(peer_slots: u16) -> u16 {
    peer_slots.clamp(1, u16::MAX - CONTROL_SLOTS)
}

impl Slots {
    #[inline]
    fn allocate(&mut self) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let used = self.slots.len() as u16;
        if used == self.limit {
            return None;
        }
        self.slots.push(Slot::default());
        Some(self.first + used)
    }

    #[inline]
    fn release(&mut self, number: u16) {
        let slot = self.get_mut(number);
        slot.active = false;
        if slot.fragments > 1 {
            slot.body = Payload::empty();
        }
        slot.resend.clear();
        if slot.head.capacity() > KEEP_BUFFER {
            slot.head = Vec::new();
        }
        self.free.push(number);
    }

    fn get(&self, number: u16) -> &Slot {
        &self.slots[usize::from(number - self.first)]
    }

    fn get_mut(&mut self, number: u16) -> &mut Slot {
        &mut self.slots[usize::from(number - self.first)]
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

impl Slot {
    #[inline]
    fn begin(&mut self, class: u8, token: u64, order: u64, total: u32, fragments: u32, granted: u32) {
        self.sequence = self.sequence.wrapping_add(1);
        self.active = true;
        self.listed = false;
        self.transmitted = false;
        self.class = class;
        self.token = token;
        self.order = order;
        self.total = total;
        self.fragments = fragments;
        self.next = 0;
        self.granted = granted;
        self.grant_seen = false;
        self.deferred = false;
        self.acknowledged.reset(fragments);
        self.acknowledged_count = 0;
    }

    #[inline]
    fn may_send_next(&self, fragment: usize) -> bool {
        self.next < self.fragments && !self.deferred && (self.next == 0 || (self.next as usize * fragment) < self.granted as usize)
    }

    #[inline]
    fn is_sendable(&self, fragment: usize) -> bool {
        !self.resend.is_empty() || self.may_send_next(fragment)
    }

    fn remaining(&self, fragment: usize) -> usize {
        (self.total as usize).saturating_sub(self.next as usize * fragment) + self.resend.len() * fragment
    }

    /// Copies the message's bytes from `offset` on.
    #[inline]
    fn copy(&self, offset: usize, into: &mut [u8]) {
        if offset >= self.head.len() {
            let start = offset - self.head.len();
            into.copy_from_slice(&self.body[start..start + into.len()]);
        } else {
            let from_head = into.len().min(self.head.len() - offset);
            into[..from_head].copy_from_slice(&self.head[offset..offset + from_head]);
            let rest = into.len() - from_head;
            into[from_head..].copy_from_slice(&self.body[..rest]);
        }
    }
}
