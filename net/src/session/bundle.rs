//! Bundles: small messages to one peer that are sent in the same turn share a packet, and all that is done once a packet: a number, a place
//! among what is on its way, an acknowledgement. (QUIC's packets hold several frames for the same reason: RFC 9000, section 12.2.) None
//! waits for another: a bundle leaves when its first message would have left alone.

use crate::class::Class;
use crate::endpoint::{Event, SessionId};
use crate::frame::{Cutter, Frame};
use crate::payload::Payload;
use crate::wire::{DATA_OVERHEAD, WireError, emit_words};

/// Bytes of the length before each message but the first.
const LENGTH: usize = size_of::<u16>();
/// Bytes of a bundle at most. Sharing a packet among more saves nothing worth having.
pub(super) const LONGEST: usize = 2048;
/// Messages in a bundle at most, beside the first. A peer that sends more is refused: an empty message costs it two bytes, and us an event.
pub(crate) const BUNDLE_MOST: usize = 63;

/// Bytes of a message in a bundle, the length before it included.
#[inline(always)]
pub(crate) fn bundled_len(head: usize, body: usize) -> usize {
    LENGTH + head + body
}

/// Writes a message and the length before it to `place`, which has [`bundled_len`] bytes.
#[inline(always)]
pub(crate) fn write_bundled(head: &[u8], body: &[u8], place: &mut [u8]) {
    let (first, rest) = write_length(place).split_at_mut(head.len());
    first.copy_from_slice(head);
    rest.copy_from_slice(body);
}

/// The same for a head of words.
#[inline(always)]
pub(crate) fn write_bundled_words<const N: usize>(head: [u64; N], body: &[u8], place: &mut [u8]) {
    let (first, rest) = write_length(place).split_at_mut(8 * N);
    emit_words(head, first);
    rest.copy_from_slice(body);
}

/// Writes the length of what follows it in `place`, and gives that.
#[inline(always)]
fn write_length(place: &mut [u8]) -> &mut [u8] {
    let (length, bytes) = place.split_at_mut(LENGTH);
    length.copy_from_slice(&(bytes.len() as u16).to_le_bytes());
    bytes
}

/// Messages that arrived together: an iterator over their payloads.
#[derive(Debug)]
pub struct Messages {
    session: SessionId,
    class: Class,
    packet: Cutter,
    /// Where the next begins in the packet.
    at: usize,
    /// How long it is; beyond the packet's end after the last.
    len: usize,
}

impl Messages {
    /// The bundle in a data packet whose first message is `first` bytes long, and how many messages it has. Their lengths must fill it, and
    /// they must not be more than any sender bundles.
    pub(super) fn new(
        session: SessionId,
        class: Class,
        frame: Frame,
        first: u32,
        copy_out: bool,
    ) -> Result<(Messages, u32), WireError> {
        let (mut end, mut count) = (DATA_OVERHEAD.saturating_add(first as usize), 1);
        while end < frame.len() && count <= BUNDLE_MOST as u32 {
            let length = frame[end..].first_chunk::<LENGTH>().ok_or(MALFORMED)?;
            end += LENGTH + usize::from(u16::from_le_bytes(*length));
            count += 1;
        }
        if end != frame.len() {
            return Err(MALFORMED);
        }
        let packet = Cutter::new(frame, !copy_out);
        Ok((Messages { session, class, packet, at: DATA_OVERHEAD, len: first as usize }, count))
    }

    /// The session that they came in.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.at + self.len > self.packet.data().len()
    }

    /// The class that their sender gave them.
    pub fn class(&self) -> Class {
        self.class
    }
}

impl Messages {
    /// Puts the next one in the place of an empty payload, where it stays if nobody moves it. `false` if none is left.
    #[inline(always)]
    pub fn next_into(&mut self, place: &mut Payload) -> bool {
        let Some((at, end)) = self.advance() else { return false };
        place.become_piece(self.packet.cut(at, end - at), || &self.packet.data()[at..end]);
        true
    }

    #[inline(always)]
    fn advance(&mut self) -> Option<(usize, usize)> {
        let (at, end) = (self.at, self.at + self.len);
        let bytes = self.packet.data();
        if end > bytes.len() {
            return None;
        }
        // What is behind the last is no length: then the next message would begin behind the end.
        let length = bytes[end..].first_chunk::<LENGTH>().map_or(0, |length| usize::from(u16::from_le_bytes(*length)));
        (self.at, self.len) = (end + LENGTH, length);
        Some((at, end))
    }
}

