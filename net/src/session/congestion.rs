//! How much may be in flight. Skipped by one comparison while the path is uncongested.

/// A congestion controller for one session and direction. Sizes in bytes, times in nanoseconds.
pub(crate) trait Congestion {
    /// Bytes of data that may be in flight.
    fn window(&self) -> usize;
    /// `bytes` were acknowledged.
    fn acknowledged(&mut self, bytes: usize);
    /// Packets sent at or before `sent` were lost; `now` is when that was noticed.
    fn lost(&mut self, sent: u64, now: u64);
}

/// A fixed window, for paths whose delay says nothing (loopback, rings, simulated and software devices). It yields to loss only: halved at
/// most once a round trip, and grown back by a packet each window.
#[derive(Debug)]
pub(crate) struct Window {
    limit: usize,
    window: usize,
    packet: usize,
    acknowledged: usize,
    /// Losses of packets sent before this belong to a loss that was reacted to.
    recovery_start: u64,
}

impl Window {
    /// A window of `limit` bytes, for packets of up to `packet` bytes.
    pub(crate) fn new(limit: usize, packet: usize) -> Window {
        Window { limit: limit.max(4 * packet), window: limit.max(4 * packet), packet, acknowledged: 0, recovery_start: 0 }
    }
}

impl Congestion for Window {
    #[inline]
    fn window(&self) -> usize {
        self.window
    }

    #[inline]
    fn acknowledged(&mut self, bytes: usize) {
        if self.window < self.limit {
            self.acknowledged += bytes;
            if self.acknowledged >= self.window {
                self.acknowledged = 0;
                self.window = (self.window + 4 * self.packet).min(self.limit);
            }
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
        let mut window = Window::new(64_000, 1_000);
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
        let mut window = Window::new(64_000, 1_000);
        for n in 0..100 {
            window.lost(n * 10 + 1_000, n * 10 + 1_000);
        }
        assert_eq!(window.window(), 4_000);
    }
}
