//! What the protocol does for its users while nothing fails for good.

use std::collections::HashMap;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{CloseReason, EndpointConfig, Event, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::sim::{LinkConfig, SimPortConfig};

use crate::world::{World, link, pattern};

const SECOND: Duration = Duration::from_secs(1);

fn lossy() -> LinkConfig {
    LinkConfig {
        jitter: Duration::from_micros(30),
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.05,
        corrupt: 0.02,
        truncate: 0.02,
        replay: 0.02,
        ..link(20)
    }
}

#[test]
fn messages_of_every_size_arrive_once_and_whole_over_a_bad_network() {
    let (mut world, there, _) = World::pair(1, lossy());
    let sizes = [0, 1, 100, 1_000, 4_047, 4_048, 4_049, 20_000, 200_000, 1_000_000];
    for (n, size) in sizes.into_iter().enumerate() {
        world.send(0, there, Class::ALL[n % 4], pattern(size, n as u64), 0).unwrap();
    }
    let mut got = Vec::new();
    assert!(world.run(20 * SECOND, |world| {
        got.extend(world.messages(1));
        got.len() >= sizes.len()
    }));
    world.pass(SECOND);
    got.extend(world.messages(1));
    let mut lens: Vec<usize> = got.iter().map(|payload| payload.len()).collect();
    lens.sort_unstable();
    assert_eq!(lens, sizes);
    for payload in got {
        let salt = sizes.iter().position(|size| *size == payload.len()).unwrap() as u64;
        assert!(*payload == *pattern(payload.len(), salt), "{} bytes damaged", payload.len());
    }
    assert_eq!(world.endpoint(1).reassembly_bytes(), 0);
    let counters = world.endpoint(1).counters();
    assert!(counters.malformed > 0 && counters.duplicate_packets > 0, "the network was not bad: {counters:?}");
}

#[test]
fn messages_into_many_sessions_arrive_once_and_whole_over_a_bad_network() {
    const SESSIONS: usize = 300;
    let config = EndpointConfig { max_sessions_per_peer: SESSIONS, ..EndpointConfig::default() };
    let mut world = World::new(31, lossy());
    let (a, b) = (world.host("a", config.clone()), world.host("b", config));
    let sessions: Vec<SessionId> = (0..SESSIONS).map(|_| world.open(a, b)).collect();
    let open = |world: &mut World| sessions.iter().all(|session| world.endpoint(a).is_established(*session));
    assert!(world.run(Duration::from_secs(20), open));
    let mut random = fastrand::Rng::with_seed(31);
    let mut received: Vec<(SessionId, u64)> = Vec::new();
    let mut sent: HashMap<SessionId, Vec<u64>> = HashMap::new();
    for number in 0..3_000u64 {
        let session = sessions[random.usize(..SESSIONS)];
        let body = [&session.as_u64().to_le_bytes()[..], &number.to_le_bytes()].concat();
        world.send(a, session, Class::Normal, body, 0).unwrap();
        sent.entry(session).or_default().push(number);
        if number % 10 == 0 {
            world.pass(Duration::from_micros(20));
        }
    }
    let at_rest = |world: &mut World| world.endpoint(a).usage().sending == 0;
    assert!(world.run(Duration::from_secs(20), at_rest), "not everything was acknowledged");
    for payload in world.messages(b) {
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
        received.push((SessionId::from_u64(word(0)), word(8)));
    }
    assert_eq!(received.len(), 3_000, "each once");
    for (session, number) in received {
        let expected = sent.get_mut(&session).unwrap();
        let at = expected.iter().position(|known| *known == number).expect("sent there, and not received before");
        expected.swap_remove(at);
    }
    let counters = world.endpoint(a).counters();
    assert!(counters.lost + counters.probes > 0, "nothing was lost: {counters:?}");
}

#[test]
fn a_small_message_overtakes_a_large_one_of_its_own_session() {
    let slow = LinkConfig { bandwidth: 1_000_000_000, queue: 1 << 20, ..link(10) };
    let (mut world, there, _) = World::pair(2, slow);
    world.send(0, there, Class::Normal, pattern(8 << 20, 1), 0).unwrap();
    world.pass(Duration::from_millis(5));
    assert!(world.messages(1).is_empty());
    world.send(0, there, Class::Normal, b"small".to_vec(), 0).unwrap();
    assert!(world.run(SECOND, |world| !world.hosts[1].events.is_empty()));
    assert_eq!(&*world.messages(1)[0], b"small");
    assert!(world.run(SECOND, |world| !world.hosts[1].events.is_empty()), "the large one follows");
}

#[test]
fn the_more_urgent_class_goes_first_and_the_oldest_does_not_starve() {
    let slow = LinkConfig { bandwidth: 1_000_000_000, queue: 1 << 20, ..link(10) };
    let (mut world, there, _) = World::pair_with(3, slow, EndpointConfig { window: 32 << 10, ..EndpointConfig::default() });
    world.send(0, there, Class::Background, pattern(64 << 10, 9), 0).unwrap();
    // A stream of interactive messages that alone would fill the link for good.
    let mut sent = 0;
    let mut background_after = None;
    let mut received = 0;
    assert!(world.run(SECOND, |world| {
        while sent - received < 64 {
            world.send(0, there, Class::Interactive, pattern(4_000, 1), 0).unwrap();
            sent += 1;
        }
        for event in world.hosts[1].events.drain(..) {
            match event {
                Event::Message { class: Class::Background, .. } => background_after = Some(received),
                Event::Message { .. } => received += 1,
                _ => {}
            }
        }
        background_after.is_some()
    }));
    let after = background_after.unwrap();
    assert!(after > 100, "the background message did not yield: it came after {after} interactive ones");
}

#[test]
fn both_sides_send_a_large_message_at_once_and_both_complete() {
    let config = EndpointConfig { reassembly_bytes: 0, ..EndpointConfig::default() };
    let (mut world, there, back) = World::pair_with(4, link(10), config);
    world.send(0, there, Class::Normal, pattern(32 << 20, 1), 0).unwrap();
    world.send(1, back, Class::Normal, pattern(32 << 20, 2), 0).unwrap();
    assert!(world.run(30 * SECOND, |world| {
        let got = |world: &World, at: usize| world.hosts[at].events.iter().any(|event| matches!(event, Event::Message { .. }));
        got(world, 0) && got(world, 1)
    }));
}

#[test]
fn many_large_messages_share_little_memory_and_all_complete() {
    let config = EndpointConfig { max_message: 1 << 20, reassembly_bytes: 2 << 20, overcommit: 2, ..EndpointConfig::default() };
    let (mut world, there, _) = World::pair_with(5, link(10), config);
    for n in 0..12 {
        world.send(0, there, Class::Normal, pattern(1 << 20, n), n).unwrap();
    }
    let mut got = 0;
    assert!(world.run(60 * SECOND, |world| {
        assert!(world.endpoint(1).reassembly_bytes() <= 2 << 20);
        got += world.messages(1).len();
        got == 12
    }));
    assert_eq!(world.endpoint(1).reassembly_bytes(), 0);
}

#[test]
fn more_messages_than_are_looked_at_in_one_turn_all_complete() {
    let config = EndpointConfig { max_message: 100_000, reassembly_bytes: 400_000, ..EndpointConfig::default() };
    let (mut world, there, _) = World::pair_with(8, link(10), config);
    for n in 0..600 {
        world.send(0, there, Class::Normal, pattern(90_000, n), n).unwrap();
    }
    // Hosts that look so seldom that all which was granted has come when they look.
    let mut got = 0;
    for _ in 0..100_000 {
        world.turn();
        world.clock.advance_to(world.now().plus_nanos(50_000));
        got += world.messages(1).len();
    }
    assert_eq!(got, 600);
}

#[test]
fn a_call_and_its_reply_cost_two_packets_in_steady_state() {
    let (mut world, there, back) = World::pair(6, link(5));
    let packets = |world: &mut World| world.endpoint(0).counters().packets_sent + world.endpoint(1).counters().packets_sent;
    let mut before = 0;
    for n in 0..110 {
        if n == 10 {
            before = packets(&mut world);
        }
        world.send(0, there, Class::Normal, vec![1; 64], 0).unwrap();
        assert!(world.run(SECOND, |world| !world.messages(1).is_empty()));
        world.send(1, back, Class::Normal, vec![2; 64], 0).unwrap();
        assert!(world.run(SECOND, |world| !world.messages(0).is_empty()));
    }
    let spent = packets(&mut world) - before;
    assert!(spent <= 202, "100 calls took {spent} packets");
}

#[test]
fn a_full_queue_and_an_oversized_message_are_refused_and_harm_nothing() {
    let config = EndpointConfig { max_message: 100_000, send_queue: 10, message_slots: 128, ..EndpointConfig::default() };
    let (mut world, there, _) = World::pair_with(7, link(5), config);
    assert_eq!(world.send(0, there, Class::Normal, vec![0; 100_001], 0), Err(SendError::TooLarge { len: 100_001, limit: 100_000 }));
    let mut accepted = 0;
    // Too long to share a packet, so that each needs a slot.
    while world.send(0, there, Class::Normal, vec![7; 1100], 0).is_ok() {
        accepted += 1;
    }
    assert_eq!(accepted, 128 + 10);
    let mut got = 0;
    assert!(world.run(SECOND, |world| {
        got += world.messages(1).len();
        got == accepted
    }));
    world.pass(Duration::from_millis(50));
    assert!(world.send(0, there, Class::Normal, vec![7; 10], 0).is_ok());
}

#[test]
fn what_all_sessions_hold_for_sending_is_bounded() {
    let config = EndpointConfig { send_bytes_total: 1 << 20, ..EndpointConfig::default() };
    let mut world = World::new(15, link(5));
    for name in ["a", "b", "c"] {
        world.host(name, config.clone());
    }
    let sessions = [world.connect(0, 1).0, world.connect(0, 2).0];
    let fill = |world: &mut World| {
        let mut accepted = 0;
        while world.send(0, sessions[accepted % 2], Class::Normal, vec![7; 100_000], 0).is_ok() {
            accepted += 1;
        }
        assert!(world.endpoint(0).send_bytes() <= 1 << 20);
        accepted
    };
    assert_eq!(fill(&mut world), 5, "half of it before they have shown that they take what is sent");
    world.pass(SECOND);
    assert_eq!(fill(&mut world), 7, "three quarters");
    world.pass(SECOND);
    assert_eq!(world.endpoint(0).send_bytes(), 0);
    assert_eq!(world.messages(1).len() + world.messages(2).len(), 12);
}

#[test]
fn who_reads_nothing_keeps_no_short_message_of_others_from_being_accepted() {
    let config = EndpointConfig { send_bytes_total: 1 << 20, max_sessions: 100, ..EndpointConfig::default() };
    let mut world = World::new(16, link(5));
    for name in ["a", "b", "c"] {
        world.host(name, config.clone());
    }
    let [deaf, good] = [world.connect(0, 1).0, world.connect(0, 2).0];
    world.network.pause("b").unwrap();
    while world.send(0, deaf, Class::Normal, vec![7; 1000], 0).is_ok() {}
    assert!(world.endpoint(0).send_bytes() > 400_000);
    for token in 0..100 {
        assert_eq!(world.send(0, good, Class::Normal, vec![7; 1000], token), Ok(()));
        world.pass(Duration::from_millis(1));
        assert_eq!(world.messages(2).len(), 1);
    }
}

#[test]
fn the_smaller_limit_of_both_sides_counts() {
    let mut world = World::new(8, link(5));
    world.host("a", EndpointConfig::default());
    world.host_on(
        "b",
        EndpointConfig { max_message: 5_000, ..EndpointConfig::default() },
        SimPortConfig { mtu: 600, ..SimPortConfig::default() },
    );
    let (there, _) = world.connect(0, 1);
    assert!(matches!(world.send(0, there, Class::Normal, vec![0; 5_001], 0), Err(SendError::TooLarge { limit: 5_000, .. })));
    world.send(0, there, Class::Normal, pattern(5_000, 1), 0).unwrap();
    assert!(world.run(SECOND, |world| !world.hosts[1].events.is_empty()));
    assert_eq!(*world.messages(1)[0], *pattern(5_000, 1));
}

#[test]
fn control_messages_pass_a_full_window() {
    let slow = LinkConfig { bandwidth: 100_000_000, queue: 2 << 20, ..link(1_000) };
    let (mut world, there, _) = World::pair(9, slow);
    world.send(0, there, Class::Interactive, pattern(16 << 20, 1), 0).unwrap();
    world.pass(Duration::from_millis(20));
    let now = world.now();
    world.endpoint(0).send_control(there, b"stop", now).unwrap();
    let mut sent_at = world.endpoint(0).counters().packets_sent;
    world.turn();
    sent_at = world.endpoint(0).counters().packets_sent - sent_at;
    assert!(sent_at >= 1, "it waited for the window");
    assert!(world.run(SECOND, |world| {
        world.hosts[1].events.drain(..).any(|event| matches!(event, Event::Control { payload, .. } if &*payload == b"stop"))
    }));
}

#[test]
fn control_messages_arrive_at_most_once_over_a_bad_network() {
    let (mut world, there, _) = World::pair(10, lossy());
    let mut got = Vec::new();
    for n in 0..200u8 {
        let now = world.now();
        while world.endpoint(0).send_control(there, &[n], now) == Err(SendError::Full) {
            world.pass(Duration::from_millis(1));
        }
        world.turn();
        got.extend(world.hosts[1].events.drain(..));
    }
    world.pass(SECOND);
    got.extend(world.hosts[1].events.drain(..));
    let mut numbers: Vec<u8> = got
        .into_iter()
        .filter_map(|event| match event {
            Event::Control { payload, .. } => Some(payload[0]),
            _ => None,
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<u8>>());
}

#[test]
fn an_orderly_close_delivers_what_was_accepted_and_tells_both_sides() {
    let (mut world, there, back) = World::pair(11, lossy());
    for n in 0..50 {
        world.send(0, there, Class::Normal, pattern(3_000, n), n).unwrap();
    }
    let now = world.now();
    world.endpoint(0).close(there, now);
    assert_eq!(world.send(0, there, Class::Normal, vec![], 0), Err(SendError::UnknownSession));
    let mut got = 0;
    let mut remote = None;
    assert!(world.run(10 * SECOND, |world| {
        for event in world.hosts[1].events.drain(..) {
            match event {
                Event::Message { .. } => got += 1,
                Event::Closed { session, reason } if session == back => remote = Some(reason),
                _ => {}
            }
        }
        remote.is_some()
    }));
    assert_eq!((got, remote), (50, Some(CloseReason::Remote)));
    assert_eq!(world.closed(0, there, 5 * SECOND), Some((CloseReason::Local, vec![])));
    assert_eq!((world.endpoint(0).session_count(), world.endpoint(1).session_count()), (0, 0));
}

#[test]
fn an_abandoned_message_gives_its_memory_back_on_both_sides() {
    let slow = LinkConfig { bandwidth: 1_000_000_000, queue: 1 << 20, ..link(10) };
    let (mut world, there, _) = World::pair(12, slow);
    let now = world.now();
    let body = Payload::from(pattern(8 << 20, 1));
    let message = world.endpoint(0).send(there, Class::Normal, b"", body, 1, now).unwrap();
    world.pass(Duration::from_millis(5));
    assert!(world.endpoint(1).reassembly_bytes() > 0);
    let now = world.now();
    world.endpoint(0).abandon(there, message, now);
    world.pass(Duration::from_millis(50));
    assert_eq!(world.endpoint(1).reassembly_bytes(), 0);
    assert!(world.messages(1).is_empty());
    world.send(0, there, Class::Normal, b"next".to_vec(), 0).unwrap();
    assert!(world.run(SECOND, |world| !world.hosts[1].events.is_empty()));
}

#[test]
fn frames_come_back_when_payloads_are_dropped_and_scarce_frames_do_not_stop_receiving() {
    let mut world = World::new(13, link(5));
    world.host("a", EndpointConfig::default());
    world.host_on("b", EndpointConfig::default(), SimPortConfig { frames: 64, ..SimPortConfig::default() });
    let (there, _) = world.connect(0, 1);
    // The receiver keeps every payload: far more than its port has frames.
    let mut held = Vec::new();
    for n in 0..1_000u64 {
        world.send(0, there, Class::Normal, pattern(50, n), 0).unwrap();
        if n % 20 == 0 {
            world.pass(Duration::from_micros(100));
            held.extend(world.messages(1));
        }
    }
    assert!(world.run(5 * SECOND, |world| {
        held.extend(world.messages(1));
        held.len() == 1_000
    }));
    assert!(held.iter().any(Payload::holds_frame) && held.iter().any(|payload| !payload.holds_frame()));
}

#[test]
fn the_round_trip_is_measured_and_an_idle_session_stays_alive() {
    let (mut world, there, _) = World::pair(14, link(250));
    for _ in 0..20 {
        world.send(0, there, Class::Normal, vec![1], 0).unwrap();
        world.pass(Duration::from_millis(2));
    }
    let round_trip = world.endpoint(0).round_trip(there).unwrap();
    assert!(round_trip.smoothed.as_micros().abs_diff(500) < 60, "{round_trip:?}");
    world.hosts[0].events.clear();
    world.pass(30 * SECOND);
    assert!(world.endpoint(0).is_established(there));
    assert!(world.hosts[0].events.is_empty());
}

#[test]
fn a_receiver_that_finds_more_than_a_burst_makes_nothing_look_lost() {
    // As long as the peer computes, a window arrives; then it looks at as much as it can at a time.
    for burst in [48, 64] {
        let config = EndpointConfig { burst, ..EndpointConfig::default() };
        let (mut world, there, _) = World::pair_with(12, link(5), config);
        world.send(0, there, Class::Normal, pattern(8 << 20, 1), 0).unwrap();
        for turn in 1..4_000 {
            world.hosts[1].stopped = turn % 40 < 30;
            world.pass(Duration::from_micros(1));
        }
        assert!(world.run(SECOND, |world| !world.hosts[1].events.is_empty()));
        let counters = world.endpoint(0).counters();
        assert_eq!((counters.lost, counters.retransmitted, counters.probes), (0, 0, 0), "bursts of {burst}: {counters:?}");
    }
}

#[test]
fn a_control_message_among_data_makes_nothing_look_lost() {
    let rate = LinkConfig { bandwidth: 1_000_000_000, ..link(10) };
    let (mut world, there, _) = World::pair(1, rate);
    world.pass(Duration::from_millis(5));
    for _ in 0..20 {
        let now = world.now();
        let endpoint = world.endpoint(0);
        for token in 0..20 {
            endpoint.send(there, Class::Normal, b"", Payload::from(vec![0; 1200]), token, now).unwrap();
        }
        endpoint.send_control(there, b"cancel", now).unwrap();
        endpoint.flush(now);
        world.pass(Duration::from_millis(5));
    }
    let counters = world.endpoint(0).counters();
    assert_eq!((counters.lost, counters.retransmitted), (0, 0), "{counters:?}");
}
