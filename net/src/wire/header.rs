//! The header that every packet begins with, and the fragment header of data packets.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{VERSION, WireError};

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Client to server: may I have a session? Without a token at first, then with the one of the challenge.
    Hello = 1,
    /// Server to client: prove your address by sending this token back.
    Challenge = 2,
    /// Server to client: here is your session.
    Welcome = 3,
    /// Server to client: no session, and why.
    Refuse = 4,
    /// To the sender of a packet for a session that is not known here; it repeats that packet's session and number.
    Reset = 5,
    /// A fragment of a message.
    Data = 6,
    /// Control items: grants, pings, close.
    Control = 7,
    /// Only what the header has.
    Ack = 8,
    /// What the header has, and [acknowledgements](super::Acknowledgement) of more sessions between the same two endpoints.
    Acks = 9,
}

impl Kind {
    fn from_wire(value: u8) -> Result<Kind, WireError> {
        Ok(match value {
            1 => Kind::Hello,
            2 => Kind::Challenge,
            3 => Kind::Welcome,
            4 => Kind::Refuse,
            5 => Kind::Reset,
            6 => Kind::Data,
            7 => Kind::Control,
            8 => Kind::Ack,
            9 => Kind::Acks,
            other => return Err(WireError::Kind(other)),
        })
    }
}

/// The first 32 bytes of every packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`].
    pub version: u8,
    /// A [`Kind`].
    pub kind: u8,
    /// The high bit: the 64 numbers below those of `ack_bits` were received too. The rest: how long the sender held back the acknowledgement
    /// of `ack_largest`, in units of 512 ns, saturating (16.8 ms).
    pub ack_delay: U16,
    /// The low half of this packet's number.
    pub number: U32,
    /// The session, by the id that the *receiver* gave it (slot in the low half, generation in the high); 0 in a hello.
    pub session: U64,
    /// The low half of the largest number received from the other side; number 0 is never used and means none.
    pub ack_largest: U32,
    /// CRC-32C of the datagram with this field zero, where the port does not protect it; else 0. In every version it lies here.
    pub check: U32,
    /// Bit n: number `ack_largest - 1 - n` was received too.
    pub ack_bits: U64,
}

impl Header {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Header>();

    /// A header with everything but version and kind zero.
    pub fn new(kind: Kind) -> Header {
        Header {
            version: VERSION,
            kind: kind as u8,
            ack_delay: U16::ZERO,
            number: U32::ZERO,
            session: U64::ZERO,
            ack_largest: U32::ZERO,
            check: U32::ZERO,
            ack_bits: U64::ZERO,
        }
    }

    /// The value of `ack_delay` that says so much: nanoseconds held back, and whether the 64 numbers below those of `ack_bits` were received.
    #[inline]
    pub fn held_back(nanos: u64, run: bool) -> U16 {
        let delay = (nanos / DELAY_UNIT).min(u64::from(RUN - 1)) as u16;
        U16::new(if run { delay | RUN } else { delay })
    }

    /// How long the acknowledgement of `ack_largest` was held back, in nanoseconds.
    #[inline]
    pub fn ack_delay_nanos(&self) -> u64 {
        Header::delay_nanos(self.ack_delay)
    }

    /// Whether the 64 numbers below those of `ack_bits` were received too.
    #[inline]
    pub fn ack_run(&self) -> bool {
        Header::says_run(self.ack_delay)
    }

    #[inline]
    pub(super) fn delay_nanos(ack_delay: U16) -> u64 {
        u64::from(ack_delay.get() & !RUN) * DELAY_UNIT
    }

    #[inline]
    pub(super) fn says_run(ack_delay: U16) -> bool {
        ack_delay.get() & RUN != 0
    }

    /// Reads the header of a datagram, and its kind.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(&Header, Kind), WireError> {
        let (header, _) = Header::ref_from_prefix(datagram).map_err(|_| WireError::Short)?;
        if header.version != VERSION {
            return Err(WireError::Version(header.version));
        }
        Ok((header, Kind::from_wire(header.kind)?))
    }

    /// Writes the header to the front of `datagram`, which must have room for it.
    #[inline]
    pub fn emit(&self, datagram: &mut [u8]) {
        let first = u64::from(self.version) | u64::from(self.kind) << 8 | u64::from(self.ack_delay.get()) << 16;
        let number = u64::from(self.number.get());
        let largest = u64::from(self.ack_largest.get()) | u64::from(self.check.get()) << 32;
        emit_words([first | number << 32, self.session.get(), largest, self.ack_bits.get()], datagram);
    }

    /// Fills in the checksum of a finished datagram.
    pub fn seal(datagram: &mut [u8]) {
        let check = checksum(datagram);
        datagram[CHECK].copy_from_slice(&check.to_le_bytes());
    }

    /// Verifies the checksum of a datagram with at least a header.
    pub fn verify(datagram: &[u8]) -> Result<(), WireError> {
        let stored = datagram.get(CHECK).ok_or(WireError::Short)?;
        if stored == checksum(datagram).to_le_bytes() { Ok(()) } else { Err(WireError::Checksum) }
    }
}

/// The bit of [`Header::ack_delay`] that is not of the delay, and the unit of that in nanoseconds.
const RUN: u16 = 1 << 15;
const DELAY_UNIT: u64 = 512;

