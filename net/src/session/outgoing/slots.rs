//! The places of messages under way. A place is used again, under the next sequence number, once its message was acknowledged or given up.
//!
//! Most messages fit one packet: what only longer ones need is apart, behind one pointer.

use std::collections::VecDeque;
use std::hint::cold_path;

use thin_vec::ThinVec;

use super::super::bits::Bits;
use super::Unscheduled;
use crate::payload::Payload;
use crate::wire::Fragment;

/// The buffer of a message longer than this is given back when that is done.
const KEEP_BUFFER: usize = 2048;

/// A message in a slot. Stale ones are told by the sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) slot: u16,
    pub(crate) sequence: u32,
}

#[derive(Debug)]
pub(super) struct Slots {
    first: u8,
    /// How many of those that were taken were not used here yet: the last ones.
    fresh: u8,
    pub(super) limit: u16,
    /// The slot that is used next, of those that are free; each of them names the next. [`NONE`] after the last.
    free: u16,
    in_use: u16,
    /// The sequence numbers of the slots, while they are given away.
    sequences: [u32; LENT],
    slots: ThinVec<Slot>,
}

/// So many slots are given away at most: a session that had more messages under way at once keeps them.
const LENT: usize = 4;

/// No slot has this number.
const NONE: u16 = u16::MAX;

/// Memory for a few messages: slots, which are free.
#[derive(Debug, Default)]
pub(crate) struct SpareSlots(ThinVec<Slot>);

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) token: u64,
    pub(super) order: u64,
    pub(super) sequence: u32,
    pub(super) total: u32,
    pub(super) class: u8,
    /// The next free one after this, while this is free.
    next_free: u16,
    active: bool,
    /// It stands in one of the lists of what has something to send.
    pub(super) listed: bool,
    pub(super) transmitted: bool,
    /// A message of one packet: the packet is to be sent, for the first time or again.
    pub(super) unsent: bool,
    /// How many messages it is: more than one is a bundle.
    pub(super) count: u8,
    /// The message, or the head of a longer one.
    pub(super) head: Vec<u8>,
    /// `None` where the message fits one packet.
    pub(super) long: Option<Box<Long>>,
    /// What is known of a bundle's messages; of an earlier one, if `count` is 1.
    bundle: Option<Box<Bundled>>,
}

/// The messages of a bundle.
#[derive(Debug, Default)]
struct Bundled {
    /// Bytes of the first.
    first: u32,
    /// Bit n: nobody wants to hear of the nth.
    given_up: u64,
    /// The tokens of those after the first.
    tokens: Vec<u64>,
}

/// A message that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) order: u64,
    pub(super) token: u64,
    pub(super) head: Vec<u8>,
    pub(super) body: Payload,
}

/// What a message of several packets needs besides.
#[derive(Debug)]
pub(super) struct Long {
    body: Payload,
    pub(super) fragments: u32,
    /// Next fragment never sent.
    next: u32,
    /// Bytes that may be sent.
    granted: u32,
    /// [`Fragment::shift`](crate::wire::Fragment::shift).
    shift: u8,
    /// The peer granted more than the unscheduled bytes.
    grant_seen: bool,
    /// The peer had no memory for it: nothing may be sent until it grants.
    deferred: bool,
    resend: VecDeque<u32>,
    acknowledged: Bits,
    acknowledged_count: u32,
}

impl Slots {
    pub(super) const fn new(first: u8, limit: u16) -> Slots {
        Slots { first, fresh: 0, limit, free: NONE, in_use: 0, sequences: [0; LENT], slots: ThinVec::new() }
    }

    #[inline(always)]
    pub(super) fn allocate(&mut self) -> Option<u16> {
        if self.free != NONE {
            let number = self.free;
            self.free = self.get(number).next_free;
            self.in_use += 1;
            return Some(number);
        }
        if self.fresh > 0 { self.use_fresh() } else { self.grow() }
    }

    /// One of those that were taken: its number goes on from what it was here.
    #[inline]
    fn use_fresh(&mut self) -> Option<u16> {
        let at = self.slots.len() - usize::from(self.fresh);
        let slot = self.slots.get_mut(at)?;
        slot.sequence = self.sequences.get(at).copied().unwrap_or(0);
        self.fresh -= 1;
        self.in_use += 1;
        Some(u16::from(self.first) + at as u16)
    }

    /// A slot that was never used.
    #[cold]
    fn grow(&mut self) -> Option<u16> {
        let used = self.slots.len() as u16;
        if used == self.limit {
            return None;
        }
        if used == 0 {
            // Most sessions never need more than one at a time.
            self.slots.reserve_exact(1);
        }
        // The numbers of those that were given away go on.
        let sequence = self.sequences.get(usize::from(used)).copied().unwrap_or(0);
        self.slots.push(Slot { sequence, ..Slot::default() });
        self.in_use += 1;
        Some(u16::from(self.first) + used)
    }

