//! What hedges do.

use std::time::Duration;

use tautline_rpc::{Class, NodeConfig};
use tautline_tied::{Budget, Choice, Config, Delay, Percentile, Policy, Purpose, Settings, TiedOptions};

use crate::world::{Fate, MS, Mood, US, World, link};

fn after(delay: Duration) -> Policy {
    Policy::Hedged { delay: Delay::Fixed(delay) }
}

fn ordered(servers: usize, policy: Policy) -> World {
    World::with(1, servers, link(10 * US), NodeConfig::default(), Config { choice: Choice::Ordered, ..Config::uniform(policy) })
}

#[test]
fn a_slow_copy_is_overtaken_by_a_hedge_and_then_cancelled() {
    let mut world = ordered(2, after(10 * MS));
    world.mood(1, Mood::Slow(100));
    let begun = world.now();
    let call = world.call(2 * MS, TiedOptions::new());
    let (result, at) = world.finish(call);
    let result = result.unwrap();
    assert_eq!((result.replica, result.copies), (1, 2));
    assert!((12 * MS..13 * MS).contains(&at.since(begun)), "{:?}", at.since(begun));
    world.run_for(50 * MS);
    assert_eq!(world.story(call), [(1, Fate::Stopped), (2, Fate::Finished)]);
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.calls, metrics.answered, metrics.sent_as(Purpose::Hedge)), (1, 1, 1));
    assert_eq!(metrics.won, [0, 1, 0, 0]);
    world.assert_at_rest();
}

#[test]
fn the_winners_reply_survives_the_cancelling_of_the_losers() {
    let mut world = ordered(2, after(2 * MS));
    // Both answer at nearly the same moment, again and again.
    for shift in 0..40u32 {
        world.mood(1, Mood::Works);
        let call = world.call(3 * MS + shift * US, TiedOptions::new());
        world.answered(call);
    }
    world.run_for(20 * MS);
    world.assert_at_rest();
}

struct Work;

impl tautline_rpc::Rpc for Work {
    type Request = Vec<u8>;
    type Reply = Vec<u8>;
    type Codec = tautline_rpc::Raw;
    const METHOD: tautline_rpc::Method = crate::world::WORK;
}

#[test]
fn a_typed_call_gives_the_decoded_answer() {
    let mut world = ordered(2, after(10 * MS));
    let mut request = 5u64.to_le_bytes().to_vec();
    request.extend_from_slice(&1000u64.to_le_bytes());
    let call = world.replicas().call_typed::<Work>(request, &TiedOptions::new());
    let task = world.local(0).spawn(call).unwrap();
    world.run_until(|_| task.is_finished());
    let got = std::rc::Rc::new(std::cell::RefCell::new(None));
    let place = got.clone();
    world.local(0).spawn(async move { *place.borrow_mut() = task.await }).unwrap();
    world.run_until(|_| got.borrow().is_some());
    let answer = got.borrow_mut().take().unwrap().unwrap();
    assert_eq!((answer.reply, answer.replica, answer.copies), (crate::world::answer(5).to_vec(), 0, 1));
}

#[test]
fn no_hedge_is_sent_for_an_answer_in_time() {
    let mut world = ordered(2, after(10 * MS));
    for _ in 0..5 {
        let call = world.call(2 * MS, TiedOptions::new());
        assert_eq!(world.answered(call), 1);
    }
    assert_eq!(world.replicas().metrics().class(Class::Normal).extra_copies(), 0);
}

#[test]
fn with_one_replica_a_hedge_that_is_due_does_not_hurt_the_original() {
    let mut world = ordered(1, after(MS));
    let call = world.call(20 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    assert_eq!(world.replicas().metrics().class(Class::Normal).suppressed_by_replicas, 1);
}

#[test]
fn without_budget_a_hedge_is_suppressed_and_the_call_ends_as_it_would_have() {
    let config = Config { choice: Choice::Ordered, budget: Budget::NONE, ..Config::uniform(after(MS)) };
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
    let call = world.call(20 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.extra_copies(), metrics.suppressed_by_budget), (0, 1));
}

