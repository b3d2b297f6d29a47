//! Every kind of network that the same test can run on, with time that passes when the test lets it: on kernel sockets too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tautline_net::clock::{Clock, Time};
use tautline_net::port::sim::{LinkConfig, Network};
use tautline_net::port::{self, Address, Port, PortUrl};

/// A kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Simulated.
    Sim,
    /// Rings in memory.
    Mem,
    /// Kernel UDP on loopback.
    Udp,
    /// Simulated, and it loses, doubles and reorders packets.
    BadSim,
    /// The same in memory.
    BadMem,
    /// The same on loopback.
    BadUdp,
}

/// The chance of each fault, each way.
const FAULT: f64 = 0.03;

impl Fabric {
    /// Those that lose nothing.
    pub const GOOD: [Fabric; 3] = [Fabric::Sim, Fabric::Mem, Fabric::Udp];
    /// Those that do.
    pub const BAD: [Fabric; 3] = [Fabric::BadSim, Fabric::BadMem, Fabric::BadUdp];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Sim => "sim",
            Fabric::Mem => "mem",
            Fabric::Udp => "udp",
            Fabric::BadSim => "sim with faults",
            Fabric::BadMem => "mem with faults",
            Fabric::BadUdp => "udp with faults",
        }
    }
}

/// One network and its clock.
pub struct Place {
    /// Its kind.
    pub fabric: Fabric,
    /// Virtual.
    pub clock: Clock,
    network: Option<Network>,
    seed: u64,
    number: u32,
    /// Where the hosts are that were opened: they come back there.
    known: HashMap<String, Address>,
}

impl Place {
    /// A network of this kind; its faults follow from the seed.
    pub fn new(fabric: Fabric, seed: u64) -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000));
        let good = LinkConfig::with_delay(Duration::from_micros(10));
        let bad = LinkConfig { loss: FAULT, duplicate: FAULT, reorder: FAULT, jitter: Duration::from_micros(20), ..good };
        let network = match fabric {
            Fabric::Sim => Some(Network::new(seed, clock.clone(), good)),
            Fabric::BadSim => Some(Network::new(seed, clock.clone(), bad)),
            _ => None,
        };
        Place { fabric, clock, network, seed, number: NUMBER.fetch_add(1, Ordering::Relaxed), known: HashMap::new() }
    }

    /// Opens a host's port; the next one of the same name is at the same address.
    pub fn open(&mut self, name: &str) -> Box<dyn Port> {
        let port: Box<dyn Port> = match &self.network {
            Some(network) => Box::new(network.port(name).expect("a name is used once at a time")),
            None => port::open(&self.url(name), &self.clock).expect("loopback, and names of this process, can be had"),
        };
        self.known.insert(name.to_owned(), port.local_address());
        port
    }

    fn url(&self, name: &str) -> PortUrl {
        let (number, seed) = (self.number, self.seed);
        let faults = match self.fabric {
            Fabric::BadMem | Fabric::BadUdp => format!("?loss={FAULT}&dup={FAULT}&reorder={FAULT}&seed={seed}"),
            _ => String::new(),
        };
        let url = match (self.fabric, self.known.get(name)) {
            (Fabric::Udp | Fabric::BadUdp, Some(address)) => format!("udp://{address}{faults}"),
            (Fabric::Udp | Fabric::BadUdp, None) => format!("udp://127.0.0.1:0{faults}"),
            _ => format!("mem://fabric-{number}-{name}{faults}"),
        };
        url.parse().expect("made above")
    }

    /// After a turn in which nobody had anything to do: time passes until something is `due` or arrives, but by `most` at most.
    pub fn pass(&self, due: Option<Time>, most: Duration) {
        if matches!(self.fabric, Fabric::Udp | Fabric::BadUdp) {
            // What is on its way in the kernel comes first, as far as one can wait for it. If it is later, packets are sent again.
            std::thread::sleep(Duration::from_micros(20));
        }
        let now = self.clock.now();
        let arrival = self.network.as_ref().and_then(Network::next_arrival);
        let next = due.into_iter().chain(arrival).min().unwrap_or(now + most);
        let next = if next > now { next } else { now + Duration::from_micros(1) };
        self.clock.advance_to(next.min(now + most));
    }
}
