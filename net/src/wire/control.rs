//! Control items: what the two sides of a session say to each other besides messages. All are idempotent.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, WireError};

/// One item of a control packet, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Item {
    /// An [`ItemKind`].
    pub kind: u8,
    /// Grant: the [`Fragment::shift`](super::Fragment::shift) of the messages that the receiver of this item begins from now on. Else zero.
    pub shift: u8,
    /// Grant, abandon, defer: the message's slot.
    pub slot: U16,
    /// Grant, abandon, defer: the slot's sequence number.
    pub sequence: U32,
    /// Grant: bytes of the message that may be sent, from its start. Close: a [`CloseCode`].
    pub value: U64,
}

/// What an item says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemKind {
    /// Please acknowledge this packet.
    Ping = 1,
    /// The message in this slot may be sent up to this offset.
    Grant = 2,
    /// The session is over; nothing will follow.
    Close = 3,
    /// The rest of the message in this slot will not be sent.
    Abandon = 4,
    /// There is no memory for the message in this slot now. Nothing of it was kept or acknowledged: it starts over when it is granted.
    Defer = 5,
}

/// Why a session was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CloseCode {
    /// The application is done with it.
    Done = 0,
    /// The other side broke the protocol.
    Protocol = 1,
    /// The other side restarted: it has a newer session.
    Superseded = 2,
}

impl Item {
    /// Bytes on the wire.
    pub const LEN: usize = size_of::<Item>();

    /// A ping.
    pub fn ping() -> Item {
        Item { kind: ItemKind::Ping as u8, shift: 0, slot: U16::ZERO, sequence: U32::ZERO, value: U64::ZERO }
    }

    /// A grant of a message's first `upto` bytes.
    pub fn grant(slot: u16, sequence: u32, upto: u32, shift: u8) -> Item {
        Item {
            kind: ItemKind::Grant as u8,
            shift,
            slot: U16::new(slot),
            sequence: U32::new(sequence),
            value: U64::new(u64::from(upto)),
        }
    }

    /// The end of a message that its sender gave up.
    pub fn abandon(slot: u16, sequence: u32) -> Item {
        Item { kind: ItemKind::Abandon as u8, ..Item::grant(slot, sequence, 0, 0) }
    }

    /// No memory for a message.
    pub fn defer(slot: u16, sequence: u32) -> Item {
        Item { kind: ItemKind::Defer as u8, ..Item::grant(slot, sequence, 0, 0) }
    }

    /// The end of a session.
    pub fn close(code: CloseCode) -> Item {
        Item { kind: ItemKind::Close as u8, shift: 0, slot: U16::ZERO, sequence: U32::ZERO, value: U64::new(u64::from(code as u8)) }
    }

    /// The item's kind, `None` for one that a later version may have added: it is skipped.
    pub fn kind(&self) -> Option<ItemKind> {
        match self.kind {
            1 => Some(ItemKind::Ping),
            2 => Some(ItemKind::Grant),
            3 => Some(ItemKind::Close),
            4 => Some(ItemKind::Abandon),
            5 => Some(ItemKind::Defer),
            _ => None,
        }
    }

    /// The items of a control packet, at least one.
    pub fn parse(datagram: &[u8]) -> Result<&[Item], WireError> {
        let body = datagram.get(Header::LEN..).ok_or(WireError::Short)?;
        match <[Item]>::ref_from_bytes(body) {
            Ok([]) | Err(_) => Err(WireError::Field("control items")),
            Ok(items) => Ok(items),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_survive_a_packet_and_a_ragged_or_empty_body_is_refused() {
        let items = [Item::ping(), Item::grant(7, 9, 100_000, 2), Item::close(CloseCode::Done)];
        let mut packet = vec![0; Header::LEN];
        packet.extend_from_slice(items.as_bytes());
        assert_eq!(Item::parse(&packet).unwrap(), items);
        assert!(Item::parse(&packet[..packet.len() - 1]).is_err());
        assert!(Item::parse(&packet[..Header::LEN]).is_err());
        assert!(Item::parse(&packet[..3]).is_err());
    }
}
