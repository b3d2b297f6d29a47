//! Kernel UDP sockets: the port that runs anywhere and needs no privileges.
//!
//! One unconnected, non-blocking socket serves all peers; a peer that has nearly all traffic gets a connected one beside it. Bursts leave segmented (GSO) and arrive coalesced (GRO) where the kernel
//! has these, which is found out when the port is opened and when it is used. Options of a `udp` URL:
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `mtu` | 1344 | largest datagram, in bytes: fits common paths with tunnels; up to 65507 where the path carries it (loopback does) |
//! | `gso` | true | send runs of datagrams to one peer as one segmented message |
//! | `gro` | true | let the kernel coalesce received datagrams of one peer |
//! | `hot` | true | give a peer with nearly all traffic a connected socket: less work for the kernel; it takes one more file descriptor |
//! | `frames` | 2048 | frames of the receive pool and of the transmit pool each |
//! | `rcvbuf`, `sndbuf` | 8388608 | socket buffers in bytes; without CAP_NET_ADMIN the system's `net.core.rmem_max` and `wmem_max` limit them |
//!
//! An address with port number 0 takes a free one. `[::]` serves both families.

use std::io;
use std::sync::Arc;

use super::pools::{FRAMES, MTU_MIN, Pools, number};
use super::wrap::switch;
use super::{Address, AddressError, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, PortUrl, Purpose};
use crate::frame::Frame;

mod favour;
mod hot;
mod pieces;
mod receive;
mod slot;
mod sockaddr;
mod socket;
mod source;
mod transmit;

use hot::Sockets;
use receive::Receiver;
use socket::{Buffers, Socket};
use source::Source;
use transmit::Sender;

/// The options of a `udp` URL.
pub(super) const OPTIONS: &[&str] = &["mtu", "gso", "gro", "hot", "frames", "rcvbuf", "sndbuf"];

/// Largest datagram that IPv4 carries.
const MTU_MAX: usize = 65_507;

/// A kernel UDP socket.
#[derive(Debug)]
pub struct UdpPort {
    sockets: Sockets,
    capabilities: Capabilities,
    pools: Pools,
    receiver: Receiver,
    sender: Sender,
    counters: PortCounters,
}

impl UdpPort {
    /// Opens the port that `url` names.
    pub fn open(url: &PortUrl) -> Result<UdpPort, PortError> {
        let Address::Inet(address) = url.address else {
            return Err(PortError::Address(AddressError::Socket(url.address.to_string())));
        };
        let mtu = number(url, "mtu", 1344, MTU_MIN..=MTU_MAX)?;
        let frames = number(url, "frames", 2048, FRAMES)?;
        let buffer = 16 << 10..=1 << 30;
        let receive = number(url, "rcvbuf", 8 << 20, buffer.clone())?;
        let send = number(url, "sndbuf", 8 << 20, buffer)?;
        let buffers = Buffers { receive, send };
        let (want_gso, want_gro) = (switch(url, "gso", true)?, switch(url, "gro", true)?);
        let hot = switch(url, "hot", true)?;
        let socket = Socket::bind(address, buffers)?;
        // Zero changes nothing, and tells whether the kernel knows the option.
        let gso = want_gso && socket.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let gro = want_gro && socket.set(libc::SOL_UDP, libc::UDP_GRO, 0).is_ok();
        Ok(UdpPort {
            capabilities: Capabilities { mtu, integrity: true, segmentation: gso },
            pools: Pools::new(frames, mtu),
            receiver: Receiver::new(mtu),
            sender: Sender::new(mtu, address.is_ipv6(), gso),
            counters: PortCounters::default(),
            sockets: Sockets::new(Source::new(socket, None, gro), buffers, hot),
        })
    }
}

impl Port for UdpPort {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn local_address(&self) -> Address {
        Address::Inet(self.sockets.main().local())
    }