#[test]
fn a_fixed_delay_in_a_slow_cluster_hedges_no_more_than_the_budget() {
    let config = Config { budget: Budget { per_thousand: 50, burst: 5 }, ..Config::uniform(after(MS)) };
    let mut world = World::with(1, 3, link(10 * US), NodeConfig::default(), config);
    for _ in 0..200 {
        // Everything takes longer than the delay.
        let call = world.call(3 * MS, TiedOptions::new());
        world.answered(call);
    }
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert!((10..=15).contains(&metrics.extra_copies()), "{} hedges of 200 calls", metrics.extra_copies());
    assert_eq!(metrics.extra_copies() + metrics.suppressed_by_budget, 200);
}

#[test]
fn a_hedge_is_not_hedged() {
    let mut world = ordered(4, after(MS));
    (1..=4).for_each(|server| world.mood(server, Mood::Slow(10)));
    let call = world.call(3 * MS, TiedOptions::new());
    let (result, _) = world.finish(call);
    assert_eq!(result.unwrap().copies, 2);
    assert!(world.story(call).iter().all(|(server, _)| *server <= 2), "{:?}", world.story(call));
}

#[test]
fn more_copies_are_sent_one_delay_apart() {
    let settings = Settings { copies: 3, ..Settings::new(after(5 * MS)) };
    let mut world = ordered(4, Policy::None);
    (1..=4).for_each(|server| world.mood(server, Mood::Slow(10)));
    let call = world.call(3 * MS, TiedOptions { settings: Some(settings), ..TiedOptions::new() });
    let (result, _) = world.finish(call);
    assert_eq!(result.unwrap().copies, 3);
    let starts: Vec<_> = world.executions(call).iter().map(|execution| execution.at).collect();
    for pair in starts.windows(2) {
        assert!((5 * MS..6 * MS).contains(&pair[1].since(pair[0])), "{starts:?}");
    }
}

#[test]
fn hedging_at_p95_hedges_one_call_in_twenty_end_to_end() {
    let delay = Delay::Percentile(Percentile { least: US, ..Percentile::default() });
    let config = Config { budget: Budget::UNLIMITED, ..Config::uniform(Policy::Hedged { delay }) };
    let mut world = World::with(3, 3, link(10 * US), NodeConfig::default(), config);
    let mut rng = fastrand::Rng::with_seed(9);
    let mut hedges_at_half = 0;
    for n in 0..3000 {
        // One at a time: no queues, so the latency is that of the service. Both copies take equally long.
        let work = Duration::from_secs_f64(-1e-3 * (1.0 - rng.f64()).ln());
        let call = world.call(work, TiedOptions::new());
        world.answered(call);
        world.run_for(MS);
        if n == 1000 {
            hedges_at_half = world.replicas().metrics().class(Class::Normal).extra_copies();
        }
    }
    let hedges = world.replicas().metrics().class(Class::Normal).extra_copies() - hedges_at_half;
    let share = hedges as f64 / 2000.0;
    assert!((0.035..0.075).contains(&share), "{:.1} % hedged", share * 100.0);
    world.run_for(50 * MS);
    world.assert_at_rest();
}