impl Iterator for Messages {
    type Item = Payload;

    #[inline]
    fn next(&mut self) -> Option<Payload> {
        let mut payload = Payload::empty();
        self.next_into(&mut payload).then_some(payload)
    }
}

const MALFORMED: WireError = WireError::Field("bundle");

/// What an endpoint tells its owner, from [`Endpoint::next_batch`](crate::endpoint::Endpoint::next_batch).
#[derive(Debug)]
pub enum Batch {
    /// Something by itself.
    Event(Event),
    /// Messages that came in one packet.
    Messages(Messages),
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;
    use crate::frame::{Pool, PoolConfig};

    fn pool() -> Pool {
        Pool::new(PoolConfig { frames: 1, frame_size: 4096 })
    }

    /// A packet with these bytes behind its headers.
    fn packet(pool: &Pool, bytes: &[u8]) -> Frame {
        let mut frame = pool.take().expect("the frame of the packet before is back");
        frame.set_range(0, DATA_OVERHEAD + bytes.len());
        frame.data_mut()[DATA_OVERHEAD..].copy_from_slice(bytes);
        frame
    }

    fn read(pool: &Pool, first: u32, bytes: &[u8], copy_out: bool) -> Option<Vec<Vec<u8>>> {
        let session = SessionId::from_u64(1);
        let (mut messages, count) = Messages::new(session, Class::Normal, packet(pool, bytes), first, copy_out).ok()?;
        let mut read = Vec::new();
        while !messages.is_empty() {
            read.push(messages.next().expect("it is not empty").to_vec());
        }
        assert!(messages.next().is_none() && messages.next().is_none());
        assert_eq!(read.len(), count as usize);
        Some(read)
    }

    #[test]
    fn empty_messages_count_wherever_they_are() {
        let pool = pool();
        for copy_out in [false, true] {
            let read = |first, bytes: &[u8]| read(&pool, first, bytes, copy_out).unwrap();
            assert_eq!(read(0, b""), [b""]);
            assert_eq!(read(3, b"abc"), [b"abc"]);
            assert_eq!(read(0, b"\0\0"), [b"", b""]);
            assert_eq!(read(0, b"\x02\0ab\0\0"), [&b""[..], b"ab", b""]);
            assert_eq!(read(1, b"a\0\0\0\0\x01\0b"), [&b"a"[..], b"", b"", b"b"]);
        }
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn lengths_that_do_not_fill_the_packet_are_refused() {
        let pool = pool();
        let wrong: [(u32, &[u8]); 9] = [
            (1, b""),
            (4, b"abc"),
            (2, b"abc"),
            (u32::MAX, b"abc"),
            (u32::MAX - DATA_OVERHEAD as u32 + 1, b"abc"),
            (1, b"a\x02\0b"),
            (1, b"a\x01\0bc"),
            (1, b"a\xff\xffb"),
            (0, b"\0\0\0"),
        ];
        for (first, bytes) in wrong {
            assert_eq!(read(&pool, first, bytes, false), None, "{first} in {bytes:?}");
            assert_eq!(pool.available(), 1, "the packet of {bytes:?} is kept");
        }
    }

    #[test]
    fn more_messages_than_a_sender_bundles_are_refused() {
        let pool = pool();
        let most = read(&pool, 0, &[0; LENGTH * BUNDLE_MOST], false).unwrap();
        assert_eq!(most.len(), 1 + BUNDLE_MOST);
        assert_eq!(read(&pool, 0, &[0; LENGTH * (BUNDLE_MOST + 1)], false), None);
        assert_eq!(read(&pool, 0, &[0; LENGTH * 1400], false), None);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_kept_message_keeps_the_frame_and_a_copied_one_does_not() {
        for copy_out in [false, true] {
            let pool = pool();
            let (mut messages, _) =
                Messages::new(SessionId::from_u64(1), Class::Normal, packet(&pool, b"a\x01\0b"), 1, copy_out).unwrap();
            let kept = messages.next().unwrap();
            drop(messages);
            assert_eq!((&*kept, kept.holds_frame(), pool.available()), (&b"a"[..], !copy_out, usize::from(copy_out)));
            drop(kept);
            assert_eq!(pool.available(), 1);
        }
    }
}
