//! What a hostile or broken peer can not do, spoken by hand on the wire.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{CloseReason, EndpointConfig, Event, SendError, SessionId};
use tautline_net::port::sim::{SimPort, SimPortConfig, Verdict};
use tautline_net::port::{Address, Datagram, Port, Purpose};
use tautline_net::wire::{DATA_OVERHEAD, Fragment, Header, Hello, Kind, Welcome};
use tautline_testing::mob::parameters;

use crate::world::{World, link};

const SECOND: Duration = Duration::from_secs(1);
const MTU: usize = 1344;

/// A peer without an endpoint.
pub(crate) struct Rogue {
    port: SimPort,
    to: Address,
    /// The other side's id for the session.
    pub(crate) session: u64,
    number: u32,
}

impl Rogue {
    pub(crate) fn open(world: &mut World, name: &str, to: usize) -> Rogue {
        let config = SimPortConfig { mtu: MTU, ..SimPortConfig::default() };
        let port = world.network.port_with(name, config).unwrap();
        let mut rogue = Rogue { port, to: world.address(to), session: 0, number: 0 };
        rogue.hello(0, 0);
        for _ in 0..50 {
            world.pass(Duration::from_micros(50));
            for packet in rogue.receive() {
                let welcome = Welcome::parse(&packet);
                match Header::parse(&packet).unwrap().1 {
                    Kind::Challenge => {
                        let challenge = welcome.unwrap();
                        rogue.hello(challenge.token.get(), challenge.token_time.get());
                    }
                    Kind::Welcome => rogue.session = welcome.unwrap().session.get(),
                    _ => {}
                }
            }
            if rogue.session != 0 {
                return rogue;
            }
        }
        panic!("no session");
    }

    fn hello(&mut self, token: u64, token_time: u64) {
        let parameters = parameters(MTU);
        let mut packet = vec![0; Hello::PACKET];
        Header::new(Kind::Hello).emit(&mut packet);
        let hello =
            Hello { session: 5.into(), incarnation: 77.into(), parameters, token: token.into(), token_time: token_time.into() };
        hello.emit(&mut packet);
        self.send(packet);
    }

    /// A packet that acknowledges nothing.
    fn say_nothing(&mut self) {
        let packet = self.begin(Kind::Ack);
        self.send(packet);
    }

    /// A packet that acknowledges everything up to this number.
    fn acknowledge(&mut self, largest: u32) {
        let mut packet = self.begin(Kind::Ack);
        let header = *Header::parse(&packet).unwrap().0;
        Header { ack_largest: largest.into(), ack_bits: u64::MAX.into(), ..header }.emit(&mut packet);
        self.send(packet);
    }

    /// The first fragment of a long message.
    fn promise(&mut self, slot: u16, sequence: u32, total: u32) {
        let mut packet = self.begin(Kind::Data);
        packet.resize(MTU, 1);
        let fragment = Fragment {
            slot: (64 + slot).into(),
            class: Class::Normal as u8,
            shift: 0,
            sequence: sequence.into(),
            total: total.into(),
            offset: 0.into(),
        };
        fragment.emit(&mut packet);
        self.send(packet);
    }

    pub(crate) fn begin(&mut self, kind: Kind) -> Vec<u8> {
        self.number += 1;
        let mut packet = vec![0; Header::LEN];
        Header { number: self.number.into(), session: self.session.into(), ..Header::new(kind) }.emit(&mut packet);
        packet
    }

    pub(crate) fn send(&mut self, mut packet: Vec<u8>) {
        Header::seal(&mut packet);
        let mut frames = Vec::new();
        assert_eq!(self.port.allocate(Purpose::Transmit, &mut frames, 1), 1);
        let mut frame = frames.pop().unwrap();
        frame.set_range(0, packet.len());
        frame.data_mut().copy_from_slice(&packet);
        self.port.transmit(&mut Vec::from([Datagram { frame, peer: self.to }])).unwrap();
    }

