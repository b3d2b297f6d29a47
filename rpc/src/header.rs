//! The heads of calls on the wire: fixed little-endian structs, parsed in place. A request or reply is one message, head first;
//! cancels, start notices and hooks' messages are control messages.

use tautline_net::class::Class;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of these heads that this build writes and reads.
pub(crate) const VERSION: u8 = 1;
/// Most bytes of an extension.
pub(crate) const MAX_EXTENSION: usize = 200;
/// Most bytes of a hook's control message.
pub(crate) const MAX_HOOK_MESSAGE: usize = 240;
/// A budget that means: no deadline.
pub(crate) const NO_BUDGET: u32 = u32::MAX;

/// What a message is: its first byte.
pub(crate) mod kind {
    pub(crate) const REQUEST: u8 = 1;
    pub(crate) const REPLY: u8 = 2;
    pub(crate) const CANCEL: u8 = 3;
    pub(crate) const STARTED: u8 = 4;
    pub(crate) const HOOK: u8 = 5;
}

/// Request flags.
pub(crate) mod request_flag {
    /// Tell the caller when the handler starts.
    pub(crate) const NOTIFY_START: u8 = 1;
}

/// Reply flags.
pub(crate) mod reply_flag {
    /// The handler never started, and never will.
    pub(crate) const NOT_STARTED: u8 = 1;
    /// The server has no such method.
    pub(crate) const UNKNOWN_METHOD: u8 = 2;
    /// The server can't read this version; the reply's own version is the one it reads.
    pub(crate) const UNSUPPORTED: u8 = 4;
    /// Pushback: the server has no room.
    pub(crate) const OVERLOADED: u8 = 8;
    /// With the code `Cancelled`: a hook, the caller or the end of the node took the entry out or fired its token. Without this flag the
    /// code is a handler's own word.
    pub(crate) const CANCELLED: u8 = 16;
}

/// The head of a request; the extension follows it, then the payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RequestHead {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) class: u8,
    pub(crate) flags: u8,
    pub(crate) method: U32,
    /// Slot and generation of the call at its caller; opaque to the server.
    pub(crate) call: U64,
    /// Microseconds that are left until the deadline; a budget, so that clocks need not agree.
    pub(crate) budget_us: U32,
    pub(crate) extension_tag: u8,
    pub(crate) extension_length: u8,
    pub(crate) reserved: U16,
}

/// The head of a reply; the payload follows it, or the status' message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ReplyHead {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) code: u8,
    pub(crate) flags: u8,
    /// How many calls of this class the caller may have outstanding.
    pub(crate) credit: U16,
    pub(crate) class: u8,
    pub(crate) reserved: u8,
    pub(crate) call: U64,
    pub(crate) queue_delay_us: U32,
    pub(crate) retry_after_us: U32,
}

/// A cancel or a start notice.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CallNotice {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) reserved: [u8; 2],
    /// Of a start notice: how long the request waited at its server before it started.
    pub(crate) waited_us: U32,
    pub(crate) call: U64,
}

/// The head of a hook's message; its bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct HookHead {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) tag: u8,
    pub(crate) reserved: u8,
}

/// Bytes of a request's head.
pub(crate) const REQUEST_HEAD: usize = size_of::<RequestHead>();
/// Bytes of a reply's head.
pub(crate) const REPLY_HEAD: usize = size_of::<ReplyHead>();

/// What is wrong with a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// Too short, or its lengths contradict each other: who sent it can't be answered.
    Malformed,
    /// A version that this build can't read. Its call number is where every version has it, so it can be answered.
    Version,
    /// A class that does not exist.
    Class,
}

