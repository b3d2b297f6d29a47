//! A peer that speaks the wire format and says anything in it, in packets that are almost right: nothing breaks, memory stays within its
//! bound and comes back, and an honest peer is served. In seeds: see `tautline_testing::seeds`.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{EndpointConfig, Event, SessionId};
use tautline_net::port::sim::Verdict;
use tautline_net::wire::{Acknowledgement, Fragment, Header, Item, ItemKind, Kind};
use tautline_testing::seeds;

use crate::abuse::Rogue;
use crate::world::{World, link};

/// What a packet of the rogue's MTU holds of a message.
const FRAGMENT: u32 = 1296;
const REASSEMBLY: usize = 400_000;
const VICTIM: usize = 1;

#[test]
fn a_peer_that_says_anything_breaks_nothing_in_seeds() {
    seeds::each(|seed| Babble::new(seed).go());
}

struct Babble {
    random: fastrand::Rng,
    world: World,
    honest: SessionId,
    /// What the victim calls that.
    honest_at_victim: SessionId,
    rogue: Rogue,
    /// The rogue's session at its victim; `None` once that has ended.
    session: Option<SessionId>,
    caught: Rc<RefCell<Vec<Vec<u8>>>>,
    /// Whether it numbers its packets as it should.
    orderly: bool,
    mine: u32,
    /// The largest number that it was sent.
    theirs: u32,
    sequences: Vec<u32>,
    /// Slot, sequence and length of messages that it was sent.
    seen: Vec<(u16, u32, u32)>,
    token: u64,
    undelivered: HashSet<u64>,
}

impl Babble {
    fn new(seed: u64) -> Babble {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(seed, link(10));
        let config = EndpointConfig {
            peer_timeout: Duration::from_millis(500),
            max_message: 300_000,
            reassembly_bytes: REASSEMBLY,
            message_slots: random.u16(65..200),
            ..EndpointConfig::default()
        };
        world.host("a", config.clone());
        world.host("b", config);
        let (honest, honest_at_victim) = world.connect(0, VICTIM);
        world.hosts[VICTIM].events.clear();
        let mut rogue = Rogue::open(&mut world, "rogue", VICTIM);
        world.pass(Duration::from_millis(1));
        let session = world.hosts[VICTIM].events.drain(..).find_map(|event| match event {
            Event::Established { session, .. } => Some(session),
            _ => None,
        });
        let caught: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let catch = caught.clone();
        world.network.set_filter(move |passing| {
            if passing.to == "rogue" {
                catch.borrow_mut().push(passing.bytes.to_vec());
                return Verdict::Lose;
            }
            Verdict::Pass
        });
        rogue.receive();
        let orderly = random.bool();
        Babble {
            random,
            world,
            honest,
            honest_at_victim,
            rogue,
            session,
            caught,
            orderly,
            mine: 0,
            theirs: 0,
            sequences: vec![0; 300],
            seen: Vec::new(),
            token: 0,
            undelivered: HashSet::new(),
        }
    }

    fn go(mut self) {
        for _ in 0..self.random.u32(50..600) {
            self.listen();
            match self.random.u32(0..10) {
                0 | 1 => self.victim_speaks(),
                2 => self.world.pass(Duration::from_micros(self.random.u64(1..30_000))),
                _ => self.babble(),
            }
            self.check();
            if self.session.is_none() {
                break;
            }
        }
        let Babble { mut world, honest, rogue, .. } = self;
        drop(rogue);
        world.pass(Duration::from_millis(50));
        world.hosts[VICTIM].events.clear();
        world.send(0, honest, Class::Normal, vec![1; 1000], 1).unwrap();
        let served = |world: &mut World| {
            let mut events = world.hosts[VICTIM].events.iter();
            events.any(|event| matches!(event, Event::Message { payload, .. } if payload.len() == 1000))
        };
        assert!(world.run(Duration::from_secs(3), served), "the honest peer is not served");
        world.pass(Duration::from_secs(10));
        let victim = world.endpoint(VICTIM);
        assert_eq!(victim.session_count(), 1, "the rogue's session is not over");
        assert_eq!((victim.reassembly_bytes(), victim.send_bytes()), (0, 0));
    }

    fn listen(&mut self) {
        for packet in self.caught.borrow_mut().drain(..) {
            let Ok((header, kind)) = Header::parse(&packet) else { continue };
            self.theirs = self.theirs.max(header.number.get());
            if kind == Kind::Data
                && let Ok((fragment, _)) = Fragment::parse(&packet)
            {
                self.seen.push((fragment.slot.get(), fragment.sequence.get(), fragment.total.get()));
            }
        }
    }

    fn victim_speaks(&mut self) {
        let Some(session) = self.session else { return };
        let len = if self.random.bool() { self.random.usize(0..2000) } else { self.random.usize(0..200_000) };
        self.token += 1;
        let class = Class::ALL[self.random.usize(0..Class::COUNT)];
        // It may be full: the rogue acknowledges what it likes.
        let _ = self.world.send(VICTIM, session, class, vec![1; len], self.token);
        if self.random.u32(0..8) == 0 {
            let now = self.world.now();
            let _ = self.world.endpoint(VICTIM).send_control(session, b"x", now);
        }
    }

