//! Whether memory grows: resident memory at each rest, less what the endpoint says it keeps for large messages to come; after a
//! warm-up, in which tables and pools find their size.

/// What resident memory may grow by from the first third of what follows the warm-up to the last, in KiB.
pub(super) const BOUND: u64 = 8 << 10;
/// From this many seconds after the warm-up on the slope counts too, ...
const LONG: f64 = 300.0;
/// ... and may be this much, in KiB a minute.
pub(super) const SLOPE: f64 = 512.0;

/// Resident memory of one process over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Seconds since the start, and KiB.
    samples: Vec<(f64, u64)>,
}

/// How it moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drift {
    /// After the warm-up, in KiB.
    pub(super) early: u64,
    /// At the end, in KiB.
    pub(super) late: u64,
    /// The median of the slopes between any two rests, in KiB a minute (Theil and Sen: one outlier does not move it).
    pub(super) slope: f64,
    counts: bool,
}

impl Memory {
    pub(super) fn add(&mut self, seconds: f64, kib: u64) {
        self.samples.push((seconds, kib));
    }

    /// `None` before there is anything to compare: the first third of the samples, one at least, is the warm-up.
    pub(super) fn drift(&self) -> Option<Drift> {
        let warm = &self.samples[(self.samples.len() / 3).max(1).min(self.samples.len())..];
        if warm.len() < 2 {
            return None;
        }
        let third = (warm.len() / 3).max(1);
        let kib = |samples: &[(f64, u64)]| median(samples.iter().map(|(_, kib)| *kib as f64).collect()) as u64;
        let slopes = warm.iter().enumerate().flat_map(|(at, (from, low))| {
            warm[at + 1..].iter().map(move |(to, high)| (*high as f64 - *low as f64) / (to - from).max(1e-3) * 60.0)
        });
        let slope = median(slopes.collect());
        let seconds = warm[warm.len() - 1].0 - warm[0].0;
        Some(Drift { early: kib(&warm[..third]), late: kib(&warm[warm.len() - third..]), slope, counts: seconds >= LONG })
    }
}

impl Drift {
    /// What is wrong with it, in a sentence.
    pub(super) fn leak(&self) -> Option<String> {
        let grown = self.late.saturating_sub(self.early);
        if grown > BOUND {
            return Some(format!("resident memory grew by {grown} KiB after the warm-up ({BOUND} KiB at most)"));
        }
        (self.counts && self.slope > SLOPE)
            .then(|| format!("resident memory grows by {:.0} KiB a minute ({SLOPE} at most)", self.slope))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(samples: usize, kib: impl Fn(usize) -> u64) -> Option<Drift> {
        let mut memory = Memory::default();
        (0..samples).for_each(|n| memory.add(n as f64 * 20.0, kib(n)));
        memory.drift()
    }

    #[test]
    fn growth_in_the_warm_up_and_one_outlier_are_no_leak() {
        assert_eq!(memory(2, |_| 1), None);
        let drift =
            memory(30, |n| if n < 9 { 10_000 + 3_000 * n as u64 } else { 40_000 } + if n == 20 { 30_000 } else { 0 }).unwrap();
        assert_eq!((drift.early, drift.late, drift.slope, drift.leak()), (40_000, 40_000, 0.0, None));
    }

    #[test]
    fn a_step_and_a_slow_slope_are_leaks() {
        assert!(memory(4, |n| 40_000 + 5_000 * n as u64).unwrap().leak().unwrap().contains("grew by 10000 KiB"));
        // 200 KiB in twenty seconds.
        let slow = memory(30, |n| 40_000 + 200 * n as u64).unwrap();
        assert!(slow.leak().unwrap().contains("600 KiB a minute"), "{slow:?}");
        assert_eq!(memory(8, |n| 40_000 + 200 * n as u64).unwrap().leak(), None, "too short to tell");
    }
}
