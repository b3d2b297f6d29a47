//! How much is done in a second, where what matters is the sum and not each one's latency.

use std::time::Duration;

use tautline_net::clock::Clock;

use crate::error::BenchError;
use crate::floor::PATIENCE;

/// Turns between two readings of the clock.
const TURNS: usize = 16;

/// What was done, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Calls, datagrams or bytes.
    pub done: u64,
    /// The time.
    pub nanos: u64,
}

impl Rate {
    /// A second's worth.
    pub fn per_second(self) -> f64 {
        self.done as f64 * 1e9 / self.nanos as f64
    }
}

/// Repeats `turn` for `warm_up` and then for `span`, and counts what it did in the latter. Gives up where nothing is done for long.
pub fn measure(
    what: &'static str,
    clock: &Clock,
    warm_up: Duration,
    span: Duration,
    mut turn: impl FnMut() -> Result<usize, BenchError>,
) -> Result<Rate, BenchError> {
    let mut phase = |span: Duration| {
        let start = clock.now();
        let (mut done, mut last) = (0, start);
        loop {
            let before = done;
            for _ in 0..TURNS {
                done += turn()? as u64;
            }
            let now = clock.now();
            if now.since(start) >= span {
                return Ok(Rate { done, nanos: now.nanos_since(start).max(1) });
            }
            if done > before {
                last = now;
            } else if now.since(last) > PATIENCE {
                return Err(BenchError::Silent { what, seconds: PATIENCE.as_secs() });
            }
        }
    };
    if !warm_up.is_zero() {
        phase(warm_up)?;
    }
    phase(span)
}

/// The median; not a number where there is nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_the_warm_up_does_not_count() {
        let clock = Clock::tsc();
        let mut turns = 0u64;
        let warm_up = Duration::from_millis(5);
        let rate = measure("a test", &clock, warm_up, Duration::from_millis(5), || {
            turns += 1;
            Ok(2)
        });
        let rate = rate.unwrap();
        assert!(rate.done > 0 && rate.done < turns * 2 && rate.nanos >= 5_000_000, "{rate:?} of {turns} turns");
    }

    #[test]
    fn a_median_is_the_middle_or_between_the_middle_two() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }
}
