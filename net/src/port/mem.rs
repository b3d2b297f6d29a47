//! Ports within one process: a ring of byte slots for each direction between two of them.
//!
//! A datagram is copied in and copied out: for small ones that costs less than passing the ownership of a buffer between cores. The
//! rings are made when the first packet is sent to a name. As on a network, packets to a port that has gone, or that does not read, are
//! lost, and a port opened again under the same name is another one. Options of a `mem` URL:
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `mtu` | 4096 | largest datagram that this port receives or sends, in bytes |
//! | `slots` | 256 | datagrams that a ring to this port holds |
//! | `peers` | 1024 | rings to this port at most; packets of further peers are lost |
//! | `frames` | 1024 | frames of the receive pool and of the transmit pool each |

use std::io;
use std::sync::Arc;

use super::pools::{FRAMES, MTU_MIN, Pools, number};
use super::{Address, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, PortUrl, Purpose};
use crate::frame::Frame;

mod outbound;
mod registry;

use outbound::{Outbound, Sent};
use registry::{Hub, Inbound};

/// The options of a `mem` URL.
pub(super) const OPTIONS: &[&str] = &["mtu", "slots", "peers", "frames"];

/// A port within this process.
#[derive(Debug)]
pub struct MemPort {
    hub: Arc<Hub>,
    pools: Pools,
    inbound: Vec<Inbound>,
    /// The ring that is read first next time.
    cursor: usize,
    outbound: Outbound,
    /// Which datagrams of a burst full rings have refused.
    refused: Vec<usize>,
    can_sleep: bool,
    counters: PortCounters,
}

impl MemPort {
    /// Opens the port that `url` names.
    pub fn open(url: &PortUrl) -> Result<MemPort, PortError> {
        let Address::Local(name) = url.address else {
            return Err(PortError::Address(super::AddressError::Name(url.address.to_string())));
        };
        let mtu = number(url, "mtu", 4096, MTU_MIN..=65_536)?;
        let slots = number(url, "slots", 256, 2..=1 << 16)?;
        let peers = number(url, "peers", 1024, 1..=1 << 16)?;
        let frames = number(url, "frames", 1024, FRAMES)?;
        let hub = Hub::register(name, mtu, slots, peers).ok_or(PortError::InUse { address: url.address })?;
        Ok(MemPort {
            hub,
            pools: Pools::new(frames, mtu),
            inbound: Vec::new(),
            cursor: 0,
            outbound: Outbound::new(name),
            refused: Vec::new(),
            can_sleep: false,
            counters: PortCounters::default(),
        })
    }
}

