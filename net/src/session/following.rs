//! Packets that follow each other: a long message's fragments leave in bursts, and within one nothing of their headers changes but number and offset,
//! each by one step. What was checked of the first then holds for the others, so that these cost a comparison each, and the session
//! learns of all of them at once.
//!
//! This only ever does what taking each packet on its own would have done; whatever is not as expected ends it, and goes that way.

use zerocopy::FromBytes;

use super::incoming::Rest;
use super::recovery::Below;
use super::{Session, Shared, State};
use crate::clock::Time;
use crate::wire::{DATA_OVERHEAD, Fragment, Header, Kind};

/// The headers of a packet with a part of a message, as they lie there: six little-endian words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartHead([u64; WORDS]);

const WORDS: usize = DATA_OVERHEAD / 8;

/// The word whose upper half is the packet's number.
const NUMBER: usize = 0;
/// The word whose upper half is the checksum, each packet's own.
const CHECK: usize = 2;
/// The word whose lower half is the message's length, and whose upper half is the fragment's offset in it.
const OFFSET: usize = 5;
/// One more in the upper half.
const ONE: u64 = 1 << 32;

const _: () = assert!(
    std::mem::offset_of!(Header, number) == 8 * NUMBER + 4
        && std::mem::offset_of!(Header, check) == 8 * CHECK + 4
        && Header::LEN + std::mem::offset_of!(Fragment, offset) == 8 * OFFSET + 4
);

impl PartHead {
    /// That of a datagram, if it may be such a packet. Nothing else is checked.
    #[inline]
    pub(crate) fn of(datagram: &[u8]) -> Option<PartHead> {
        let bytes = datagram.first_chunk::<DATA_OVERHEAD>()?;
        let kind = bytes[std::mem::offset_of!(Header, kind)];
        let total = u32::from_le_bytes(*bytes[8 * OFFSET..].first_chunk()?);
        if kind != Kind::Data as u8 || total as usize <= datagram.len() - DATA_OVERHEAD {
            return None;
        }
        PartHead::read(datagram)
    }

    #[inline(always)]
    fn read(datagram: &[u8]) -> Option<PartHead> {
        let (words, _) = datagram.first_chunk::<DATA_OVERHEAD>()?.as_chunks::<8>();
        Some(PartHead(std::array::from_fn(|n| u64::from_le_bytes(words[n]))))
    }

    /// The session that it names.
    #[inline]
    pub(crate) fn session(&self) -> u64 {
        self.0[1]
    }

    fn headers(&self) -> Option<(Header, Fragment)> {
        let bytes = self.0.map(u64::to_le_bytes);
        let (header, rest) = Header::read_from_prefix(bytes.as_flattened()).ok()?;
        Some((header, Fragment::read_from_bytes(rest).ok()?))
    }

    /// What the head of the next packet is, after a fragment of so many bytes.
    #[inline]
    fn step(&mut self, fragment: usize) {
        self.0[NUMBER] = self.0[NUMBER].wrapping_add(ONE);
        self.0[OFFSET] = self.0[OFFSET].wrapping_add((fragment as u64) << 32);
    }

    /// Whether a packet has this head.
    #[inline(always)]
    fn is_of(&self, datagram: &[u8]) -> bool {
        let Some(PartHead(words)) = PartHead::read(datagram) else { return false };
        let mut differ = (words[CHECK] ^ self.0[CHECK]) as u32 as u64;
        for n in (0..WORDS).filter(|n| *n != CHECK) {
            differ |= words[n] ^ self.0[n];
        }
        differ == 0
    }
}

/// The packets of one session and message that are taken now.
pub(crate) struct Following<'a> {
    rest: Rest<'a>,
    next: PartHead,
}

impl Following<'_> {
    /// Whether the next packet is the one that is expected.
    #[inline(always)]
    pub(crate) fn expects(&self, datagram: &[u8]) -> bool {
        self.next.is_of(datagram)
    }

    /// Takes the next packet, which is the one that is expected. `false`: there is more to do about it, and nothing was done.
    #[inline(always)]
    pub(crate) fn take(&mut self, datagram: &[u8]) -> bool {
        let payload = &datagram[DATA_OVERHEAD..];
        let taken = self.rest.take(payload);
        if taken {
            self.next.step(payload.len());
        }
        taken
    }

    /// Ends it: how many packets were taken, with how many bytes of the message.
    pub(crate) fn end(self, now: Time) -> (u32, usize) {
        self.rest.end(now)
    }
}

impl Session {
    /// Begins to take the packets that follow `head`, if they can be: that packet is the latest, and of a message that is not complete. When all
    /// are taken, [`Session::followed`] is to be told.
    pub(crate) fn follow(&mut self, head: &PartHead) -> Option<Following<'_>> {
        let (header, fragment) = head.headers()?;
        let below = Below { bits: header.ack_bits.get(), run: header.ack_run() };
        let usual = self.is_established()
            && self.state != State::Closed
            && self.received.is_latest(header.number.get())
            && self.recovery.repeats(header.ack_largest.get(), below);
        if !usual {
            return None;
        }
        let rest = self.incoming.rest(&fragment)?;
        let mut next = *head;
        next.step(rest.fragment());
        Some(Following { rest, next })
    }

    /// So many packets with so many bytes of the message were taken.
    pub(crate) fn followed(&mut self, count: u32, bytes: usize, now: Time, shared: &mut Shared) {
        if count == 0 {
            return;
        }
        shared.inflow.count(bytes);
        self.received.record_following(count, now, shared.ack_delay_of_part(now));
        self.last_heard = now;
        self.watch(now, shared);
        shared.grants_due = true;
    }
}
