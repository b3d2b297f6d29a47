//! Packets in flight: what they carried, which of them were lost, and when to probe. Loss is found by packet threshold and by time
//! (RFC 9002, section 6); what a lost packet carried is sent again under a new number.

use smallvec::SmallVec;
use thin_vec::ThinVec;

use super::fifo::Fifo;
use super::rtt::Rtt;
use crate::clock::Time;
use crate::wire::{Item, expand_number};

/// A packet is lost when one sent this much later is acknowledged (RFC 9002's `kPacketThreshold`).
const PACKET_THRESHOLD: u64 = 3;
/// The probe time-out doubles at most this often.
const MAX_BACKOFF: u32 = 8;

/// What a packet in flight carried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content<'a> {
    /// A fragment of a message.
    Data(Part),
    /// Control items.
    Items(&'a [Item]),
}

/// A fragment of a message, by the message's slot and the slot's sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) slot: u16,
    pub(crate) sequence: u32,
    pub(crate) fragment: u32,
}

/// A packet in flight, in half a cache line: there is one for every packet, and acknowledgements walk over them.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    number: u64,
    time: Time,
    bytes: u32,
    slot: u16,
    /// It carried items, which are kept apart.
    is_items: bool,
    status: Status,
    sequence: u32,
    fragment: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Status {
    #[default]
    Unknown,
    /// A probe already carried its content again.
    Repeated,
    /// Acknowledged, lost, or taken out of account.
    Settled,
}

impl Sent {
    fn content<'a>(&self, items: &'a [(u64, Items)]) -> Content<'a> {
        if self.is_items {
            let kept = items.iter().find(|(number, _)| *number == self.number);
            return Content::Items(kept.map_or(&[], |(_, items)| items));
        }
        Content::Data(Part { slot: self.slot, sequence: self.sequence, fragment: self.fragment })
    }
}

/// Memory for packets in flight.
#[derive(Debug, Default)]
pub(crate) struct Flight(Box<[Sent]>);

/// The items of one packet.
pub(crate) type Items = SmallVec<[Item; 1]>;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Acknowledged,
    Lost,
}

#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) rtt: Rtt,
    sent: Fifo<Sent>,
    /// The items of packets in flight, by packet number.
    items: ThinVec<(u64, Items)>,
    next_number: u64,
    largest_acked: u64,
    /// The last acknowledgement's fields: most packets repeat it.
    last_largest: u32,
    last_below: Below,
    /// Bytes of data packets in flight.
    in_flight: usize,
    last_sent: Time,
    /// When the earliest packet older than an acknowledged one counts as lost.
    loss_due: Time,
    backoff: u32,
}

/// What an acknowledgement changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes of data newly acknowledged.
    pub(crate) bytes: usize,
    /// When the latest of the lost packets was sent.
    pub(crate) lost_sent: Option<Time>,
    /// Packets lost.
    pub(crate) lost: u64,
}

impl Recovery {
    pub(crate) fn new() -> Recovery {
        Recovery {
            rtt: Rtt::default(),
            sent: Fifo::new(),
            items: ThinVec::new(),
            next_number: 1,
            largest_acked: 0,
            last_largest: 0,
            last_below: Below::default(),
            in_flight: 0,
            last_sent: Time::ZERO,
            loss_due: Time::NEVER,
            backoff: 0,
        }
    }

    /// The number for the next packet.
    #[inline]
    pub(crate) fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Takes back the number that was taken last: its packet does not leave.
    pub(crate) fn give_number_back(&mut self, number: u64) {
        debug_assert_eq!(number + 1, self.next_number);
        self.next_number = number;
    }

    /// Takes memory for packets in flight, if there are none.
    pub(crate) fn take_flight(&mut self, flight: Flight) {
        if self.sent.is_empty() {
            self.sent = Fifo::reusing(flight.0);
        }
    }

    /// Gives the memory for packets in flight away, of which there are none.
    pub(crate) fn give_flight(&mut self) -> Flight {
        debug_assert!(self.sent.is_empty());
        Flight(self.sent.take_places())
    }

    /// Whether the low half of a packet number is one that was used lately.
    pub(crate) fn used_lately(&self, low: u32) -> bool {
        let number = expand_number(low, self.next_number);
        number != 0 && number < self.next_number && self.next_number - number <= 1 << 16
    }

    /// Whether the low half of an acknowledged packet's number can be one that was sent.
    #[inline]
    pub(crate) fn was_sent(&self, low: u32) -> bool {
        expand_number(low, self.next_number) < self.next_number
    }