    /// Takes slots, where there are none.
    #[inline]
    pub(super) fn take(&mut self, spare: SpareSlots) {
        self.slots = spare.0;
        if self.slots.len() > usize::from(self.limit) {
            self.slots.truncate(usize::from(self.limit));
        }
        // The first is used first: the peer has its place at hand.
        self.fresh = self.slots.len() as u8;
    }

    /// Gives the slots away, if they are few and all of them are free.
    #[inline]
    pub(super) fn give(&mut self) -> Option<SpareSlots> {
        let len = self.slots.len();
        if self.in_use > 0 || len == 0 || len > LENT {
            return None;
        }
        for (slot, sequence) in self.slots[..len - usize::from(self.fresh)].iter().zip(&mut self.sequences) {
            *sequence = slot.sequence;
        }
        (self.free, self.fresh) = (NONE, 0);
        Some(SpareSlots(std::mem::take(&mut self.slots)))
    }

    pub(super) fn in_use(&self) -> usize {
        usize::from(self.in_use)
    }

    #[inline(always)]
    pub(super) fn release(&mut self, number: u16) {
        let free = std::mem::replace(&mut self.free, number);
        self.in_use -= 1;
        let slot = self.get_mut(number);
        slot.active = false;
        slot.next_free = free;
        if slot.long.is_some() {
            slot.long = None;
        }
        if slot.total as usize > KEEP_BUFFER {
            slot.head = Vec::new();
        }
    }

    pub(super) fn get(&self, number: u16) -> &Slot {
        &self.slots[usize::from(number - u16::from(self.first))]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u16) -> &mut Slot {
        &mut self.slots[usize::from(number - u16::from(self.first))]
    }

    /// The slot of a message that is still under way.
    #[inline]
    pub(super) fn find(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(ticket.slot - u16::from(self.first)))?;
        (slot.active && slot.sequence == ticket.sequence).then_some(slot)
    }

    /// The messages under way, with their slots' numbers.
    pub(super) fn active(&self) -> impl Iterator<Item = (u16, &Slot)> {
        (u16::from(self.first)..).zip(&self.slots).filter(|(_, slot)| slot.active)
    }

    /// The same, to change.
    pub(super) fn active_mut(&mut self) -> impl Iterator<Item = (u16, &mut Slot)> {
        (u16::from(self.first)..).zip(&mut self.slots).filter(|(_, slot)| slot.active)
    }

    /// How many slots were ever used at once.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_use == 0
    }
}

impl Slot {
    /// Begins a message of one packet, whose bytes are `head` followed by `body`.
    #[inline(always)]
    pub(super) fn begin(&mut self, class: u8, token: u64, order: u64, head: &[u8], body: &[u8]) {
        let total = head.len() + body.len();
        if self.head.len() != total {
            cold_path();
            self.head.resize(total, 0);
        }
        let (first, rest) = self.head.split_at_mut(head.len());
        first.copy_from_slice(head);
        if !body.is_empty() {
            rest.copy_from_slice(body);
        }
        self.start(class, token, order, total as u32);
    }

    /// Begins a message of several packets, of which `unscheduled` may be sent.
    pub(super) fn begin_long(&mut self, class: u8, message: Waiting, fragment: usize, unscheduled: Unscheduled) {
        let Waiting { order, token, head, body } = message;
        let total = head.len() + body.len();
        let fragments = total.div_ceil(fragment) as u32;
        let mut acknowledged = Bits::default();
        acknowledged.reset(fragments);
        self.head = head;
        self.start(class, token, order, total as u32);
        self.long = Some(Box::new(Long {
            body,
            fragments,
            next: 0,
            granted: unscheduled.bytes().min(total as u32),
            shift: unscheduled.shift,
            grant_seen: false,
            deferred: false,
            resend: VecDeque::new(),
            acknowledged,
            acknowledged_count: 0,
        }));
    }

    #[inline(always)]
    fn start(&mut self, class: u8, token: u64, order: u64, total: u32) {
        self.sequence = self.sequence.wrapping_add(1);
        self.active = true;
        self.listed = false;
        self.transmitted = false;
        self.unsent = true;
        self.count = 1;
        self.class = class;
        self.token = token;
        self.order = order;
        self.total = total;
    }

    /// Takes the number of the fragment that leaves next, and whether it left before.
    #[inline]
    pub(super) fn take_next(&mut self, fragment: usize) -> Option<(u32, bool)> {
        let Some(long) = &mut self.long else {
            return std::mem::take(&mut self.unsent).then_some((0, self.transmitted));
        };
        if let Some(number) = long.resend.pop_front() {
            return Some((number, true));
        }
        if !long.may_send_next(fragment) {
            return None;
        }
        long.next += 1;
        Some((long.next - 1, false))
    }

