//! Replicas that are dead, unreachable or stopped: what that costs calls.

use std::time::Duration;

use tautline_rpc::{CallError, Class, Code, Fate as CallFate, NodeConfig};
use tautline_tied::{Budget, Choice, Config, Mode, Policy, Purpose, Stagger, TiedError, TiedOptions};

use crate::world::{Fate, MS, Mood, ONCE, US, World, link};

const DEADLINE: Duration = Duration::from_millis(400);

fn tied() -> Policy {
    Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Fixed(100 * US), then_hedge: None }
}

fn ordered(servers: usize, policy: Policy) -> World {
    World::with(1, servers, link(10 * US), NodeConfig::default(), Config { choice: Choice::Ordered, ..Config::uniform(policy) })
}

/// Calls at random moments of `span`, 800 a second, each of which must be answered before its deadline. Gives their latencies.
fn all_answered(world: &mut World, random: &mut fastrand::Rng, span: Duration, what: &str) -> Vec<Duration> {
    all_answered_of(2000, world, random, span, what)
}

/// The same of calls that take up to so many microseconds.
fn all_answered_of(most: u32, world: &mut World, random: &mut fastrand::Rng, span: Duration, what: &str) -> Vec<Duration> {
    let end = world.now() + span;
    let mut calls = Vec::new();
    while world.now() < end {
        let work = random.u32(50..most) * US;
        calls.push((world.now(), world.call(work, TiedOptions::new().deadline(DEADLINE))));
        world.run_for(random.u32(..2500) * US);
    }
    let mut latencies = Vec::new();
    for (begun, call) in calls {
        let (result, at) = world.finish(call);
        let error = result.err();
        assert!(error.is_none(), "{what}: call {call} of {begun:?}: {}", error.unwrap());
        latencies.push(at.since(begun));
    }
    latencies
}

/// The policies, with budgets from none at all, and choices in turn.
fn settings(mut each: impl FnMut(u64, Config, String)) {
    let budgets = [Budget::NONE, Budget { per_thousand: 100, burst: 5 }, Budget::default()];
    let mut choices = [Choice::Random, Choice::TwoRandom, Choice::Ordered, Choice::Random].into_iter().cycle();
    for (seed, policy) in (0..).zip([Policy::None, Policy::hedged(), tied(), Policy::tied()]) {
        for budget in budgets {
            let choice = choices.next().expect("it goes on for ever");
            let config = Config { budget, choice, ..Config::uniform(policy) };
            each(seed, config, format!("seed {seed}, {policy:?}, {budget:?}, {choice:?}"));
        }
    }
}

#[test]
fn every_read_is_answered_while_one_of_three_replicas_is_killed_whatever_the_budget() {
    settings(|seed, config, what| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::with(seed, 3, link(10 * US), NodeConfig::default(), config);
        all_answered(&mut world, &mut random, 100 * MS, &what);
        // Calls are under way when it dies, some of them started there.
        let running: Vec<u64> = (0..6).map(|_| world.call(3 * MS, TiedOptions::new().deadline(DEADLINE))).collect();
        world.run_for(2 * MS);
        world.kill(1);
        all_answered_of(1000, &mut world, &mut random, 500 * MS, &what);
        // Past the moment when its sessions end, and some attempts to open new ones, of which each may cost the one call that makes it.
        let latencies = all_answered_of(1000, &mut world, &mut random, Duration::from_secs(6), &what);
        for call in running {
            world.answered(call);
        }
        let late = latencies.iter().filter(|latency| **latency > 60 * MS).count();
        assert!(late <= 4, "{what}: {late} of {} calls waited long", latencies.len());
        world.start(1);
        world.run_for(Duration::from_secs(6));
        all_answered(&mut world, &mut random, 500 * MS, &what);
        world.run_for(Duration::from_secs(6));
        let served = world.log.borrow().iter().rev().take(200).filter(|execution| execution.server == 1).count();
        assert!(served > 30, "{what}: it is back, and got {served} of the last 200");
        world.assert_at_rest();
    });
}

#[test]
fn every_call_is_answered_with_one_of_two_replicas_that_was_never_there_idempotent_or_not() {
    settings(|seed, config, what| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::with(seed, 2, link(10 * US), NodeConfig::default(), config);
        world.method = ONCE;
        world.kill(1);
        all_answered(&mut world, &mut random, Duration::from_secs(6), &what);
        let log = world.log.borrow();
        let mut calls: Vec<u64> = log.iter().map(|execution| execution.call).collect();
        let executions = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), executions, "{what}: executed twice");
    });
}