/// Writes little-endian words to the front of `place`. They come from registers: fields that are stored one by one and then loaded together
/// make the processor wait until the stores are done.
#[inline(always)]
pub(crate) fn emit_words<const N: usize>(words: [u64; N], place: &mut [u8]) {
    for (to, word) in place[..8 * N].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// Where [`Header::check`] lies.
const CHECK: std::ops::Range<usize> = 20..24;

fn checksum(datagram: &[u8]) -> u32 {
    let head = crc32c::crc32c(&datagram[..CHECK.start]);
    let blank = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(blank, &datagram[CHECK.end..])
}

/// What follows the header in a data packet: which bytes of which message the payload is.
///
/// A message is named by the sender's slot and that slot's sequence number. A slot is used again, with the next sequence number, only when
/// its message was acknowledged or given up; so the receiver needs one number a slot to know every duplicate.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Fragment {
    /// The sender's message slot.
    pub slot: U16,
    /// The service class; [`Fragment::CONTROL`] for control messages.
    pub class: u8,
    /// How far the sender cut down what it sends of this message without a grant, as the receiver's grants had asked it to: it is
    /// [`Parameters::unscheduled`](super::Parameters::unscheduled) bytes shifted right by so much, or one packet. Of what fits one packet, 0 says
    /// that it is a message, and [`Fragment::BUNDLE`] that it is several.
    pub shift: u8,
    /// How often the slot was used before this message.
    pub sequence: U32,
    /// The whole message's length in bytes.
    pub total: U32,
    /// Where the payload lies in it: a multiple of the session's fragment size. In a bundle, the length of the first message: that is followed
    /// by the others, each after its length in 16 bits.
    pub offset: U32,
}

impl Fragment {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Fragment>();
    /// The class value of control messages, which are always a single packet.
    pub const CONTROL: u8 = 0xff;
    /// The shift value of bundles.
    pub const BUNDLE: u8 = 0x80;

    /// Reads the fragment header of a data packet, and gives the payload too.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(Fragment, &[u8]), WireError> {
        let rest = datagram.get(Header::LEN..).ok_or(WireError::Short)?;
        let (fragment, payload) = Fragment::ref_from_prefix(rest).map_err(|_| WireError::Short)?;
        Ok((*fragment, payload))
    }

    /// Writes the fragment header to its place in `datagram`, which must have room for it.
    #[inline]
    pub fn emit(&self, datagram: &mut [u8]) {
        self.emit_along(&mut datagram[Header::LEN..]);
    }

    /// Writes the fragment header to the front of `place`, which must have room for it.
    #[inline]
    pub fn emit_along(&self, place: &mut [u8]) {
        let first = u64::from(self.slot.get()) | u64::from(self.class) << 16 | u64::from(self.shift) << 24;
        let last = u64::from(self.total.get()) | u64::from(self.offset.get()) << 32;
        emit_words([first | u64::from(self.sequence.get()) << 32, last], place);
    }
}

/// The 64-bit number whose low half is `low` and which lies nearest to `near` (RFC 9000, appendix A.3).
#[inline]
pub fn expand_number(low: u32, near: u64) -> u64 {
    let distance = low.wrapping_sub(near as u32) as i32;
    near.checked_add_signed(i64::from(distance)).unwrap_or(u64::from(low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_have_the_documented_sizes() {
        assert_eq!((Header::LEN, Fragment::LEN), (32, 16));
        assert_eq!(std::mem::offset_of!(Header, check), CHECK.start);
    }

    #[test]
    fn headers_are_emitted_as_they_lie_in_memory() {
        let bytes: [u8; Header::LEN + Fragment::LEN] = std::array::from_fn(|n| n as u8 + 1);
        let mut packet = [0; Header::LEN + Fragment::LEN];
        let (header, rest) = Header::read_from_prefix(&bytes).unwrap();
        header.emit(&mut packet);
        Fragment::read_from_bytes(rest).unwrap().emit(&mut packet);
        assert_eq!(packet, bytes);
    }

    #[test]
    fn an_unknown_version_or_kind_is_refused() {
        let mut packet = [0u8; 64];
        Header::new(Kind::Data).emit(&mut packet);
        packet[0] = 9;
        assert_eq!(Header::parse(&packet).unwrap_err(), WireError::Version(9));
        packet[0] = VERSION;
        packet[1] = 0;
        assert_eq!(Header::parse(&packet).unwrap_err(), WireError::Kind(0));
        assert_eq!(Header::parse(&packet[..31]).unwrap_err(), WireError::Short);
    }

    proptest! {
        #[test]
        fn any_single_damaged_bit_is_noticed(mut packet in prop::collection::vec(any::<u8>(), 32..200), bit in any::<prop::sample::Index>()) {
            Header::seal(&mut packet);
            prop_assert_eq!(Header::verify(&packet), Ok(()));
            let bit = bit.index(packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::verify(&packet), Err(WireError::Checksum));
        }

        #[test]
        fn a_number_expands_to_itself_within_half_the_range(number in 0u64..1 << 62, apart in -(1i64 << 31) + 1..1i64 << 31) {
            let near = number.saturating_add_signed(apart);
            prop_assert_eq!(expand_number(number as u32, near), number);
        }

        #[test]
        fn parsing_arbitrary_bytes_never_panics(packet in prop::collection::vec(any::<u8>(), 0..128)) {
            let _ = Header::parse(&packet);
            let _ = Fragment::parse(&packet);
            let _ = Header::verify(&packet);
        }
    }
}
