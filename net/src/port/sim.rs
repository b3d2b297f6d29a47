//! A simulated network, in virtual time: seeded delay, loss, duplication, reordering, corruption, truncation, replay, limited bandwidth,
//! partitions, pauses and restarts, the same in every run of the same seed.
//!
//! A [`Network`] and its ports live in one thread. `sim://name` URLs open ports on the network that the thread has
//! [installed](Network::install). Options of such a URL:
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `mtu` | 1344 | largest datagram, in bytes |
//! | `frames` | 512 | frames of the receive pool and of the transmit pool each |
//!
//! The network damages packets where it is told to, so `capabilities().integrity` is `false`: the checksum above is in use.

use std::io;
use std::sync::Arc;

use super::pools::{FRAMES, MTU_MIN, Pools, number};
use super::{Address, Capabilities, Datagram, FramesOut, LocalName, Port, PortCounters, PortError, PortUrl, Purpose};
use crate::clock::Clock;
use crate::frame::Frame;

mod link;
mod network;

pub use link::{LinkConfig, LinkCounters};
pub use network::{Network, Passing, Verdict};

/// The options of a `sim` URL.
pub(super) const OPTIONS: &[&str] = &["mtu", "frames"];

/// Sizes of a simulated port.
#[derive(Clone, Copy, Debug)]
pub struct SimPortConfig {
    /// Largest datagram in bytes.
    pub mtu: usize,
    /// Frames of the receive pool and of the transmit pool each.
    pub frames: usize,
}

impl Default for SimPortConfig {
    fn default() -> SimPortConfig {
        SimPortConfig { mtu: 1344, frames: 512 }
    }
}

/// A host's port on a [`Network`].
#[derive(Debug)]
pub struct SimPort {
    network: Network,
    name: LocalName,
    clock: Clock,
    mtu: usize,
    pools: Pools,
    counters: PortCounters,
}

impl SimPort {
    pub(super) fn open(url: &PortUrl) -> Result<SimPort, PortError> {
        let defaults = SimPortConfig::default();
        let config = SimPortConfig {
            mtu: number(url, "mtu", defaults.mtu, MTU_MIN..=65_507)?,
            frames: number(url, "frames", defaults.frames, FRAMES)?,
        };
        let network = Network::installed().ok_or(PortError::NoNetwork)?;
        network.port_with(&url.address.to_string(), config)
    }

    fn new(network: Network, name: LocalName, clock: Clock, config: SimPortConfig) -> SimPort {
        let pools = Pools::new(config.frames, config.mtu);
        SimPort { network, name, clock, mtu: config.mtu, pools, counters: PortCounters::default() }
    }

