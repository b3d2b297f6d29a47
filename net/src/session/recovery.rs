//! Packets in flight: what they carried, which of them were lost, and when to probe. Loss is found by packet threshold and by time
//! (RFC 9002, section 6); what a lost packet carried is sent again under a new number.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::rtt::Rtt;
use crate::clock::Time;
use crate::wire::{Item, expand_number};

/// A packet is lost when one sent this much later is acknowledged (RFC 9002's `kPacketThreshold`).
const PACKET_THRESHOLD: u64 = 3;
/// The probe time-out doubles at most this often.
const MAX_BACKOFF: u32 = 8;

/// What a packet in flight carried.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// A fragment of a message.
    Data { slot: u16, sequence: u32, fragment: u32 },
    /// Control items.
    Items(SmallVec<[Item; 1]>),
}

#[derive(Debug)]
struct Sent {
    number: u64,
    time: Time,
    bytes: u32,
    settled: bool,
    /// A probe already carried its content again.
    repeated: bool,
    content: Content,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Acknowledged,
    Lost,
}

#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) rtt: Rtt,
    sent: VecDeque<Sent>,
    next_number: u64,
    largest_acked: u64,
    /// The last acknowledgement's fields: most packets repeat it.
    last_ack: (u32, u64),
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
            sent: VecDeque::new(),
            next_number: 1,
            largest_acked: 0,
            last_ack: (0, 0),
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

    /// Whether the low half of a packet number is one that was used lately.
    pub(crate) fn used_lately(&self, low: u32) -> bool {
        let number = expand_number(low, self.next_number);
        number != 0 && number < self.next_number && self.next_number - number <= 1 << 16
    }

    /// Remembers a packet that wants an acknowledgement. `bytes`: of data, 0 for control, which no window limits.
    #[inline]
    pub(crate) fn sent(&mut self, number: u64, now: Time, bytes: usize, content: Content) {
        self.in_flight += bytes;
        self.last_sent = now;
        self.sent.push_back(Sent { number, time: now, bytes: bytes as u32, settled: false, repeated: false, content });
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
    #[cfg(test)]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Takes the acknowledgement of a received header; `None` if it speaks of packets never sent. `settle` hears of each packet's end.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        now: Time,
        largest: u32,
        bits: u64,
        ack_delay: u64,
        settle: impl FnMut(Verdict, &Content),
    ) -> Option<Progress> {
        if (largest, bits) == self.last_ack {
            return Some(Progress::default());
        }
        let full = expand_number(largest, self.next_number);
        if full >= self.next_number {
            return None;
        }
        self.last_ack = (largest, bits);
        if full == 0 || full + 64 < self.largest_acked {
            return Some(Progress::default());
        }
        Some(self.settle(now, full, bits, ack_delay, settle))
    }

    /// The common case apart: the acknowledgement of the only packet in flight.
    #[inline]
    fn settle(
        &mut self,
        now: Time,
        largest: u64,
        bits: u64,
        ack_delay: u64,
        mut settle: impl FnMut(Verdict, &Content),
    ) -> Progress {
        if self.sent.len() == 1 && self.sent[0].number == largest {
            let Some(sent) = self.sent.pop_front() else { return Progress::default() };
            self.largest_acked = self.largest_acked.max(largest);
            self.rtt.sample(now.nanos_since(sent.time), ack_delay);
            self.in_flight -= sent.bytes as usize;
            self.loss_due = Time::NEVER;
            self.backoff = 0;
            settle(Verdict::Acknowledged, &sent.content);
            return Progress { bytes: sent.bytes as usize, ..Progress::default() };
        }
        self.settle_many(now, largest, bits, ack_delay, settle)
    }

    fn settle_many(
        &mut self,
        now: Time,
        largest: u64,
        bits: u64,
        ack_delay: u64,
        mut settle: impl FnMut(Verdict, &Content),
    ) -> Progress {
        let mut progress = Progress::default();
        let mut any = false;
        self.largest_acked = self.largest_acked.max(largest);
        let loss_delay = self.rtt.loss_delay();
        self.loss_due = Time::NEVER;
        for sent in &mut self.sent {
            if sent.number > self.largest_acked {
                break;
            }
            if sent.settled {
                continue;
            }
            let acked = sent.number <= largest && {
                let back = largest - sent.number;
                back == 0 || back <= 64 && bits >> (back - 1) & 1 == 1
            };
            if acked {
                if sent.number == largest {
                    self.rtt.sample(now.nanos_since(sent.time), ack_delay);
                }
                any = true;
                progress.bytes += sent.bytes as usize;
                settle(Verdict::Acknowledged, &sent.content);
            } else if self.largest_acked - sent.number >= PACKET_THRESHOLD || now.nanos_since(sent.time) >= loss_delay {
                progress.lost += 1;
                progress.lost_sent = Some(sent.time);
                if !sent.repeated {
                    settle(Verdict::Lost, &sent.content);
                }
            } else {
                self.loss_due = self.loss_due.min(sent.time.plus_nanos(loss_delay));
                continue;
            }
            self.in_flight -= sent.bytes as usize;
            sent.settled = true;
        }
        while self.sent.front().is_some_and(|sent| sent.settled) {
            self.sent.pop_front();
        }
        if any {
            self.backoff = 0;
        }
        progress
    }

    /// Takes what is in flight of a message out of account.
    pub(crate) fn forget(&mut self, slot: u16, sequence: u32) {
        for sent in self.sent.iter_mut().filter(|sent| !sent.settled) {
            if matches!(sent.content, Content::Data { slot: s, sequence: q, .. } if (s, q) == (slot, sequence)) {
                sent.settled = true;
                self.in_flight -= sent.bytes as usize;
            }
        }
        while self.sent.front().is_some_and(|sent| sent.settled) {
            self.sent.pop_front();
        }
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
        mut settle: impl FnMut(Verdict, &Content),
    ) -> (Progress, bool) {
        if self.loss_due <= now {
            let (largest, bits) = (self.largest_acked, 0);
            return (self.settle_many(now, largest, bits, 0, settle), false);
        }
        if self.due(peer_ack_delay) > now {
            return (Progress::default(), false);
        }
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.last_sent = now;
        let mut repeat = |sent: &mut Sent| {
            sent.repeated = true;
            settle(Verdict::Lost, &sent.content);
        };
        let mut fresh = 0;
        for sent in self.sent.iter_mut().filter(|sent| !sent.settled && !sent.repeated).take(2) {
            repeat(sent);
            fresh += 1;
        }
        if fresh == 0
            && let Some(oldest) = self.sent.front_mut()
        {
            repeat(oldest);
        }
        (Progress::default(), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(slot: u16) -> Content {
        Content::Data { slot, sequence: 1, fragment: 0 }
    }

    fn send(recovery: &mut Recovery, slot: u16, at: u64) -> u64 {
        let number = recovery.take_number();
        recovery.sent(number, Time::from_nanos(at), 100, data(slot));
        number
    }

    fn acknowledge(recovery: &mut Recovery, at: u64, largest: u32, bits: u64) -> Option<Vec<(Verdict, Content)>> {
        let mut heard = Vec::new();
        recovery.acknowledge(Time::from_nanos(at), largest, bits, 0, |verdict, content| heard.push((verdict, content.clone())))?;
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
        recovery.on_timeout(due, 0, |verdict, content| heard.push((verdict, content.clone())));
        assert_eq!(heard, [(Verdict::Lost, data(1))]);
        assert!(!recovery.is_waiting());
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
