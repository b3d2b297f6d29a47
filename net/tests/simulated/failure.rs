//! What the protocol does when peers die, restart, lie or never answer.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{CloseReason, ConnectError, EndpointConfig, Event, SendError, SessionId};
use tautline_net::port::Address;
use tautline_net::port::sim::LinkConfig;
use tautline_net::wire::Header;

use crate::world::{World, link, pattern};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_restarted_peer_is_noticed_at_once_by_its_reset() {
    let (mut world, there, _) = World::pair(20, link(20));
    world.kill(1);
    world.start(1);
    let before = world.now();
    world.send(0, there, Class::Normal, b"hello?".to_vec(), 5).unwrap();
    let (reason, undelivered) = world.closed(0, there, 5 * SECOND).expect("the session ends");
    assert_eq!((reason, undelivered), (CloseReason::PeerRestarted, vec![(5, true)]));
    assert!(world.now().since(before) < Duration::from_millis(1), "noticed after {:?}", world.now().since(before));
    world.connect(0, 1);
}

#[test]
fn a_peer_that_restarts_and_connects_again_ends_its_old_sessions_without_a_time_out() {
    let (mut world, _, back) = World::pair(21, link(20));
    world.kill(0);
    world.start(0);
    let before = world.now();
    world.open(0, 1);
    let (reason, _) = world.closed(1, back, 5 * SECOND).expect("the old session ends");
    assert_eq!(reason, CloseReason::PeerRestarted);
    assert!(world.now().since(before) < Duration::from_millis(5));
    assert_eq!(world.endpoint(1).session_count(), 1);
}

#[test]
fn a_dead_peer_ends_every_message_once_and_says_whether_it_had_left() {
    let config = EndpointConfig { message_slots: 80, ..EndpointConfig::default() };
    let (mut world, there, _) = World::pair_with(22, link(20), config);
    world.kill(1);
    for token in 0..100 {
        // Too long to share a packet, so that each needs a slot.
        world.send(0, there, Class::Normal, vec![0; 1100], token).unwrap();
    }
    let (reason, undelivered) = world.closed(0, there, 30 * SECOND).expect("the session ends");
    assert_eq!(reason, CloseReason::PeerDead);
    let expected: Vec<(u64, bool)> = (0..100).map(|token| (token, token < 80)).collect();
    assert_eq!(undelivered, expected, "the first 80 had slots and left, the others waited");
    assert_eq!(world.send(0, there, Class::Normal, vec![], 0), Err(SendError::UnknownSession));
    assert_eq!(world.endpoint(0).session_count(), 0);
}

#[test]
fn a_dead_peer_ends_every_message_of_a_bundle_but_those_given_up() {
    let (mut world, there, _) = World::pair(36, link(20));
    world.kill(1);
    let now = world.now();
    let endpoint = world.endpoint(0);
    let sent: Vec<_> =
        (0..40).map(|token| endpoint.send(there, Class::Normal, &[], vec![0; 20].into(), token, now).unwrap()).collect();
    assert_eq!(world.endpoint(0).usage().send_bytes, 40 * 20 + 39 * 2);
    for given_up in [0, 7, 39] {
        world.endpoint(0).abandon(there, sent[given_up], now);
    }
    assert_eq!(world.endpoint(0).usage().sending, 40);
    let (reason, undelivered) = world.closed(0, there, 30 * SECOND).expect("the session ends");
    assert_eq!(reason, CloseReason::PeerDead);
    let expected: Vec<(u64, bool)> = (0..40).filter(|token| ![0, 7, 39].contains(token)).map(|token| (token, true)).collect();
    assert_eq!(undelivered, expected);
    let usage = world.endpoint(0).usage();
    assert_eq!((usage.sending, usage.send_bytes), (0, 0));
}

