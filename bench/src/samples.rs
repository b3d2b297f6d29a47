//! Latency samples and their exact quantiles: every sample is kept, so no bucket or upper bound distorts a tail.

/// Samples in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    nanos: Vec<u64>,
    sorted: bool,
}

impl Samples {
    /// Room for `count` samples, so that recording one never allocates.
    pub fn with_capacity(count: usize) -> Samples {
        Samples { nanos: Vec::with_capacity(count), sorted: false }
    }

    /// Adds one.
    pub fn record(&mut self, nanos: u64) {
        self.nanos.push(nanos);
        self.sorted = false;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Samples) {
        self.nanos.extend_from_slice(&other.nanos);
        self.sorted = false;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.nanos.len()
    }

    /// The sample that a share `q` of all does not exceed (nearest rank); `None` without samples.
    pub fn quantile(&mut self, q: f64) -> Option<u64> {
        if !self.sorted {
            self.nanos.sort_unstable();
            self.sorted = true;
        }
        let rank = (q.clamp(0.0, 1.0) * self.nanos.len() as f64).ceil() as usize;
        self.nanos.get(rank.max(1) - 1).copied()
    }

    /// Each sample halved: one way of a round trip.
    pub fn halved(&self) -> Samples {
        self.nanos.iter().map(|nanos| nanos / 2).collect()
    }

    /// The largest.
    pub fn max(&self) -> Option<u64> {
        self.nanos.iter().copied().max()
    }

    /// The mean; zero without samples.
    pub fn mean(&self) -> f64 {
        if self.nanos.is_empty() { 0.0 } else { self.nanos.iter().map(|n| *n as f64).sum::<f64>() / self.nanos.len() as f64 }
    }
}

impl FromIterator<u64> for Samples {
    fn from_iter<I: IntoIterator<Item = u64>>(nanos: I) -> Samples {
        Samples { nanos: nanos.into_iter().collect(), sorted: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let mut samples: Samples = (1..=1000).rev().collect();
        assert_eq!(samples.quantile(0.5), Some(500));
        assert_eq!(samples.quantile(0.99), Some(990));
        assert_eq!(samples.quantile(0.999), Some(999));
        assert_eq!(samples.quantile(1.0), Some(1000));
        assert_eq!(samples.quantile(0.0), Some(1));
    }

    #[test]
    fn a_sample_recorded_after_a_quantile_counts() {
        let mut samples: Samples = [5, 7].into_iter().collect();
        assert_eq!(samples.quantile(1.0), Some(7));
        samples.record(9);
        samples.merge(&[11].into_iter().collect());
        assert_eq!(samples.quantile(1.0), Some(11));
        assert_eq!((samples.count(), samples.max(), samples.mean()), (4, Some(11), 8.0));
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Samples::default().quantile(0.5), None);
    }
}
