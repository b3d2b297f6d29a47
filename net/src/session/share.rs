//! How sessions share the memory for sending: who reads slowly or not at all leaves room for who does not.
//!
//! Half of it is anybody's. The next quarter is for sessions whose peer took a long message promptly of late; the last for those that hold little, which
//! is so little that all of them together do not exceed it.

use super::Session;
use crate::clock::Time;
use crate::endpoint::EndpointConfig;

/// What is acknowledged faster than this many bytes a second, after [`PATIENCE`], was taken promptly.
const RATE: u64 = 10_000_000;
/// In nanoseconds.
const PATIENCE: u64 = 100_000_000;
/// Less tells nothing.
const TELLING: usize = 16 << 10;

/// How promptly a peer takes what is held for it.
#[derive(Debug, Default)]
pub(super) struct Pace {
    prompt: bool,
    /// What was held at one moment, what of it is not acknowledged yet, and when that was.
    held: usize,
    left: usize,
    since: Time,
}

impl Pace {
    /// So much more is held from now on, beside `held`.
    #[inline]
    pub(super) fn begin(&mut self, held: usize, more: usize, now: Time) {
        if held == 0 {
            (self.held, self.left, self.since) = (more, more, now);
        }
    }

    /// So many bytes were acknowledged, and `held` still are.
    #[inline]
    pub(super) fn acknowledged(&mut self, bytes: usize, held: usize, now: Time) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            if self.held >= TELLING {
                self.prompt = !self.is_late(now);
            }
            (self.held, self.left, self.since) = (held, held, now);
        }
    }

    fn is_late(&self, now: Time) -> bool {
        now.nanos_since(self.since) > PATIENCE + self.held as u64 * (1_000_000_000 / RATE)
    }

    fn is_prompt(&self, now: Time) -> bool {
        self.prompt && (self.left == 0 || !self.is_late(now))
    }
}

impl Session {
    /// Whether the session may hold `more` bytes where all sessions hold `all`.
    pub(super) fn may_hold(&self, more: usize, all: usize, now: Time, config: &EndpointConfig) -> bool {
        let total = config.send_bytes_total;
        let little = total / 4 / config.max_sessions;
        let limit = match self.held + more {
            after if after <= little => total,
            _ if self.pace.is_prompt(now) => total / 4 * 3,
            _ => total / 2,
        };
        all == 0 || all + more <= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn taken(len: usize, after: u64) -> Pace {
        let mut pace = Pace::default();
        pace.begin(0, len, Time::ZERO);
        pace.acknowledged(len - 1, 1, Time::from_nanos(after / 2));
        pace.acknowledged(1, 0, Time::from_nanos(after));
        pace
    }

    #[test]
    fn who_takes_a_long_message_in_time_is_prompt_until_one_is_late() {
        assert!(taken(100_000, 50 * MS).is_prompt(Time::from_nanos(60 * MS)));
        assert!(!taken(100_000, 200 * MS).prompt);
        assert!(taken(10_000_000, 900 * MS).prompt, "as long as the message is");
        assert!(!taken(100, MS).prompt, "a short one tells nothing");
        let mut pace = taken(100_000, 50 * MS);
        pace.begin(0, 100_000, Time::from_nanos(500 * MS));
        assert!(pace.is_prompt(Time::from_nanos(550 * MS)));
        assert!(!pace.is_prompt(Time::from_nanos(700 * MS)), "the next is overdue");
    }
}
