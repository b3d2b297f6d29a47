//! Monotonic time in nanoseconds, from the processor's time-stamp counter; read once a burst and passed on by argument.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A moment, in nanoseconds since an origin that only its clock knows. Times of one machine's [`Clock::tsc`] compare across
/// threads; times of different machines never do, and none travels on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than anything that happens.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is before.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// [`Time::since`] in nanoseconds.
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This moment moved by `nanos`, never past [`Time::NEVER`].
    pub const fn plus_nanos(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, by: Duration) -> Time {
        self.plus_nanos(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Where time comes from: the machine, or a test.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Tsc(quanta::Clock),
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, by its time-stamp counter where that is constant (the first call in a process calibrates
    /// it and can take some milliseconds), else by the operating system.
    pub fn tsc() -> Clock {
        Clock(Source::Tsc(quanta::Clock::new()))
    }

    /// A clock that stands until it is moved by [`Clock::advance_to`], for tests in virtual time. Clones share the hand.
    pub fn virtual_at(start: Time) -> Clock {
        Clock(Source::Virtual(Arc::new(AtomicU64::new(start.0))))
    }

    /// Is this a virtual clock?
    pub fn is_virtual(&self) -> bool {
        matches!(self.0, Source::Virtual(_))
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::Tsc(clock) => Time(clock.delta_as_nanos(0, clock.raw())),
            Source::Virtual(hand) => Time(hand.load(Ordering::Relaxed)),
        }
    }

    /// Moves a virtual clock to `time`; never backwards, and without effect on a real one.
    pub fn advance_to(&self, time: Time) {
        if let Source::Virtual(hand) = &self.0 {
            hand.fetch_max(time.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_clock_moves_forward_and_agrees_with_a_sleep() {
        let clock = Clock::tsc();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        let passed = clock.now().since(before);
        assert!(passed >= Duration::from_millis(19), "20 ms of sleep measured as {passed:?}");
    }

    #[test]
    fn a_virtual_clock_stands_still_and_never_goes_back() {
        let clock = Clock::virtual_at(Time::from_nanos(5));
        let other = clock.clone();
        clock.advance_to(Time::from_nanos(9));
        clock.advance_to(Time::from_nanos(7));
        assert_eq!(other.now(), Time::from_nanos(9));
    }

    #[test]
    fn differences_saturate() {
        assert_eq!(Time::ZERO.since(Time::NEVER), Duration::ZERO);
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
    }
}