#[test]
fn a_lost_bundle_arrives_whole_once_and_in_order() {
    let (mut world, there, _) = World::pair(37, LinkConfig { loss: 0.4, duplicate: 0.2, ..link(20) });
    let mut got = Vec::new();
    for round in 0..50u8 {
        for n in 0..20u8 {
            world.send(0, there, Class::Normal, vec![round, n], 0).unwrap();
        }
        world.run(SECOND, |world| {
            got.extend(world.messages(1));
            got.len() == 20 * (usize::from(round) + 1)
        });
    }
    let expected: Vec<Vec<u8>> = (0..50u8).flat_map(|round| (0..20u8).map(move |n| vec![round, n])).collect();
    assert_eq!(got.iter().map(|bytes| bytes.to_vec()).collect::<Vec<_>>(), expected);
    assert!(world.endpoint(0).counters().packets_sent < 300, "{:?}", world.endpoint(0).counters());
}

#[test]
fn a_silent_idle_peer_is_noticed_within_its_time_out() {
    let (mut world, there, back) = World::pair(23, link(20));
    world.pass(SECOND);
    world.network.partition("a", "b").unwrap();
    let before = world.now();
    let (reason, _) = world.closed(1, back, 10 * SECOND).expect("b hears nothing from a");
    assert_eq!(reason, CloseReason::PeerDead);
    assert!(world.now().since(before) <= Duration::from_millis(3_100));
    // a still hears b's reset, or its silence.
    assert!(world.closed(0, there, 10 * SECOND).is_some());
}

#[test]
fn a_host_that_was_not_polled_for_long_does_not_blame_its_peers() {
    let (mut world, there, _) = World::pair(32, link(20));
    world.pass(SECOND);
    // Both stand still, as a stopped process does; nothing on the network moves either.
    let later = world.now() + 60 * SECOND;
    world.clock.advance_to(later);
    world.send(0, there, Class::Normal, b"still there?".to_vec(), 0).unwrap();
    assert!(world.run(SECOND, |world| world.hosts[1].events.iter().any(|event| matches!(event, Event::Message { .. }))));
    assert!(world.endpoint(0).is_established(there));
}

#[test]
fn nobody_there_is_an_error_within_the_connect_time_out() {
    let mut world = World::new(24, link(20));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig::default());
    world.kill(1);
    let there = world.open(0, 1);
    world.send(0, there, Class::Normal, b"early".to_vec(), 3).unwrap();
    let (reason, undelivered) = world.closed(0, there, 20 * SECOND).expect("the handshake ends");
    assert_eq!((reason, undelivered), (CloseReason::TimedOut, vec![(3, false)]));
}

#[test]
fn a_peer_that_starts_late_is_reached_by_the_repeated_hello() {
    let mut world = World::new(25, link(20));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig::default());
    world.kill(1);
    let there = world.open(0, 1);
    world.send(0, there, Class::Normal, b"early".to_vec(), 3).unwrap();
    world.pass(SECOND);
    world.start(1);
    assert!(world.run(2 * SECOND, |world| world.hosts[1].events.iter().any(|event| matches!(event, Event::Message { .. }))));
}

#[test]
fn a_full_server_refuses_at_once_and_keeps_its_sessions() {
    let mut world = World::new(26, link(20));
    world.host("server", EndpointConfig { max_sessions: 2, ..EndpointConfig::default() });
    for name in ["a", "b", "c"] {
        world.host(name, EndpointConfig::default());
    }
    world.connect(1, 0);
    world.connect(2, 0);
    let third = world.open(3, 0);
    let (reason, _) = world.closed(3, third, SECOND).expect("refused");
    assert_eq!(reason, CloseReason::Refused);
    assert_eq!(world.endpoint(0).session_count(), 2);
    let peer = world.address(1);
    let now = world.now();
    assert_eq!(world.endpoint(0).connect(peer, now), Err(ConnectError::TooManySessions { limit: 2 }));
}

#[test]
fn an_address_of_another_kind_is_refused() {
    let mut world = World::new(27, link(20));
    world.host("a", EndpointConfig::default());
    let now = world.now();
    let peer = Address::Inet("127.0.0.1:9".parse().unwrap());
    assert!(matches!(world.endpoint(0).connect(peer, now), Err(ConnectError::WrongKind { .. })));
}

