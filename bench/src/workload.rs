//! What the tail is measured against: seeded arrivals and seeded interference, the same for every policy.
//!
//! Arrivals are open-loop: each is due at a moment fixed in advance, and its latency counts from there, whether or not the client
//! was ready to send (a closed loop would stop asking while a server is slow, and so leave out what it should measure).

use std::time::Duration;

/// Moments of a Poisson process, as offsets from its start.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: fastrand::Rng,
    mean_gap: f64,
    at: f64,
}

impl Arrivals {
    /// `rate` arrivals a second on average.
    pub fn new(seed: u64, rate: f64) -> Arrivals {
        Arrivals { random: fastrand::Rng::with_seed(seed), mean_gap: 1.0 / rate, at: 0.0 }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.at += exponential(&mut self.random, self.mean_gap);
        Some(Duration::from_secs_f64(self.at))
    }
}

/// Stretches of time in which background work has a server's workers, as (start, length); they take up a given share of all
/// time, and their gaps are exponential.
#[derive(Clone, Debug)]
pub struct Interference {
    random: fastrand::Rng,
    length: Duration,
    mean_gap: f64,
    end: f64,
}

impl Interference {
    /// Stretches of `length` that take up `share` of the time (0 < share < 1).
    pub fn new(seed: u64, length: Duration, share: f64) -> Interference {
        let mean_gap = length.as_secs_f64() * (1.0 - share) / share;
        Interference { random: fastrand::Rng::with_seed(seed), length, mean_gap, end: 0.0 }
    }
}

impl Iterator for Interference {
    type Item = (Duration, Duration);

    fn next(&mut self) -> Option<(Duration, Duration)> {
        let start = self.end + exponential(&mut self.random, self.mean_gap);
        self.end = start + self.length.as_secs_f64();
        Some((Duration::from_secs_f64(start), self.length))
    }
}

fn exponential(random: &mut fastrand::Rng, mean: f64) -> f64 {
    // 1 - u lies in (0, 1]: its logarithm is finite.
    -(1.0 - random.f64()).ln() * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate_and_repeat_with_their_seed() {
        let first: Vec<Duration> = Arrivals::new(7, 1000.0).take(20_000).collect();
        let again: Vec<Duration> = Arrivals::new(7, 1000.0).take(20_000).collect();
        assert_eq!(first, again);
        assert!(first.is_sorted());
        let seconds = first.last().unwrap().as_secs_f64();
        assert!((19.0..21.0).contains(&seconds), "20,000 arrivals at 1,000 a second took {seconds} s");
        assert_ne!(first, Arrivals::new(8, 1000.0).take(20_000).collect::<Vec<_>>());
    }

    #[test]
    fn interference_takes_its_share_in_stretches_that_do_not_overlap() {
        let length = Duration::from_millis(50);
        let stretches: Vec<_> = Interference::new(3, length, 0.02).take(4_000).collect();
        assert!(stretches.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        let (start, length) = stretches[stretches.len() - 1];
        let share = 4_000.0 * length.as_secs_f64() / (start + length).as_secs_f64();
        assert!((0.019..0.021).contains(&share), "{share}");
    }
}
