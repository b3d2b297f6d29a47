//! Acknowledgements that several sessions with one peer share a packet for: they say of each what it has received, and nothing of any other.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{EndpointConfig, SessionId};
use tautline_net::port::sim::Verdict;
use tautline_net::wire::{Acknowledgement, Fragment, Header, Kind};

use crate::abuse::Rogue;
use crate::world::{World, link};

/// A packet that was seen: from, to, bytes.
type Seen = (String, String, Vec<u8>);

fn watch(world: &World, lose: impl Fn(&[u8]) -> bool + 'static) -> Rc<RefCell<Vec<Seen>>> {
    let seen: Rc<RefCell<Vec<Seen>>> = Rc::default();
    let remember = seen.clone();
    world.network.set_filter(move |passing| {
        remember.borrow_mut().push((passing.from.to_owned(), passing.to.to_owned(), passing.bytes.to_vec()));
        if lose(passing.bytes) { Verdict::Lose } else { Verdict::Pass }
    });
    seen
}

/// The kind of a packet, and the sessions that it acknowledges something of.
fn acknowledged(packet: &[u8]) -> (Kind, Vec<u64>) {
    let (header, kind) = Header::parse(packet).unwrap();
    let mut sessions = vec![header.session.get()];
    if kind == Kind::Acks {
        sessions.extend(Acknowledgement::parse(packet).unwrap().iter().map(|one| one.session.get()));
    }
    (kind, sessions)
}

fn connect_many(world: &mut World, from: usize, to: usize, count: usize) -> Vec<SessionId> {
    (0..count).map(|_| world.connect(from, to).0).collect()
}

fn ids(sessions: &[SessionId]) -> Vec<u64> {
    let mut ids: Vec<u64> = sessions.iter().map(|session| session.as_u64()).collect();
    ids.sort_unstable();
    ids
}

fn sending(world: &mut World, at: usize) -> usize {
    world.endpoint(at).usage().sending
}

#[test]
fn sessions_with_one_peer_share_a_packet_for_their_acknowledgements() {
    let mut world = World::new(1, link(5));
    let (a, b) = (world.host("a", EndpointConfig::default()), world.host("b", EndpointConfig::default()));
    let sessions = connect_many(&mut world, a, b, 20);
    world.pass(Duration::from_millis(5));
    let seen = watch(&world, |_| false);
    for session in &sessions[..10] {
        world.send(a, *session, Class::Normal, vec![1; 32], 0).unwrap();
    }
    world.pass(Duration::from_millis(1));
    assert_eq!(sending(&mut world, a), 0);
    let answers: Vec<_> =
        seen.borrow().iter().filter(|(from, ..)| from == "b").map(|(_, _, packet)| acknowledged(packet)).collect();
    let [(Kind::Acks, named)] = &answers[..] else { panic!("{answers:?}") };
    let mut named = named.clone();
    named.sort_unstable();
    assert_eq!(named, ids(&sessions[..10]), "of those that owe one, once each");
}

#[test]
fn what_did_not_arrive_is_not_acknowledged_by_those_that_did() {
    let mut world = World::new(2, link(5));
    let (a, b) = (world.host("a", EndpointConfig::default()), world.host("b", EndpointConfig::default()));
    let sessions = connect_many(&mut world, a, b, 8);
    world.pass(Duration::from_millis(5));
    // The payload tells whose it is.
    watch(&world, |packet| packet.len() > Header::LEN + Fragment::LEN && packet[Header::LEN + Fragment::LEN] % 2 == 1);
    for (number, session) in sessions.iter().enumerate() {
        world.send(a, *session, Class::Normal, vec![number as u8; 32], 0).unwrap();
    }
    world.pass(Duration::from_millis(1));
    assert_eq!(sending(&mut world, a), 4, "half of them were lost, and are lost again each time");
    world.network.set_filter(|_| Verdict::Pass);
    world.pass(Duration::from_secs(1));
    assert_eq!((sending(&mut world, a), world.messages(b).len()), (0, 8));
}