#[test]
fn strangers_cost_a_server_no_session_and_no_longer_answers_than_they_sent() {
    let mut world = World::new(28, link(20));
    world.host("server", EndpointConfig::default());
    world.host("client", EndpointConfig::default());
    // The real hellos of a client whose source is then forged: each comes from another address that never answers.
    let (taken, seen) = (std::rc::Rc::new(std::cell::RefCell::new(Vec::new())), std::rc::Rc::new(std::cell::Cell::new(0)));
    let (take, count) = (taken.clone(), seen.clone());
    world.network.set_filter(move |passing| {
        if passing.from == "client" {
            take.borrow_mut().push(passing.bytes.to_vec());
        }
        count.set(count.get() + 1);
        tautline_net::port::sim::Verdict::Pass
    });
    world.connect(1, 0);
    world.network.clear_filter();
    let hello = taken.borrow()[0].clone();
    let sessions = world.endpoint(0).session_count();
    for n in 0..1_000 {
        world.network.inject(&format!("stranger{n}"), "server", &hello).unwrap();
    }
    world.pass(Duration::from_millis(10));
    assert_eq!(world.endpoint(0).session_count(), sessions);
    assert!(world.endpoint(0).counters().challenges >= 1_000);
    let answered = world.network.link_counters("server", "stranger7");
    assert!(answered.sent <= 1 && answered.bytes <= hello.len() as u64, "{answered:?}");
}

#[test]
fn forged_packets_end_no_session_and_deliver_nothing() {
    let (mut world, there, _) = World::pair(29, link(20));
    let mut random = fastrand::Rng::with_seed(29);
    for n in 0..5_000 {
        let mut packet = vec![0; random.usize(0..200)];
        random.fill(&mut packet);
        if packet.len() > 24 {
            packet[0] = 1;
            packet[1] = random.u8(0..10);
            if n % 2 == 0 {
                packet[8..16].copy_from_slice(&there.as_u64().to_le_bytes());
            }
        }
        let from = if n % 3 == 0 { "b" } else { "stranger" };
        world.network.inject(from, "a", &packet).unwrap();
    }
    world.pass(Duration::from_millis(100));
    assert!(world.endpoint(0).is_established(there));
    assert!(world.messages(0).is_empty());
    assert!(world.endpoint(0).counters().malformed > 1_000);
}

#[test]
fn a_message_that_is_never_finished_ends_its_session_and_gives_its_memory_back() {
    let config = EndpointConfig { peer_timeout: Duration::from_millis(300), ..EndpointConfig::default() };
    let (mut world, there, back) = World::pair_with(30, link(20), config);
    // From now on every data packet but the first of a message is lost; acknowledgements and pings pass.
    world.network.set_filter(|passing| {
        let data = passing.bytes.len() > 48 && passing.bytes[1] == 6;
        let offset = if data { u32::from_le_bytes(passing.bytes[44..48].try_into().unwrap()) } else { 0 };
        if offset > 0 { tautline_net::port::sim::Verdict::Lose } else { tautline_net::port::sim::Verdict::Pass }
    });
    world.send(0, there, Class::Normal, pattern(1 << 20, 1), 1).unwrap();
    world.pass(Duration::from_millis(100));
    assert!(world.endpoint(1).reassembly_bytes() > 0);
    let (reason, _) = world.closed(1, back, 20 * SECOND).expect("the session ends");
    assert_eq!(reason, CloseReason::Protocol);
    assert_eq!(world.endpoint(1).reassembly_bytes(), 0);
    assert_eq!(world.closed(0, there, 5 * SECOND), Some((CloseReason::Protocol, vec![(1, true)])));
}