#[test]
fn with_four_of_five_replicas_gone_from_the_start_the_fifth_answers() {
    for policy in [Policy::None, Policy::hedged(), tied()] {
        let config = Config { budget: Budget::NONE, choice: Choice::Ordered, ..Config::uniform(policy) };
        let mut world = World::with(1, 5, link(10 * US), NodeConfig::default(), config);
        (1..=4).for_each(|server| world.kill(server));
        let call = world.call(MS, TiedOptions::new().deadline(DEADLINE));
        assert_eq!(world.answered(call), 5, "{policy:?}");
        assert_eq!(world.story(call), [(5, Fate::Finished)]);
    }
}

#[test]
fn a_copy_that_has_not_left_is_taken_back_before_its_call_goes_elsewhere() {
    let mut world = ordered(2, Policy::None);
    world.method = ONCE;
    world.partition(0, 1);
    let call = world.call(300 * MS, TiedOptions::new());
    world.run_until(|world| world.story(call) == [(2, Fate::Running)]);
    // The first replica can be reached after all, while the second one works.
    world.heal(0, 1);
    assert_eq!(world.answered(call), 2);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.story(call), [(2, Fate::Finished)]);
    let metrics = world.replicas().metrics();
    assert_eq!(metrics.class(Class::Normal).sent_as(Purpose::Failover), 1);
    world.assert_at_rest();
}

#[test]
fn a_budget_is_not_spent_on_copies_beside_a_dead_replica() {
    let config = Config { budget: Budget { per_thousand: 0, burst: 50 }, choice: Choice::Random, ..Config::uniform(tied()) };
    let mut world = World::with(3, 3, link(10 * US), NodeConfig::default(), config);
    let mut random = fastrand::Rng::with_seed(3);
    all_answered_of(200, &mut world, &mut random, 50 * MS, "alive");
    world.kill(2);
    all_answered_of(200, &mut world, &mut random, 100 * MS, "dying");
    let left = world.replicas().budget_left();
    assert!(left >= 25, "{left} of 50 are left: each call of 50 ms may cost one, of which a third went to the dead one first");
    // Until its sessions end, and through attempts to open new ones.
    all_answered_of(200, &mut world, &mut random, Duration::from_secs(12), "dead");
    let spent = left - world.replicas().budget_left();
    let metrics = world.replicas().metrics();
    let both = metrics.class(Class::Normal).double_starts;
    assert!(spent <= both, "{spent} tokens went, and {both} calls were started twice by servers that live");
}

#[test]
fn a_stopped_replica_is_left_alone_until_it_is_heard_again() {
    let mut world = ordered(2, tied());
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    world.stop(1, true);
    let begun = world.now();
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
    assert!(world.now().since(begun) < 5 * MS, "the tie's other copy is not held up");
    world.run_for(100 * MS);
    let tried = world.replicas().outstanding_at(0);
    let call = world.call(MS, TiedOptions::new());
    let (result, _) = world.finish(call);
    let result = result.unwrap();
    assert_eq!((result.replica, result.copies, tried), (1, 1, 0), "neither a copy nor a token for a silent replica");
    world.stop(1, false);
    world.run_for(100 * MS);
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    world.run_for(100 * MS);
    world.assert_at_rest();
}

#[test]
fn a_slow_replica_is_not_taken_for_a_silent_one() {
    let mut world = ordered(2, Policy::None);
    let call = world.call(3000 * MS, TiedOptions::new());
    let others: Vec<u64> = (0..5).map(|_| world.call(MS, TiedOptions::new())).collect();
    assert_eq!(world.answered(call), 1);
    for other in others {
        assert_eq!(world.answered(other), 1);
    }
    assert_eq!(world.replicas().metrics().class(Class::Normal).extra_copies(), 0);
}