    #[inline]
    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        self.sockets.receive(&mut self.receiver, &self.pools.receive, &mut self.counters, into, max)
    }

    #[inline]
    fn receive_frames_low(&self) -> bool {
        self.pools.receive_low()
    }

    fn frames_out(&self) -> FramesOut {
        self.pools.out()
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        self.pools.allocate(purpose, into, count)
    }

    #[inline]
    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        self.sender.transmit(&mut self.sockets, &mut self.counters, burst)
    }

    fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, _: &Arc<mio::Waker>) -> io::Result<()> {
        self.sockets.attach_wait(registry, token)
    }

    fn prepare_wait(&mut self) -> bool {
        self.sockets.expect_either();
        self.receiver.rest();
        // Readiness is told at its edge: a datagram that was there before the look is seen by it, a later one makes an edge.
        !self.receiver.is_waiting() && !self.sockets.is_waiting()
    }

    fn finish_wait(&mut self) {}

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    use super::*;

    fn open(url: &str) -> UdpPort {
        UdpPort::open(&url.parse().unwrap()).unwrap()
    }

    fn datagrams(port: &mut UdpPort, to: Address, packets: &[Vec<u8>]) -> Vec<Datagram> {
        let mut frames = Vec::new();
        assert_eq!(port.allocate(Purpose::Transmit, &mut frames, packets.len()), packets.len());
        let fill = |(mut frame, bytes): (Frame, &Vec<u8>)| {
            frame.set_range(0, bytes.len());
            frame.data_mut().copy_from_slice(bytes);
            Datagram { frame, peer: to }
        };
        frames.into_iter().zip(packets).map(fill).collect()
    }

    fn send(port: &mut UdpPort, to: Address, packets: &[Vec<u8>]) {
        let mut burst = datagrams(port, to, packets);
        assert_eq!(port.transmit(&mut burst).unwrap(), packets.len());
    }

    /// Receives `count` datagrams, `max` at a time.
    fn received(port: &mut UdpPort, count: usize, max: usize) -> Vec<Vec<u8>> {
        let mut burst = Vec::new();
        let mut packets = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while packets.len() < count && Instant::now() < deadline {
            let got = port.receive(&mut burst, max).unwrap();
            assert!(got <= max && got == burst.len());
            packets.extend(burst.drain(..).map(|datagram| datagram.frame.to_vec()));
        }
        packets
    }

    /// Numbered packets of these lengths.
    fn packets(lengths: &[usize]) -> Vec<Vec<u8>> {
        lengths.iter().enumerate().map(|(n, &len)| (0..len).map(|at| (n * 31 + at) as u8).collect()).collect()
    }

    #[test]
    fn a_run_that_leaves_as_one_message_arrives_as_its_datagrams() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = open("udp://127.0.0.1:0?rcvbuf=4194304");
        let lengths = [[64; 150].as_slice(), &[20], &[1344; 60], &[700], &[0, 0, 5, 6, 6]].concat();
        let sent = packets(&lengths);
        let mut burst = datagrams(&mut a, b.local_address(), &sent);
        assert_eq!(a.transmit(&mut burst).unwrap(), sent.len());
        assert_eq!(received(&mut b, sent.len(), 7), sent);
        assert_eq!(a.counters().segmentation_fallbacks, 0);
    }

    #[test]
    fn trains_and_lone_datagrams_of_any_length_arrive_whole_whatever_came_before() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = open("udp://127.0.0.1:0");
        for options in ["", "?frames=64", "?gro=false"] {
            let mut c = open(&format!("udp://127.0.0.1:0{options}"));
            let (mut random, small) = (fastrand::Rng::with_seed(7), options.contains("frames"));
            for round in 0..300 {
                let count = if small { 1..12 } else { 1..60 };
                let long = *random.choice(&[60, 600, 1000, 1300, 1344]).unwrap();
                let mut lengths = vec![long; random.usize(count)];
                lengths.push(random.usize(..=1344));
                let sent = packets(&lengths);
                let from = if random.bool() { &mut a } else { &mut b };
                send(from, c.local_address(), &sent);
                assert!(received(&mut c, sent.len(), random.usize(1..40)) == sent, "{options} round {round}: {lengths:?}");
            }
            // And the frames that wait for trains go back once there are none.
            let mut nothing = Vec::new();
            for _ in 0..1_000 {
                assert_eq!(c.receive(&mut nothing, 32).unwrap(), 0);
            }
            assert!(c.frames_out().receive <= 32, "{options}: {:?}", c.frames_out());
        }
    }

    /// A port that has just received trains of long datagrams.
    fn after_trains(from: &mut UdpPort) -> UdpPort {
        let mut port = open("udp://127.0.0.1:0");
        let train = packets(&[1300; 40]);
        for _ in 0..1_000 {
            send(from, port.local_address(), &train);
            assert!(received(&mut port, 40, 32) == train);
            if port.frames_out().receive > 40 {
                return port;
            }
        }
        panic!("no frames wait for trains");
    }

    #[test]
    fn frames_for_trains_go_back_although_lone_datagrams_come_now_and_then() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = after_trains(&mut a);
        let mut nothing = Vec::new();
        for _ in 0..500 {
            let lone = packets(&[100]);
            send(&mut a, b.local_address(), &lone);
            assert!(received(&mut b, 1, 32) == lone);
            b.receive(&mut nothing, 32).unwrap();
        }
        assert!(b.frames_out().receive <= 32, "{:?}", b.frames_out());
    }

    #[test]
    fn frames_for_trains_go_back_before_the_owner_sleeps() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = after_trains(&mut a);
        let mut nothing = Vec::new();
        while !b.prepare_wait() {
            b.receive(&mut nothing, 32).unwrap();
        }
        assert!(b.frames_out().receive <= 32, "{:?}", b.frames_out());
        b.finish_wait();
        let train = packets(&[1300; 40]);
        send(&mut a, b.local_address(), &train);
        assert!(received(&mut b, 40, 32) == train);
    }

    #[test]
    fn what_a_failed_segmentation_lost_is_sent_again_one_by_one() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = open("udp://127.0.0.1:0");
        if !a.capabilities.segmentation {
            return;
        }
        // A socket without checksums can't segment: the kernel refuses each try.
        a.sockets.main().set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let sent = packets(&[1344; 100]);
        let mut burst = datagrams(&mut a, b.local_address(), &sent);
        assert_eq!(a.transmit(&mut burst).unwrap(), 100);
        assert_eq!(received(&mut b, 100, 32), sent);
        let counters = a.counters();
        assert_eq!((counters.transmitted, counters.send_failed), (100, 0));
        let fallbacks = counters.segmentation_fallbacks;
        assert!((1..10).contains(&fallbacks), "{counters:?}");
        let mut burst = datagrams(&mut a, b.local_address(), &sent);
        a.transmit(&mut burst).unwrap();
        assert_eq!(a.counters().segmentation_fallbacks, fallbacks, "what failed is not tried again");
    }

    #[test]
    fn an_icmp_error_of_an_earlier_datagram_is_counted_and_stops_nothing() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = open("udp://127.0.0.1:0");
        // Makes an unconnected socket hear of ICMP errors.
        a.sockets.main().set(libc::SOL_IP, libc::IP_RECVERR, 1).unwrap();
        let closed = Address::Inet(UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let one = packets(&[8]);
        for _ in 0..3 {
            let mut burst = datagrams(&mut a, closed, &one);
            a.transmit(&mut burst).unwrap();
            assert!(burst.is_empty());
        }
        let mut burst = datagrams(&mut a, b.local_address(), &one);
        assert_eq!(a.transmit(&mut burst).unwrap(), 1);
        assert_eq!(received(&mut b, 1, 8), one);
        let mut burst = datagrams(&mut a, closed, &one);
        a.transmit(&mut burst).unwrap();
        assert_eq!(a.receive(&mut Vec::new(), 8).unwrap(), 0);
        assert!(a.counters().network_errors >= 2, "{:?}", a.counters());
    }

    #[test]
    fn datagrams_longer_than_the_mtu_are_dropped_and_counted_and_never_cut() {
        for options in ["", "?gro=false"] {
            let mut b = open(&format!("udp://127.0.0.1:0{options}"));
            let raw = UdpSocket::bind("127.0.0.1:0").unwrap();
            let Address::Inet(to) = b.local_address() else { panic!() };
            for len in [1344, 1345, 9000, 65_507, 10] {
                raw.send_to(&vec![7; len], to).unwrap();
            }
            assert_eq!(received(&mut b, 2, 8), [vec![7; 1344], vec![7; 10]]);
            assert_eq!(b.counters().dropped_oversize, 3);
        }
    }

    #[test]
    fn with_no_frame_free_datagrams_are_dropped_and_counted_and_later_ones_arrive() {
        for options in ["", "&gro=false"] {
            let mut a = open("udp://127.0.0.1:0");
            let mut b = open(&format!("udp://127.0.0.1:0?frames=16{options}"));
            let to = b.local_address();
            let sent = packets(&[100; 60]);
            send(&mut a, to, &sent);
            let mut held = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(10);
            while b.counters().received + b.counters().dropped_no_frame < 60 && Instant::now() < deadline {
                b.receive(&mut held, 32).unwrap();
            }
            assert!(!held.is_empty() && held.len() <= 16, "{}", held.len());
            assert_eq!(b.counters().dropped_no_frame as usize, 60 - held.len());
            for datagram in &held {
                assert!(sent.contains(&datagram.frame.to_vec()));
            }
            held.clear();
            send(&mut a, to, &sent[..1]);
            assert_eq!(received(&mut b, 1, 8), sent[..1]);
        }
    }

    #[test]
    fn what_can_not_be_sent_is_lost_and_counted_and_the_rest_goes() {
        let mut a = open("udp://127.0.0.1:0");
        let mut b = open("udp://127.0.0.1:0");
        let one = packets(&[8]);
        let mut burst = Vec::new();
        for to in ["[::1]:7000", "127.0.0.1:0", &b.local_address().to_string(), "mem"] {
            let to = to.parse().map_or_else(|_| Address::Local(crate::port::LocalName::new(to).unwrap()), Address::Inet);
            burst.extend(datagrams(&mut a, to, &one));
        }
        let mut long = Frame::detached(2000);
        long.set_range(0, 1345);
        burst.push(Datagram { frame: long, peer: b.local_address() });
        assert_eq!(a.transmit(&mut burst).unwrap(), 1);
        assert!(burst.is_empty());
        assert_eq!(a.counters().send_failed, 4);
        assert_eq!(received(&mut b, 1, 8), one);
    }

    #[test]
    fn a_socket_of_both_families_shows_ipv4_peers_as_such() {
        let Ok(mut b) = UdpPort::open(&"udp://[::]:0".parse().unwrap()) else { return };
        let mut a = open("udp://127.0.0.1:0");
        let Address::Inet(local) = b.local_address() else { panic!() };
        let to = Address::Inet(([127, 0, 0, 1], local.port()).into());
        send(&mut a, to, &packets(&[8]));
        let mut burst = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while burst.is_empty() && Instant::now() < deadline {
            b.receive(&mut burst, 8).unwrap();
        }
        assert_eq!(burst[0].peer, a.local_address());
        b.transmit(&mut burst).unwrap();
        assert_eq!(received(&mut a, 1, 8).len(), 1);
    }

    #[test]
    fn what_can_not_be_opened_says_what_to_change() {
        let first = open("udp://127.0.0.1:0");
        let taken = format!("udp://{}", first.local_address());
        for (url, expected) in [
            (taken.as_str(), "is in use"),
            ("udp://192.0.2.77:7000", "192.0.2.77:7000 is not an address of this machine"),
            ("udp://127.0.0.1:0?mtu=70000", "mtu=70000: use 256 to 65507"),
            ("udp://127.0.0.1:0?mtu=big", "use 256 to 65507"),
            ("udp://127.0.0.1:0?gso=maybe", "gso=maybe: use 1, true or on"),
            ("udp://127.0.0.1:0?frames=1", "frames=1: use 16 to"),
        ] {
            let error = UdpPort::open(&url.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }
}
