//! Many peers that send to one at once, through a switch whose queue is short and knows no priorities. All ratios are of virtual times.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{EndpointConfig, SessionId};
use tautline_net::port::sim::SimPortConfig;

use crate::world::{World, link, pattern};

const SECOND: Duration = Duration::from_secs(1);
const BANDWIDTH: u64 = 10_000_000_000;
/// Bytes that the switch holds for the receiver; a host's own queue holds whatever it is given.
const QUEUE: usize = 128 << 10;
const OWN_QUEUE: usize = 1 << 30;
/// What a message's sender may send of it without a grant, by default.
const UNSCHEDULED: usize = 16 << 10;

/// Host 0, and so many others with a session to it each.
fn star(seed: u64, peers: usize) -> (World, Vec<SessionId>) {
    let mut world = World::new(seed, link(5));
    let port = SimPortConfig { frames: 4096, ..SimPortConfig::default() };
    for at in 0..=peers {
        let name = format!("host-{at}");
        world.network.access(&name, BANDWIDTH, if at == 0 { QUEUE } else { OWN_QUEUE }).unwrap();
        world.host_on(&name, EndpointConfig::default(), port);
    }
    let sessions = (1..=peers).map(|at| world.connect(at, 0).0).collect();
    (world, sessions)
}

fn send(world: &mut World, sessions: &[SessionId], from: usize, bytes: usize) {
    world.send(from, sessions[from - 1], Class::Normal, pattern(bytes, 1), 0).unwrap();
}

/// Waits until so many messages have come to host 0: for how long.
fn arrival(world: &mut World, mut count: usize) -> u64 {
    let start = world.now();
    assert!(world.run(SECOND, |world| {
        count -= world.messages(0).len();
        count == 0
    }));
    world.now().nanos_since(start)
}

fn dropped(world: &World) -> u64 {
    let from = |at: usize| world.network.link_counters(&format!("host-{at}"), "host-0").queue_dropped;
    (1..world.hosts.len()).map(from).sum()
}

#[test]
fn peers_that_begin_together_learn_to_send_less_without_a_grant_so_that_the_switch_holds_it() {
    const { assert!(16 * UNSCHEDULED > QUEUE) }
    let (mut world, sessions) = star(1, 16);
    for round in 0..5 {
        let before = dropped(&world);
        (1..=16).for_each(|from| send(&mut world, &sessions, from, 64 << 10));
        arrival(&mut world, 16);
        let dropped = dropped(&world) - before;
        assert_eq!(dropped > 0, round == 0, "round {round}: {dropped} packets dropped");
        world.pass(Duration::from_millis(2));
    }
}

#[test]
fn a_peer_alone_sends_all_it_may_again_once_the_crowd_is_gone() {
    let (mut world, sessions) = star(2, 16);
    let alone = |world: &mut World| {
        send(world, &sessions, 1, UNSCHEDULED - 100);
        arrival(world, 1)
    };
    let before = alone(&mut world);
    for _ in 0..3 {
        (1..=16).for_each(|from| send(&mut world, &sessions, from, UNSCHEDULED - 100));
        arrival(&mut world, 16);
    }
    let after = alone(&mut world);
    assert!(after > before + 5_000, "a grant's round trip more: {after} ns instead of {before}");
    world.pass(Duration::from_millis(20));
    alone(&mut world);
    let later = alone(&mut world);
    assert!(later.abs_diff(before) < 2_000, "{later} ns instead of {before}");
}

#[test]
fn a_small_message_waits_for_little_of_what_many_large_ones_bring() {
    const LARGE: usize = 1 << 20;
    let (mut world, sessions) = star(3, 9);
    let small = 9;
    let ping = |world: &mut World| {
        let start = world.now();
        send(world, &sessions, small, 64);
        let mut large = 0;
        assert!(world.run(SECOND, |world| {
            let got = world.messages(0);
            large += got.iter().filter(|payload| payload.len() == LARGE).count();
            got.iter().any(|payload| payload.len() == 64)
        }));
        (world.now().nanos_since(start), large)
    };
    let alone = (0..50).map(|_| ping(&mut world).0).max().unwrap();
    (1..small).for_each(|from| send(&mut world, &sessions, from, LARGE));
    let start = world.now();
    let (mut beside, mut came) = (Vec::new(), 0);
    while came < small - 1 {
        let (took, large) = ping(&mut world);
        beside.push(took);
        came += large;
    }
    let wire = (small - 1) as u64 * LARGE as u64 * 8 * 1_000_000_000 / BANDWIDTH;
    let took = world.now().nanos_since(start);
    assert!(took < wire * 5 / 4, "the large ones kept the link busy: {took} ns, of which {wire} on the wire");
    beside.sort_unstable();
    let p99 = beside[beside.len() * 99 / 100];
    assert!(p99 < 4 * alone, "{p99} ns beside, {alone} alone");
    assert_eq!(dropped(&world), 0);
}

#[test]
fn a_peer_that_is_gone_takes_nothing_of_what_the_others_may_send() {
    const LARGE: usize = 2 << 20;
    let run = |gone: bool| -> u64 {
        let (mut world, sessions) = star(4, 6);
        // The shortest, so that all credit is its own; and small ones beside, so that there is a credit at all.
        send(&mut world, &sessions, 1, LARGE - 500_000);
        (2..=5).for_each(|from| send(&mut world, &sessions, from, LARGE));
        let mut end: Option<Time> = None;
        let (mut next, mut came) = (world.now(), 0);
        let cut = world.now() + Duration::from_micros(300);
        assert!(world.run(SECOND, |world| {
            if gone && world.now() >= cut {
                world.network.partition("host-1", "host-0").unwrap();
            }
            if world.now() >= next && end.is_none() {
                next = world.now() + Duration::from_micros(20);
                send(world, &sessions, 6, 64);
            }
            came += world.messages(0).iter().filter(|payload| payload.len() == LARGE).count();
            if came == 4 && end.is_none() {
                end = Some(world.now());
            }
            end.is_some()
        }));
        end.unwrap().nanos_since(cut)
    };
    let (with, without) = (run(true), run(false));
    assert!(with < without * 5 / 4, "{with} ns with a dead peer, {without} without");
}