impl Port for MemPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.hub.mtu, integrity: true, segmentation: false }
    }

    fn local_address(&self) -> Address {
        Address::Local(self.hub.name)
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        Ok(self.take(into, max, |_, _| {}))
    }

    fn receive_watching(
        &mut self,
        into: &mut Vec<Datagram>,
        max: usize,
        watch: &mut dyn FnMut(&Address, &[u8]),
    ) -> Result<usize, PortError> {
        Ok(self.take(into, max, watch))
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
        let mut sent = 0;
        // Where full rings refuse datagrams, those stay, in their order; they do not hold up datagrams to other peers.
        self.refused.clear();
        for (index, datagram) in burst.iter().enumerate() {
            let outcome = match datagram.peer {
                Address::Local(to) if datagram.frame.len() <= self.hub.mtu => self.outbound.send(to, datagram.frame.data()),
                _ => Sent::Lost,
            };
            match outcome {
                Sent::Yes => sent += 1,
                Sent::Lost => self.counters.send_failed += 1,
                Sent::Later => self.refused.push(index),
            }
        }
        self.outbound.finish();
        self.counters.transmitted += sent as u64;
        if self.refused.is_empty() {
            burst.clear();
        } else {
            self.counters.transmit_full += 1;
            let mut refused = self.refused.iter().copied().peekable();
            let mut index = 0..;
            burst.retain(|_| {
                let index = index.next();
                refused.next_if(|&refused| Some(refused) == index).is_some()
            });
        }
        Ok(sent)
    }

    fn attach_wait(&mut self, _: &mio::Registry, _: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()> {
        self.hub.wake.attach(Arc::clone(waker));
        self.can_sleep = true;
        Ok(())
    }

    fn prepare_wait(&mut self) -> bool {
        if !self.can_sleep {
            return false;
        }
        self.hub.wake.prepare();
        let waiting = self.hub.has_news() || self.inbound.iter().any(|inbound| !inbound.ring.is_empty());
        if waiting {
            self.hub.wake.finish();
        }
        !waiting
    }

    fn finish_wait(&mut self) {
        self.hub.wake.finish();
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl MemPort {
    /// Receives, and shows `watch` what comes: in its slot, as far as it lies there in one piece.
    #[inline(always)]
    fn take(&mut self, into: &mut Vec<Datagram>, max: usize, mut watch: impl FnMut(&Address, &[u8])) -> usize {
        if self.hub.has_news() {
            self.take_news();
        }
        let rings = self.inbound.len();
        let mut count = 0;
        let mut index = self.cursor;
        for _ in 0..rings {
            let inbound = &mut self.inbound[index];
            let mut popped = false;
            while count < max {
                let (pool, counters, from) = (&mut self.pools.receive, &mut self.counters, &inbound.from);
                let copied = inbound.ring.pop(|inline, rest| {
                    let Some(frame) = pool.take() else {
                        counters.dropped_no_frame += 1;
                        return;
                    };
                    // Filled where it stays: a move of what was just written waits for the writes.
                    let frame = Datagram::push(into, frame, from);
                    if rest.is_empty() {
                        // What somebody waits for must not wait for the copy.
                        watch(from, inline);
                    }
                    frame.set_range(0, inline.len() + rest.len());
                    let (start, end) = frame.data_mut().split_at_mut(inline.len());
                    start.copy_from_slice(inline);
                    end.copy_from_slice(rest);
                    if !rest.is_empty() {
                        watch(from, frame);
                    }
                    count += 1;
                });
                if copied.is_none() {
                    break;
                }
                popped = true;
            }
            if popped {
                inbound.ring.release();
            }
            index = if index + 1 == rings { 0 } else { index + 1 };
            if count == max {
                // The others first, next time.
                self.cursor = index;
                break;
            }
        }
        self.counters.received += count as u64;
        count
    }

    /// New rings, and peers that left.
    #[cold]
    fn take_news(&mut self) {
        self.hub.take_news(&mut self.inbound);
        self.cursor = 0;
    }
}

impl Drop for MemPort {
    fn drop(&mut self) {
        self.hub.unregister();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::LocalName;

    fn open(url: &str) -> MemPort {
        MemPort::open(&url.parse().unwrap()).unwrap()
    }

    fn address(name: &str) -> Address {
        Address::Local(LocalName::new(name).unwrap())
    }

    fn datagram(port: &mut MemPort, to: Address, bytes: &[u8]) -> Datagram {
        let mut frames = Vec::new();
        assert_eq!(port.allocate(Purpose::Transmit, &mut frames, 1), 1);
        let mut frame = frames.remove(0);
        frame.set_range(0, bytes.len());
        frame.data_mut().copy_from_slice(bytes);
        Datagram { frame, peer: to }
    }

    fn send(port: &mut MemPort, to: Address, bytes: &[u8]) -> usize {
        let mut burst = Vec::from([datagram(port, to, bytes)]);
        port.transmit(&mut burst).unwrap()
    }

    fn received(port: &mut MemPort) -> Vec<Vec<u8>> {
        let mut burst = Vec::new();
        port.receive(&mut burst, 1000).unwrap();
        burst.iter().map(|datagram| datagram.frame.to_vec()).collect()
    }

    #[test]
    fn packets_to_a_name_that_nobody_has_are_lost_until_somebody_takes_it() {
        let mut a = open("mem://later-a");
        let b = address("later-b");
        assert_eq!(send(&mut a, b, b"1"), 0);
        assert_eq!(a.counters().send_failed, 1);
        let mut b_port = open("mem://later-b");
        assert_eq!(send(&mut a, b, b"2"), 1);
        assert_eq!(received(&mut b_port), [b"2"]);
    }

    #[test]
    fn a_port_opened_again_under_its_name_is_another_one() {
        let mut a = open("mem://again-a");
        let mut b = open("mem://again-b");
        assert!(matches!(MemPort::open(&"mem://again-b".parse().unwrap()), Err(PortError::InUse { .. })));
        send(&mut a, address("again-b"), b"old");
        drop(b);
        assert_eq!(send(&mut a, address("again-b"), b"lost"), 0);
        b = open("mem://again-b");
        assert_eq!(send(&mut a, address("again-b"), b"new"), 1);
        assert_eq!(received(&mut b), [b"new"]);
    }

    #[test]
    fn the_last_packets_of_a_port_that_closed_still_arrive_and_its_ring_goes() {
        let mut b = open("mem://last-b?peers=1");
        for round in 0..3 {
            let mut a = open(&format!("mem://last-a{round}"));
            assert_eq!(send(&mut a, address("last-b"), b"1"), 1, "its predecessor's ring has gone");
            send(&mut a, address("last-b"), b"2");
            drop(a);
            assert_eq!(received(&mut b), [b"1", b"2"]);
            assert!(received(&mut b).is_empty());
            assert!(b.inbound.is_empty());
        }
    }

    #[test]
    fn a_port_takes_no_more_peers_than_it_said() {
        let mut b = open("mem://peers-b?peers=2");
        let mut senders: Vec<MemPort> = (0..3).map(|n| open(&format!("mem://peers-{n}"))).collect();
        let sent: Vec<usize> = senders.iter_mut().map(|port| send(port, address("peers-b"), b"x")).collect();
        assert_eq!(sent, [1, 1, 0]);
        assert_eq!(received(&mut b).len(), 2);
        drop(senders.remove(0));
        received(&mut b);
        assert_eq!(send(&mut senders[1], address("peers-b"), b"x"), 1, "a place became free");
    }

    #[test]
    fn a_full_ring_holds_up_nobody_else_and_keeps_the_order() {
        let mut a = open("mem://full-a");
        let mut slow = open("mem://full-slow?slots=2");
        let mut quick = open("mem://full-quick");
        let mut burst: Vec<Datagram> = (0u8..8)
            .map(|n| {
                let to = if n % 2 == 0 { "full-slow" } else { "full-quick" };
                datagram(&mut a, address(to), &[n])
            })
            .collect();
        assert_eq!(a.transmit(&mut burst).unwrap(), 6);
        assert_eq!(received(&mut quick), [[1], [3], [5], [7]]);
        assert_eq!(burst.iter().map(|left| left.frame[0]).collect::<Vec<_>>(), [4, 6]);
        assert_eq!(received(&mut slow), [[0], [2]]);
        assert_eq!(a.transmit(&mut burst).unwrap(), 2);
        assert_eq!(received(&mut slow), [[4], [6]]);
        assert_eq!(a.counters().transmit_full, 1);
    }

    #[test]
    fn a_peer_that_never_reads_loses_packets_in_the_end_and_gets_them_again_when_it_reads() {
        let mut a = open("mem://stuck-a");
        let mut b = open("mem://stuck-b?slots=2");
        let mut burst: Vec<Datagram> = (0u8..3).map(|n| datagram(&mut a, address("stuck-b"), &[n])).collect();
        let mut tries = 0;
        while !burst.is_empty() {
            a.transmit(&mut burst).unwrap();
            tries += 1;
            assert!(tries < 10_000, "its sender is held up for ever");
        }
        assert!(tries > 100, "it was given some time");
        assert_eq!(a.counters().send_failed, 1);
        assert_eq!(send(&mut a, address("stuck-b"), b"x"), 0);
        assert_eq!(received(&mut b), [[0], [1]]);
        assert_eq!(send(&mut a, address("stuck-b"), b"y"), 1);
        assert_eq!(received(&mut b), [b"y"]);
    }

    #[test]
    fn a_busy_peer_does_not_starve_the_others() {
        let mut b = open("mem://fair-b");
        let mut busy = open("mem://fair-busy");
        let mut quiet = open("mem://fair-quiet");
        let mut burst: Vec<Datagram> = (0..100).map(|_| datagram(&mut busy, address("fair-b"), b"busy")).collect();
        busy.transmit(&mut burst).unwrap();
        send(&mut quiet, address("fair-b"), b"quiet");
        let mut first = Vec::new();
        b.receive(&mut first, 16).unwrap();
        b.receive(&mut first, 16).unwrap();
        assert!(first.iter().any(|datagram| &datagram.frame[..] == b"quiet"));
    }

    #[test]
    fn a_port_talks_to_itself() {
        let mut a = open("mem://self");
        let own = a.local_address();
        assert_eq!(send(&mut a, own, b"me"), 1);
        assert_eq!(received(&mut a), [b"me"]);
    }

    #[test]
    fn names_that_nobody_has_are_not_kept_for_ever() {
        let mut a = open("mem://forget");
        for n in 0..1_000 {
            send(&mut a, address(&format!("forget-{n}")), b"x");
        }
        assert!(a.outbound.len() <= 130, "{} links are kept", a.outbound.len());
    }
}
