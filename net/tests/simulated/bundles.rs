//! Small messages that share packets: whatever else is done with the endpoint in the same turn, each arrives whole, once, and is accounted for.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{CloseReason, EndpointConfig, Event, MAX_CONTROL, MessageId, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::sim::{LinkConfig, SimPortConfig};

use crate::world::{World, link, pattern};

const SECOND: Duration = Duration::from_secs(1);

/// Two hosts whose packets have `mtu` bytes at most, and a session.
fn pair_with_mtu(seed: u64, mtu: usize, config: EndpointConfig) -> (World, SessionId) {
    let mut world = World::new(seed, link(20));
    for name in ["a", "b"] {
        world.host_on(name, config.clone(), SimPortConfig { mtu, frames: 512 });
    }
    let (there, _) = world.connect(0, 1);
    (world, there)
}

/// Sends messages of these lengths in one turn.
fn send(world: &mut World, session: SessionId, lengths: &[usize]) -> Vec<MessageId> {
    let now = world.now();
    let endpoint = world.endpoint(0);
    let message = |n: usize, len: usize| Payload::from(pattern(len, n as u64));
    let sent = lengths.iter().enumerate();
    sent.map(|(n, &len)| endpoint.send(session, Class::Normal, &[], message(n, len), n as u64, now).unwrap()).collect()
}

/// Waits for messages of these lengths, in this order.
fn expect(world: &mut World, lengths: &[usize]) {
    let mut got = Vec::new();
    world.run(SECOND, |world| {
        got.extend(world.messages(1));
        got.len() >= lengths.len()
    });
    world.pass(Duration::from_millis(1));
    got.extend(world.messages(1));
    assert_eq!(got.iter().map(|payload| payload.len()).collect::<Vec<_>>(), lengths);
    for (n, payload) in got.iter().enumerate() {
        assert_eq!(**payload, pattern(lengths[n], n as u64), "message {n}");
    }
}

#[test]
fn messages_that_fill_a_packet_to_the_last_byte_and_one_more_arrive_at_every_mtu() {
    for mtu in [256, 1344, 2048, 2100, 9000, 65_507] {
        let (mut world, there) = pair_with_mtu(1, mtu, EndpointConfig::default());
        let room = mtu - MTU_OVERHEAD;
        let bundle = room.min(2048);
        for first in [0, 1, bundle - 2, bundle - 3, bundle - 4, bundle - 1, bundle, room, room + 1] {
            for second in
                [0, 1, bundle.saturating_sub(first + 2), bundle.saturating_sub(first + 1), bundle.saturating_sub(first + 3)]
            {
                let lengths = [first, second, 0, 5];
                send(&mut world, there, &lengths);
                let mut got = Vec::new();
                world.run(SECOND, |world| {
                    got.extend(world.messages(1).iter().map(|payload| payload.to_vec()));
                    got.len() == 4
                });
                // Longer ones may be overtaken.
                let mut want: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(n, &len)| pattern(len, n as u64)).collect();
                got.sort();
                want.sort();
                assert!(got == want, "mtu {mtu}: {lengths:?}");
            }
        }
        assert!(world.run(SECOND, |world| world.endpoint(0).usage().sending == 0));
        assert_eq!((world.endpoint(0).send_bytes(), world.endpoint(1).counters().malformed), (0, 0));
    }
}

/// What headers take of a packet: the smallest MTU holds the longest control message.
const MTU_OVERHEAD: usize = tautline_net::wire::MIN_MTU - MAX_CONTROL;

#[test]
fn more_messages_than_a_bundle_holds_go_on_in_the_next() {
    let (mut world, there, _) = World::pair(2, link(20));
    let before = world.endpoint(0).counters().packets_sent;
    let lengths: Vec<usize> = (0..64 * 3 + 1).map(|n| n % 3).collect();
    send(&mut world, there, &lengths);
    expect(&mut world, &lengths);
    assert_eq!(world.endpoint(0).counters().packets_sent - before, 4);
}

#[test]
fn a_peer_s_limit_is_that_of_each_message_and_of_what_shares_a_packet() {
    let config = EndpointConfig { max_message: 100, ..EndpointConfig::default() };
    let (mut world, there) = pair_with_mtu(3, 1344, config);
    let now = world.now();
    send(&mut world, there, &[100, 100, 49, 49, 50, 48, 0, 0]);
    let refused = world.endpoint(0).send(there, Class::Normal, &[0; 50], vec![0; 51].into(), 9, now);
    assert_eq!(refused, Err(SendError::TooLarge { len: 101, limit: 100 }));
    expect(&mut world, &[100, 100, 49, 49, 50, 48, 0, 0]);
    assert_eq!(world.endpoint(1).counters().malformed, 0);
}

