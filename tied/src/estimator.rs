//! How long calls take, as a quantile to hedge at: learned without bias from copies that were cancelled.
//!
//! A hedging client does not see the latencies it wants to know. When the second copy wins, the first is cancelled, and all that is known
//! of it is that it took *longer*. Leave such losers out, and only quick copies are counted: the estimate shrinks and twice as many
//! calls are hedged as were meant. Count the call's whole time instead, hedge wait included, and each dead replica pushes the
//! estimate up by its own last value, for ever. Losers are *censored* samples, and the estimator for those is that of Kaplan and
//! Meier ("Nonparametric estimation from incomplete observations", JASA 53, 1958): it follows the share that is still unanswered
//! through time, and a loser leaves the count at the moment it was given up.
//!
//! Samples are kept as buckets of 3 % width over the whole range of `u64` nanoseconds, so that no latency is too long, in a window of
//! the last so many samples: memory is fixed. The window moves by samples, not by time: an idle client keeps what it knows. Reading
//! changes nothing.

use std::time::Duration;

/// What an [`Estimator`] is to find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimatorConfig {
    /// The quantile, in (0, 1): 0.95 hedges the slowest twentieth.
    pub quantile: f64,
    /// How many of the latest samples count, at most 65,535.
    pub window: u16,
    /// How many *answered* samples the window must hold before there is an estimate.
    pub warm_up: u16,
}

impl Default for EstimatorConfig {
    fn default() -> EstimatorConfig {
        EstimatorConfig { quantile: 0.95, window: 2048, warm_up: 64 }
    }
}

/// A quantile of latency over a moving window of samples, some of them censored.
#[derive(Debug)]
pub struct Estimator {
    config: EstimatorConfig,
    /// The window, oldest at `next` once it is full.
    window: Vec<Sample>,
    next: usize,
    buckets: Box<[Bucket]>,
    answered: usize,
    estimate: Option<Duration>,
    /// Samples since `estimate` was computed.
    stale: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    bucket: u16,
    answered: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    answered: u16,
    censored: u16,
}

impl Estimator {
    /// An estimator that knows nothing yet. A quantile outside (0, 1) is clamped into it, a window of zero holds one.
    pub fn new(config: EstimatorConfig) -> Estimator {
        let quantile = if config.quantile.is_finite() { config.quantile.clamp(0.001, 0.99999) } else { 0.95 };
        let config =
            EstimatorConfig { quantile, window: config.window.max(1), warm_up: config.warm_up.clamp(1, config.window.max(1)) };
        Estimator {
            config,
            window: Vec::with_capacity(usize::from(config.window)),
            next: 0,
            buckets: vec![Bucket::default(); BUCKETS].into_boxed_slice(),
            answered: 0,
            estimate: None,
            stale: 0,
        }
    }

    /// A copy was answered, `latency` after it was sent.
    pub fn answered(&mut self, latency: Duration) {
        self.record(latency, true);
    }

    /// A copy was given up unanswered after `waited`: it takes longer than that.
    pub fn censored(&mut self, waited: Duration) {
        self.record(waited, false);
    }

    /// The quantile: `None` until enough copies were answered. Where more copies than the quantile leaves over are never answered (a
    /// dead replica), it is the quantile of those that are: a copy still silent by then is late whatever happened to it.
    pub fn estimate(&self) -> Option<Duration> {
        self.estimate
    }

    /// Another quantile of the same samples. Costs a walk over them, where [`Estimator::estimate`] costs nothing.
    pub fn at(&self, quantile: f64) -> Option<Duration> {
        if self.answered < usize::from(self.config.warm_up) { None } else { self.compute(sane(quantile)) }
    }

    /// Samples in the window, answered and censored.
    pub fn samples(&self) -> usize {
        self.window.len()
    }