    /// Whether a received header's acknowledgement is the one that was taken last.
    #[inline]
    pub(crate) fn repeats(&self, largest: u32, below: Below) -> bool {
        largest == self.last_largest && below == self.last_below
    }

    /// Remembers a packet with a fragment. `bytes`: of data, 0 for a control message, which no window limits.
    #[inline]
    pub(crate) fn sent(&mut self, number: u64, now: Time, bytes: usize, part: Part) {
        self.in_flight += bytes;
        self.last_sent = now;
        let Part { slot, sequence, fragment } = part;
        let (bytes, status) = (bytes as u32, Status::Unknown);
        *self.sent.begin() = Sent { number, time: now, bytes, slot, is_items: false, status, sequence, fragment };
    }

    /// The packet sent last got so many bytes longer.
    #[inline(always)]
    pub(crate) fn sent_along(&mut self, bytes: usize) {
        if let Some(sent) = self.sent.back_mut() {
            sent.bytes += bytes as u32;
            self.in_flight += bytes;
        }
    }

    /// Remembers a packet of items.
    pub(crate) fn sent_items(&mut self, number: u64, now: Time, items: Items) {
        self.sent(number, now, 0, Part { slot: 0, sequence: 0, fragment: 0 });
        if let Some(sent) = self.sent.back_mut() {
            sent.is_items = true;
            self.items.push((number, items));
        }
    }