/// Two hosts, and a hello of the first one's that the second has not got.
fn a_hello_on_its_way() -> (World, SessionId, Vec<u8>) {
    let mut world = World::new(31, link(20));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig::default());
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let take = seen.clone();
    world.network.set_filter(move |passing| {
        if passing.from == "a" {
            take.borrow_mut().push(passing.bytes.to_vec());
            return tautline_net::port::sim::Verdict::Lose;
        }
        tautline_net::port::sim::Verdict::Pass
    });
    let there = world.open(0, 1);
    world.turn();
    let hello = seen.borrow()[0].clone();
    world.network.clear_filter();
    (world, there, hello)
}

#[test]
fn a_peer_of_another_version_is_told_which_one_is_spoken_here() {
    let (mut world, there, mut hello) = a_hello_on_its_way();
    hello[0] = 9;
    Header::seal(&mut hello);
    world.network.inject("a", "b", &hello).unwrap();
    let (reason, _) = world.closed(0, there, SECOND).expect("refused");
    assert_eq!(reason, CloseReason::Version(1));
}

#[test]
fn a_hello_whose_version_was_damaged_on_the_way_does_not_end_the_handshake() {
    let (mut world, there, mut hello) = a_hello_on_its_way();
    hello[0] = 9;
    world.network.inject("a", "b", &hello).unwrap();
    assert_eq!(world.closed(0, there, SECOND), None);
    assert!(world.endpoint(0).is_established(there), "the hello is repeated");
}

#[test]
fn a_message_that_was_half_there_when_its_receiver_was_paused_for_long_is_finished_afterwards() {
    let (mut world, there, _) = World::pair(32, LinkConfig { bandwidth: 100_000_000, ..link(20) });
    world.send(0, there, Class::Normal, vec![1; 1_000_000], 1).unwrap();
    assert!(world.run(SECOND, |world| world.endpoint(1).reassembly_bytes() > 0));
    // What is on its way gets lost, so that nothing of it is there when both wake up.
    world.network.partition("a", "b").unwrap();
    world.pass(SECOND / 100);
    world.clock.advance_to(world.now() + 60 * SECOND);
    world.turn();
    world.network.heal("a", "b").unwrap();
    let whole = |world: &mut World| world.hosts[1].events.iter().any(|event| matches!(event, Event::Message { .. }));
    assert!(world.run(10 * SECOND, whole), "{:?}", world.hosts[1].events);
}

#[test]
fn peers_that_died_in_the_middle_of_their_messages_hold_up_no_other_until_they_count_as_dead() {
    let mut world = World::new(35, LinkConfig { bandwidth: 1_000_000_000, ..link(20) });
    for name in ["a", "b", "c", "d", "e"] {
        world.host(name, EndpointConfig::default());
    }
    let sessions: Vec<_> = [0, 2, 3, 4].map(|at| (at, world.connect(at, 1).0)).into();
    // One more than hold grants at once by their length, for the oldest does too.
    for &(at, session) in &sessions[1..] {
        world.send(at, session, Class::Normal, vec![1; 300_000], 1).unwrap();
    }
    assert!(world.run(SECOND, |world| world.endpoint(1).reassembly_bytes() >= 900_000));
    ["c", "d", "e"].iter().for_each(|name| world.network.partition(name, "b").unwrap());
    world.send(0, sessions[0].1, Class::Normal, vec![1; 2_000_000], 1).unwrap();
    let whole = |world: &mut World| world.hosts[1].events.iter().any(|event| matches!(event, Event::Message { .. }));
    assert!(world.run(10 * SECOND, whole));
    assert_eq!(world.endpoint(1).session_count(), 4, "it waited for the others' end");
}