impl RequestHead {
    /// The head as little-endian words. It is put together in registers: bytes that were stored one by one can't be loaded as words at once.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; 3] {
        let narrow = |bytes: [u8; 4]| u64::from(u32::from_le_bytes(bytes));
        let first = narrow([self.kind, self.version, self.class, self.flags]) | u64::from(self.method.get()) << 32;
        let extension =
            u64::from(self.extension_tag) | u64::from(self.extension_length) << 8 | u64::from(self.reserved.get()) << 16;
        [first, self.call.get(), u64::from(self.budget_us.get()) | extension << 32]
    }

    /// Reads the head of `message` and checks it as [`RequestHead::parse`] does, which says why if the answer is `None`.
    #[inline(always)]
    pub(crate) fn read(message: &[u8]) -> Option<(&RequestHead, Class)> {
        let (head, rest) = RequestHead::ref_from_prefix(message).ok()?;
        let extension = usize::from(head.extension_length);
        let plain = extension == 0 && head.extension_tag == 0;
        let extended = extension != 0 && head.extension_tag != 0 && extension <= MAX_EXTENSION.min(rest.len());
        let class = Class::from_index(head.class)?;
        (head.version == VERSION && (plain || extended)).then_some((head, class))
    }

    /// Reads and checks the head of `message`; on success, the class with it.
    #[inline]
    pub(crate) fn parse(message: &[u8]) -> Result<(RequestHead, Class), (HeadError, Option<RequestHead>)> {
        let Ok((head, rest)) = RequestHead::read_from_prefix(message) else { return Err((HeadError::Malformed, None)) };
        if head.version != VERSION {
            return Err((HeadError::Version, Some(head)));
        }
        let extension = usize::from(head.extension_length);
        if extension > MAX_EXTENSION || extension > rest.len() || (extension == 0) != (head.extension_tag == 0) {
            return Err((HeadError::Malformed, None));
        }
        match Class::from_index(head.class) {
            Some(class) => Ok((head, class)),
            None => Err((HeadError::Class, Some(head))),
        }
    }
}

impl ReplyHead {
    /// The head as little-endian words; see [`RequestHead::words`].
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; 3] {
        let narrow = |bytes: [u8; 4]| u64::from(u32::from_le_bytes(bytes));
        let class = u64::from(self.credit.get()) | u64::from(self.class) << 16 | u64::from(self.reserved) << 24;
        let delays = u64::from(self.queue_delay_us.get()) | u64::from(self.retry_after_us.get()) << 32;
        [narrow([self.kind, self.version, self.code, self.flags]) | class << 32, self.call.get(), delays]
    }
}

impl CallNotice {
    pub(crate) fn cancel(call: u64) -> CallNotice {
        CallNotice { kind: kind::CANCEL, version: VERSION, reserved: [0; 2], waited_us: U32::new(0), call: U64::new(call) }
    }

    pub(crate) fn started(call: u64, waited_us: u32) -> CallNotice {
        CallNotice { kind: kind::STARTED, waited_us: U32::new(waited_us), ..CallNotice::cancel(call) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_s_words_are_its_bytes() {
        let bytes: [u8; 24] = std::array::from_fn(|n| n as u8 + 1);
        let words: [u64; 3] = std::array::from_fn(|n| u64::from_le_bytes(std::array::from_fn(|m| bytes[8 * n + m])));
        assert_eq!(RequestHead::read_from_bytes(&bytes).unwrap().words(), words);
        assert_eq!(ReplyHead::read_from_bytes(&bytes).unwrap().words(), words);
    }

    fn head() -> RequestHead {
        RequestHead {
            kind: kind::REQUEST,
            version: VERSION,
            class: 1,
            flags: 0,
            method: U32::new(7),
            call: U64::new(9),
            budget_us: U32::new(NO_BUDGET),
            extension_tag: 0,
            extension_length: 0,
            reserved: U16::new(0),
        }
    }

    #[test]
    fn heads_are_24_bytes() {
        assert_eq!((REQUEST_HEAD, REPLY_HEAD), (24, 24));
    }

    #[test]
    fn each_wrong_head_gets_its_own_answer() {
        assert_eq!(RequestHead::parse(&[1; 23]).unwrap_err().0, HeadError::Malformed);
        let version = RequestHead { version: 9, ..head() };
        assert_eq!(RequestHead::parse(version.as_bytes()).unwrap_err().0, HeadError::Version);
        let class = RequestHead { class: 4, ..head() };
        assert_eq!(RequestHead::parse(class.as_bytes()).unwrap_err().0, HeadError::Class);
        let longer_than_message = RequestHead { extension_tag: 1, extension_length: 1, ..head() };
        assert_eq!(RequestHead::parse(longer_than_message.as_bytes()).unwrap_err().0, HeadError::Malformed);
        let length_without_tag = RequestHead { extension_length: 1, ..head() };
        let mut bytes = length_without_tag.as_bytes().to_vec();
        bytes.push(0);
        assert_eq!(RequestHead::parse(&bytes).unwrap_err().0, HeadError::Malformed);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((head, _)) = RequestHead::parse(&bytes) {
                prop_assert!(REQUEST_HEAD + usize::from(head.extension_length) <= bytes.len());
            }
        }
    }
}
