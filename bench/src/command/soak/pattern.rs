//! What calls carry: bytes that only one request can have asked for, so that a reply that is another's, or damaged, or cut, is noticed.
//!
//! They are slices of one table of random bytes, at a place drawn from the request's seed: nothing is computed a byte, so that checking
//! megabytes costs little beside sending them.

use std::sync::LazyLock;

use bytes::Bytes;
use tautline_rpc::{Code, Status};

/// Largest body of a request or reply.
pub(super) const LARGEST: usize = 4 << 20;

static TABLE: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(0x7461_7574_6c69_6e65);
    (0..LARGEST / 4).flat_map(|_| random.u64(..).to_le_bytes()).collect::<Vec<u8>>().into()
});

/// Bytes of a request before its body.
const HEAD: usize = 25;

/// What a handler is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// The call's number: a handler runs at most once for it. Zero: tied or hedged, it may run once a copy.
    pub(super) id: u64,
    /// Which bytes.
    pub(super) seed: u64,
    /// Length of the reply.
    pub(super) reply: u32,
    /// How long the handler takes, in microseconds.
    pub(super) pause: u32,
    pub(super) manner: Manner,
}

/// How a handler behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Answer = 0,
    /// It answers with a status.
    Fail = 1,
    /// It calls another server first.
    Nest = 2,
}

impl Ask {
    /// The request, with a body of `len` bytes.
    pub(super) fn request(&self, len: usize) -> Vec<u8> {
        let mut request = Vec::with_capacity(HEAD + len);
        request.extend(self.id.to_le_bytes());
        request.extend(self.seed.to_le_bytes());
        request.extend(self.reply.to_le_bytes());
        request.extend(self.pause.to_le_bytes());
        request.push(self.manner as u8);
        request.extend_from_slice(&bytes(self.seed, len));
        request
    }

    /// Reads a request; `Err` if it is not what was sent.
    pub(super) fn read(request: &[u8]) -> Result<Ask, Status> {
        let damaged = || Status::new(Code::DataLoss, "the request is not what was sent");
        let (head, body) = request.split_first_chunk::<HEAD>().ok_or_else(damaged)?;
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| head[at + n]));
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| head[at + n]));
        let manner = match head[24] {
            0 => Manner::Answer,
            1 => Manner::Fail,
            2 => Manner::Nest,
            _ => return Err(damaged()),
        };
        let ask = Ask { id: eight(0), seed: eight(8), reply: four(16), pause: four(20), manner };
        let whole = ask.reply as usize <= LARGEST && body.len() <= LARGEST && *body == *bytes(ask.seed, body.len());
        if whole { Ok(ask) } else { Err(damaged()) }
    }

    /// The reply.
    pub(super) fn reply(&self) -> Bytes {
        bytes(!self.seed, self.reply as usize)
    }

    /// Whether this is the reply.
    pub(super) fn is_answered_by(&self, reply: &[u8]) -> bool {
        *reply == *self.reply()
    }
}

fn bytes(seed: u64, len: usize) -> Bytes {
    let at = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    let at = at as usize % (TABLE.len() - LARGEST);
    TABLE.slice(at..at + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_damaged_or_cut_and_a_reply_that_is_another_calls_are_noticed() {
        let ask = Ask { id: 7, seed: 11, reply: 300, pause: 2, manner: Manner::Nest };
        let request = ask.request(1_000);
        assert_eq!(Ask::read(&request), Ok(ask));
        for at in [8, 25, 500, 1_024] {
            let mut damaged = request.clone();
            damaged[at] ^= 1;
            assert!(Ask::read(&damaged).is_err(), "byte {at}");
        }
        assert!(Ask::read(&request[..20]).is_err());
        assert!(ask.is_answered_by(&ask.reply()));
        let other = Ask { seed: 12, ..ask };
        assert!(!ask.is_answered_by(&other.reply()) && !ask.is_answered_by(&ask.reply()[..299]));
    }
}