#[test]
fn each_peer_gets_those_of_its_own_sessions() {
    let mut world = World::new(3, link(5));
    let hosts: Vec<usize> = (0..7).map(|n| world.host(&format!("peer{n}"), EndpointConfig::default())).collect();
    let server = world.host("server", EndpointConfig::default());
    let sessions: Vec<Vec<SessionId>> = hosts.iter().map(|host| connect_many(&mut world, *host, server, 6)).collect();
    world.pass(Duration::from_millis(5));
    let seen = watch(&world, |_| false);
    // In turns, and more peers than packets are open at once.
    for turn in 0..6 {
        for (host, sessions) in hosts.iter().zip(&sessions) {
            world.send(*host, sessions[turn], Class::Normal, vec![1; 32], 0).unwrap();
        }
    }
    world.pass(Duration::from_millis(1));
    for (host, sessions) in hosts.iter().zip(&sessions) {
        assert_eq!(sending(&mut world, *host), 0);
        let to = format!("peer{host}");
        let mut named: Vec<u64> = Vec::new();
        for (_, _, packet) in seen.borrow().iter().filter(|(from, at, _)| from == "server" && *at == to) {
            named.extend(acknowledged(packet).1);
        }
        named.sort_unstable();
        assert_eq!(named, ids(sessions), "{to}");
    }
}

#[test]
fn a_session_that_misses_something_says_so_in_a_packet_of_its_own() {
    let mut world = World::new(4, link(5));
    let (a, b) = (world.host("a", EndpointConfig::default()), world.host("b", EndpointConfig::default()));
    let sessions = connect_many(&mut world, a, b, 3);
    world.pass(Duration::from_millis(5));
    let seen = watch(&world, |packet| packet.len() > 100);
    world.send(a, sessions[0], Class::Normal, vec![1; 200], 0).unwrap();
    world.pass(Duration::from_micros(20));
    for session in &sessions {
        world.send(a, *session, Class::Normal, vec![1; 32], 0).unwrap();
    }
    world.pass(Duration::from_micros(30));
    world.endpoint(b).before_wait(Default::default());
    let answers: Vec<_> =
        seen.borrow().iter().filter(|(from, ..)| from == "b").map(|(_, _, packet)| acknowledged(packet)).collect();
    for (kind, named) in &answers {
        assert!(*kind != Kind::Acks || !named[1..].contains(&sessions[0].as_u64()), "{answers:?}");
    }
    assert!(answers.iter().any(|(kind, named)| *kind == Kind::Ack && named == &[sessions[0].as_u64()]), "{answers:?}");
}

/// A victim that has sent a message each to an honest peer, which does not hear it, and to a rogue.
fn besieged(seed: u64) -> (World, Rogue, SessionId) {
    let mut world = World::new(seed, link(5));
    let (honest, victim) = (world.host("honest", EndpointConfig::default()), world.host("victim", EndpointConfig::default()));
    let (_, to_honest) = world.connect(honest, victim);
    let rogue = Rogue::open(&mut world, "rogue", victim);
    world.pass(Duration::from_millis(5));
    world.network.set_filter(|passing| if passing.from == "victim" { Verdict::Lose } else { Verdict::Pass });
    let to_rogue = SessionId::from_u64(rogue.session);
    for session in [to_honest, to_rogue] {
        world.send(victim, session, Class::Normal, vec![1; 32], 0).unwrap();
    }
    world.turn();
    assert_eq!(sending(&mut world, victim), 2);
    (world, rogue, to_honest)
}

const VICTIM: usize = 1;

fn list(rogue: &mut Rogue, list: &[Acknowledgement]) -> Vec<u8> {
    let mut packet = rogue.begin(Kind::Acks);
    for one in list {
        let at = packet.len();
        packet.resize(at + Acknowledgement::LEN, 0);
        one.emit(&mut packet[at..]);
    }
    packet
}

