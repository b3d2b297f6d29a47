//! Packets of one message that follow each other are taken together. That changes nothing but its cost: beside an endpoint that gets its packets as they are
//! sent stands a twin that gets some junk after each, so that to it none follows another, and both do the same, whatever happens to the packets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use fastrand::Rng;
use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{Endpoint, EndpointConfig, EndpointCounters, Event, SessionId};
use tautline_net::frame::Frame;
use tautline_net::payload::Payload;
use tautline_net::port::{Address, Capabilities, Datagram, FramesOut, LocalName, Port, PortCounters, PortError, Purpose};

/// Packets on their way to or from a port.
type Wire = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// A port whose packets the test carries.
struct ByHand {
    local: Address,
    peer: Address,
    integrity: bool,
    arriving: Wire,
    sent: Wire,
}

const MTU: usize = 500;

/// A datagram that is no packet.
const JUNK: &[u8] = &[1];

impl Port for ByHand {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: MTU, integrity: self.integrity, segmentation: true }
    }

    fn local_address(&self) -> Address {
        self.local
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        let mut arriving = self.arriving.borrow_mut();
        let count = arriving.len().min(max);
        into.extend(arriving.drain(..count).map(|bytes| {
            let mut frame = Frame::detached(MTU);
            frame.set_range(0, bytes.len());
            frame.data_mut().copy_from_slice(&bytes);
            Datagram { frame, peer: self.peer }
        }));
        Ok(count)
    }

    fn receive_frames_low(&self) -> bool {
        false
    }

    fn frames_out(&self) -> FramesOut {
        FramesOut::default()
    }

    fn allocate(&mut self, _: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        into.extend((0..count).map(|_| Frame::detached(MTU)));
        count
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        let count = burst.len();
        self.sent.borrow_mut().extend(burst.drain(..).map(|datagram| datagram.frame.to_vec()));
        Ok(count)
    }

    fn attach_wait(&mut self, _: &mio::Registry, _: mio::Token, _: &Arc<mio::Waker>) -> io::Result<()> {
        Ok(())
    }

    fn prepare_wait(&mut self) -> bool {
        true
    }

    fn finish_wait(&mut self) {}

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

struct Side {
    endpoint: Endpoint,
    arriving: Wire,
    sent: Wire,
}

impl Side {
    fn new(names: [&str; 2], integrity: bool, seed: u64, now: Time) -> Side {
        let [local, peer] = names.map(|name| Address::Local(LocalName::new(name).unwrap()));
        let (arriving, sent) = (Wire::default(), Wire::default());
        let port = ByHand { local, peer, integrity, arriving: arriving.clone(), sent: sent.clone() };
        let config = EndpointConfig { seed: Some(seed), burst: 1024, ..EndpointConfig::default() };
        Side { endpoint: Endpoint::new(Box::new(port), config, now), arriving, sent }
    }

    /// A turn; what was sent, and what happened.
    fn turn(&mut self, packets: Vec<Vec<u8>>, now: Time) -> (Vec<Vec<u8>>, Vec<String>) {
        self.arriving.borrow_mut().extend(packets);
        self.endpoint.poll(now);
        let mut events = Vec::new();
        while let Some(event) = self.endpoint.next_event() {
            events.push(match &event {
                Event::Message { session, payload, .. } => format!("{session:?}: {} bytes, {:x}", payload.len(), digest(payload)),
                other => format!("{other:?}"),
            });
        }
        self.endpoint.flush(now);
        (self.sent.borrow_mut().drain(..).collect(), events)
    }
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| u64::wrapping_add(u64::wrapping_mul(sum, 31), u64::from(*byte)))
}

