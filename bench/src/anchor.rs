//! One scale of time for two processes.
//!
//! Each process reads the time-stamp counter, which is one for the machine, but calibrates it for itself; over hours of uptime
//! two calibrations differ by milliseconds. So each pins its clock to the kernel's monotonic clock at both ends of a round, and times
//! in between are carried over by linear interpolation. Each pin is right to some tens of nanoseconds.

use rustix::time::{ClockId, clock_gettime};
use tautline_net::clock::{Clock, Time};

/// How often a pin is tried; the one with the shortest bracket counts.
const TRIES: usize = 50;

/// One moment on both clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// The process's own clock.
    pub own: u64,
    /// The kernel's.
    pub kernel: u64,
}

impl Anchor {
    /// Reads both clocks now.
    pub fn now(clock: &Clock) -> Anchor {
        let mut best = (u64::MAX, Anchor { own: 0, kernel: 0 });
        for _ in 0..TRIES {
            let before = clock.now();
            let kernel = clock_gettime(ClockId::Monotonic);
            let bracket = clock.now().nanos_since(before);
            if bracket < best.0 {
                let kernel = kernel.tv_sec as u64 * 1_000_000_000 + kernel.tv_nsec as u64;
                best = (bracket, Anchor { own: before.as_nanos() + bracket / 2, kernel });
            }
        }
        best.1
    }
}

/// The kernel's time at `own`, by the line through two anchors.
pub fn kernel_time(own: Time, [a, b]: [Anchor; 2]) -> f64 {
    let rate = if b.own == a.own { 1.0 } else { (b.kernel as f64 - a.kernel as f64) / (b.own as f64 - a.own as f64) };
    a.kernel as f64 + (own.as_nanos() as f64 - a.own as f64) * rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_calibrations_of_one_counter_agree_on_the_kernels_time() {
        // The same moments, once on a clock that runs 0.1 % fast and started elsewhere.
        let exact = [Anchor { own: 1_000_000, kernel: 5_000_000 }, Anchor { own: 2_000_000, kernel: 6_000_000 }];
        let fast = [Anchor { own: 9_001_000, kernel: 5_000_000 }, Anchor { own: 10_002_000, kernel: 6_000_000 }];
        let (one, other) = (kernel_time(Time::from_nanos(1_500_000), exact), kernel_time(Time::from_nanos(9_501_500), fast));
        assert!((one - 5_500_000.0).abs() < 1.0 && (one - other).abs() < 1.0, "{one} {other}");
    }

    #[test]
    fn anchors_advance_together() {
        let clock = Clock::tsc();
        let a = Anchor::now(&clock);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let b = Anchor::now(&clock);
        let (own, kernel) = ((b.own - a.own) as f64, (b.kernel - a.kernel) as f64);
        assert!((own / kernel - 1.0).abs() < 0.05, "{own} {kernel}");
    }
}