    #[inline]
    pub(super) fn is_sendable(&self, fragment: usize) -> bool {
        match &self.long {
            None => self.unsent,
            Some(long) => !long.resend.is_empty() || long.may_send_next(fragment),
        }
    }

    /// The shift and the offset that the header of a fragment at `offset` says.
    #[inline(always)]
    pub(super) fn mark(&self, offset: u32) -> (u8, u32) {
        match (&self.long, &self.bundle) {
            (Some(long), _) => (long.shift, offset),
            (None, Some(bundle)) if self.count > 1 => (Fragment::BUNDLE, bundle.first),
            _ => (0, 0),
        }
    }

    /// Bundles messages with the one here: their tokens, and their bytes, each message's length before it.
    pub(super) fn join(&mut self, tokens: &[u64], bytes: &[u8]) {
        let bundle = self.bundle.get_or_insert_default();
        (bundle.first, bundle.given_up) = (self.total, 0);
        bundle.tokens.clear();
        bundle.tokens.extend_from_slice(tokens);
        self.head.extend_from_slice(bytes);
        self.total += bytes.len() as u32;
        self.count = 1 + tokens.len() as u8;
    }

    /// Whether the message with this order is here.
    pub(super) fn holds(&self, order: u64) -> bool {
        (self.order..self.order + u64::from(self.count)).contains(&order)
    }

    /// Nobody wants to hear of the message with this order, which is in the bundle here.
    pub(super) fn give_up(&mut self, order: u64) {
        if let Some(bundle) = &mut self.bundle {
            bundle.given_up |= 1 << (order - self.order);
        }
    }

    /// Order and token of each message here that somebody wants to hear of.
    pub(super) fn messages(&self) -> impl Iterator<Item = (u64, u64)> {
        let bundle = self.bundle.as_deref().filter(|_| self.count > 1);
        let (given_up, tokens) = bundle.map_or((0, &[][..]), |bundle| (bundle.given_up, &bundle.tokens[..]));
        let tokens = std::iter::once(self.token).chain(tokens.iter().copied());
        (self.order..).zip(tokens).filter(move |(order, _)| given_up >> (order - self.order) & 1 == 0)
    }

    /// Bytes that are still to be sent.
    pub(super) fn remaining(&self, fragment: usize) -> usize {
        let (next, again) = self.long.as_ref().map_or((0, 0), |long| (long.next as usize, long.resend.len()));
        (self.total as usize).saturating_sub(next * fragment) + again * fragment
    }

    /// A fragment was acknowledged. `true`: that completes the message.
    #[inline]
    pub(super) fn acknowledged(&mut self, fragment: u32) -> bool {
        let Some(long) = &mut self.long else { return true };
        if fragment < long.fragments && long.acknowledged.insert(fragment) {
            long.acknowledged_count += 1;
        }
        long.acknowledged_count == long.fragments
    }

    /// A fragment was lost, or is to be sent again to be sure. `false` if nobody needs it any more.
    pub(super) fn lost(&mut self, fragment: u32) -> bool {
        let Some(long) = &mut self.long else {
            self.unsent = true;
            return true;
        };
        if fragment >= long.fragments || long.acknowledged.contains(fragment) {
            return false;
        }
        if !long.resend.contains(&fragment) {
            long.resend.push_back(fragment);
        }
        true
    }

    /// More may be sent.
    pub(super) fn granted(&mut self, upto: u32) {
        let total = self.total;
        if let Some(long) = &mut self.long {
            long.granted = long.granted.max(upto.min(total));
            long.grant_seen = true;
            long.deferred = false;
        }
    }

    /// The peer kept nothing of it: it starts over when it is granted. `false` if that news is out of date.
    pub(super) fn defer(&mut self) -> bool {
        let Some(long) = self.long.as_mut().filter(|long| !long.grant_seen) else { return false };
        long.next = 0;
        long.granted = 0;
        long.deferred = true;
        long.resend.clear();
        long.acknowledged.reset(long.fragments);
        long.acknowledged_count = 0;
        true
    }

    /// Copies the message's bytes from `offset` on.
    #[inline]
    pub(super) fn copy(&self, offset: usize, into: &mut [u8]) {
        let Some(long) = &self.long else {
            into.copy_from_slice(&self.head[offset..offset + into.len()]);
            return;
        };
        if offset >= self.head.len() {
            let start = offset - self.head.len();
            into.copy_from_slice(&long.body[start..start + into.len()]);
        } else {
            let from_head = into.len().min(self.head.len() - offset);
            into[..from_head].copy_from_slice(&self.head[offset..offset + from_head]);
            let rest = into.len() - from_head;
            into[from_head..].copy_from_slice(&long.body[..rest]);
        }
    }
}

impl Long {
    #[inline]
    fn may_send_next(&self, fragment: usize) -> bool {
        self.next < self.fragments && !self.deferred && (self.next == 0 || (self.next as usize * fragment) < self.granted as usize)
    }
}