#[test]
fn a_dead_replica_neither_drives_the_delay_up_nor_keeps_getting_calls() {
    for choice in [Choice::TwoRandom, Choice::Random] {
        let delay = Delay::Percentile(Percentile { least: US, initial: 5 * MS, ..Percentile::default() });
        let config = Config { budget: Budget::UNLIMITED, choice, ..Config::uniform(Policy::Hedged { delay }) };
        let mut world = World::with(3, 3, link(10 * US), NodeConfig::default(), config);
        let mut rng = fastrand::Rng::with_seed(9);
        let mut delays = Vec::new();
        let mut to_the_dead = 0;
        world.mood(3, Mood::Stalls);
        for n in 0..1200 {
            let work = Duration::from_secs_f64(-1e-3 * (1.0 - rng.f64()).ln());
            let call = world.call(work, TiedOptions::new());
            world.answered(call);
            world.run_for(MS);
            to_the_dead += usize::from(world.story(call)[0].0 == 3);
            if n % 300 == 299 {
                delays.push(world.replicas().hedge_delay(Class::Normal).unwrap());
            }
        }
        // The p95 of the living is 3 ms; the first few samples are too few to say it well.
        let settled = delays[1..].iter().all(|delay| (24 * MS / 10..38 * MS / 10).contains(delay));
        assert!(settled, "{choice:?}: {delays:?}");
        match choice {
            Choice::TwoRandom => assert!(to_the_dead < 20, "{to_the_dead} of 1200 calls went to the dead one first"),
            _ => assert!(to_the_dead > 300, "{to_the_dead}: a choice that does not look"),
        }
    }
}

#[test]
fn a_cluster_that_gets_slower_as_a_whole_is_not_hedged_more_for_long() {
    let delay = Delay::Percentile(Percentile { least: US, ..Percentile::default() });
    let estimator = tautline_tied::EstimatorConfig { window: 256, ..Default::default() };
    let budget = Budget { per_thousand: 100, burst: 10 };
    let config = Config { estimator, budget, ..Config::uniform(Policy::Hedged { delay }) };
    let mut world = World::with(5, 3, link(10 * US), NodeConfig::default(), config);
    let mut rng = fastrand::Rng::with_seed(2);
    let mut hedges = Vec::new();
    for phase in [1, 20, 20] {
        (1..=3).for_each(|server| world.mood(server, Mood::Slow(phase)));
        let before = world.replicas().metrics().class(Class::Normal).extra_copies();
        for _ in 0..500 {
            let work = Duration::from_secs_f64(-1e-3 * (1.0 - rng.f64()).ln());
            let call = world.call(work, TiedOptions::new());
            world.answered(call);
            world.run_for(MS);
        }
        hedges.push(world.replicas().metrics().class(Class::Normal).extra_copies() - before);
    }
    assert!(hedges[1] <= 60, "the budget bounds the change: {hedges:?}");
    assert!(hedges[2] <= 40, "all are slow and none is late, and yet hedged: {hedges:?}");
}

#[test]
fn an_idle_time_forgets_nothing() {
    let delay = Delay::Percentile(Percentile { least: US, ..Percentile::default() });
    let mut world = ordered(2, Policy::Hedged { delay });
    for _ in 0..100 {
        let call = world.call(3 * MS, TiedOptions::new());
        world.answered(call);
    }
    let before = world.replicas().hedge_delay(Class::Normal);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.replicas().hedge_delay(Class::Normal), before);
    let before = before.unwrap();
    assert!((3 * MS..4 * MS).contains(&before), "{before:?}");
}

#[test]
fn each_class_has_its_own_settings_and_its_own_delay() {
    let mut config = Config { choice: Choice::Ordered, ..Config::default() };
    config.classes[Class::Interactive.index()] = Settings::new(after(MS));
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
    for (class, copies) in [(Class::Interactive, 2), (Class::Bulk, 1)] {
        let call = world.call(5 * MS, TiedOptions::new().class(class));
        let (result, _) = world.finish(call);
        assert_eq!(result.unwrap().copies, copies, "{class}");
        world.run_for(10 * MS);
    }
    let metrics = world.replicas().metrics();
    assert_eq!((metrics.class(Class::Interactive).calls, metrics.class(Class::Bulk).calls), (1, 1));
}

#[test]
fn calls_are_spread_over_replicas_and_avoid_the_slow_one() {
    let mut world = World::new(1, 3, Policy::None);
    world.mood(3, Mood::Slow(20));
    let mut counts = [0; 3];
    for _ in 0..300 {
        let call = world.call(MS, TiedOptions::new());
        counts[world.answered(call) - 1] += 1;
    }
    assert!(counts[0] > 90 && counts[1] > 90 && counts[2] < 60, "{counts:?}");
}
