//! Messages as they are given to a session, and what is told of those that ended with it.

use crate::class::Class;
use crate::payload::Payload;

/// A message to send: `head` followed by `body`.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) class: Class,
    pub(crate) head: &'a [u8],
    pub(crate) body: Payload,
    /// The owner's name for it.
    pub(crate) token: u64,
}

impl Message<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// The same, to be copied at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewMessage<'a> {
    pub(crate) class: Class,
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) token: u64,
}

impl NewMessage<'_> {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// What may be sent of a message of several packets before it is granted more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unscheduled {
    /// By the peer's parameters.
    pub(crate) most: u32,
    /// By how much the peer's grants asked to cut that down.
    pub(crate) shift: u8,
}

impl Unscheduled {
    /// Bytes that may be sent. The packet that holds the first of them always may.
    pub(crate) fn bytes(self) -> u32 {
        self.most.unbounded_shr(self.shift.into()).max(1)
    }
}

/// A message that ended without being acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged {
    pub(crate) token: u64,
    pub(crate) transmitted: bool,
}
