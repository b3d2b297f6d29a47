//! Tokens that prove an address without any state (as QUIC's Retry, RFC 9000, section 8.1.2): the server answers a stranger with a keyed
//! hash of its address, and keeps nothing; only who receives at that address can send the hash back.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::clock::Time;
use crate::port::Address;

/// How long a token is good, in nanoseconds.
const LIFETIME: u64 = 10_000_000_000;

#[derive(Debug)]
pub(crate) struct Tokens {
    key: (u64, u64),
}

impl Tokens {
    pub(crate) fn new(key: (u64, u64)) -> Tokens {
        Tokens { key }
    }

    /// The token for this client at this time; never 0.
    pub(crate) fn make(&self, peer: Address, session: u64, incarnation: u64, time: Time) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.key.0, self.key.1);
        peer.hash(&mut hasher);
        (session, incarnation, time.as_nanos()).hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// Whether the token was made here for this client at `time`, which is not long ago.
    pub(crate) fn verify(&self, token: u64, peer: Address, session: u64, incarnation: u64, time: Time, now: Time) -> bool {
        time <= now && now.nanos_since(time) <= LIFETIME && token == self.make(peer, session, incarnation, time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_client_address_and_time_alone() {
        let tokens = Tokens::new((1, 2));
        let a = Address::Inet("10.0.0.1:7".parse().unwrap());
        let b = Address::Inet("10.0.0.2:7".parse().unwrap());
        let (made, now) = (Time::from_nanos(5), Time::from_nanos(50));
        let token = tokens.make(a, 3, 4, made);
        assert!(tokens.verify(token, a, 3, 4, made, now));
        assert!(!tokens.verify(token, b, 3, 4, made, now));
        assert!(!tokens.verify(token, a, 9, 4, made, now));
        assert!(!tokens.verify(token, a, 3, 9, made, now));
        assert!(!tokens.verify(token, a, 3, 4, Time::from_nanos(6), now));
        assert!(!tokens.verify(token, a, 3, 4, made, made.plus_nanos(LIFETIME + 1)));
        assert!(!tokens.verify(tokens.make(a, 3, 4, now.plus_nanos(9)), a, 3, 4, now.plus_nanos(9), now), "from the future");
    }
}
