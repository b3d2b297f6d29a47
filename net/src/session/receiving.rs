//! What a packet of the peer's does to a session.

use std::hint::cold_path;

use smallvec::SmallVec;
use thin_vec::ThinVec;

use super::bundle::{Batch, Messages};
use super::congestion::Congestion;
use super::incoming::{self, Arrival, Budget, Whole};
use super::outgoing::{Outgoing, Ticket};
use super::recovery::{Below, Content, Progress, Verdict};
use super::{Acknowledge, Handled, ITEMS_A_PACKET, Session, Shared, State};
use crate::class::Class;
use crate::clock::Time;
use crate::endpoint::{CloseReason, Event};
use crate::frame::Frame;
use crate::payload::Payload;
use crate::wire::{Acknowledgement, CloseCode, DATA_OVERHEAD, Fragment, Header, Item, ItemKind, Kind, WireError};

impl Session {
    /// Takes a data, control or acknowledgement packet that is for this session; `acknowledge` says when what it acknowledges is.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        now: Time,
        header: &Header,
        kind: Kind,
        frame: Frame,
        acknowledge: Acknowledge,
        shared: &mut Shared,
    ) -> Result<Handled, WireError> {
        let Some(number) = self.number_of_new(now, header, shared) else { return Ok(Handled::Open) };
        // Of a session that is being closed it may be the end, which is an event; and a close after it ends what is not acknowledged.
        let later = acknowledge == Acknowledge::Later
            && kind == Kind::Data
            && self.state == State::Established
            && self.recovery.was_sent(header.ack_largest.get());
        if !later {
            self.take_acknowledgement_of(now, header, shared)?;
        }
        if self.state == State::Closed {
            cold_path();
            return Ok(Handled::Closed);
        }
        let delay = shared.ack_delay;
        match kind {
            Kind::Data => {
                let (fragment, payload) = Fragment::parse(&frame)?;
                if fragment.total.get() as usize == payload.len() {
                    self.take_whole(now, &fragment, frame, shared)?;
                    self.received.record(number, now, true, delay);
                } else if self.take_part(now, &fragment, payload, shared)? {
                    self.received.record(number, now, true, shared.ack_delay_of_part(now));
                } else {
                    // It must not be acknowledged.
                    return Ok(if later { Handled::Later } else { Handled::Open });
                }
            }
            Kind::Control => {
                if let Some(reason) = self.take_items(number, now, &frame, shared)? {
                    return Ok(self.finish(reason, shared));
                }
            }
            _ => self.received.record(number, now, false, delay),
        }
        if later {
            return Ok(Handled::Later);
        }
        Ok(self.close_when_drained())
    }

    /// Takes the items of a control packet. The reason, if they end the session.
    #[inline(never)]
    fn take_items(&mut self, number: u64, now: Time, packet: &[u8], shared: &mut Shared) -> Result<Option<CloseReason>, WireError> {
        let items: SmallVec<[Item; ITEMS_A_PACKET]> = Item::parse(packet)?.iter().copied().collect();
        // Grants and pings are rare, and their sender has nothing else to send: answer at once.
        self.received.record(number, now, true, 0);
        Ok(items.iter().find_map(|item| self.take_item(item, shared)))
    }

    /// The number of a packet that came, if there is something to do about it: the session is open, and it did not come before.
    #[inline(always)]
    fn number_of_new(&mut self, now: Time, header: &Header, shared: &mut Shared) -> Option<u64> {
        if !self.is_established() {
            cold_path();
            shared.counters.stray += 1;
            return None;
        }
        let (number, new) = self.received.check(header.number.get());
        self.last_heard = now;
        if !new {
            cold_path();
            // A late duplicate; but its sender may lack our acknowledgement.
            shared.counters.duplicate_packets += 1;
            return None;
        }
        Some(number)
    }

    /// Takes what a packet acknowledges that was received at `arrived` with [`Acknowledge::Later`].
    pub(crate) fn receive_acknowledgement(
        &mut self,
        arrived: Time,
        header: &Header,
        shared: &mut Shared,
    ) -> Result<Handled, WireError> {
        if !self.is_established() {
            return Ok(Handled::Open);
        }
        self.take_acknowledgement_of(arrived, header, shared)?;
        Ok(self.close_when_drained())
    }

    /// The control message that a datagram of this session's begins with, if it is whole and was not received before. Nothing is recorded.
    pub(crate) fn new_control<'a>(&self, header: &Header, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (fragment, payload) = Fragment::parse(datagram).ok()?;
        let whole = fragment.offset.get() == 0 && fragment.total.get() as usize == payload.len();
        let new = self.is_established() && self.received.check(header.number.get()).1 && self.incoming.awaits_control(&fragment);
        (whole && new).then_some(payload)
    }

    /// Takes a packet that is one message, or a bundle.
    #[inline]
    fn take_whole(&mut self, now: Time, fragment: &Fragment, frame: Frame, shared: &mut Shared) -> Result<(), WireError> {
        let (session, first) = (self.id, fragment.offset.get());
        let is_bundle = fragment.shift == Fragment::BUNDLE;
        if first != 0 && !is_bundle {
            return Err(WireError::Field("fragment"));
        }
        match self.incoming.receive_whole(fragment, &frame[DATA_OVERHEAD..], now, &mut shared.budget)? {
            Whole::Data(class) if is_bundle => return self.take_bundle(now, class, first, frame, shared),
            Whole::Data(class) => {
                shared.counters.messages_received += 1;
                shared.saw_small(1, now);
                shared.tell_message(session, class, frame);
            }
            Whole::Control if is_bundle => return Err(WireError::Field("control message")),
            Whole::Control => shared.tell(Event::Control { session, payload: body(frame, shared.copy_out) }),
            Whole::Duplicate => shared.counters.duplicate_data += 1,
        }
        Ok(())
    }

    /// Takes several messages, of which the first has this length.
    #[inline(never)]
    fn take_bundle(&mut self, now: Time, class: Class, first: u32, frame: Frame, shared: &mut Shared) -> Result<(), WireError> {
        let (messages, count) = Messages::new(self.id, class, frame, first, shared.copy_out)?;
        shared.counters.messages_received += u64::from(count);
        shared.saw_small(count, now);
        shared.batches.push(Some(Batch::Messages(messages)));
        Ok(())
    }

    /// Takes a part of a message. `false`: there is no memory for it, so that it must not be acknowledged.
    #[inline(never)]
    fn take_part(&mut self, now: Time, fragment: &Fragment, payload: &[u8], shared: &mut Shared) -> Result<bool, WireError> {
        match self.incoming.receive(fragment, payload, now, &mut shared.budget)? {
            Arrival::Deferred { new } => {
                shared.counters.deferred += 1;
                if new {
                    let (slot, sequence) = (fragment.slot.get(), fragment.sequence.get());
                    self.push_item(Item::defer(slot, sequence));
                    shared.granting[usize::from(!self.incoming.is_trusted())].push_front((self.id, slot, sequence));
                    shared.grants_due = true;
                }
                return Ok(false);
            }
            Arrival::Duplicate => shared.counters.duplicate_data += 1,
            Arrival::Partial { new, answered } => {
                shared.inflow.count(payload.len());
                if fragment.offset.get() == 0 {
                    self.long_begins(now, fragment, shared);
                }
                if let Some(delay) = answered {
                    shared.credit.answered(delay, self.shortest_trip(), now);
                }
                self.watch(now, shared);
                if new {
                    let place = (self.id, fragment.slot.get(), fragment.sequence.get());
                    shared.granting[usize::from(!self.incoming.is_trusted())].push_front(place);
                }
                shared.grants_due = true;
            }
            Arrival::Complete(class, bytes) => {
                shared.saw_long();
                shared.counters.messages_received += 1;
                shared.grants_due = true;
                shared.tell(Event::Message { session: self.id, class, payload: Payload::from(bytes) });
            }
            // They were told apart before.
            Arrival::Single(_) | Arrival::Control => return Err(WireError::Field("fragment")),
        }
        Ok(true)
    }

    /// Takes what the header of a packet with nothing else for this session says. `None`: the packet came before.
    pub(crate) fn receive_alone(&mut self, now: Time, header: &Header, shared: &mut Shared) -> Result<Option<Handled>, WireError> {
        let Some(number) = self.number_of_new(now, header, shared) else {
            return Ok((!self.is_established()).then_some(Handled::Open));
        };
        self.take_acknowledgement_of(now, header, shared)?;
        self.received.record(number, now, false, 0);
        Ok(Some(self.close_when_drained()))
    }

    /// Takes an acknowledgement that came with another session's.
    #[inline]
    pub(crate) fn receive_acknowledgement_along(
        &mut self,
        now: Time,
        acknowledgement: &Acknowledgement,
        shared: &mut Shared,
    ) -> Result<Handled, WireError> {
        if !self.is_established() {
            shared.counters.stray += 1;
            return Ok(Handled::Open);
        }
        self.last_heard = now;
        let below = Below { bits: u64::MAX, run: true };
        self.take_acknowledgement(now, acknowledgement.largest.get(), below, acknowledgement.ack_delay_nanos(), shared)?;
        Ok(self.close_when_drained())
    }

    #[inline(never)]
    fn take_acknowledgement_of(&mut self, now: Time, header: &Header, shared: &mut Shared) -> Result<(), WireError> {
        let below = Below { bits: header.ack_bits.get(), run: header.ack_run() };
        self.take_acknowledgement(now, header.ack_largest.get(), below, header.ack_delay_nanos(), shared)
    }

    #[inline(always)]
    fn take_acknowledgement(
        &mut self,
        now: Time,
        largest: u32,
        below: Below,
        delay: u64,
        shared: &mut Shared,
    ) -> Result<(), WireError> {
        let (outgoing, items) = (&mut self.outgoing, &mut self.items);
        let mut closed = false;
        let progress = self
            .recovery
            .acknowledge(now, largest, below, delay, |verdict, content| closed |= settle(outgoing, items, verdict, content))
            .ok_or(WireError::Field("acknowledgement"))?;
        self.react(now, progress, shared);
        if closed && self.state == State::Closing {
            self.finish(CloseReason::Local, shared);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn react(&mut self, now: Time, progress: Progress, shared: &mut Shared) {
        if self.outgoing.has_waiting() {
            self.outgoing.place_waiting(self.limits.unscheduled);
        }
        if progress.bytes > 0 {
            self.window.acknowledged(progress.bytes);
            if shared.is_mixed(now) {
                let rtt = &self.recovery.rtt;
                self.window.delayed(rtt.latest(), rtt.minimum(), progress.bytes, now.as_nanos());
            }
            self.account(shared);
            if self.paced {
                self.pace.acknowledged(progress.bytes, self.held, now);
                self.paced = self.held > 0;
            }
            self.give_back(&mut shared.spare);
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
                self.limits.unscheduled.shift = item.shift;
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

    /// How far an incoming message is, for the grants; `None` once it is complete or gone.
    pub(crate) fn need(&self, slot: u16, sequence: u32, budget: &Budget) -> Option<incoming::Need> {
        self.incoming.need(slot, sequence, budget)
    }

    /// Whether the peer finishes the long messages that it begins.
    pub(crate) fn is_trusted(&self) -> bool {
        self.incoming.is_trusted()
    }

    /// A long message of the peer's stands still.
    pub(crate) fn distrust(&mut self, budget: &mut Budget) {
        self.incoming.distrust(budget);
    }

    /// Makes room for a deferred message; `false` if there is none.
    pub(crate) fn admit(&mut self, slot: u16, sequence: u32, now: Time, shared: &mut Shared) -> bool {
        let admitted = self.incoming.admit(slot, sequence, now, &mut shared.budget);
        if admitted {
            self.watch(now, shared);
        }
        admitted
    }

    /// There is an incomplete message: it must not stand still.
    pub(super) fn watch(&mut self, now: Time, shared: &Shared) {
        if self.stall_check == Time::NEVER {
            self.stall_check = now.plus_nanos(shared.quiet);
        }
    }

    /// Grants an incoming message up to here.
    pub(crate) fn grant(&mut self, slot: u16, sequence: u32, upto: u32, now: Time, shared: &Shared) {
        self.incoming.grant(slot, sequence, upto, now);
        self.push_item(Item::grant(slot, sequence, upto, shared.crowd.shift()));
    }

    /// The first fragment of a message of several came. A peer that sends more without a grant than everyone should is told at once.
    fn long_begins(&mut self, now: Time, fragment: &Fragment, shared: &mut Shared) {
        shared.crowd.joined(&mut self.crowded, now);
        let shift = shared.crowd.shift();
        if fragment.shift < shift {
            let (slot, sequence) = (fragment.slot.get(), fragment.sequence.get());
            let granted = self.incoming.need(slot, sequence, &shared.budget).map_or(0, |need| need.granted);
            self.push_item(Item::grant(slot, sequence, granted, shift));
        }
    }

    /// Queues an item about an incoming message, in place of an older one about the same slot: as many at most as the peer has slots.
    pub(super) fn push_item(&mut self, item: Item) {
        match self.items.iter_mut().find(|other| other.kind == item.kind && other.slot == item.slot) {
            Some(other) => *other = item,
            None => self.items.push(item),
        }
    }
}

/// A message of one packet: the frame itself, or a copy where frames are scarce.
#[inline(always)]
fn body(mut frame: Frame, copy_out: bool) -> Payload {
    if copy_out {
        return Payload::copy_from(&frame[DATA_OVERHEAD..]);
    }
    frame.trim_front(DATA_OVERHEAD);
    Payload::from_frame(frame)
}

/// What a packet's end means for what it carried. `true`: it carried the close, and that arrived.
#[inline(always)]
pub(super) fn settle(outgoing: &mut Outgoing, items: &mut ThinVec<Item>, verdict: Verdict, content: Content<'_>) -> bool {
    match (verdict, content) {
        (Verdict::Acknowledged, Content::Data(part)) => outgoing.acknowledged(part),
        (Verdict::Lost, Content::Data(part)) => outgoing.lost(part),
        (Verdict::Acknowledged, Content::Items(sent)) => return sent.iter().any(|item| item.kind() == Some(ItemKind::Close)),
        (Verdict::Lost, Content::Items(sent)) => {
            // Grants, abandons and closes must arrive; a ping has done its work by being lost.
            items.extend(sent.iter().filter(|item| item.kind() != Some(ItemKind::Ping)).copied());
        }
    }
    false
}
