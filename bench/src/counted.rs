//! Shares of calls that are counted event by event, judged with the luck of the draw taken off where the calls are few.
//!
//! At a true share of 0.8 %, 1,500 calls have twelve such events, give or take three or four: a figure between 0.3 % and 1.3 % says no more than that. So with few calls
//! the bound is held against the smallest share that the count leaves plausible, the lower limit of its one-sided confidence interval: a bound
//! that is missed then is missed whatever the luck. With many calls the figure itself must keep it.

use serde::{Deserialize, Serialize};

/// From so many calls on the figure itself is judged: at a share of 1 % its standard deviation is a tenth of it then.
const MANY: u64 = 10_000;
/// How sure a limit is.
const CONFIDENCE: f64 = 0.95;

/// Events that were counted among calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// How many events.
    pub events: u64,
    /// Among how many calls.
    pub calls: u64,
}

impl Counted {
    /// The share, in percent; not a number without calls.
    pub fn percent(self) -> f64 {
        self.events as f64 / self.calls as f64 * 100.0
    }

    /// Whether there are so few calls that a bound is held against [`least_percent`](Counted::least_percent).
    pub fn is_few(self) -> bool {
        self.calls < MANY
    }

    /// The true share is above this with a confidence of 95 %, if events come independently (a Poisson count's exact limit), in percent.
    pub fn least_percent(self) -> f64 {
        least_mean(self.events) / self.calls as f64 * 100.0
    }

    /// What a bound is held against, in percent.
    pub fn judged_percent(self) -> f64 {
        if self.is_few() { self.least_percent() } else { self.percent() }
    }
}

/// The mean of a Poisson distribution that reaches `events` with a probability of 5 %.
fn least_mean(events: u64) -> f64 {
    // The probability grows with the mean, and is above one half where they are equal.
    let (mut low, mut high) = (0.0, events as f64);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if reaches(events, middle) < 1.0 - CONFIDENCE { low = middle } else { high = middle }
    }
    low
}

/// The probability that a Poisson count of this mean is at least `events`.
fn reaches(events: u64, mean: f64) -> f64 {
    // Each term from its logarithm: e^-mean alone underflows from some 700 on.
    let mut below = 0.0;
    let mut log_term = -mean;
    for n in 0..events {
        below += log_term.exp();
        log_term += mean.ln() - ((n + 1) as f64).ln();
    }
    1.0 - below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_that_of_the_tables() {
        // Half of the chi-squared distribution's 5 % quantile with two degrees of freedom an event.
        for (events, mean) in [(0, 0.0), (1, 0.0513), (3, 0.8177), (10, 5.4254), (20, 13.2547), (100, 84.1390), (1_000, 948.56)] {
            let limit = least_mean(events);
            assert!((limit - mean).abs() <= 1e-3_f64.max(mean * 1e-4), "{events} events: {limit}, not {mean}");
        }
    }

    #[test]
    fn few_calls_are_given_their_luck_and_many_are_not() {
        let few = Counted { events: 19, calls: 1_500 };
        assert!(few.is_few() && few.percent() > 1.0 && few.judged_percent() < 1.0, "{few:?}");
        // The same share of many calls.
        let many = Counted { events: 190, calls: 15_000 };
        assert!(!many.is_few() && many.judged_percent() == many.percent(), "{many:?}");
        // Twice the bound is no luck, nor is anything without calls.
        assert!(Counted { events: 30, calls: 1_500 }.judged_percent() > 1.0);
        assert!(Counted { events: 0, calls: 0 }.judged_percent().is_nan());
    }
}