    /// The network's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Port for SimPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.mtu, integrity: false, segmentation: false }
    }

    fn local_address(&self) -> Address {
        Address::Local(self.name)
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        let mut count = 0;
        while count < max
            && let Some((from, bytes)) = self.network.arrived(self.name)
        {
            if bytes.len() > self.mtu {
                self.counters.dropped_oversize += 1;
                continue;
            }
            let Some(mut frame) = self.pools.receive.take() else {
                self.counters.dropped_no_frame += 1;
                continue;
            };
            frame.set_range(0, bytes.len());
            frame.data_mut().copy_from_slice(&bytes);
            self.counters.received += 1;
            count += 1;
            into.push(Datagram { frame, peer: Address::Local(from) });
        }
        Ok(count)
    }

    fn receive_frames_low(&self) -> bool {
        self.pools.receive_low()
    }

    fn frames_out(&self) -> FramesOut {
        self.pools.out()
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        self.pools.allocate(purpose, into, count)
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        let (mut sent, mut taken) = (0, 0);
        for datagram in burst.iter() {
            match datagram.peer {
                Address::Local(to) if datagram.frame.len() <= self.mtu => {
                    if !self.network.send(self.name, to, datagram.frame.data()) {
                        self.counters.transmit_full += 1;
                        break;
                    }
                    self.counters.transmitted += 1;
                    sent += 1;
                }
                _ => self.counters.send_failed += 1,
            }
            taken += 1;
        }
        burst.drain(..taken);
        Ok(sent)
    }

    fn attach_wait(&mut self, _: &mio::Registry, _: mio::Token, _: &Arc<mio::Waker>) -> io::Result<()> {
        // Nothing of this network happens while its thread sleeps.
        Ok(())
    }

    fn prepare_wait(&mut self) -> bool {
        !self.network.has_arrived(self.name)
    }

    fn finish_wait(&mut self) {}

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.network.closed(self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Time;

    fn network(link: LinkConfig) -> (Network, Clock) {
        let clock = Clock::virtual_at(Time::ZERO);
        (Network::new(1, clock.clone(), link), clock)
    }

    fn send(port: &mut SimPort, to: &str, bytes: &[u8]) {
        let mut frames = Vec::new();
        assert_eq!(port.allocate(Purpose::Transmit, &mut frames, 1), 1);
        let mut frame = frames.pop().unwrap();
        frame.set_range(0, bytes.len());
        frame.data_mut().copy_from_slice(bytes);
        let peer = Address::Local(LocalName::new(to).unwrap());
        port.transmit(&mut Vec::from([Datagram { frame, peer }])).unwrap();
    }

    fn received(port: &mut SimPort) -> Vec<(String, Vec<u8>)> {
        let mut burst = Vec::new();
        port.receive(&mut burst, 1000).unwrap();
        burst.into_iter().map(|datagram| (datagram.peer.to_string(), datagram.frame.data().to_vec())).collect()
    }

    #[test]
    fn a_packet_arrives_after_the_delay_and_not_before() {
        let (network, clock) = network(LinkConfig::with_delay(Duration::from_micros(7)));
        let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
        send(&mut a, "b", b"hello");
        assert_eq!(network.next_arrival(), Some(Time::from_nanos(7_000)));
        clock.advance_to(Time::from_nanos(6_999));
        assert!(received(&mut b).is_empty());
        clock.advance_to(Time::from_nanos(7_000));
        assert_eq!(received(&mut b), [("a".to_owned(), b"hello".to_vec())]);
        assert_eq!(network.next_arrival(), None);
    }

    #[test]
    fn a_partition_cuts_one_direction_until_it_heals() {
        let (network, _) = network(LinkConfig::PERFECT);
        let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
        network.partition("a", "b").unwrap();
        send(&mut a, "b", b"lost");
        send(&mut b, "a", b"back");
        assert!(received(&mut b).is_empty());
        assert_eq!(received(&mut a).len(), 1);
        network.heal("a", "b").unwrap();
        send(&mut a, "b", b"through");
        assert_eq!(received(&mut b)[0].1, b"through");
        assert_eq!(network.link_counters("a", "b").partitioned, 1);
    }

    #[test]
    fn a_restarted_host_gets_what_was_still_on_its_way_and_nothing_older() {
        let (network, clock) = network(LinkConfig::with_delay(Duration::from_micros(5)));
        let (mut a, b) = (network.port("a").unwrap(), network.port("b").unwrap());
        assert!(matches!(network.port("b"), Err(PortError::InUse { .. })));
        send(&mut a, "b", b"while down");
        clock.advance_to(Time::from_nanos(4_000));
        drop(b);
        send(&mut a, "b", b"in flight");
        clock.advance_to(Time::from_nanos(5_000));
        assert!(received(&mut a).is_empty(), "moves what is due: nobody is there for it");
        let mut b = network.port("b").unwrap();
        clock.advance_to(Time::from_nanos(9_000));
        assert_eq!(received(&mut b), [("a".to_owned(), b"in flight".to_vec())]);
        assert_eq!(network.link_counters("a", "b").undeliverable, 1);
    }

    #[test]
    fn a_paused_host_gets_everything_later_and_does_not_hold_up_time() {
        let (network, _) = network(LinkConfig::PERFECT);
        let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
        network.pause("b").unwrap();
        send(&mut a, "b", b"later");
        assert!(received(&mut a).is_empty() && received(&mut b).is_empty());
        assert_eq!(network.next_arrival(), None);
        network.resume("b").unwrap();
        assert!(network.next_arrival().is_some());
        assert_eq!(received(&mut b).len(), 1);
        assert_eq!(network.next_arrival(), None);
    }

    #[test]
    fn injected_packets_carry_the_source_they_claim() {
        let (network, _) = network(LinkConfig::PERFECT);
        let mut b = network.port("b").unwrap();
        network.inject("nobody", "b", b"spoofed").unwrap();
        assert_eq!(received(&mut b), [("nobody".to_owned(), b"spoofed".to_vec())]);
    }

    #[test]
    fn many_senders_meet_in_the_receivers_queue() {
        let (network, clock) = network(LinkConfig::PERFECT);
        let mut server = network.port("server").unwrap();
        // 1,000-byte packets at 8 Gb/s take 1 us each.
        network.access("server", 8_000_000_000, 10_000).unwrap();
        let mut clients: Vec<SimPort> = (0..16).map(|n| network.port(&format!("c{n}")).unwrap()).collect();
        for client in &mut clients {
            send(client, "server", &[0; 1000]);
        }
        let mut arrivals = Vec::new();
        while let Some(next) = network.next_arrival() {
            clock.advance_to(next);
            arrivals.extend(received(&mut server).iter().map(|_| clock.now().as_nanos()));
        }
        assert_eq!(arrivals, (1..=10).map(|n| n * 1_000).collect::<Vec<u64>>());
    }

    #[test]
    fn a_filter_loses_exactly_what_it_wants() {
        let (network, _) = network(LinkConfig::PERFECT);
        let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
        let mut seen = 0;
        network.set_filter(move |passing| {
            seen += 1;
            assert_eq!((passing.from, passing.to), ("a", "b"));
            if seen == 2 { Verdict::Lose } else { Verdict::Pass }
        });
        for bytes in [b"1", b"2", b"3"] {
            send(&mut a, "b", bytes);
        }
        let got: Vec<Vec<u8>> = received(&mut b).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(got, [b"1", b"3"]);
    }

    #[test]
    fn a_whole_run_repeats_from_its_seed() {
        let run = |seed| {
            let clock = Clock::virtual_at(Time::ZERO);
            let link = LinkConfig {
                delay: Duration::from_micros(10),
                jitter: Duration::from_micros(5),
                loss: 0.1,
                duplicate: 0.1,
                reorder: 0.2,
                corrupt: 0.1,
                ..LinkConfig::PERFECT
            };
            let network = Network::new(seed, clock.clone(), link);
            let mut ports: Vec<SimPort> = ["a", "b", "c"].map(|name| network.port(name).unwrap()).into();
            for round in 0..100u32 {
                for (n, to) in [(0, "b"), (1, "c"), (2, "a")] {
                    send(&mut ports[n], to, &round.to_le_bytes());
                }
            }
            let mut log = Vec::new();
            while let Some(next) = network.next_arrival() {
                clock.advance_to(next);
                for port in &mut ports {
                    log.extend(received(port).into_iter().map(|packet| (clock.now(), port.local_address(), packet)));
                }
            }
            log
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
