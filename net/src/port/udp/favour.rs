//! Which peer has nearly all of the recent traffic, if one has.
//!
//! One score is kept, of one peer at a time. Each datagram of that peer, received or sent, adds one; each of another takes [`WEIGHT`].
//! So the score rises while others have less than one datagram in `WEIGHT + 1` or so, and falls while they have more: some 6 %. It
//! has to rise to [`WARM`] before a peer is hot and to fall to nothing before it is not, which takes several hundred datagrams more
//! of one kind than of the other. Short bursts of others change nothing.
//!
//! What still flips is slowed: the time in datagrams from the end of one hot peer to the next doubles with each that was hot for a short
//! while only. No clock is read.

use crate::port::Address;

/// The score from which on a peer is hot.
const WARM: u32 = 512;

/// The score at most: what a peer that is hot has to lose.
const FULL: u32 = 1024;

/// How much a datagram of another peer takes from the score.
const WEIGHT: u32 = 16;

/// Datagrams between two hot peers at least, and at most.
const PAUSE: std::ops::RangeInclusive<u32> = WARM..=1 << 20;

/// A peer that was hot for so many of its datagrams has paid for its socket many times over.
const LONG: u64 = 1 << 15;

/// The score of one peer.
#[derive(Debug)]
pub(super) struct Favour {
    peer: Option<Address>,
    score: u32,
    /// Datagrams to go before a peer may be hot.
    pause: u32,
    /// The next pause.
    next_pause: u32,
    /// Datagrams of the hot peer since it is.
    served: u64,
}

impl Favour {
    pub(super) fn new() -> Favour {
        Favour { peer: None, score: 0, pause: 0, next_pause: *PAUSE.start(), served: 0 }
    }

    /// While none is hot: counts a datagram of `peer`.
    #[inline]
    pub(super) fn count(&mut self, peer: Address) {
        self.pause = self.pause.saturating_sub(1);
        if self.peer == Some(peer) {
            self.score = (self.score + 1).min(WARM);
        } else if self.score > WEIGHT {
            self.score -= WEIGHT;
        } else {
            (self.peer, self.score) = (Some(peer), 1);
        }
    }

    /// While none is hot: the peer that should be.
    #[inline]
    pub(super) fn favourite(&self) -> Option<Address> {
        if self.score == WARM && self.pause == 0 { self.peer } else { None }
    }

    /// The favourite is hot now.
    pub(super) fn begin(&mut self) {
        (self.score, self.served) = (FULL, 0);
    }

    /// Counts datagrams of the hot peer.
    #[inline]
    pub(super) fn count_hot(&mut self, datagrams: usize) {
        self.score = (self.score + datagrams as u32).min(FULL);
        self.served += datagrams as u64;
    }

    /// While a peer is hot: counts datagrams of others.
    #[inline]
    pub(super) fn count_others(&mut self, datagrams: usize) {
        self.score = self.score.saturating_sub((datagrams as u32).saturating_mul(WEIGHT));
    }

    /// Whether the hot peer should not be so any more.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.score == 0
    }

    /// None is hot any more, or the favourite could not become so.
    pub(super) fn end(&mut self) {
        if self.served >= LONG {
            self.next_pause = *PAUSE.start();
        }
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * 2).min(*PAUSE.end());
        (self.peer, self.score, self.served) = (None, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> Address {
        Address::Inet(([127, 0, 0, 1], port).into())
    }

    /// Counts `datagrams` of peer 1, of which every `nth` is of another of several instead.
    fn count(favour: &mut Favour, datagrams: usize, nth: usize) {
        for at in 1..=datagrams {
            let other = at % nth == 0;
            favour.count(peer(if other { 2 + (at / nth % 5) as u16 } else { 1 }));
        }
    }

    #[test]
    fn a_peer_with_nearly_all_traffic_is_the_favourite_after_some_hundred_datagrams() {
        let mut favour = Favour::new();
        count(&mut favour, 500, usize::MAX);
        assert_eq!(favour.favourite(), None);
        count(&mut favour, 12, usize::MAX);
        assert_eq!(favour.favourite(), Some(peer(1)));
        let mut favour = Favour::new();
        count(&mut favour, 790, 50);
        assert_eq!(favour.favourite(), Some(peer(1)));
    }

    #[test]
    fn with_a_tenth_of_the_traffic_of_others_or_with_two_peers_none_is() {
        for nth in [2, 3, 10] {
            let mut favour = Favour::new();
            for _ in 0..10_000 {
                count(&mut favour, nth, nth);
                assert_eq!(favour.favourite(), None);
            }
        }
    }

    #[test]
    fn a_burst_of_others_costs_a_hot_peer_nothing_and_a_tenth_of_the_traffic_does() {
        let mut favour = Favour::new();
        count(&mut favour, 600, usize::MAX);
        favour.begin();
        favour.count_others(40);
        assert!(!favour.is_lost());
        for _ in 0..1000 {
            favour.count_hot(49);
            favour.count_others(1);
        }
        assert!(!favour.is_lost());
        for _ in 0..200 {
            favour.count_hot(9);
            favour.count_others(1);
        }
        assert!(favour.is_lost());
    }

    #[test]
    fn what_flips_is_hot_ever_more_rarely_until_one_stays_hot_for_long() {
        let mut favour = Favour::new();
        let mut waits = Vec::new();
        for _ in 0..13 {
            let mut wait = 0u32;
            while favour.favourite().is_none() {
                favour.count(peer(1));
                wait += 1;
            }
            waits.push(wait);
            favour.begin();
            favour.count_others(1000);
            assert!(favour.is_lost());
            favour.end();
        }
        assert_eq!(waits[..4], [WARM, WARM, 2 * WARM, 4 * WARM]);
        assert_eq!(waits[12], *PAUSE.end());
        assert_eq!(favour.pause, *PAUSE.end());
        favour.begin();
        favour.count_hot(LONG as usize);
        favour.end();
        assert_eq!(favour.pause, WARM);
    }
}