/// What becomes of a burst on its way.
fn mangle(burst: Vec<Vec<u8>>, calm: bool, damage: bool, random: &mut Rng) -> Vec<Vec<u8>> {
    if calm {
        return burst;
    }
    let mut arrived: Vec<Vec<u8>> = Vec::new();
    for packet in burst {
        match random.u32(..60) {
            0 => {}
            1 => arrived.extend([packet.clone(), packet]),
            2 => arrived.insert(random.usize(..=arrived.len()), packet),
            3 if damage => {
                let (mut packet, at) = (packet, random.usize(..48));
                packet[at] ^= 1 << random.u32(..8);
                arrived.push(packet);
            }
            4 if damage => arrived.push(packet[..random.usize(..packet.len())].to_vec()),
            _ => arrived.push(packet),
        }
    }
    if damage && !arrived.is_empty() && random.u32(..6) == 0 {
        // A copy of one, and what follows it, all wrong in the same way: they would follow each other, but nobody would take them.
        let from = random.usize(..arrived.len());
        // Often the version.
        let at = if random.bool() { 0 } else { random.usize(..48) };
        let bit = 1 << random.u32(..8);
        let mut rest = arrived.split_off(from);
        arrived.push(rest[0].clone());
        for packet in rest.iter_mut().filter(|packet| packet.len() > at) {
            packet[at] ^= bit;
        }
        arrived.extend(rest);
    }
    arrived
}

fn counted(side: &Side) -> EndpointCounters {
    // Junk is counted, and nothing else of it.
    EndpointCounters { malformed: 0, ..side.endpoint.counters() }
}

/// `integrity`: no checksums are looked at.
fn run(seed: u64, integrity: bool, damage: bool) {
    let mut random = Rng::with_seed(seed);
    let mut now = Time::from_nanos(1_000_000_000);
    let mut sender = Side::new(["a", "b"], integrity, 1, now);
    let mut twins = [(); 2].map(|()| Side::new(["b", "a"], integrity, 2, now));
    let Ok(peer) = LocalName::new("b").map(Address::Local) else { unreachable!() };
    let sessions: Vec<SessionId> = (0..2).map(|_| sender.endpoint.connect(peer, now).unwrap()).collect();
    let (mut back, mut delivered, mut accepted) = (Vec::new(), 0, 0);
    for turn in 0..3_000 {
        now = now.plus_nanos(random.u64(1_000..40_000));
        if turn < 300 && random.u32(..4) == 0 {
            let bytes: Vec<u8> = (0..random.usize(1..60_000)).map(|at| (at * 7 + turn) as u8).collect();
            let session = sessions[random.usize(..2)];
            let sent = sender.endpoint.send(session, Class::Normal, &[7; 20], Payload::from(bytes), 0, now);
            accepted += u32::from(sent.is_ok());
        }
        let (burst, _) = sender.turn(back, now);
        let arrived = mangle(burst, turn > 600 || random.bool(), damage, &mut random);
        // Some junk for both, so that no packet comes alone, which is another matter.
        let apart = [JUNK.to_vec()].into_iter().chain(arrived.iter().flat_map(|packet| [packet.clone(), JUNK.to_vec()])).collect();
        let arrived = [JUNK.to_vec()].into_iter().chain(arrived).collect();
        let [one, other] = &mut twins;
        let (sent, events) = one.turn(arrived, now);
        let (sent_apart, events_apart) = other.turn(apart, now);
        assert_eq!(events, events_apart, "seed {seed}, turn {turn}");
        assert!(sent == sent_apart, "seed {seed}, turn {turn}: what was sent differs");
        assert_eq!(counted(one), counted(other), "seed {seed}, turn {turn}");
        assert_eq!(one.endpoint.reassembly_bytes(), other.endpoint.reassembly_bytes(), "seed {seed}, turn {turn}");
        delivered += events.iter().filter(|event| event.contains(" bytes, ")).count() as u32;
        back = sent;
    }
    // Damage that nobody notices may end a session.
    assert!(integrity && damage || delivered == accepted, "seed {seed}: {delivered} of {accepted} messages arrived");
}

#[test]
fn packets_that_are_taken_together_do_what_each_would_alone() {
    for seed in 0..12 {
        run(seed, true, false);
        run(seed, false, true);
        run(seed, true, true);
    }
}