    pub(crate) fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut arrived = Vec::new();
        self.port.receive(&mut arrived, 10_000).unwrap();
        arrived.into_iter().map(|datagram| datagram.frame.data().to_vec()).collect()
    }

    /// Lets time pass, during which it talks and acknowledges nothing.
    fn chat(&mut self, world: &mut World, span: Duration) {
        // Nor does it listen: what it is sent would wait before its port, and hold up the world's clock.
        world.network.set_filter(|passing| if passing.to == "rogue" { Verdict::Lose } else { Verdict::Pass });
        world.pass(Duration::from_millis(1));
        self.receive();
        let end = world.now() + span;
        while world.now() < end {
            self.say_nothing();
            world.pass(SECOND / 2);
        }
        world.network.clear_filter();
    }
}

fn victim() -> World {
    let mut world = World::new(40, link(10));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig::default());
    world
}

fn accepted(world: &mut World, at: usize) -> SessionId {
    let mut events = world.hosts[at].events.drain(..);
    events.find_map(|event| if let Event::Established { session, .. } = event { Some(session) } else { None }).expect("accepted")
}

#[test]
fn a_talkative_peer_that_finishes_no_message_takes_its_share_of_memory_at_most_and_not_for_long() {
    let mut world = victim();
    let mut rogue = Rogue::open(&mut world, "rogue", 1);
    for slot in 0..8 {
        rogue.promise(slot, 1, 64 << 20);
    }
    world.pass(Duration::from_millis(1));
    let held = world.endpoint(1).reassembly_bytes();
    assert!((64 << 20..=128 << 20).contains(&held), "{held}");
    let (there, _) = world.connect(0, 1);
    world.send(0, there, Class::Normal, vec![1; 10_000], 1).unwrap();
    assert!(world.run(SECOND, |world| world.hosts[1].events.iter().any(|event| matches!(event, Event::Message { .. }))));
    rogue.chat(&mut world, 20 * SECOND);
    assert_eq!(world.endpoint(1).reassembly_bytes(), 0);
    assert_eq!(world.endpoint(1).session_count(), 1, "the honest peer's session");
}

#[test]
fn a_talkative_peer_that_was_told_to_wait_for_memory_and_never_uses_it_keeps_it_not_for_long() {
    let mut world = victim();
    let names = ["rogue-0", "rogue-1", "rogue-2"];
    let mut rogues = names.map(|name| Rogue::open(&mut world, name, 1));
    let largest = Rc::new(Cell::new(0));
    let heard = largest.clone();
    world.network.set_filter(move |passing| {
        if passing.to == names[2] {
            heard.set(heard.get().max(Header::parse(passing.bytes).unwrap().0.number.get()));
        }
        if names.contains(&passing.to) { Verdict::Lose } else { Verdict::Pass }
    });
    // Two take the half that such peers share, so that the third is told to wait.
    for (at, slot) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)] {
        rogues[at].promise(slot, 1, 64 << 20);
        world.pass(Duration::from_millis(1));
    }
    assert_eq!(world.endpoint(1).counters().deferred, 1);
    let mut alone = false;
    for _ in 0..60 {
        rogues[..2].iter_mut().for_each(Rogue::say_nothing);
        rogues[2].acknowledge(largest.get());
        world.pass(SECOND / 2);
        alone |= world.endpoint(1).reassembly_bytes() == 64 << 20;
    }
    assert!(alone, "it never got the memory");
    assert_eq!((world.endpoint(1).reassembly_bytes(), world.endpoint(1).session_count()), (0, 0));
}