#[test]
fn what_is_in_the_packet_that_is_being_written_is_counted_and_is_work() {
    let (mut world, there, _) = World::pair(4, link(20));
    world.pass(SECOND);
    let (now, before) = (world.now(), world.endpoint(0).counters().messages_sent);
    assert!(!world.endpoint(0).has_work());
    for n in 1..=10u64 {
        send(&mut world, there, &[10]);
        let endpoint = world.endpoint(0);
        assert_eq!((endpoint.usage().sending as u64, endpoint.counters().messages_sent - before), (n, n));
        assert_eq!(endpoint.send_bytes(), n as usize * 12 - 2);
        assert!(endpoint.has_work());
        assert_eq!(endpoint.next_timeout(now), Some(now));
    }
    world.endpoint(0).flush(now);
    assert_eq!((world.endpoint(0).usage().sending, world.endpoint(0).counters().messages_sent - before), (10, 10));
    assert!(!world.endpoint(0).has_work());
}

#[test]
fn what_was_sent_in_the_turn_in_which_the_endpoint_goes_away_arrives() {
    for close in [false, true] {
        let (mut world, there, back) = World::pair(5, link(20));
        let now = world.now();
        send(&mut world, there, &[3, 0, 7, 1]);
        if close {
            world.endpoint(0).close(there, now);
            assert_eq!(world.endpoint(0).send(there, Class::Normal, &[], Payload::empty(), 0, now), Err(SendError::UnknownSession));
        }
        world.hosts[0].endpoint = None;
        let mut lengths = Vec::new();
        let mut closed = None;
        world.run(SECOND, |world| {
            for event in world.hosts[1].events.drain(..) {
                match event {
                    Event::Message { payload, .. } => lengths.push(payload.len()),
                    Event::Closed { session, reason } if session == back => closed = Some(reason),
                    _ => {}
                }
            }
            closed.is_some()
        });
        assert_eq!((lengths, closed), (vec![3, 0, 7, 1], Some(CloseReason::Remote)), "closed before: {close}");
    }
}

#[test]
fn a_message_given_up_in_the_turn_that_sent_it_ends_only_itself() {
    let config = EndpointConfig::default();
    let (mut world, there) = pair_with_mtu(6, 1344, config);
    let now = world.now();
    let ids = send(&mut world, there, &[1, 2, 3]);
    world.endpoint(0).abandon(there, ids[1], now);
    // Its packet is finished: these share another.
    let later = send(&mut world, there, &[4, 5]);
    world.endpoint(0).abandon(there, later[0], now);
    world.endpoint(0).abandon(there, later[0], now);
    world.endpoint(0).abandon(there, later[1], now);
    let alone = send(&mut world, there, &[6]);
    world.endpoint(0).abandon(there, alone[0], now);
    let mut got = Vec::new();
    world.run(SECOND, |world| {
        got.extend(world.messages(1).iter().map(|payload| payload.len()));
        world.endpoint(0).usage().sending == 0
    });
    assert_eq!(got[..3], [1, 2, 3]);
    assert_eq!((world.endpoint(0).usage().send_bytes, world.endpoint(0).usage().sending), (0, 0));
}

