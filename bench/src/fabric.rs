//! Nodes on a simulated switch in virtual time: one server, many clients, links of one speed, and a shallow queue before the server.
//!
//! The switch's queue is drop-tail and knows no priorities. A host's own queue to its link holds whatever it is given, as a driver
//! that pushes back would: what is lost is lost in the switch. Nodes compute in no time but look at their port every 250 ns at most.

use std::time::Duration;

use bytes::Bytes;
use tautline_net::clock::{Clock, Time};
use tautline_net::port::sim::{LinkConfig, Network, SimPortConfig};
use tautline_net::wire::DATA_OVERHEAD;
use tautline_rpc::{CallOptions, EndpointConfig, Local, Node, NodeConfig, Peer, Wait};

use crate::call::{ECHO, SINK, serve};
use crate::error::BenchError;

/// Bits a second of every host's link.
pub const BANDWIDTH: u64 = 10_000_000_000;
/// Bytes that the switch holds for the server.
pub const QUEUE: usize = 128 << 10;
/// The port's datagrams.
pub const MTU: usize = 1344;
/// From host to host.
pub const DELAY: Duration = Duration::from_micros(5);

/// A poll loop does not turn faster.
const TURN: u64 = 250;
/// Bytes that a host's own queue holds.
const OWN_QUEUE: usize = 1 << 30;
/// A call's head.
const CALL_HEAD: usize = 24;
/// Virtual time without an answer after which a run is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to come back of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Echo,
    /// A byte.
    Byte,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which client made it.
    pub client: usize,
    /// What it was called.
    pub tag: u64,
    /// When.
    pub at: Time,
}

/// The switch, the server and its clients.
pub struct Fabric {
    clock: Clock,
    network: Network,
    server: Node,
    clients: Vec<Client>,
    outstanding: usize,
    last: Time,
    zeros: Bytes,
}

struct Client {
    node: Node,
    local: Local,
    peer: Peer,
    options: CallOptions,
}