    /// Bytes of data in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// When the oldest packet was sent of which nothing is known.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.sent.front().map(|sent| sent.time)
    }

    /// Whether anything waits for an acknowledgement.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Takes the acknowledgement of a received header; `None` if it speaks of packets never sent. `settle` hears of each packet's end.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        now: Time,
        largest: u32,
        below: Below,
        ack_delay: u64,
        mut settle: impl FnMut(Verdict, Content<'_>),
    ) -> Option<Progress> {
        if self.repeats(largest, below) {
            return Some(Progress::default());
        }
        let full = expand_number(largest, self.next_number);
        if full >= self.next_number {
            return None;
        }
        (self.last_largest, self.last_below) = (largest, below);
        if full == 0 || full + 64 < self.largest_acked {
            return Some(Progress::default());
        }
        let mut progress = Progress::default();
        self.largest_acked = self.largest_acked.max(full);
        // The common case: everything up to the latest arrived, in order.
        while let Some(sent) = self.sent.front()
            && sent.number <= full
            && below.acknowledges(full, sent.number)
            && !sent.is_items
        {
            if sent.number == full {
                self.rtt.sample(now.nanos_since(sent.time), ack_delay);
            }
            if sent.status != Status::Settled {
                self.in_flight -= sent.bytes as usize;
                progress.bytes += sent.bytes as usize;
                settle(
                    Verdict::Acknowledged,
                    Content::Data(Part { slot: sent.slot, sequence: sent.sequence, fragment: sent.fragment }),
                );
            }
            self.backoff = 0;
            self.sent.remove_front();
        }
        match self.sent.front() {
            Some(sent) if sent.number <= self.largest_acked => self.settle(now, full, below, ack_delay, &mut progress, settle),
            Some(sent) if sent.status == Status::Settled => {
                self.loss_due = Time::NEVER;
                self.drop_settled();
            }
            _ => self.loss_due = Time::NEVER,
        }
        Some(progress)
    }

    /// Settles whatever can be: acknowledged packets behind gaps, lost ones, items.
    fn settle(
        &mut self,
        now: Time,
        largest: u64,
        below: Below,
        ack_delay: u64,
        progress: &mut Progress,
        mut settle: impl FnMut(Verdict, Content<'_>),
    ) {
        let loss_delay = self.rtt.loss_delay();
        self.loss_due = Time::NEVER;
        for sent in self.sent.iter_mut() {
            if sent.number > self.largest_acked {
                break;
            }
            if sent.status == Status::Settled {
                continue;
            }
            if sent.number <= largest && below.acknowledges(largest, sent.number) {
                if sent.number == largest {
                    self.rtt.sample(now.nanos_since(sent.time), ack_delay);
                }
                self.backoff = 0;
                progress.bytes += sent.bytes as usize;
                settle(Verdict::Acknowledged, sent.content(&self.items));
            } else if self.largest_acked - sent.number >= PACKET_THRESHOLD || now.nanos_since(sent.time) >= loss_delay {
                progress.lost += 1;
                progress.lost_sent = Some(sent.time);
                if sent.status != Status::Repeated {
                    settle(Verdict::Lost, sent.content(&self.items));
                }
            } else {
                self.loss_due = self.loss_due.min(sent.time.plus_nanos(loss_delay));
                continue;
            }
            self.in_flight -= sent.bytes as usize;
            sent.status = Status::Settled;
        }
        self.drop_settled();
    }

    /// Forgets the oldest packets, as far as they are settled.
    fn drop_settled(&mut self) {
        while self.sent.front().is_some_and(|sent| sent.status == Status::Settled) {
            self.sent.remove_front();
        }
        let first = self.sent.front().map_or(u64::MAX, |sent| sent.number);
        let over = self.items.iter().take_while(|(number, _)| *number < first).count();
        self.items.drain(..over);
    }

    /// Takes what is in flight of a message out of account.
    pub(crate) fn forget(&mut self, slot: u16, sequence: u32) {
        let unsettled = self.sent.iter_mut().filter(|sent| sent.status != Status::Settled && !sent.is_items);
        for sent in unsettled.filter(|sent| (sent.slot, sent.sequence) == (slot, sequence)) {
            sent.status = Status::Settled;
            self.in_flight -= sent.bytes as usize;
        }
        self.drop_settled();
    }

    /// Whether a packet is older than an acknowledged one.
    #[inline]
    pub(crate) fn suspects_loss(&self) -> bool {
        self.loss_due != Time::NEVER
    }

    /// When to call [`Recovery::on_timeout`]; `NEVER` while nothing is in flight.
    #[inline]
    pub(crate) fn due(&self, peer_ack_delay: u64) -> Time {
        if self.sent.is_empty() {
            return Time::NEVER;
        }
        let probe = self.rtt.probe_timeout(peer_ack_delay) << self.backoff;
        self.loss_due.min(self.last_sent.plus_nanos(probe))
    }

    /// Finds packets lost by time, and probes if nothing was acknowledged for long: `settle` hears what to send again.
    /// `true`: a probe is due.
    pub(crate) fn on_timeout(
        &mut self,
        now: Time,
        peer_ack_delay: u64,
        mut settle: impl FnMut(Verdict, Content<'_>),
    ) -> (Progress, bool) {
        let mut progress = Progress::default();
        if self.loss_due <= now {
            self.settle(now, self.largest_acked, Below::default(), 0, &mut progress, settle);
            return (progress, false);
        }
        if self.due(peer_ack_delay) > now {
            return (progress, false);
        }
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.last_sent = now;
        let items = &self.items;
        let mut repeat = |sent: &mut Sent| {
            sent.status = Status::Repeated;
            settle(Verdict::Lost, sent.content(items));
        };
        let mut fresh = 0;
        for sent in self.sent.iter_mut().filter(|sent| sent.status == Status::Unknown).take(2) {
            repeat(sent);
            fresh += 1;
        }
        if fresh == 0
            && let Some(oldest) = self.sent.iter_mut().find(|sent| sent.status != Status::Settled)
        {
            repeat(oldest);
        }
        (progress, true)
    }
}

/// What an acknowledgement tells of the packets below the largest that it is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Below {
    /// Bit n: of `largest - 1 - n`.
    pub(crate) bits: u64,
    /// The 64 below those are acknowledged too.
    pub(crate) run: bool,
}

