//! Acknowledgements of several sessions that share a packet.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, WireError, emit_words};

/// The acknowledgement of one more session, 16 bytes. It has no bitmap: who says it has received all of the 128 numbers below `largest` too (as far as
/// there are such numbers). One with a gap there, which the sender is waiting to hear of, leaves in a packet of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Acknowledgement {
    /// The session, by the id that the receiver of this packet gave it; it is with the sender of this packet.
    pub session: U64,
    /// The low half of the largest number received in it.
    pub largest: U32,
    /// As in the header, its high bit set: for how long this was held back.
    pub ack_delay: U16,
    /// Zero.
    pub reserved: U16,
}

impl Acknowledgement {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Acknowledgement>();

    /// All numbers up to `largest` arrived; that was held back for so many nanoseconds.
    #[inline]
    pub fn new(session: u64, largest: u32, nanos: u64) -> Acknowledgement {
        let ack_delay = Header::held_back(nanos, true);
        Acknowledgement { session: U64::new(session), largest: U32::new(largest), ack_delay, reserved: U16::ZERO }
    }

    /// For how long this was held back, in nanoseconds.
    #[inline]
    pub fn ack_delay_nanos(&self) -> u64 {
        Header::delay_nanos(self.ack_delay)
    }

    /// Writes it to the front of `place`, which must have room for it.
    #[inline]
    pub fn emit(&self, place: &mut [u8]) {
        let last = u64::from(self.largest.get()) | u64::from(self.ack_delay.get()) << 32 | u64::from(self.reserved.get()) << 48;
        emit_words([self.session.get(), last], place);
    }

    /// Those of a packet, at least one.
    pub fn parse(datagram: &[u8]) -> Result<&[Acknowledgement], WireError> {
        let body = datagram.get(Header::LEN..).ok_or(WireError::Short)?;
        let list = match <[Acknowledgement]>::ref_from_bytes(body) {
            Ok([]) | Err(_) => return Err(MALFORMED),
            Ok(list) => list,
        };
        let senders_write = |one: &Acknowledgement| Header::says_run(one.ack_delay) && one.reserved == U16::ZERO;
        if list.iter().all(senders_write) { Ok(list) } else { Err(MALFORMED) }
    }
}

const MALFORMED: WireError = WireError::Field("list of acknowledgements");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Kind;

    fn packet(list: &[Acknowledgement]) -> Vec<u8> {
        let mut packet = vec![0; Header::LEN];
        Header::new(Kind::Acks).emit(&mut packet);
        for one in list {
            let at = packet.len();
            packet.resize(at + Acknowledgement::LEN, 0);
            one.emit(&mut packet[at..]);
        }
        packet
    }

    #[test]
    fn a_list_that_no_sender_writes_is_refused_whole() {
        let good = [Acknowledgement::new(7 << 32 | 1, 9, 1_000), Acknowledgement::new(8 << 32 | 2, 10, 0)];
        let bytes = packet(&good);
        assert_eq!(Acknowledgement::parse(&bytes).unwrap(), good);
        for cut in 1..Acknowledgement::LEN {
            assert!(Acknowledgement::parse(&bytes[..bytes.len() - cut]).is_err(), "{cut} bytes less");
        }
        assert!(Acknowledgement::parse(&packet(&[])).is_err());
        assert!(Acknowledgement::parse(&bytes[..Header::LEN - 1]).is_err());
        let with_gap = Acknowledgement { ack_delay: Header::held_back(1_000, false), ..good[0] };
        assert!(Acknowledgement::parse(&packet(&[good[1], with_gap])).is_err());
        let reserved = Acknowledgement { reserved: U16::new(1), ..good[0] };
        assert!(Acknowledgement::parse(&packet(&[good[1], reserved])).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(said in prop::collection::vec((any::<u64>(), any::<u32>(), 0u64..40_000_000), 1..100)) {
            let list: Vec<_> = said.iter().map(|(session, largest, nanos)| Acknowledgement::new(*session, *largest, *nanos)).collect();
            let bytes = packet(&list);
            let read = Acknowledgement::parse(&bytes).unwrap();
            prop_assert_eq!(read, &list[..]);
            for (one, (session, largest, nanos)) in read.iter().zip(said) {
                prop_assert_eq!((one.session.get(), one.largest.get()), (session, largest));
                prop_assert!(one.ack_delay_nanos() <= nanos && (nanos - one.ack_delay_nanos() < 512 || nanos > 16_000_000));
            }
        }

        #[test]
        fn parsing_arbitrary_bytes_never_panics(packet in prop::collection::vec(any::<u8>(), 0..160)) {
            let _ = Acknowledgement::parse(&packet);
        }
    }
}