#[test]
fn a_peer_that_talks_and_acknowledges_nothing_is_as_good_as_dead() {
    let mut world = victim();
    let mut rogue = Rogue::open(&mut world, "rogue", 1);
    world.pass(Duration::from_millis(1));
    let session = accepted(&mut world, 1);
    world.send(1, session, Class::Normal, vec![1; 100], 1).unwrap();
    let now = world.now();
    world.endpoint(1).close(session, now);
    rogue.chat(&mut world, 15 * SECOND);
    let ended = world.hosts[1].events.drain(..).find_map(|event| match event {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(ended, Some(CloseReason::PeerDead), "the close waits no longer than this");
    assert_eq!((world.endpoint(1).session_count(), world.endpoint(1).send_bytes()), (0, 0));
}

#[test]
fn as_many_slots_as_the_wire_can_offer_are_no_trouble() {
    let mut world = World::new(41, link(10));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig { message_slots: u16::MAX, ..EndpointConfig::default() });
    let (there, _) = world.connect(0, 1);
    let mut accepted = 0;
    for token in 0..70_000 {
        accepted += usize::from(world.send(0, there, Class::Normal, vec![1; 8], token).is_ok());
    }
    let mut got = 0;
    assert!(world.run(5 * SECOND, |world| {
        got += world.messages(1).len();
        got == accepted
    }));
}

#[test]
fn a_limit_below_one_packet_is_obeyed() {
    let mut world = World::new(42, link(10));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig { max_message: 100, ..EndpointConfig::default() });
    let (there, _) = world.connect(0, 1);
    assert_eq!(world.send(0, there, Class::Normal, vec![1; 101], 1), Err(SendError::TooLarge { len: 101, limit: 100 }));
    assert_eq!(world.send(0, there, Class::Normal, vec![1; 100], 1), Ok(()));
}

#[test]
fn a_late_copy_of_an_old_hello_does_not_end_the_sessions_of_a_restarted_peer() {
    let mut world = victim();
    let hellos: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let seen = hellos.clone();
    world.network.set_filter(move |passing| {
        if passing.from == "a" && passing.bytes.get(1) == Some(&(Kind::Hello as u8)) {
            seen.borrow_mut().push(passing.bytes.to_vec());
        }
        Verdict::Pass
    });
    world.connect(0, 1);
    let old = hellos.borrow().last().unwrap().clone();
    world.kill(0);
    world.pass(Duration::from_millis(50));
    world.start(0);
    let (there, _) = world.connect(0, 1);
    world.pass(Duration::from_millis(50));
    world.network.inject("a", "b", &old).unwrap();
    assert_eq!(world.closed(0, there, 2 * SECOND), None);
    assert_eq!(world.endpoint(1).session_count(), 1);
}

#[test]
fn one_address_gets_no_more_than_its_share_of_sessions() {
    let mut world = World::new(43, link(10));
    world.host("a", EndpointConfig::default());
    world.host("b", EndpointConfig { max_sessions_per_peer: 3, ..EndpointConfig::default() });
    for _ in 0..3 {
        world.connect(0, 1);
    }
    let fourth = world.open(0, 1);
    assert_eq!(world.closed(0, fourth, SECOND), Some((CloseReason::Refused, vec![])));
}

#[test]
fn lost_hellos_do_not_stretch_the_servers_measured_round_trip() {
    let mut world = victim();
    let mut hellos = 0;
    world.network.set_filter(move |passing| {
        if passing.from == "a" && passing.bytes[1] == Kind::Hello as u8 {
            hellos += 1;
            if (2..=4).contains(&hellos) {
                return Verdict::Lose;
            }
        }
        Verdict::Pass
    });
    let (_, back) = world.connect(0, 1);
    world.send(1, back, Class::Normal, vec![1], 1).unwrap();
    world.pass(Duration::from_millis(5));
    let round_trip = world.endpoint(1).round_trip(back).unwrap();
    assert!(round_trip.minimum < Duration::from_micros(200), "{round_trip:?}");
}

#[test]
fn what_is_sent_again_is_counted() {
    let mut world = victim();
    let (there, _) = world.connect(0, 1);
    let mut first = true;
    world.network.set_filter(move |passing| {
        let data = passing.bytes[1] == Kind::Data as u8 && passing.bytes.len() > DATA_OVERHEAD;
        if data && std::mem::take(&mut first) { Verdict::Lose } else { Verdict::Pass }
    });
    world.send(0, there, Class::Normal, vec![1; 10], 1).unwrap();
    assert!(world.run(SECOND, |world| !world.messages(1).is_empty()));
    world.pass(Duration::from_millis(5));
    assert_eq!(world.endpoint(0).counters().retransmitted, 1);
}