    /// A number near to what it should be, or not.
    fn near(&mut self, number: u32) -> u32 {
        match self.random.u32(0..20) {
            0 => self.random.u32(..),
            1 => number.wrapping_add(1 << 31),
            2 => number.wrapping_sub(self.random.u32(0..200)),
            _ => number.wrapping_add(self.random.u32(0..4)),
        }
    }

    fn babble(&mut self) {
        let kind = [Kind::Data, Kind::Data, Kind::Control, Kind::Control, Kind::Ack, Kind::Acks][self.random.usize(0..6)];
        self.mine = if self.orderly { self.mine + 1 } else { self.near(self.mine) };
        let tenth = self.random.u32(0..10) == 0;
        let acknowledged = if tenth { self.near(self.theirs) } else { self.theirs.saturating_sub(self.random.u32(0..6)) };
        let bits = [u64::MAX, 0, self.random.u64(..)][self.random.usize(0..3)];
        let mut packet = vec![0; Header::LEN];
        Header {
            number: self.mine.into(),
            session: self.rogue.session.into(),
            ack_largest: acknowledged.into(),
            ack_bits: bits.into(),
            ack_delay: self.random.u16(..).into(),
            ..Header::new(kind)
        }
        .emit(&mut packet);
        match kind {
            Kind::Data => self.add_fragment(&mut packet),
            Kind::Control => self.add_items(&mut packet),
            Kind::Acks => self.add_acknowledgements(&mut packet, acknowledged),
            _ => {}
        }
        if self.random.u32(0..30) == 0 {
            // The checksum's place stays.
            packet.truncate(self.random.usize(0..=packet.len()).max(24));
        }
        self.rogue.send(packet);
        if self.random.bool() {
            self.world.pass(Duration::from_micros(self.random.u64(1..300)));
        }
    }

    fn add_fragment(&mut self, packet: &mut Vec<u8>) {
        let random = &mut self.random;
        let slot = random.u16(0..210);
        let sequence = &mut self.sequences[usize::from(slot)];
        *sequence = sequence.wrapping_add(random.u32(0..2));
        let total = match random.u32(0..4) {
            0 => random.u32(..),
            1 => random.u32(0..=FRAGMENT),
            _ => random.u32(FRAGMENT + 1..300_000),
        };
        let offset = random.u32(0..total / FRAGMENT + 2).wrapping_mul(FRAGMENT);
        let rest = total.saturating_sub(offset).min(FRAGMENT) as usize;
        let len = if random.u32(0..8) == 0 { random.usize(0..=FRAGMENT as usize) } else { rest };
        let class = if slot < 64 && random.u32(0..4) > 0 { Fragment::CONTROL } else { random.u8(0..5) };
        packet.resize(Header::LEN + Fragment::LEN + len, 7);
        let (sequence, total, offset) = ((*sequence).into(), total.into(), offset.into());
        Fragment { slot: slot.into(), class, shift: 0, sequence, total, offset }.emit(packet);
    }

    fn add_items(&mut self, packet: &mut Vec<u8>) {
        use ItemKind::{Abandon, Close, Defer, Grant, Ping};
        for _ in 0..self.random.u32(1..5) {
            let stranger = self.seen.is_empty() || self.random.u32(0..6) == 0;
            let (slot, sequence, total) = if stranger {
                (self.random.u16(0..300), self.random.u32(0..5), self.random.u32(..))
            } else {
                self.seen[self.seen.len() - 1 - self.random.usize(0..self.seen.len().min(30))]
            };
            let known = [Ping, Grant, Grant, Abandon, Defer, Defer, Defer][self.random.usize(0..7)] as u8;
            let kind = match self.random.u32(0..400) {
                0 => Close as u8,
                1..40 => 77,
                _ => known,
            };
            let value = if self.random.bool() { u64::from(total) } else { self.random.u64(0..200_000) };
            let item = Item { kind, shift: 0, slot: slot.into(), sequence: sequence.into(), value: value.into() };
            packet.extend_from_slice(zerocopy::IntoBytes::as_bytes(&item));
        }
    }

    /// Of its own session, of the honest peer's, and of none.
    fn add_acknowledgements(&mut self, packet: &mut Vec<u8>, acknowledged: u32) {
        for _ in 0..self.random.u32(0..6) {
            let sessions = [self.rogue.session, self.honest_at_victim.as_u64(), self.random.u64(..)];
            let session = sessions[self.random.usize(0..3)];
            let largest = if self.random.bool() { acknowledged } else { self.near(self.theirs) };
            let one = Acknowledgement::new(session, largest, self.random.u64(0..1_000_000));
            let at = packet.len();
            packet.resize(at + Acknowledgement::LEN, 0);
            one.emit(&mut packet[at..]);
        }
    }

    fn check(&mut self) {
        for event in self.world.hosts[VICTIM].events.drain(..) {
            match event {
                Event::Undelivered { token, .. } => assert!(self.undelivered.insert(token), "message {token} ended twice"),
                Event::Closed { session, .. } if Some(session) == self.session => self.session = None,
                _ => {}
            }
        }
        assert!(self.world.endpoint(VICTIM).reassembly_bytes() <= REASSEMBLY);
    }
}
