//! The packet format: fixed little-endian structs, parse and emit, nothing else.
//!
//! Every packet begins with the 32 bytes of [`Header`]: the receiver's session id, a packet number, and what was received from the
//! other side (the largest number and a bitmap of the 64 below it, so that a call and its reply need no packets of their own for
//! acknowledgement). Data packets follow with 16 bytes of [`Fragment`] and what that tells of: a message, a part of one, or a bundle of small
//! ones. Sessions with the same peer whose acknowledgements leave without data share a packet for them ([`Acknowledgement`]). Numbers are
//! the low half of a 64-bit sequence that never repeats, and nothing in the header changes on the way, so that it can be the associated data of an authenticated cipher whose
//! nonce is the number (as in RFC 9001, section 5.3).

mod acknowledgement;
mod control;
mod handshake;
mod header;

pub use acknowledgement::Acknowledgement;
pub use control::{CloseCode, Item, ItemKind};
pub use handshake::{Hello, Parameters, Refusal, RefuseReason, Welcome};
pub(crate) use header::emit_words;
pub use header::{Fragment, Header, Kind, expand_number};

/// The version of the format, the first byte of every packet.
pub const VERSION: u8 = 1;
/// Bytes before a data packet's payload: [`Header`] and [`Fragment`].
pub const DATA_OVERHEAD: usize = size_of::<Header>() + size_of::<Fragment>();
/// Smallest MTU that the protocol runs on: a padded hello must fit, and a useful amount of data.
pub const MIN_MTU: usize = 256;

/// Why a packet is not one of ours. Such packets are counted and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than its kind needs.
    #[error("packet cut short")]
    Short,
    /// Another version of the format.
    #[error("unknown version {0}")]
    Version(u8),
    /// A kind of packet that does not exist.
    #[error("unknown packet kind {0}")]
    Kind(u8),
    /// The header's checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// A field has a value that no sender produces.
    #[error("malformed {0}")]
    Field(&'static str),
}
