//! Seeds of bad networks under each policy.
//!
//! Faults, each with chances of its own in each seed: loss, delay, jitter, duplication, reordering, corruption, truncation and replay by the
//! links; partitions of both directions and of one; stopped processes; kills and restarts; clocks that start hours apart and jump ahead; forged
//! packets; replicas that are slow, fail, or never answer.
//!
//! Checked at every step: each logical call ends once at most, and what nodes and the set have in use stays within its limit. At the end: each call
//! has ended, an answer is the right one and was executed, nothing is in use any more, and calls are counted once. A call of a method that is not
//! idempotent, under the policy that sends no copies, was executed once at most.

use std::time::Duration;

use tautline_net::port::sim::LinkConfig;
use tautline_rpc::{Class, NodeConfig};
use tautline_testing::forger::Forger;
use tautline_testing::seeds;
use tautline_tied::{Config, Delay, Mode, Percentile, Policy, Settings, Stagger, TiedOptions};

use crate::world::{MS, Mood, ONCE, US, WORK, World, answer};

fn policy(rng: &mut fastrand::Rng) -> Settings {
    let delay = if rng.bool() { Delay::Fixed(3 * MS) } else { Delay::Percentile(Percentile::new(0.9)) };
    let policy = match rng.u32(..4) {
        0 => Policy::None,
        1 => Policy::Hedged { delay },
        _ => Policy::Tied {
            mode: if rng.bool() { Mode::Cancel } else { Mode::Demote },
            stagger: if rng.bool() { Stagger::Auto } else { Stagger::Fixed(rng.u32(..200) * US) },
            then_hedge: rng.bool().then_some(delay),
        },
    };
    Settings { copies: rng.u8(2..=4), failover: rng.u8(..4) > 0, policy }
}

/// Lets time pass, and looks at every step whether all is as it should be.
fn pass(world: &mut World, span: Duration) {
    let end = world.now() + span;
    while world.now() < end && world.step(end) {
        let ended = world.ended.borrow();
        let twice = ended.iter().find(|(_, ends)| ends.len() > 1);
        assert!(twice.is_none(), "{:?} ended twice", twice.map(|(call, _)| call));
        let limits = &world.node_config;
        for usage in world.hosts.iter().filter_map(|host| Some(host.node.as_ref()?.usage())) {
            let requests: usize = limits.queue_limits.iter().sum();
            assert!(usage.calls <= limits.max_calls && usage.credits <= usage.calls, "{usage:?}");
            assert!(usage.entries <= requests && usage.claims <= requests && usage.tasks <= limits.max_tasks, "{usage:?}");
        }
    }
    world.clock.advance_to(end);
}

fn run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let chance = |rng: &mut fastrand::Rng| if rng.bool() { rng.f64() * 0.08 } else { 0.0 };
    let link = LinkConfig {
        delay: rng.u32(1..300) * US,
        jitter: rng.u32(..100) * US,
        loss: chance(&mut rng),
        duplicate: chance(&mut rng),
        reorder: chance(&mut rng),
        corrupt: chance(&mut rng) / 4.0,
        truncate: chance(&mut rng) / 4.0,
        replay: chance(&mut rng),
        ..LinkConfig::PERFECT
    };
    let servers = rng.usize(1..=4);
    let config = Config { classes: std::array::from_fn(|_| policy(&mut rng)), ..Config::default() };
    let node_config = NodeConfig { max_calls: 1000, queue_limits: [30; Class::COUNT], max_tasks: 500, ..NodeConfig::default() };
    let policies = config.classes.map(|settings| settings.policy);
    let mut world = World::apart(seed, servers, link, node_config, config);
    let idempotent = rng.bool();
    world.method = if idempotent { WORK } else { ONCE };
    let mut forger = Forger::watch(&world.network, seed);
    let (mut calls, mut once) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        match rng.u32(..26) {
            0 => {
                let server = rng.usize(1..=servers);
                world.kill(server);
                pass(&mut world, rng.u32(..20) * MS);
                world.start(server);
            }
            1 => world.partition(rng.usize(..=servers), rng.usize(..=servers)),
            20 => {
                let name = |at: usize| if at == 0 { "client".to_owned() } else { format!("s{at}") };
                let (from, to) = (name(rng.usize(..=servers)), name(rng.usize(..=servers)));
                match rng.u32(..3) {
                    0 => world.network.partition(&from, &to).unwrap(),
                    _ => (0..rng.u32(1..20)).for_each(|_| forger.forge(&to, &from)),
                }
            }
            21 | 22 => world.stop(rng.usize(1..=servers), rng.bool()),
            23 => world.clocks.jump(rng.usize(..=servers), rng.u32(..3_600_000) * MS),
            2 | 3 => (0..=servers).for_each(|a| (0..a).for_each(|b| world.heal(a, b))),
            4 => {
                let moods = [Mood::Works, Mood::Slow(20), Mood::Stalls, Mood::Fails(tautline_rpc::Code::Unavailable)];
                world.mood(rng.usize(1..=servers), moods[rng.usize(..moods.len())].clone());
            }
            _ => {
                let class = Class::ALL[rng.usize(..Class::COUNT)];
                let deadline = Duration::from_millis(rng.u64(1..400));
                let work = rng.u32(..4000) * US;
                for _ in 0..rng.u32(1..4) {
                    calls.push(world.call(work, TiedOptions::new().class(class).deadline(deadline)));
                    if !idempotent && policies[class.index()] == Policy::None {
                        once.push(calls[calls.len() - 1]);
                    }
                }
                pass(&mut world, rng.u32(..3000) * US);
            }
        }
    }
    (1..=servers).for_each(|server| world.stop(server, false));
    for call in &calls {
        while !world.is_over(*call) {
            pass(&mut world, MS);
        }
        let (result, _) = world.finish(*call);
        if let Ok(result) = result {
            assert_eq!(&*result.payload, &answer(*call), "seed {seed}: the answer to another call");
            assert!(!world.executions(*call).is_empty(), "seed {seed}: answered and never executed");
        }
        // At most one execution a copy, and copies are bounded.
        assert!(world.executions(*call).len() <= 7, "seed {seed}: {:?}", world.story(*call));
    }
    for call in once {
        assert!(world.executions(call).len() <= 1, "seed {seed}: {:?}", world.story(call));
    }
    (0..=servers).for_each(|a| (0..a).for_each(|b| world.heal(a, b)));
    (1..=servers).for_each(|server| world.mood(server, Mood::Works));
    // Deadlines are over, and what is lost has been noticed.
    pass(&mut world, Duration::from_secs(20));
    assert!(calls.iter().all(|call| !world.is_over(*call)), "seed {seed}: a call ended twice");
    world.assert_at_rest();
    let metrics = world.replicas().metrics();
    let total: u64 = Class::ALL.iter().map(|class| metrics.class(*class)).map(|m| m.answered + m.failed + m.abandoned).sum();
    assert_eq!(total, calls.len() as u64, "seed {seed}: logical calls are counted once");
}

#[test]
fn on_bad_networks_each_call_ends_once_rightly_and_leaves_nothing_behind_in_seeds() {
    seeds::each(run);
}
