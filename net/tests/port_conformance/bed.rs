//! What a case works with: ports of one kind, and helpers that wait, and move virtual time, as that kind needs it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tautline_net::clock::{Clock, Time};
use tautline_net::frame::Frame;
use tautline_net::port::sim::{LinkConfig, Network};
use tautline_net::port::{self, Address, Datagram, Port, PortError, Purpose};

use crate::fabrics::Fabric;

/// How a case ended.
pub(crate) enum Outcome {
    /// The port does what the case asks.
    Conforms,
    /// The case asks what this kind of port does not have.
    DoesNotApply(&'static str),
}

/// How long a case waits for what must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it waits for what must not come.
const SILENCE: Duration = Duration::from_millis(20);

pub(crate) struct Bed {
    pub(crate) fabric: &'static Fabric,
    network: Option<Network>,
    clock: Clock,
    opened: Cell<u32>,
    number: u32,
}

impl Bed {
    pub(crate) fn new(fabric: &'static Fabric) -> Bed {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (mut clock, mut network) = (Clock::tsc(), None);
        if fabric.scheme == "sim" {
            clock = Clock::virtual_at(Time::ZERO);
            let link = LinkConfig::with_delay(Duration::from_micros(5));
            network = Some(Network::new(1, clock.clone(), link));
        }
        if let Some(network) = &network {
            network.install();
        }
        Bed { fabric, network, clock, opened: Cell::new(0), number: NUMBER.fetch_add(1, Ordering::Relaxed) }
    }

    /// Opens a port of its own address. `options` come on top of the kind's, and win over them.
    pub(crate) fn open(&self, options: &str) -> Box<dyn Port> {
        let address = match self.fabric.address {
            "" => format!("c{}-{}", self.number, self.opened.replace(self.opened.get() + 1)),
            address => address.to_owned(),
        };
        self.open_at(&address, options).unwrap()
    }

    /// Opens a port at this address.
    pub(crate) fn open_at(&self, address: &str, options: &str) -> Result<Box<dyn Port>, PortError> {
        let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
        let own: Vec<String> = options.split('&').map(name).collect();
        // An option given twice is refused.
        let kinds = self.fabric.options.split('&').filter(|option| !own.contains(&name(option)));
        let all: Vec<&str> = options.split('&').chain(kinds).collect();
        let url = format!("{}://{address}?{}", self.fabric.scheme, all.join("&"));
        port::open(&url.parse()?, &self.clock)
    }

    /// Sends these packets, and waits while the device is full.
    pub(crate) fn send(&self, port: &mut dyn Port, to: Address, packets: &[Vec<u8>]) {
        let mut burst: Vec<Datagram> = packets.iter().map(|packet| datagram(port, to, packet)).collect();
        self.transmit(port, &mut burst);
    }

    /// Transmits until everything has gone.
    pub(crate) fn transmit(&self, port: &mut dyn Port, burst: &mut Vec<Datagram>) {
        let deadline = Instant::now() + PATIENCE;
        while !burst.is_empty() {
            assert!(Instant::now() < deadline, "the device takes nothing: {:?}", port.counters());
            port.transmit(burst).unwrap();
        }
    }

    /// Lets time pass, and whatever a port does when nothing is asked of it.
    pub(crate) fn step(&self, port: &mut dyn Port) {
        port.transmit(&mut Vec::new()).unwrap();
        match &self.network {
            Some(network) => {
                if let Some(next) = network.next_arrival() {
                    self.clock.advance_to(next);
                }
            }
            None => std::thread::yield_now(),
        }
    }

    /// Receives `count` datagrams at `to`; `from` is turned over meanwhile.
    pub(crate) fn receive(&self, from: &mut dyn Port, to: &mut dyn Port, count: usize) -> Vec<Datagram> {
        let mut into = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while into.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} datagrams came: {:?}", into.len(), to.counters());
            self.step(from);
            to.receive(&mut into, count).unwrap();
        }
        into
    }

    /// Receives everything that comes, until nothing does any more.
    pub(crate) fn drain(&self, from: &mut dyn Port, to: &mut dyn Port) -> Vec<Datagram> {
        let mut into = Vec::new();
        let mut last = Instant::now();
        let mut idle = 0;
        // Virtual time has passed when nothing is under way; a kernel may need a moment, and a wrapper some turns.
        while idle < 200 || (self.network.is_none() && last.elapsed() < SILENCE) {
            self.step(from);
            idle += 1;
            if to.receive(&mut into, 64).unwrap() > 0 {
                (last, idle) = (Instant::now(), 0);
            }
        }
        into
    }

    /// Waits until `done`, turning both ports over.
    pub(crate) fn until(&self, from: &mut dyn Port, to: &mut dyn Port, mut done: impl FnMut(&mut dyn Port) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(to) {
            assert!(Instant::now() < deadline, "it does not come to pass: {:?}", to.counters());
            self.step(from);
        }
    }
}

/// A datagram with these bytes, in a frame of `port`.
pub(crate) fn datagram(port: &mut dyn Port, to: Address, bytes: &[u8]) -> Datagram {
    let mut frames = Vec::new();
    assert_eq!(port.allocate(Purpose::Transmit, &mut frames, 1), 1, "no frame to send from");
    fill(frames.remove(0), to, bytes)
}

/// A datagram with these bytes, in this frame.
pub(crate) fn fill(mut frame: Frame, to: Address, bytes: &[u8]) -> Datagram {
    frame.set_range(0, bytes.len());
    frame.data_mut().copy_from_slice(bytes);
    Datagram { frame, peer: to }
}

/// The bytes of packet `number`, `len` of them: told apart by content, length, and by any bytes that were mixed up.
pub(crate) fn packet(number: usize, len: usize) -> Vec<u8> {
    let mut state = (number as u64) << 20 ^ len as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let name = (number as u32).to_le_bytes();
    let named = len.min(4);
    bytes[..named].copy_from_slice(&name[..named]);
    bytes
}

/// The contents, sorted: ports may reorder.
pub(crate) fn sorted(datagrams: &[Datagram]) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = datagrams.iter().map(|datagram| datagram.frame.to_vec()).collect();
    packets.sort();
    packets
}