#[test]
fn a_long_way_is_not_silence() {
    let config = Config { choice: Choice::Ordered, ..Config::uniform(Policy::None) };
    let mut world = World::with(1, 2, link(80 * MS), NodeConfig::default(), config);
    // The first two open sessions and measure the way.
    for _ in 0..2 {
        let call = world.call(MS, TiedOptions::new());
        world.finish(call).0.unwrap();
    }
    let before = world.replicas().metrics().class(Class::Normal).extra_copies();
    world.run_for(Duration::from_secs(1));
    for _ in 0..20 {
        let call = world.call(MS, TiedOptions::new());
        world.run_for(30 * MS);
        world.finish(call).0.unwrap();
    }
    assert_eq!(world.replicas().metrics().class(Class::Normal).extra_copies(), before);
}

#[test]
fn what_a_dead_replica_started_is_lost_if_it_may_not_be_executed_again_and_the_error_says_why() {
    for (method, withheld) in [(ONCE, true), (crate::world::WORK, false)] {
        let mut world = ordered(2, tied());
        world.method = method;
        world.occupy(1, 5 * MS);
        world.occupy(2, 10 * MS);
        let call = world.call(20 * MS, TiedOptions::new());
        world.run_until(|world| world.story(call).len() == 1);
        world.run_for(MS);
        world.kill(1);
        let killed = world.now();
        let (result, at) = world.finish(call);
        let Err(error) = result else {
            // Nothing is sent to it before the ping, after a third of the peer time-out of 3 s.
            assert!(!withheld && at.since(killed) < 1300 * MS, "{:?}", at.since(killed));
            assert_eq!(world.story(call).last(), Some(&(2, Fate::Finished)));
            continue;
        };
        assert!(withheld, "{error}");
        assert_eq!(error.fate(), CallFate::MaybeExecuted);
        assert!(matches!(error, TiedError::Call { withheld: true, copies: 2, replicas: 2, .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("may have been executed") && text.contains("not declared idempotent"), "{text}");
        world.run_for(50 * MS);
        assert_eq!(world.story(call).len(), 1);
    }
}

#[test]
fn a_broken_handler_runs_once_unless_its_method_may_be_executed_again() {
    for (method, story, copies) in [(ONCE, &[1][..], 2), (crate::world::WORK, &[1, 2], 3)] {
        let mut world = ordered(2, tied());
        world.method = method;
        world.occupy(1, 5 * MS);
        world.occupy(2, 10 * MS);
        (1..=2).for_each(|server| world.mood(server, Mood::Panics));
        let call = world.call(MS, TiedOptions::new());
        let error = world.failed(call);
        world.run_for(50 * MS);
        let ran: Vec<usize> = world.story(call).iter().map(|(server, _)| *server).collect();
        assert_eq!(ran, story);
        assert!(
            matches!(&error, TiedError::Call { error: CallError::Status(status), copies: sent, replicas: 2, withheld: false, .. } if *sent == copies && status.code == Code::Internal),
            "{error:?}"
        );
        assert!(error.to_string().ends_with(&format!("(of {copies} copies sent to 2 replicas)")), "{error}");
        assert_eq!(world.replicas().metrics().class(Class::Normal).sent_as(Purpose::Failover), copies as u64 - 2);
    }
}

#[test]
fn a_copy_that_left_after_its_server_was_last_looked_at_is_not_taken_back() {
    let mut random = fastrand::Rng::with_seed(7);
    for seed in 0..60 {
        let config = Config { choice: Choice::Ordered, budget: Budget::UNLIMITED, ..Config::uniform(tied()) };
        let mut world = World::with(seed, 3, link(10 * US), NodeConfig::default(), config);
        world.method = ONCE;
        for first in [0, 2] {
            let call = world.call(MS, TiedOptions::new().first(first).policy(Policy::None));
            world.answered(call);
        }
        // The second can't be reached yet, and the first stops before it has the call: it may have it, for all that is known.
        world.partition(0, 2);
        world.stop(1, true);
        let call = world.call(300 * MS, TiedOptions::new());
        world.run_for(random.u32(200_000..1_000_000) * US);
        world.heal(0, 2);
        let healed = world.now();
        world.run_until(|world| !world.story(call).is_empty() || world.now() > healed + Duration::from_secs(1));
        // The session to the first ends soon after the second began, before the call looks again.
        world.run_for(random.u32(0..50_000) * US);
        world.stop(1, false);
        world.restart(1, true);
        assert_eq!(world.answered(call), 2, "seed {seed}");
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.story(call), [(2, Fate::Finished)], "seed {seed}");
    }
}