impl Below {
    /// Whether an acknowledgement of `largest` and this speaks of `number`, which is not above `largest`.
    #[inline]
    fn acknowledges(self, largest: u64, number: u64) -> bool {
        let back = largest - number;
        back == 0 || back <= 64 && self.bits >> (back - 1) & 1 == 1 || self.run && back > 64 && back <= 128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(slot: u16) -> Part {
        Part { slot, sequence: 1, fragment: 0 }
    }

    fn part(content: Content<'_>) -> Part {
        match content {
            Content::Data(part) => part,
            Content::Items(items) => panic!("{items:?}"),
        }
    }

    fn send(recovery: &mut Recovery, slot: u16, at: u64) -> u64 {
        let number = recovery.take_number();
        recovery.sent(number, Time::from_nanos(at), 100, data(slot));
        number
    }

    fn acknowledge(recovery: &mut Recovery, at: u64, largest: u32, bits: u64) -> Option<Vec<(Verdict, Part)>> {
        let mut heard = Vec::new();
        recovery.acknowledge(Time::from_nanos(at), largest, Below { bits, run: false }, 0, |verdict, content| {
            heard.push((verdict, part(content)))
        })?;
        Some(heard)
    }

    #[test]
    fn a_packet_is_settled_once_however_often_it_is_acknowledged() {
        let mut recovery = Recovery::new();
        send(&mut recovery, 1, 0);
        send(&mut recovery, 2, 0);
        assert_eq!(acknowledge(&mut recovery, 10, 1, 0).unwrap(), [(Verdict::Acknowledged, data(1))]);
        assert_eq!(acknowledge(&mut recovery, 10, 2, 1).unwrap(), [(Verdict::Acknowledged, data(2))]);
        assert_eq!(acknowledge(&mut recovery, 10, 2, 1).unwrap(), []);
        assert_eq!(acknowledge(&mut recovery, 10, 1, 0).unwrap(), []);
        assert_eq!(recovery.in_flight(), 0);
        assert!(!recovery.is_waiting());
    }

    #[test]
    fn three_later_packets_prove_a_loss_and_two_do_not() {
        let mut recovery = Recovery::new();
        for slot in 1..=4 {
            send(&mut recovery, slot, 0);
        }
        assert_eq!(acknowledge(&mut recovery, 10, 3, 0b1).unwrap().len(), 2);
        assert_eq!(acknowledge(&mut recovery, 10, 4, 0b11).unwrap(), [(Verdict::Lost, data(1)), (Verdict::Acknowledged, data(4))]);
    }

    #[test]
    fn a_long_run_is_acknowledged_at_once_and_what_is_below_it_is_lost() {
        let mut recovery = Recovery::new();
        for _ in 1..=140 {
            send(&mut recovery, 1, 0);
        }
        let (mut acknowledged, mut lost) = (0, 0);
        let count = |verdict, _: Content<'_>| if verdict == Verdict::Lost { lost += 1 } else { acknowledged += 1 };
        recovery.acknowledge(Time::from_nanos(10), 140, Below { bits: u64::MAX, run: true }, 0, count).unwrap();
        assert_eq!((acknowledged, lost, recovery.in_flight()), (129, 11, 0));
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_is_refused() {
        let mut recovery = Recovery::new();
        send(&mut recovery, 1, 0);
        assert!(acknowledge(&mut recovery, 10, 2, 0).is_none());
        assert_eq!(recovery.in_flight(), 100);
    }

    #[test]
    fn an_overtaken_packet_is_lost_after_its_time() {
        let mut recovery = Recovery::new();
        send(&mut recovery, 1, 0);
        send(&mut recovery, 2, 0);
        acknowledge(&mut recovery, 1_000, 2, 0).unwrap();
        let due = recovery.due(0);
        assert!(due < Time::from_nanos(1_000_000));
        let mut heard = Vec::new();
        recovery.on_timeout(due, 0, |verdict, content| heard.push((verdict, part(content))));
        assert_eq!(heard, [(Verdict::Lost, data(1))]);
        assert!(!recovery.is_waiting());
    }

    #[test]
    fn a_packet_of_a_message_that_starts_over_is_out_of_account_once_whatever_follows() {
        let mut recovery = Recovery::new();
        send(&mut recovery, 1, 0);
        send(&mut recovery, 2, 0);
        send(&mut recovery, 3, 0);
        recovery.forget(2, 1);
        assert_eq!(acknowledge(&mut recovery, 10, 1, 0).unwrap(), [(Verdict::Acknowledged, data(1))]);
        let mut at = recovery.due(0);
        for _ in 0..3 {
            recovery.on_timeout(at, 0, |_, content| assert_eq!(part(content), data(3)));
            at = recovery.due(0);
        }
        assert_eq!(acknowledge(&mut recovery, at.as_nanos(), 3, 0b11).unwrap(), [(Verdict::Acknowledged, data(3))]);
        assert_eq!((recovery.in_flight(), recovery.is_waiting()), (0, false));
    }

    #[test]
    fn probes_back_off_repeat_the_oldest_and_stop_when_answered() {
        let mut recovery = Recovery::new();
        send(&mut recovery, 1, 0);
        let first = recovery.due(0);
        let mut heard = 0;
        let (_, probe) = recovery.on_timeout(first, 0, |_, _| heard += 1);
        assert!(probe && heard == 1);
        let second = recovery.due(0);
        assert!(second.nanos_since(first) >= 2 * first.as_nanos());
        acknowledge(&mut recovery, second.as_nanos(), 1, 0).unwrap();
        assert_eq!(recovery.due(0), Time::NEVER);
    }
}