#[test]
fn a_deferred_message_beside_short_ones_leaves_the_session_whole() {
    for shorts in [33, 64, 500] {
        let slow = LinkConfig { bandwidth: 100_000_000, ..link(20) };
        let config = EndpointConfig { max_message: 300_000, reassembly_bytes: 400_000, ..EndpointConfig::default() };
        let mut world = World::new(3, slow);
        for name in ["a", "b", "c"] {
            world.host(name, config.clone());
        }
        let (there, _) = world.connect(0, 1);
        let (third, _) = world.connect(2, 1);
        // The third host's message holds the memory, and falls silent for a while.
        world.send(2, third, Class::Normal, vec![3; 299_000], 1).unwrap();
        world.run(Duration::from_millis(5), |world| world.endpoint(1).reassembly_bytes() > 200_000);
        world.network.pause("c").unwrap();
        world.hosts[1].events.clear();
        world.send(0, there, Class::Normal, vec![1; 290_000], 1).unwrap();
        for token in 0..shorts {
            world.send(0, there, Class::Normal, vec![2; 1000], 2 + token).unwrap();
        }
        world.pass(Duration::from_secs(2));
        let mut got = world.messages(1).len() as u64;
        assert_eq!(got, shorts);
        assert!(world.endpoint(1).counters().deferred > 0, "not the case that is meant");
        world.kill(2);
        for token in 0..200 {
            world.send(0, there, Class::Normal, vec![2; 1000], 1000 + token).unwrap();
        }
        world.run(Duration::from_secs(8), |world| {
            got += world.messages(1).len() as u64;
            got == shorts + 201
        });
        assert_eq!(got, shorts + 201, "{:?}", world.endpoint(0).counters());
    }
}

#[test]
fn a_message_sent_after_a_session_died_and_before_its_owner_was_told_is_refused() {
    let (mut world, there, _) = World::pair(33, link(20));
    world.send(0, there, Class::Normal, b"lost".to_vec(), 1).unwrap();
    world.kill(1);
    // The endpoint finds out, and nobody has asked it yet.
    let mut now = world.now();
    for _ in 0..100 {
        now += SECOND / 10;
        world.endpoint(0).poll(now);
        world.endpoint(0).flush(now);
    }
    let endpoint = world.endpoint(0);
    assert_eq!(endpoint.session_count(), 0);
    let sent = endpoint.send(there, Class::Normal, &[], vec![1].into(), 2, now).map(drop);
    assert_eq!(sent, Err(SendError::UnknownSession));
    assert_eq!(endpoint.send_control(there, &[1], now), Err(SendError::UnknownSession));
    endpoint.close(there, now);
    let events: Vec<Event> = std::iter::from_fn(|| endpoint.next_event()).collect();
    assert!(matches!(events[..], [Event::Undelivered { token: 1, transmitted: true, .. }, Event::Closed { .. }]), "{events:?}");
}

#[test]
fn damaged_packets_give_their_frames_back() {
    let bad = LinkConfig { corrupt: 0.3, truncate: 0.3, ..link(20) };
    let (mut world, there, _) = World::pair(34, bad);
    for token in 0..12_000 {
        let _ = world.send(0, there, Class::Normal, vec![1; 500], token);
        world.pass(Duration::from_micros(100));
        world.hosts[1].events.clear();
    }
    // More than the port has frames.
    assert!(world.endpoint(1).counters().malformed > 512, "{:?}", world.endpoint(1).counters());
    assert_eq!(world.endpoint(1).usage().frames.receive, 0);
    assert_eq!(world.endpoint(1).port_counters().dropped_no_frame, 0);
}

#[test]
fn a_lost_grant_is_given_again() {
    let (mut world, there, _) = World::pair(35, link(20));
    let lost = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = lost.clone();
    // The first five of the receiver's control packets, which carry its grants.
    world.network.set_filter(move |passing| {
        let control = passing.from == "b" && passing.bytes[1] == tautline_net::wire::Kind::Control as u8;
        if control && count.get() < 5 {
            count.set(count.get() + 1);
            return tautline_net::port::sim::Verdict::Lose;
        }
        tautline_net::port::sim::Verdict::Pass
    });
    world.send(0, there, Class::Normal, pattern(200_000, 1), 1).unwrap();
    assert!(world.run(SECOND, |world| world.messages(1).len() == 1), "{:?}", world.endpoint(1).counters());
    assert_eq!(lost.get(), 5);
}
