//! The ports that a script runs on, and how time passes there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tautline_net::port::sim::{LinkConfig, Network};
use tautline_rpc::*;

/// A kind of network between the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    Sim,
    Mem,
    Udp,
    /// They lose, double and reorder packets.
    BadSim,
    BadMem,
    BadUdp,
}

/// Faults on real ports, each way.
const FAULTS: &str = "?loss=0.03&dup=0.03&reorder=0.03&seed=";

impl Fabric {
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

    fn is_sim(self) -> bool {
        matches!(self, Fabric::Sim | Fabric::BadSim)
    }

    fn is_kernel(self) -> bool {
        matches!(self, Fabric::Udp | Fabric::BadUdp)
    }
}

/// The network and its clock.
pub struct Place {
    pub fabric: Fabric,
    pub clock: Clock,
    network: Option<Network>,
    seed: u64,
    number: u32,
    /// Where the server is, once it has been opened: it comes back there.
    server: Option<Address>,
}

impl Place {
    pub fn new(fabric: Fabric, seed: u64) -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000));
        let mut link = LinkConfig::with_delay(Duration::from_micros(10));
        if fabric == Fabric::BadSim {
            link = LinkConfig { loss: 0.03, duplicate: 0.03, reorder: 0.03, jitter: Duration::from_micros(20), ..link };
        }
        let network = fabric.is_sim().then(|| Network::new(seed, clock.clone(), link));
        Place { fabric, clock, network, seed, number: NUMBER.fetch_add(1, Ordering::Relaxed), server: None }
    }

    /// Opens a node; the server comes back at its address.
    pub fn open(&mut self, side: &str, config: NodeConfig) -> Node {
        let (number, seed) = (self.number, self.seed);
        let faults = match self.fabric {
            Fabric::BadMem | Fabric::BadUdp => format!("{FAULTS}{seed}"),
            _ => String::new(),
        };
        let url = match (self.fabric, self.server.filter(|_| side == "server")) {
            (Fabric::Udp | Fabric::BadUdp, Some(address)) => format!("udp://{address}{faults}"),
            (Fabric::Udp | Fabric::BadUdp, None) => format!("udp://127.0.0.1:0{faults}"),
            (Fabric::Mem | Fabric::BadMem, _) => format!("mem://differential-{number}-{side}{faults}"),
            (Fabric::Sim | Fabric::BadSim, _) => format!("sim://{side}"),
        };
        let mut builder = Node::builder(url).wait(Wait::Spin).clock(self.clock.clone()).config(config);
        if let Some(network) = &self.network {
            builder = builder.port(Box::new(network.port(side).unwrap()));
        }
        let node = builder.build().unwrap();
        if side == "server" {
            self.server = Some(node.address());
        }
        node
    }

    /// After a turn in which nobody had anything to do: time passes until something is due, but at most `most`.
    pub fn pass(&self, nodes: [&Node; 2], most: Duration) {
        if self.fabric.is_kernel() {
            // What is on its way in the kernel comes first, as far as one can wait for it. If it is later, packets are sent again.
            std::thread::sleep(Duration::from_micros(20));
        }
        let now = self.clock.now();
        let timers = nodes.iter().filter_map(|node| node.next_timeout());
        let arrival = self.network.as_ref().and_then(Network::next_arrival);
        let next = timers.chain(arrival).min().unwrap_or(now + most);
        let next = if next > now { next } else { now + Duration::from_micros(1) };
        self.clock.advance_to(next.min(now + most));
    }
}