#[test]
fn nobody_acknowledges_what_was_sent_to_another_address() {
    let (mut world, mut rogue, to_honest) = besieged(5);
    let before = world.endpoint(VICTIM).counters();
    // The number is right, and the session exists.
    let packet = list(&mut rogue, &[1, 2, 3].map(|largest| Acknowledgement::new(to_honest.as_u64(), largest, 0)));
    rogue.send(packet);
    world.pass(Duration::from_micros(20));
    let after = world.endpoint(VICTIM).counters();
    assert_eq!((after.stray - before.stray, sending(&mut world, VICTIM)), (3, 2));
    let own = rogue.session;
    let packet = list(&mut rogue, &[Acknowledgement::new(own, 1, 0)]);
    rogue.send(packet);
    world.pass(Duration::from_micros(20));
    assert_eq!(sending(&mut world, VICTIM), 1, "its own it may");
}

#[test]
fn a_malformed_list_is_counted_and_nothing_of_it_is_taken() {
    let (mut world, mut rogue, _) = besieged(6);
    let good = Acknowledgement::new(rogue.session, 1, 0);
    let packet = list(&mut rogue, &[good]);
    let empty = list(&mut rogue, &[]);
    let with_gap = list(&mut rogue, &[good, Acknowledgement { ack_delay: 0.into(), ..good }]);
    let reserved = list(&mut rogue, &[good, Acknowledgement { reserved: 1.into(), ..good }]);
    let mut ragged = list(&mut rogue, &[good]);
    ragged.push(0);
    for (number, wrong) in [packet[..packet.len() - 1].to_vec(), empty, with_gap, reserved, ragged].into_iter().enumerate() {
        let before = world.endpoint(VICTIM).counters().malformed;
        rogue.send(wrong);
        world.pass(Duration::from_micros(20));
        assert_eq!(world.endpoint(VICTIM).counters().malformed, before + 1, "number {number}");
        assert_eq!(sending(&mut world, VICTIM), 2, "number {number}");
    }
}

#[test]
fn one_that_can_not_be_true_is_counted_and_the_others_are_taken() {
    let (mut world, mut rogue, _) = besieged(7);
    let before = world.endpoint(VICTIM).counters().malformed;
    // Of what was never sent; and then one that is right.
    let wrong = Acknowledgement::new(rogue.session, 1000, 0);
    let right = Acknowledgement::new(rogue.session, 1, 0);
    let packet = list(&mut rogue, &[wrong, right]);
    rogue.send(packet);
    world.pass(Duration::from_micros(20));
    assert_eq!(world.endpoint(VICTIM).counters().malformed, before + 1);
    assert_eq!(sending(&mut world, VICTIM), 1);
}

#[test]
fn those_in_a_packet_whose_own_session_is_over_are_taken_and_a_copy_of_a_packet_is_not() {
    let (mut world, mut rogue, _) = besieged(8);
    let before = world.endpoint(VICTIM).counters();
    let own = rogue.session;
    let mut packet = list(&mut rogue, &[Acknowledgement::new(own, 1, 0)]);
    let header = *Header::parse(&packet).unwrap().0;
    Header { session: 99.into(), ..header }.emit(&mut packet);
    rogue.send(packet);
    world.pass(Duration::from_micros(20));
    let after = world.endpoint(VICTIM).counters();
    assert_eq!((after.stray - before.stray, after.resets - before.resets, sending(&mut world, VICTIM)), (1, 1, 1));
    let to_rogue = SessionId::from_u64(rogue.session);
    world.send(VICTIM, to_rogue, Class::Normal, vec![1; 32], 0).unwrap();
    world.turn();
    let packet = list(&mut rogue, &[Acknowledgement::new(99, 1, 0)]);
    rogue.send(packet.clone());
    world.pass(Duration::from_micros(20));
    let first = world.endpoint(VICTIM).counters();
    rogue.send(packet);
    world.pass(Duration::from_micros(20));
    let second = world.endpoint(VICTIM).counters();
    assert_eq!((second.duplicate_packets - first.duplicate_packets, second.stray - first.stray), (1, 0));
}
