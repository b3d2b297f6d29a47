//! The policies against queueing theory: a discrete-event simulator of exponential servers that drives the crate's own rules (the race
//! of a call's copies, the servers' tables of ties, the choice of a replica, the bucket) and compares mean times in system with the
//! closed forms. Units: the mean service time is 1. Everything follows from the seed.

mod world;

use world::{Sizes, Spread, World, WorldConfig};

use tautline_tied::bucket::Budget;

/// Checks the mean time in system at two loads, within `tolerance` (relative: the runs are finite, and so are the servers).
fn agrees(base: WorldConfig, formula: impl Fn(f64) -> f64, tolerance: f64) {
    for load in [0.5, 0.8] {
        let measured = World::run(WorldConfig { load, ..base.clone() }).mean;
        let expected = formula(load);
        let off = measured / expected - 1.0;
        assert!(off.abs() < tolerance, "load {load}: {measured:.3}, where theory has {expected:.3}");
    }
}

#[test]
fn a_random_server_is_an_m_m_1_queue() {
    agrees(WorldConfig { spread: Spread::Single, servers: 20, calls: 50_000, ..WorldConfig::default() }, |r| 1.0 / (1.0 - r), 0.06);
}

#[test]
fn the_less_loaded_of_two_random_replicas_is_the_shorter_of_two_queues() {
    let formula = |r: f64| (1..20).map(|i| r.powf(2f64.powi(i) - 2.0)).sum();
    agrees(WorldConfig { spread: Spread::TwoChoices, servers: 50, ..WorldConfig::default() }, formula, 0.06);
}

#[test]
fn a_tie_over_two_of_many_joins_the_queue_with_less_work() {
    agrees(
        WorldConfig { spread: Spread::Tied { copies: 2 }, servers: 40, ..WorldConfig::default() },
        |r| -(1.0 - r * r).ln() / (r * r),
        0.06,
    );
}

#[test]
fn a_tie_over_three_of_many_does_better_still() {
    let formula = |r: f64| (0..200).map(f64::from).map(|n| r.powf(3.0 * n) / (1.0 + 2.0 * n)).sum();
    agrees(WorldConfig { spread: Spread::Tied { copies: 3 }, servers: 40, ..WorldConfig::default() }, formula, 0.06);
}

#[test]
fn a_tie_over_all_servers_is_one_common_queue() {
    // M/M/2: the mean time in system at service rate 1 is 1/(1 - r^2).
    agrees(WorldConfig { spread: Spread::Tied { copies: 2 }, servers: 2, ..WorldConfig::default() }, |r| 1.0 / (1.0 - r * r), 0.06);
}

#[test]
fn two_copies_of_independent_sizes_cancelled_on_completion_are_the_known_flattering_case() {
    let base =
        WorldConfig { spread: Spread::Hedged { delay: 0.0 }, sizes: Sizes::Independent, stops: true, ..WorldConfig::default() };
    let base = WorldConfig { calls: 40_000, ..base };
    agrees(base, |r| (-(1.0 - r).ln() - r) / (r * r), 0.06);
}

#[test]
fn without_stagger_a_message_delay_starts_both_copies_whenever_both_queues_are_empty() {
    for (load, expected) in [(0.2, 0.13), (0.5, 0.17), (0.8, 0.09)] {
        let base = WorldConfig { spread: Spread::Tied { copies: 2 }, servers: 3, delay: 0.01, load, ..WorldConfig::default() };
        let extra = World::run(base).extra;
        assert!((extra / expected - 1.0).abs() < 0.15, "load {load}: {:.1} points of extra work", extra * 100.0);
    }
}

#[test]
fn a_stagger_of_two_delays_leaves_little_extra_work() {
    for (delay, expected) in [(0.01, [0.001, 0.003, 0.004]), (0.10, [0.006, 0.025, 0.034])] {
        for (load, expected) in [0.2, 0.5, 0.8].into_iter().zip(expected) {
            let base = WorldConfig { spread: Spread::Tied { copies: 2 }, delay, load, calls: 15_000, ..WorldConfig::default() };
            let extra = World::run(WorldConfig { stagger: 2.0 * delay, ..base }).extra;
            assert!((extra - expected).abs() < 0.002 + expected * 0.2, "{delay}, {load}: {:.2} points", extra * 100.0);
        }
    }
}

#[test]
fn double_starts_lock_two_servers_in_step_unless_the_higher_rank_is_stopped() {
    let base = WorldConfig { spread: Spread::Tied { copies: 2 }, servers: 2, delay: 0.01, ..WorldConfig::default() };
    let locked = World::run(base.clone()).extra;
    assert!(locked > 0.45, "both free at once, so both start the next one too: {:.1} points", locked * 100.0);
    let stopped = World::run(WorldConfig { stops: true, ..base }).extra;
    assert!(stopped < 0.01, "{:.1} points of extra work", stopped * 100.0);
}

#[test]
fn a_fixed_hedge_delay_storms_at_high_load_and_a_budget_prevents_it() {
    let base = WorldConfig { spread: Spread::Hedged { delay: 3.0 }, load: 0.8, servers: 20, ..WorldConfig::default() };
    let storm = World::run(WorldConfig { budget: Budget::UNLIMITED, ..base.clone() });
    let bounded = World::run(WorldConfig { budget: Budget { per_thousand: 50, burst: 20 }, ..base.clone() });
    let none = World::run(WorldConfig { spread: Spread::Single, ..base });
    assert!(storm.mean > 4.0 * none.mean, "unstable, and yet {:.1} after {:.1}", storm.mean, none.mean);
    assert!(bounded.mean < 1.5 * none.mean, "{:.1} under a budget, {:.1} without hedges", bounded.mean, none.mean);
    assert!(bounded.copies_per_call < 1.055, "{:.3} copies a call", bounded.copies_per_call);
}

#[test]
fn a_hedge_cuts_the_tail_at_moderate_load() {
    let base = WorldConfig { load: 0.5, servers: 20, ..WorldConfig::default() };
    let none = World::run(WorldConfig { spread: Spread::Single, ..base.clone() });
    let hedged = World::run(WorldConfig { spread: Spread::Hedged { delay: 3.0 }, budget: Budget::UNLIMITED, ..base });
    assert!((none.p99 - 9.3).abs() < 1.0, "p99 of M/M/1 at .5 is {:.1}", none.p99);
    assert!((hedged.p99 - 7.4).abs() < 1.0, "p99 with a hedge after 3: {:.1}", hedged.p99);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let base = WorldConfig { spread: Spread::Tied { copies: 3 }, delay: 0.05, calls: 3000, ..WorldConfig::default() };
    assert_eq!(World::run(base.clone()), World::run(base));
}
