//! How much may be in flight. Skipped by one comparison while the path is uncongested.

/// A congestion controller for one session and direction. Sizes in bytes, times in nanoseconds.
pub(crate) trait Congestion {
    /// Bytes of data that may be in flight.
    fn window(&self) -> usize;
    /// `bytes` were acknowledged.
    fn acknowledged(&mut self, bytes: usize);
    /// Bytes of long messages' data that may be in flight while small messages are about.
    fn beside_small(&self) -> usize;
    /// While small messages are about: `bytes` were acknowledged, and the latest round trip took so long, of `minimum` at least.
    fn delayed(&mut self, latest: u64, minimum: u64, bytes: usize, now: u64);
    /// Packets sent at or before `sent` were lost; `now` is when that was noticed.
    fn lost(&mut self, sent: u64, now: u64);
}

/// What poll loops add to a round trip at most, in nanoseconds; where round trips are shorter than that, as much as those take.
pub(super) const SLACK: u64 = 5_000;

/// Bytes in flight beside small messages that are worth having however long the queue is: on a port that sends a burst as one segmented
/// message, what makes its system call pay; on others a few packets. Long messages keep a little more than half of their rate then.
pub(crate) fn least_beside_small(segmentation: bool) -> usize {
    if segmentation { 24 << 10 } else { 8 << 10 }
}

/// Bytes in flight at most, whatever is asked for: sums of them fit into a word of 32 bits.
const LARGEST: usize = 1 << 29;

/// A fixed window, for paths whose delay says nothing (loopback, rings, simulated and software devices). It yields to loss only: halved at
/// most once a round trip, and grown back by a packet each window.
///
/// While small messages share the path, each would wait behind whatever long ones have in flight. Then these have a window of their own that
/// aims at a queue no longer than the path itself (as delay-based controllers do: TIMELY, SIGCOMM 2015; Swift, SIGCOMM 2020): it
/// shrinks while round trips take more than twice the shortest, and grows while they do not.
#[derive(Debug)]
pub(crate) struct Window {
    limit: u32,
    window: u32,
    packet: u32,
    acknowledged: u32,
    beside_small: u32,
    least_beside_small: u32,
    /// When `beside_small` shrank last.
    shrunk: u64,
    /// Losses of packets sent before this belong to a loss that was reacted to.
    recovery_start: u64,
}

impl Window {
    /// A window of `limit` bytes, for packets of up to `packet` bytes, and of `beside_small` bytes at least for long messages beside small ones.
    pub(crate) fn new(limit: usize, packet: usize, beside_small: usize) -> Window {
        let [limit, packet, beside_small] = [limit, packet, beside_small].map(|bytes| bytes.min(LARGEST) as u32);
        let limit = limit.max(4 * packet);
        let least = beside_small.max(2 * packet).min(limit);
        Window {
            limit,
            window: limit,
            packet,
            acknowledged: 0,
            beside_small: least,
            least_beside_small: least,
            shrunk: 0,
            recovery_start: 0,
        }
    }
}

impl Congestion for Window {
    #[inline]
    fn window(&self) -> usize {
        self.window as usize
    }

    #[inline]
    fn acknowledged(&mut self, bytes: usize) {
        if self.window < self.limit {
            self.acknowledged = self.acknowledged.saturating_add(bytes as u32);
            if self.acknowledged >= self.window {
                self.acknowledged = 0;
                self.window = (self.window + 4 * self.packet).min(self.limit);
            }
        }
    }

    #[inline]
    fn beside_small(&self) -> usize {
        self.beside_small as usize
    }

    fn delayed(&mut self, latest: u64, minimum: u64, bytes: usize, now: u64) {
        if latest <= 2 * minimum + SLACK.min(minimum) {
            self.beside_small = (self.beside_small + bytes as u32 / 8).min(self.limit);
        } else if now >= self.shrunk + latest {
            self.shrunk = now;
            self.beside_small = (self.beside_small - self.beside_small / 4).max(self.least_beside_small);
        }
    }

    fn lost(&mut self, sent: u64, now: u64) {
        if sent >= self.recovery_start {
            self.recovery_start = now;
            self.window = (self.window / 2).max(4 * self.packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_of_losses_halves_the_window_once_and_acknowledgements_restore_it() {
        let mut window = Window::new(64_000, 1_000, 8_000);
        window.lost(10, 100);
        window.lost(20, 100);
        assert_eq!(window.window(), 32_000);
        window.lost(150, 200);
        assert_eq!(window.window(), 16_000);
        for _ in 0..1_000 {
            window.acknowledged(1_000);
        }
        assert_eq!(window.window(), 64_000);
    }

    #[test]
    fn the_window_never_closes() {
        let mut window = Window::new(64_000, 1_000, 8_000);
        for n in 0..100 {
            window.lost(n * 10 + 1_000, n * 10 + 1_000);
        }
        assert_eq!(window.window(), 4_000);
    }
}