    fn record(&mut self, latency: Duration, answered: bool) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let sample = Sample { bucket: bucket_of(nanos), answered };
        if self.window.len() < usize::from(self.config.window) {
            self.window.push(sample);
        } else {
            let old = std::mem::replace(&mut self.window[self.next], sample);
            self.next = (self.next + 1) % self.window.len();
            let bucket = &mut self.buckets[usize::from(old.bucket)];
            match old.answered {
                true => bucket.answered -= 1,
                false => bucket.censored -= 1,
            }
            self.answered -= usize::from(old.answered);
        }
        let bucket = &mut self.buckets[usize::from(sample.bucket)];
        match answered {
            true => bucket.answered += 1,
            false => bucket.censored += 1,
        }
        self.answered += usize::from(answered);
        self.stale += 1;
        // A walk over the buckets costs about a microsecond: not for each sample once there are many.
        if self.answered >= usize::from(self.config.warm_up) && (self.estimate.is_none() || self.stale * 64 >= self.window.len()) {
            self.estimate = self.compute(self.config.quantile);
            self.stale = 0;
        }
    }

    fn compute(&self, quantile: f64) -> Option<Duration> {
        let goal = 1.0 - quantile;
        if let Some(nanos) = self.time_of(goal) {
            return Some(nanos);
        }
        // The curve ends above the goal: `rest` of the copies are never answered.
        let rest = self.survivors();
        self.time_of(rest + (1.0 - rest) * goal)
    }

    /// When the share of unanswered copies falls to `goal`; `None` if it never does.
    fn time_of(&self, goal: f64) -> Option<Duration> {
        let mut before = 1.0;
        for (bucket, after) in self.survival() {
            if after <= goal + 1e-9 {
                // Where in the bucket: as if its answers were spread evenly over it.
                let part = if before > after { ((before - goal) / (before - after)).clamp(0.0, 1.0) } else { 1.0 };
                let (from, width) = bounds_of(bucket);
                return Some(Duration::from_nanos(from.saturating_add((width as f64 * part) as u64)));
            }
            before = after;
        }
        None
    }

    /// The share of copies that no answer is known to end.
    fn survivors(&self) -> f64 {
        self.survival().last().map_or(1.0, |(_, share)| share)
    }

    /// The survival curve: each bucket with answers in it, and the share still unanswered after it. Losers given up within a bucket
    /// count as exposed for half of it (the actuarial form of the estimator, for grouped samples).
    fn survival(&self) -> impl Iterator<Item = (usize, f64)> {
        let mut exposed = self.window.len() as f64;
        let mut share = 1.0;
        self.buckets.iter().enumerate().filter_map(move |(index, bucket)| {
            let (answered, censored) = (f64::from(bucket.answered), f64::from(bucket.censored));
            if bucket.answered > 0 {
                share *= (1.0 - answered / (exposed - censored / 2.0)).max(0.0);
            }
            exposed -= answered + censored;
            (bucket.answered > 0).then_some((index, share))
        })
    }
}

/// A quantile that exists.
fn sane(quantile: f64) -> f64 {
    if quantile.is_finite() { quantile.clamp(0.001, 0.99999) } else { 0.95 }
}

/// Buckets an octave, as a power of two.
const PRECISION: u32 = 5;
const PER_OCTAVE: u64 = 1 << PRECISION;
const BUCKETS: usize = ((64 - PRECISION + 1) << PRECISION) as usize;

/// Exact below 64 ns, then 32 buckets an octave.
fn bucket_of(nanos: u64) -> u16 {
    let octave = (nanos | 1).ilog2().saturating_sub(PRECISION);
    u16::try_from(u64::from(octave) * PER_OCTAVE + (nanos >> octave)).expect("60 octaves of 32 buckets are 1,920")
}