impl Fabric {
    /// A server with `clients` clients, all connected.
    pub fn new(seed: u64, clients: usize) -> Result<Fabric, BenchError> {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
        let network = Network::new(seed, clock.clone(), LinkConfig::with_delay(DELAY));
        let attach =
            |name: &str, queue: usize| network.access(name, BANDWIDTH, queue).map_err(BenchError::product("linking a host"));
        attach("server", QUEUE)?;
        let mut server = node(&network, "server", seed)?;
        serve(&mut server)?;
        let mut fabric = Fabric {
            last: clock.now(),
            clock,
            network: network.clone(),
            server,
            clients: Vec::new(),
            outstanding: 0,
            zeros: Bytes::from(vec![0; 16 << 20]),
        };
        for n in 0..clients {
            let name = format!("client-{n}");
            attach(&name, OWN_QUEUE)?;
            let node = node(&network, &name, seed + 1 + n as u64)?;
            let local = node.local();
            let peer = local.peer(fabric.server.address()).map_err(BenchError::product("looking the server up"))?;
            fabric.clients.push(Client { node, local, peer, options: CallOptions::new() });
            fabric.call(n, 8, Answer::Byte, 0)?;
        }
        fabric.run_dry()?;
        Ok(fabric)
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Calls that have not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Makes a call of `size` bytes, at most 16 MiB.
    pub fn call(&mut self, client: usize, size: usize, answer: Answer, tag: u64) -> Result<(), BenchError> {
        let Client { local, peer, options, .. } = &self.clients[client];
        let method = match answer {
            Answer::Echo => ECHO,
            Answer::Byte => SINK,
        };
        let payload = self.zeros.slice(..size.min(self.zeros.len()));
        local.submit(*peer, method, payload, options, tag).map_err(BenchError::product("submitting a call"))?;
        self.outstanding += 1;
        Ok(())
    }

    /// One turn of every node, and what ended in it; then time moves to the next thing that happens, at most to `limit`.
    pub fn step(&mut self, limit: Time, done: &mut Vec<Done>) -> Result<(), BenchError> {
        let at = self.clock.now();
        let mut busy = self.server.poll();
        let before = done.len();
        for (client, Client { node, .. }) in self.clients.iter_mut().enumerate() {
            busy += node.poll();
            while let Some(completion) = node.next_completion() {
                completion.result.map_err(BenchError::product("a simulated call"))?;
                done.push(Done { client, tag: completion.tag, at });
            }
        }
        if done.len() > before || self.outstanding == 0 {
            self.outstanding -= done.len() - before;
            self.last = at;
        } else if at.since(self.last) > PATIENCE {
            return Err(BenchError::Silent { what: "a simulated call (in virtual time)", seconds: PATIENCE.as_secs() });
        }
        let soonest = at.plus_nanos(TURN);
        let next = if busy > 0 {
            soonest
        } else {
            let timers = self.clients.iter().map(|client| &client.node).chain([&self.server]).filter_map(Node::next_timeout);
            timers.chain(self.network.next_arrival()).min().unwrap_or(limit)
        };
        self.clock.advance_to(next.max(soonest).min(limit.max(soonest)));
        Ok(())
    }

    /// Steps until no call is outstanding.
    pub fn run_dry(&mut self) -> Result<Vec<Done>, BenchError> {
        let mut done = Vec::new();
        while self.outstanding > 0 {
            self.step(Time::NEVER, &mut done)?;
        }
        Ok(done)
    }

    /// Packets that the switch has dropped before the server.
    pub fn dropped(&self) -> u64 {
        (0..self.clients.len()).map(|n| self.network.link_counters(&format!("client-{n}"), "server").queue_dropped).sum()
    }
}

/// Bytes on the wire of a call of `size` bytes, headers included and acknowledgements not.
pub fn wire_bytes(size: usize) -> f64 {
    let message = size + CALL_HEAD;
    (message + message.div_ceil(MTU - DATA_OVERHEAD) * DATA_OVERHEAD) as f64
}

fn node(network: &Network, name: &str, seed: u64) -> Result<Node, BenchError> {
    let port = network.port_with(name, SimPortConfig { mtu: MTU, frames: 4096 }).map_err(BenchError::product("opening a port"))?;
    let endpoint = EndpointConfig { seed: Some(seed), ..EndpointConfig::default() };
    Node::builder(format!("sim://{name}"))
        .port(Box::new(port))
        .clock(network.clock())
        .wait(Wait::Spin)
        .config(NodeConfig { endpoint, ..NodeConfig::default() })
        .build()
        .map_err(BenchError::product("building a node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_of(fabric: &mut Fabric, size: usize) -> Duration {
        let start = fabric.now();
        fabric.call(0, size, Answer::Byte, 7).unwrap();
        let done = fabric.run_dry().unwrap();
        assert_eq!((done.len(), done[0].client, done[0].tag), (1, 0, 7));
        done[0].at.since(start)
    }

    #[test]
    fn a_call_takes_its_round_trip_and_its_bytes_take_the_links_time() {
        let mut fabric = Fabric::new(1, 2).unwrap();
        let small = time_of(&mut fabric, 64);
        assert!(small >= DELAY * 2 && small < DELAY * 4, "{small:?}");
        let large = time_of(&mut fabric, 1 << 20);
        let wire = Duration::from_secs_f64(wire_bytes(1 << 20) * 8.0 / BANDWIDTH as f64);
        assert!(large > wire, "a megabyte in {large:?}, faster than its link, which takes {wire:?}");
        assert_eq!(fabric.dropped(), 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = || {
            let mut fabric = Fabric::new(3, 4).unwrap();
            (0..4).for_each(|client| fabric.call(client, 100_000, Answer::Byte, client as u64).unwrap());
            fabric.run_dry().unwrap()
        };
        assert_eq!(run(), run());
    }
}
