//! Credits: how many calls of a class a caller may have outstanding, so that overload waits at callers and not in queues.
//!
//! The server side follows Breakwater (Cho et al., OSDI 2020): a pool of credits a class, raised step by step while requests wait
//! less than a target in the run queue, and cut in proportion to how much longer they wait. Each caller's share rides on its replies
//! and is never below one, so that no caller waits for a window update that nobody sends.

use std::time::Duration;

use tautline_net::clock::Time;

/// How a server gives out credits.
#[derive(Clone, Copy, Debug)]
pub struct CreditConfig {
    /// Queueing delay that is aimed at. Default 200 us.
    pub target: Duration,
    /// Credits of a class at the start, all callers together. Default 1,024.
    pub initial: u32,
    /// Most credits of a class, all callers together. Default 65,536.
    pub max: u32,
    /// Most credits of one caller and class. Default 1,024.
    pub max_share: u16,
    /// How often the pool is adjusted. Default 1 ms.
    pub interval: Duration,
}

impl Default for CreditConfig {
    fn default() -> CreditConfig {
        CreditConfig {
            target: Duration::from_micros(200),
            initial: 1024,
            max: 65_536,
            max_share: 1024,
            interval: Duration::from_millis(1),
        }
    }
}

/// Breakwater's gains: the pool grows by this share of the callers (at least one) an interval, ...
const INCREASE: f64 = 0.001;
/// ... shrinks by this much for each target that the delay is over it, ...
const DECREASE: f64 = 0.02;
/// ... and at most to this part at once.
const FLOOR: f64 = 0.5;

/// One class' pool at the server.
#[derive(Debug)]
pub(crate) struct Pool {
    credits: f64,
    share: u16,
    /// Counts intervals, so that a session knows whether it was counted in this one.
    epoch: u32,
    callers: u32,
    callers_before: u32,
    delay_nanos: u64,
    samples: u64,
    /// The mean delay of the last interval.
    recent: Duration,
    next: Time,
}

impl Pool {
    pub(crate) fn new(config: &CreditConfig, now: Time) -> Pool {
        let credits = f64::from(config.initial.clamp(1, config.max.max(1)));
        let mut pool = Pool {
            credits,
            share: 1,
            epoch: 1,
            callers: 0,
            callers_before: 0,
            delay_nanos: 0,
            samples: 0,
            recent: Duration::ZERO,
            next: now + config.interval,
        };
        pool.divide(config);
        pool
    }

    /// What a reply carries.
    #[inline]
    pub(crate) fn share(&self) -> u16 {
        self.share
    }

    /// A request came; `seen` is its session's memory of the last interval that counted it.
    #[inline]
    pub(crate) fn caller(&mut self, seen: &mut u32) {
        if *seen != self.epoch {
            *seen = self.epoch;
            self.callers += 1;
        }
    }

    /// So many requests left the queue, after waiting for so long all together.
    #[inline]
    pub(crate) fn observe(&mut self, delay_nanos: u64, samples: u64) {
        self.delay_nanos = self.delay_nanos.saturating_add(delay_nanos);
        self.samples += samples;
    }

    /// When to come back if there was no room: after about as long as requests waited of late.
    pub(crate) fn retry_after(&self, config: &CreditConfig) -> Duration {
        self.recent.max(config.target)
    }

    /// Whether [`Pool::adjust`] is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Ends an interval. `waiting`: are requests of the class in the queue right now?
    pub(crate) fn adjust(&mut self, config: &CreditConfig, waiting: bool, now: Time) {
        let target = config.target.as_nanos().max(1) as f64;
        let delay = match self.samples {
            // Nothing was started in an interval although requests wait: that is a delay of an interval at least.
            0 if waiting => config.interval.as_nanos() as f64,
            0 => 0.0,
            samples => self.delay_nanos as f64 / samples as f64,
        };
        self.recent = Duration::from_nanos(delay as u64);
        self.credits = if delay <= target {
            self.credits + (INCREASE * f64::from(self.callers)).max(1.0)
        } else {
            self.credits * (1.0 - DECREASE * (delay - target) / target).max(FLOOR)
        };
        self.credits = self.credits.clamp(1.0, f64::from(config.max.max(1)));
        self.callers_before = std::mem::take(&mut self.callers);
        self.epoch = self.epoch.wrapping_add(1).max(1);
        (self.delay_nanos, self.samples) = (0, 0);
        self.next = now + config.interval;
        self.divide(config);
    }

    fn divide(&mut self, config: &CreditConfig) {
        let callers = f64::from(self.callers_before.max(self.callers).max(1));
        // The cast saturates.
        self.share = ((self.credits / callers) as u16).clamp(1, config.max_share.max(1));
    }
}

/// One peer and class at the caller: the limit that the server gave, and how many calls hold a credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    limit: u32,
    held: u32,
}

impl Account {
    pub(crate) fn new(limit: u16) -> Account {
        Account { limit: u32::from(limit.max(1)), held: 0 }
    }

    /// Takes a credit, if one is free.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        let free = self.held < self.limit;
        self.held += u32::from(free);
        free
    }

    /// Takes one although none is free.
    pub(crate) fn overdraw(&mut self) {
        self.held += 1;
    }

    /// Gives one back.
    #[inline]
    pub(crate) fn put(&mut self) {
        debug_assert!(self.held > 0, "a credit was returned twice");
        self.held = self.held.saturating_sub(1);
    }

    /// The server's new limit. A limit of zero would stop the caller for ever, so it counts as one.
    #[inline]
    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.limit = u32::from(limit.max(1));
    }

    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pool: &mut Pool, config: &CreditConfig, delay: Duration, intervals: u32) {
        for _ in 0..intervals {
            pool.observe(delay.as_nanos() as u64, 1);
            pool.adjust(config, true, Time::ZERO);
        }
    }

    #[test]
    fn credits_fall_while_requests_wait_too_long_and_rise_again_after() {
        let config = CreditConfig::default();
        let mut pool = Pool::new(&config, Time::ZERO);
        let before = pool.share();
        run(&mut pool, &config, config.target * 10, 20);
        let overloaded = pool.share();
        assert!(overloaded < before / 10, "{before} -> {overloaded}");
        run(&mut pool, &config, config.target / 2, 200);
        assert!(pool.share() > overloaded + 100);
    }

    #[test]
    fn a_share_is_never_below_one() {
        let config = CreditConfig { max_share: 0, ..CreditConfig::default() };
        let mut pool = Pool::new(&config, Time::ZERO);
        run(&mut pool, &config, Duration::from_secs(1000), 100);
        assert_eq!(pool.share(), 1);
    }

    #[test]
    fn callers_share_the_pool_and_each_is_counted_once_an_interval() {
        let config = CreditConfig::default();
        let mut pool = Pool::new(&config, Time::ZERO);
        let mut sessions = [0u32; 16];
        for seen in &mut sessions {
            pool.caller(seen);
            pool.caller(seen);
        }
        pool.adjust(&config, false, Time::ZERO);
        assert_eq!(pool.share(), 1025 / 16);
    }

    #[test]
    fn a_queue_that_stands_still_costs_credits_too() {
        let config = CreditConfig::default();
        let mut pool = Pool::new(&config, Time::ZERO);
        let before = pool.share();
        for _ in 0..50 {
            pool.adjust(&config, true, Time::ZERO);
        }
        assert!(pool.share() < before);
    }

    #[test]
    fn a_limit_of_zero_leaves_one_call_in_flight() {
        let mut account = Account::new(0);
        account.set_limit(0);
        assert!(account.take());
        assert!(!account.take());
        account.put();
        assert!(account.take());
    }
}