/// Where a bucket starts, and its width.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    let octave = (bucket >> PRECISION).saturating_sub(1);
    ((bucket - octave * PER_OCTAVE) << octave, 1 << octave)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Milliseconds of an exponential service of mean `mean`.
    fn exponential(rng: &mut fastrand::Rng, mean: f64) -> f64 {
        -mean * (1.0 - rng.f64()).ln()
    }

    fn millis(value: f64) -> Duration {
        Duration::from_secs_f64(value / 1e3)
    }

    /// What a learner of the hedge delay is told of one call.
    trait Learner {
        /// `first` and `second` are what the two copies take; the second was sent after `delay` if at all.
        fn learn(&mut self, first: f64, delay: f64, second: Option<f64>);
        fn delay(&self) -> Option<f64>;
    }

    struct Ours(Estimator);

    impl Learner for Ours {
        fn learn(&mut self, first: f64, delay: f64, second: Option<f64>) {
            match second {
                None => self.0.answered(millis(first)),
                Some(second) if first <= delay + second => {
                    self.0.answered(millis(first));
                    self.0.censored(millis(first - delay));
                }
                Some(second) => {
                    self.0.answered(millis(second));
                    self.0.censored(millis(delay + second));
                }
            }
        }

        fn delay(&self) -> Option<f64> {
            self.0.estimate().map(|delay| delay.as_secs_f64() * 1e3)
        }
    }

    /// The plain p95 of the last so many samples, of winners alone or of whole calls.
    struct Naive {
        samples: Vec<f64>,
        whole_calls: bool,
    }

    impl Learner for Naive {
        fn learn(&mut self, first: f64, delay: f64, second: Option<f64>) {
            let second_at = second.map_or(f64::INFINITY, |second| delay + second);
            self.samples.push(match second {
                Some(second) if second_at < first && !self.whole_calls => second,
                _ => first.min(second_at),
            });
        }

        fn delay(&self) -> Option<f64> {
            let mut latest = self.samples[self.samples.len().saturating_sub(1000)..].to_vec();
            latest.sort_by(f64::total_cmp);
            (latest.len() >= 100).then(|| latest[latest.len() * 95 / 100])
        }
    }

    /// Calls against exponential servers of mean 1 ms, of which `dead` of 3 never answer; gives the share of calls hedged and the
    /// delay after each quarter.
    fn run(learner: &mut dyn Learner, calls: usize, dead: usize) -> (f64, Vec<f64>) {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut hedged = 0;
        let (mut counted, mut delays) = (0, Vec::new());
        let mut delay = 5.0;
        for call in 0..calls {
            if call % 50 == 0 {
                delay = learner.delay().unwrap_or(5.0);
            }
            let first_server = rng.usize(..3);
            let first = if first_server < dead { f64::INFINITY } else { exponential(&mut rng, 1.0) };
            // The second copy goes to another server.
            let second_server = (first_server + 1 + rng.usize(..2)) % 3;
            let service = if second_server < dead { f64::INFINITY } else { exponential(&mut rng, 1.0) };
            let second = (first > delay).then_some(service);
            if call >= calls / 4 {
                counted += 1;
                hedged += usize::from(second.is_some());
            }
            learner.learn(first, delay, second);
            if call % (calls / 4) == calls / 4 - 1 {
                delays.push(delay);
            }
        }
        (hedged as f64 / counted as f64, delays)
    }

    #[test]
    fn hedging_at_p95_hedges_one_call_in_twenty() {
        let (hedged, delays) = run(&mut Ours(Estimator::new(EstimatorConfig::default())), 40_000, 0);
        assert!((hedged - 0.05).abs() < 0.006, "{:.2} % hedged, delays {delays:.2?}", hedged * 100.0);
    }

    #[test]
    fn winners_alone_would_hedge_twice_as_many() {
        let (hedged, _) = run(&mut Naive { samples: Vec::new(), whole_calls: false }, 40_000, 0);
        assert!((0.09..0.115).contains(&hedged), "{:.2} % hedged: the bias that this module removes", hedged * 100.0);
    }

    #[test]
    fn a_dead_replica_does_not_drive_the_delay_up() {
        let (hedged, delays) = run(&mut Ours(Estimator::new(EstimatorConfig::default())), 40_000, 1);
        // What is left to find is the p95 of the living, through a curve that is cut off at two thirds: within a factor.
        let p95 = 20f64.ln();
        assert!(delays.iter().all(|delay| (0.9..1.6).contains(&(delay / p95))), "a p95 of {p95:.2} was estimated as {delays:.2?}");
        assert!((0.33..0.38).contains(&hedged), "{:.1} % hedged: the third that is dead, and few others", hedged * 100.0);
    }

    #[test]
    fn whole_call_times_would_climb_for_ever() {
        let (_, delays) = run(&mut Naive { samples: Vec::new(), whole_calls: true }, 40_000, 1);
        assert!(delays.windows(2).all(|pair| pair[1] > pair[0] + 2.0), "{delays:.1?}");
    }

    #[test]
    fn nothing_is_estimated_before_enough_copies_were_answered() {
        let mut estimator = Estimator::new(EstimatorConfig { quantile: 0.5, window: 100, warm_up: 10 });
        for _ in 0..50 {
            estimator.censored(Duration::from_secs(1));
        }
        assert_eq!(estimator.estimate(), None, "all replicas dead is not an estimate");
        for _ in 0..10 {
            assert_eq!(estimator.estimate(), None);
            estimator.answered(Duration::from_millis(1));
        }
        assert!(estimator.estimate().is_some());
    }

    #[test]
    fn reading_changes_nothing() {
        let mut estimator = Estimator::new(EstimatorConfig::default());
        for n in 0..1000 {
            estimator.answered(Duration::from_micros(n));
        }
        let first = estimator.estimate();
        assert!((0..1000).all(|_| estimator.estimate() == first));
    }

    #[test]
    fn the_window_follows_a_change_and_then_forgets_what_was() {
        let mut estimator = Estimator::new(EstimatorConfig { quantile: 0.9, window: 500, warm_up: 10 });
        for latency in [Duration::from_micros(100), Duration::from_millis(40), Duration::from_micros(3)] {
            for _ in 0..500 {
                estimator.answered(latency);
            }
            let ratio = estimator.estimate().unwrap().as_secs_f64() / latency.as_secs_f64();
            assert!((0.96..1.04).contains(&ratio), "{latency:?}: {ratio}");
        }
        assert_eq!(estimator.samples(), 500);
        assert_eq!(estimator.buckets.iter().map(|b| usize::from(b.answered + b.censored)).sum::<usize>(), 500);
    }

    #[test]
    fn another_quantile_of_the_same_samples_is_known_too() {
        let mut estimator = Estimator::new(EstimatorConfig::default());
        (1..=1000).for_each(|n| estimator.answered(Duration::from_micros(n)));
        let median = estimator.at(0.5).unwrap().as_micros() as f64;
        assert!((median / 500.0 - 1.0).abs() < 0.04, "{median}");
        assert!(estimator.at(f64::NAN).is_some());
    }

    #[test]
    fn no_latency_is_too_long() {
        let mut estimator = Estimator::new(EstimatorConfig { warm_up: 1, ..EstimatorConfig::default() });
        for _ in 0..100 {
            estimator.answered(Duration::MAX);
        }
        assert!(estimator.estimate().unwrap() > Duration::from_nanos(u64::MAX / 100 * 96));
    }

    proptest! {
        #[test]
        fn a_value_is_inside_its_bucket(nanos: u64, shift in 0u32..64) {
            let nanos = nanos >> shift;
            let (from, width) = bounds_of(usize::from(bucket_of(nanos)));
            prop_assert!(nanos >= from && nanos - from < width);
            prop_assert!(width <= 1 || width as f64 / from as f64 <= 1.0 / 32.0);
        }

        #[test]
        fn the_estimate_is_among_the_answers(samples in prop::collection::vec((0u64..1 << 40, any::<bool>()), 1..400), quantile in 0.01..0.99) {
            let mut estimator = Estimator::new(EstimatorConfig { quantile, window: 300, warm_up: 1 });
            for (nanos, answered) in &samples {
                match answered {
                    true => estimator.answered(Duration::from_nanos(*nanos)),
                    false => estimator.censored(Duration::from_nanos(*nanos)),
                }
                if let Some(estimate) = estimator.estimate() {
                    let answers = samples.iter().filter(|(_, answered)| *answered).map(|(nanos, _)| *nanos);
                    let (least, most) = (answers.clone().min().unwrap(), answers.max().unwrap());
                    let estimate = estimate.as_nanos() as f64;
                    prop_assert!(estimate >= least as f64 * 0.96 && estimate <= most as f64 * 1.04 + 1.0);
                }
            }
        }
    }
}