#[test]
fn classes_sessions_and_control_messages_between_lose_and_mix_up_nothing() {
    let mut world = World::new(7, LinkConfig { loss: 0.1, duplicate: 0.1, reorder: 0.1, ..link(20) });
    for name in ["a", "b", "c"] {
        world.host(name, EndpointConfig::default());
    }
    let sessions = [world.connect(0, 1).0, world.connect(0, 1).0, world.connect(0, 2).0];
    let mut random = fastrand::Rng::with_seed(7);
    let (mut sent, mut controls) = ([0, 0, 0], 0);
    let mut want = Vec::new();
    for n in 0..3_000u32 {
        let (at, now) = (random.usize(..3), world.now());
        let class = Class::ALL[random.usize(..Class::COUNT)];
        let len = [0, 0, 4, 30, 700, 1400][random.usize(..6)];
        let body = [&n.to_le_bytes()[..], &vec![n as u8; len]].concat();
        world.endpoint(0).send(sessions[at], class, &[], body.clone().into(), n.into(), now).unwrap();
        sent[at] += 1;
        want.push((class, body));
        if random.u8(..10) == 0 && controls < 40 {
            controls += 1;
            world.endpoint(0).send_control(sessions[at], b"control", now).unwrap();
        }
        if random.u8(..50) == 0 {
            world.turn();
        }
    }
    let (mut got, mut control) = (Vec::new(), 0);
    let all = want.len();
    world.run(30 * SECOND, |world| {
        for host in 1..3 {
            for event in world.hosts[host].events.drain(..) {
                match event {
                    Event::Message { class, payload, .. } => got.push((class, payload.to_vec())),
                    Event::Control { .. } => control += 1,
                    _ => {}
                }
            }
        }
        got.len() >= all && control >= controls
    });
    let number = |(_, body): &(Class, Vec<u8>)| u32::from_le_bytes(*body.first_chunk().unwrap());
    got.sort_by_key(number);
    assert!(got == want, "{} of {all} came", got.len());
    assert_eq!(control, controls);
    assert!(world.run(30 * SECOND, |world| world.endpoint(0).usage().sending == 0));
    assert_eq!(world.endpoint(0).send_bytes(), 0);
}

#[test]
fn a_stale_session_id_is_refused_while_a_packet_for_its_slot_s_next_session_is_written() {
    let (mut world, old, _) = World::pair(8, link(20));
    let now = world.now();
    world.endpoint(0).close(old, now);
    assert!(world.closed(0, old, SECOND).is_some());
    let (new, _) = world.connect(0, 1);
    assert_eq!((new.slot(), new == old), (old.slot(), false), "the slot is used again");
    world.messages(1);
    send(&mut world, new, &[1]);
    let now = world.now();
    let stale = world.endpoint(0).send(old, Class::Normal, &[], b"stale".as_slice().into(), 1, now);
    assert_eq!(stale, Err(SendError::UnknownSession));
    send(&mut world, new, &[1]);
    let mut got = 0;
    world.run(SECOND, |world| {
        got += world.messages(1).len();
        got == 2
    });
    assert_eq!(got, 2);
}

#[test]
fn one_kept_message_of_each_bundle_does_not_take_the_port_s_last_frame() {
    let mut world = World::new(9, link(20));
    for name in ["a", "b"] {
        world.host_on(name, EndpointConfig::default(), SimPortConfig { mtu: 1344, frames: 64 });
    }
    let (there, _) = world.connect(0, 1);
    let mut kept = Vec::new();
    for round in 0..300 {
        send(&mut world, there, &[8; 20]);
        let mut got = 0;
        assert!(
            world.run(SECOND, |world| {
                let messages = world.messages(1);
                got += messages.len();
                kept.extend(messages.into_iter().take(1));
                got == 20
            }),
            "round {round}: {got}"
        );
    }
    let (framed, copied): (Vec<_>, Vec<_>) = kept.iter().partition(|payload| payload.holds_frame());
    assert!(!framed.is_empty() && !copied.is_empty(), "{} and {}", framed.len(), copied.len());
    assert_eq!(world.endpoint(0).counters().retransmitted, 0);
}

#[test]
fn a_sender_short_of_frames_sends_all_in_the_end() {
    let mut world = World::new(10, LinkConfig { loss: 0.05, ..link(200) });
    for name in ["a", "b"] {
        world.host_on(
            name,
            EndpointConfig { message_slots: 65, ..EndpointConfig::default() },
            SimPortConfig { mtu: 256, frames: 8 },
        );
    }
    let (there, _) = world.connect(0, 1);
    let lengths: Vec<usize> = (0..2_000).map(|n| [0, 3, 90, 150][n % 4]).collect();
    send(&mut world, there, &lengths);
    let mut got = Vec::new();
    world.run(30 * SECOND, |world| {
        got.extend(world.messages(1).iter().map(|payload| payload.to_vec()));
        got.len() == lengths.len()
    });
    let mut want: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(n, &len)| pattern(len, n as u64)).collect();
    got.sort();
    want.sort();
    assert!(got == want, "{} of {} came", got.len(), want.len());
    assert!(world.run(30 * SECOND, |world| world.endpoint(0).usage().sending == 0));
}
