//! How long the second copy of a tie is held back, learnt from the word that the first copies' servers send when they start.
//!
//! With both queues empty both copies would start, so the second one has to wait until a start at the first server can have
//! reached the second one: "twice the average network message delay" in "The Tail at Scale". A packet's delay is only a part of that. A
//! poller that has to be woken, and a worker after it, take ten times as long as a packet on a fast network; they are on the way of
//! every start, and a stagger without them starts both copies whenever it matters.
//!
//! What a caller can measure is all of it: the time from sending a copy to hearing that it started. Of that a server says how long the
//! copy waited in its queue, and the rest is the *way*, there and back, whatever the load. Ways have a tail of their own: threads wake
//! late where others have the processors. A stagger that one way in ten exceeds sends a needless copy for one call in ten, and starts a good
//! part of them, so it is a high percentile of the ways that counts; but no more than a few times the median, since a tie that waits
//! for the slowest of all wake-ups comes too late for the calls that it is to save. The wait of an empty queue, for a
//! worker that has to wake, comes on top: the low end of the waits.

use std::time::Duration;

/// Times that are remembered.
const WINDOW: usize = 512;
/// How many there must be.
const ENOUGH: usize = 16;
/// They are looked through once for so many new ones.
const EVERY: usize = 16;
/// One way in so many is longer than the stagger allows for.
const HIGH: usize = 100;
/// The stagger as a multiple of the median way, at most.
const TIMES: u64 = 8;
/// One wait in so many is shorter than what counts as the wait of an empty queue: this many must find one, or queues pass for delays.
const LOW: usize = 10;
/// A worker takes this many times as long to wake now and then.
const WAKE: u64 = 2;

/// The times from sending to the word of a start, lately.
#[derive(Debug)]
pub struct Notices {
    /// Nanoseconds on the way, and in the server's queue.
    ways: [u64; WINDOW],
    waits: [u64; WINDOW],
    count: usize,
    stagger: Option<Duration>,
}

impl Notices {
    /// Nothing is known.
    pub fn new() -> Notices {
        Notices { ways: [0; WINDOW], waits: [0; WINDOW], count: 0, stagger: None }
    }

    /// A first copy was heard to have started so long after it was sent, of which it had `waited` in its server's queue.
    pub fn record(&mut self, delay: Duration, waited: Duration) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // A server may say anything; it did not wait for longer than it all took.
        let waited = waited.min(delay);
        let place = self.count % WINDOW;
        self.ways[place] = nanos(delay.saturating_sub(waited));
        self.waits[place] = nanos(waited);
        self.count += 1;
        if self.count >= ENOUGH && self.count.is_multiple_of(EVERY) {
            self.learn();
        }
    }

    fn learn(&mut self) {
        let known = self.count.min(WINDOW);
        let (mut ways, mut waits) = (self.ways, self.waits);
        let (ways, waits) = (&mut ways[..known], &mut waits[..known]);
        let high = *ways.select_nth_unstable(known - 1 - known / HIGH).1;
        let median = *ways.select_nth_unstable(known / 2).1;
        let low = *waits.select_nth_unstable(known / LOW).1;
        let way = high.min(median.saturating_mul(TIMES));
        self.stagger = Some(Duration::from_nanos(way.saturating_add(low.saturating_mul(WAKE))));
    }

    /// How long to hold a second copy back; `None` before enough is known.
    pub fn stagger(&self) -> Option<Duration> {
        self.stagger
    }
}

impl Default for Notices {
    fn default() -> Notices {
        Notices::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn nothing_is_claimed_before_enough_is_known() {
        let mut notices = Notices::new();
        for _ in 0..ENOUGH - 1 {
            notices.record(14 * US, 4 * US);
        }
        assert_eq!(notices.stagger(), None);
        notices.record(14 * US, 4 * US);
        assert_eq!(notices.stagger(), Some(18 * US), "the way, and twice the wait");
    }

    #[test]
    fn four_queued_copies_in_five_do_not_pass_for_slow_messages() {
        let mut notices = Notices::new();
        for n in 0..WINDOW {
            let waited = if n % 5 == 0 { 3 * US } else { 5000 * US };
            notices.record(10 * US + waited, waited);
        }
        assert_eq!(notices.stagger(), Some(16 * US));
    }

    #[test]
    fn one_way_in_thirty_that_is_slow_is_waited_for_and_one_in_a_thousand_is_not() {
        for (every, expected) in [(30, 60 * US), (1000, 20 * US)] {
            let mut notices = Notices::new();
            for n in 1..=2 * WINDOW {
                notices.record(if n % every == 0 { 60 * US } else { 20 * US }, Duration::ZERO);
            }
            assert_eq!(notices.stagger(), Some(expected), "one in {every}");
        }
    }

    #[test]
    fn wake_ups_that_take_for_ever_do_not_put_ties_off() {
        let mut notices = Notices::new();
        for n in 0..WINDOW {
            notices.record(if n % 10 == 0 { 50_000 * US } else { 20 * US }, Duration::ZERO);
        }
        assert_eq!(notices.stagger(), Some(160 * US));
    }

    #[test]
    fn a_path_that_gets_slower_is_followed() {
        let mut notices = Notices::new();
        for _ in 0..WINDOW {
            notices.record(10 * US, Duration::ZERO);
        }
        for _ in 0..WINDOW {
            notices.record(100 * US, Duration::ZERO);
        }
        assert_eq!(notices.stagger(), Some(100 * US));
    }

    #[test]
    fn a_server_that_says_it_waited_for_longer_than_it_took_is_no_trouble() {
        let mut notices = Notices::new();
        for _ in 0..ENOUGH {
            notices.record(10 * US, Duration::MAX);
        }
        // Nothing of the way was left, and of the wait no more counts than there was of both.
        assert_eq!(notices.stagger(), Some(20 * US));
    }
}
