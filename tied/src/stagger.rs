//! How long the second copy of a tie is held back, learnt from the word that the first copies' servers send when they start.
//!
//! With both queues empty both copies would start, so the second one has to wait until a start at the first server can have
//! reached the second one: "twice the average network message delay" in "The Tail at Scale". A packet's delay is only a part of that. A
//! poller that has to be woken, and a worker after it, take ten times as long as a packet on a fast network; they are on the way of
//! every start, and a stagger without them starts both copies whenever it matters. What a caller can measure is all of it: the
//! time from sending a copy to hearing that it started. Copies that waited in a queue take longer, so the low end of those times is
//! what an empty queue costs; and since wake-ups vary more than packets do, the stagger is a small multiple of it.

use std::time::Duration;

/// Times that are remembered.
const WINDOW: usize = 256;
/// How many there must be.
const ENOUGH: usize = 16;
/// They are looked through once for so many new ones.
const EVERY: usize = 16;
/// One in so many is quicker than what counts as the time of an empty queue: this many must find one, or queues pass for delays.
const LOW: usize = 10;
/// The stagger as a multiple of it: slower wake-ups than these are rare.
const TIMES: u32 = 3;

/// The times from sending to the word of a start, lately.
#[derive(Debug)]
pub struct Notices {
    nanos: [u64; WINDOW],
    count: usize,
    stagger: Option<Duration>,
}

impl Notices {
    /// Nothing is known.
    pub fn new() -> Notices {
        Notices { nanos: [0; WINDOW], count: 0, stagger: None }
    }

    /// A first copy was heard to have started so long after it was sent.
    pub fn record(&mut self, delay: Duration) {
        self.nanos[self.count % WINDOW] = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.count += 1;
        if self.count >= ENOUGH && self.count.is_multiple_of(EVERY) {
            let mut nanos = self.nanos;
            let known = &mut nanos[..self.count.min(WINDOW)];
            let place = known.len() / LOW;
            let (_, low, _) = known.select_nth_unstable(place);
            self.stagger = Some(Duration::from_nanos(low.saturating_mul(u64::from(TIMES))));
        }
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
            notices.record(10 * US);
        }
        assert_eq!(notices.stagger(), None);
        notices.record(10 * US);
        assert_eq!(notices.stagger(), Some(30 * US));
    }

    #[test]
    fn four_queued_copies_in_five_do_not_pass_for_slow_messages() {
        let mut notices = Notices::new();
        for n in 0..WINDOW {
            notices.record(if n % 5 == 0 { 10 * US } else { 5000 * US });
        }
        assert_eq!(notices.stagger(), Some(30 * US));
    }

    #[test]
    fn a_path_that_gets_slower_is_followed() {
        let mut notices = Notices::new();
        for _ in 0..WINDOW {
            notices.record(10 * US);
        }
        for _ in 0..WINDOW {
            notices.record(100 * US);
        }
        assert_eq!(notices.stagger(), Some(300 * US));
    }
}
