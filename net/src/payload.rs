//! The bytes of a message, wherever they lie: in the frame that they arrived in, or in reference-counted memory.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use crate::frame::{Frame, Piece};

/// A message's bytes. A received message of one packet *is* that packet's frame (no copy is made, and the frame goes back to its
/// pool when the payload is dropped, on whichever thread), or lies in a frame together with others (which goes back when the last of them
/// is dropped: a few kept bytes keep the frame); larger ones, and those to send, are [`Bytes`].
pub struct Payload(Repr);

enum Repr {
    Piece(Piece),
    Bytes(Bytes),
}

impl Payload {
    /// No bytes.
    pub const fn empty() -> Payload {
        Payload(Repr::Bytes(Bytes::new()))
    }

    /// The received range of a frame.
    pub fn from_frame(frame: Frame) -> Payload {
        Payload(Repr::Piece(Piece::whole(frame)))
    }

    /// Makes this, which is empty, a piece of a frame that others have pieces of; or a copy of `bytes`, if there is no piece.
    #[inline(always)]
    pub(crate) fn become_piece<'a>(&mut self, piece: Option<Piece>, bytes: impl FnOnce() -> &'a [u8]) {
        let new = match piece {
            Some(piece) => Payload(Repr::Piece(piece)),
            None => Payload::copy_from(bytes()),
        };
        self.replace_nothing(new);
    }

    /// Puts another in the place of one that is empty.
    #[inline(always)]
    pub fn replace_nothing(&mut self, new: Payload) {
        debug_assert!(!self.is_something(), "a payload would be lost");
        // An empty one owns nothing, so nothing is lost; and to find out that there is nothing to drop would cost more than all the rest.
        if self.is_something() {
            discard(std::mem::replace(self, new));
        } else {
            std::mem::forget(std::mem::replace(self, new));
        }
    }

    /// A copy of `bytes` on the heap.
    pub fn copy_from(bytes: &[u8]) -> Payload {
        Payload(Repr::Bytes(Bytes::copy_from_slice(bytes)))
    }

    /// Cuts `count` bytes (at most all) off the front, without moving the rest.
    #[inline]
    pub fn trim_front(&mut self, count: usize) {
        match &mut self.0 {
            Repr::Piece(piece) => piece.trim_front(count.min(piece.data().len())),
            Repr::Bytes(bytes) => trim_bytes(bytes, count),
        }
    }

    /// The same bytes as [`Bytes`]: free unless they lie in a frame, from which they are copied (so that the frame can go back).
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Repr::Piece(piece) => Bytes::copy_from_slice(piece.data()),
            Repr::Bytes(bytes) => bytes,
        }
    }

    /// Whether there is anything to it: bytes, or memory that they were in.
    #[inline]
    pub fn is_something(&self) -> bool {
        match &self.0 {
            Repr::Piece(_) => true,
            // No bytes never hold memory: `trim_bytes` and `From<Bytes>` see to it.
            Repr::Bytes(bytes) => !bytes.is_empty(),
        }
    }

    /// Whether the bytes occupy a frame of a port's receive pool.
    pub fn holds_frame(&self) -> bool {
        matches!(self.0, Repr::Piece(_))
    }
}

#[cold]
fn discard(payload: Payload) {
    drop(payload);
}

#[inline(never)]
fn trim_bytes(bytes: &mut Bytes, count: usize) {
    *bytes = bytes.split_off(count.min(bytes.len()));
}

impl Deref for Payload {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Piece(piece) => piece.data(),
            Repr::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Payload {
    fn default() -> Payload {
        Payload::empty()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        // No bytes never hold memory, which `is_something` relies on.
        if bytes.is_empty() { Payload::empty() } else { Payload(Repr::Bytes(bytes)) }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::from(Bytes::from(bytes))
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Payload {
        Payload::from(text.into_bytes())
    }
}

impl From<&'static [u8]> for Payload {
    fn from(bytes: &'static [u8]) -> Payload {
        Payload(Repr::Bytes(Bytes::from_static(bytes)))
    }
}

impl<const N: usize> From<&'static [u8; N]> for Payload {
    fn from(bytes: &'static [u8; N]) -> Payload {
        Payload::from(bytes.as_slice())
    }
}

impl From<&'static str> for Payload {
    fn from(text: &'static str) -> Payload {
        Payload::from(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_the_front_leaves_the_rest_in_either_form() {
        let mut frame = Frame::detached(64);
        frame.set_range(0, 6);
        frame.data_mut().copy_from_slice(b"abcdef");
        for mut payload in [Payload::from_frame(frame), Payload::from("abcdef")] {
            payload.trim_front(2);
            assert_eq!(&*payload, b"cdef");
            payload.trim_front(100);
            assert!(payload.is_empty());
        }
    }

    #[test]
    fn nothing_is_leaked_with_an_empty_payload_that_becomes_another() {
        struct Owner {
            _alive: std::sync::Arc<()>,
        }
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &[]
            }
        }
        let alive = std::sync::Arc::new(());
        let mut payload = Payload::from(Bytes::from_owner(Owner { _alive: alive.clone() }));
        payload.become_piece(None, || b"other");
        assert_eq!((&*payload, std::sync::Arc::strong_count(&alive)), (&b"other"[..], 1));
    }

    #[test]
    fn a_payload_crosses_threads() {
        fn sendable<T: Send + 'static>(_: &T) {}
        sendable(&Payload::empty());
    }
}
