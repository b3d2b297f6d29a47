//! What a hedging or tying client does for every call: the budget and the latency estimate.

use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;
use tautline_tied::bucket::Bucket;
use tautline_tied::estimator::Estimator;
use tautline_tied::{Budget, EstimatorConfig};

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bucket");
    let bucket = Bucket::new(Budget::default());
    group.bench_function("deposit", |bencher| bencher.iter(|| bucket.deposit()));
    group.bench_function("take and refund", |bencher| {
        bencher.iter(|| {
            if black_box(bucket.take()) {
                bucket.refund();
            }
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("estimator");
    // Latencies as they come, spread over a factor of a hundred; one in ten is a loser that was given up.
    let mut random = fastrand::Rng::with_seed(1);
    let samples: Vec<(Duration, bool)> =
        (0..4096).map(|_| (Duration::from_nanos(random.u64(100_000..10_000_000)), random.u8(..10) > 0)).collect();
    let mut estimator = Estimator::new(EstimatorConfig::default());
    let record = |estimator: &mut Estimator, number: usize| {
        let (latency, answered) = samples[number % samples.len()];
        if answered { estimator.answered(latency) } else { estimator.censored(latency) }
    };
    (0..samples.len()).for_each(|number| record(&mut estimator, number));
    assert!(estimator.estimate().is_some());
    let mut next = 0;
    group.bench_function("record a sample in a full window", |bencher| {
        bencher.iter(|| {
            next += 1;
            record(&mut estimator, next);
        });
    });
    group.bench_function("read the estimate", |bencher| bencher.iter(|| black_box(estimator.estimate())));
    group.bench_function("another quantile", |bencher| bencher.iter(|| black_box(estimator.at(black_box(0.5)))));
    group.finish();
}
