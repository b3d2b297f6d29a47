use std::net::UdpSocket;
use std::time::Duration;

use super::*;
use crate::port::udp::UdpPort;
use crate::port::{Port, Purpose};

fn open(url: &str) -> UdpPort {
    UdpPort::open(&url.parse().unwrap()).unwrap()
}

/// A peer that is a plain socket.
fn peer(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// How `peer` reaches the port.
fn reach(port: &UdpPort, peer: &UdpSocket) -> SocketAddr {
    let Address::Inet(local) = port.local_address() else { panic!() };
    SocketAddr::new(peer.local_addr().unwrap().ip(), local.port())
}

fn send(port: &mut UdpPort, to: &UdpSocket, bytes: &[u8]) {
    let mut frames = Vec::new();
    assert_eq!(port.allocate(Purpose::Transmit, &mut frames, 1), 1);
    let mut frame = frames.remove(0);
    frame.set_range(0, bytes.len());
    frame.data_mut().copy_from_slice(bytes);
    let mut burst = Vec::from([Datagram { frame, peer: Address::Inet(to.local_addr().unwrap()) }]);
    assert_eq!(port.transmit(&mut burst).unwrap(), 1);
}

/// `from` sends `bytes`, so many times.
fn repeat(from: &UdpSocket, to: SocketAddr, bytes: &[u8], times: usize) {
    for _ in 0..times {
        from.send_to(bytes, to).unwrap();
    }
}

/// One receive of up to `max`.
fn receive(port: &mut UdpPort, max: usize) -> Vec<Datagram> {
    let mut came = Vec::new();
    port.receive(&mut came, max).unwrap();
    came
}

/// How many receives it takes until a datagram of `from` comes; those of others are let go.
fn receives_until(port: &mut UdpPort, from: &UdpSocket) -> u32 {
    let from = Address::Inet(from.local_addr().unwrap());
    (1..1000).find(|_| receive(port, 8).iter().any(|datagram| datagram.peer == from)).expect("it never came")
}

/// So many round trips, begun by the peer; each side checks the address that it sees.
fn round_trips(port: &mut UdpPort, peer: &UdpSocket, count: usize) {
    let to = reach(port, peer);
    for n in 0..count {
        let bytes = (n as u64).to_le_bytes();
        peer.send_to(&bytes, to).unwrap();
        let came = (0..100).map(|_| receive(port, 8)).find(|came| !came.is_empty()).expect("it never came");
        assert_eq!((came.len(), &*came[0].frame), (1, &bytes[..]));
        assert_eq!(came[0].peer, Address::Inet(peer.local_addr().unwrap()));
        drop(came);
        send(port, peer, &bytes);
        let mut back = [0; 64];
        let (len, from) = peer.recv_from(&mut back).unwrap();
        assert_eq!((&back[..len], from), (&bytes[..], to));
    }
}

fn is_hot(port: &UdpPort, peer: &UdpSocket) -> bool {
    port.sockets.hot_peer() == Some(Address::Inet(peer.local_addr().unwrap()))
}

/// A port with a hot peer.
fn hot(url: &str, peer: &UdpSocket) -> UdpPort {
    let mut port = open(url);
    round_trips(&mut port, peer, 300);
    assert!(is_hot(&port, peer));
    port
}

/// Lets others send until no peer is hot and the second socket is closed.
fn cool(port: &mut UdpPort, other: &UdpSocket) {
    let to = reach(port, other);
    for _ in 0..200 {
        other.send_to(b"other", to).unwrap();
        receive(port, 8);
    }
    for _ in 0..100 {
        receive(port, 8);
    }
    assert!(port.sockets.hot_peer().is_none() && port.sockets.hot.is_none());
}

fn has_ipv6() -> bool {
    UdpSocket::bind("[::1]:0").is_ok()
}

/// URLs of ports, and an address that peers bind.
fn places() -> Vec<(&'static str, &'static str)> {
    let mut places = vec![("udp://127.0.0.1:0", "127.0.0.1:0"), ("udp://0.0.0.0:0", "127.0.0.1:0")];
    if has_ipv6() {
        places.extend([("udp://[::1]:0", "[::1]:0"), ("udp://[::]:0", "[::1]:0"), ("udp://[::]:0", "127.0.0.1:0")]);
    }
    places
}

#[test]
fn a_peer_with_all_traffic_gets_its_socket_and_others_go_on_by_the_main_one() {
    for (url, place) in places() {
        let (warm, other) = (peer(place), peer(place));
        let mut port = open(url);
        round_trips(&mut port, &warm, 200);
        assert!(!is_hot(&port, &warm), "{url}");
        round_trips(&mut port, &warm, 100);
        assert!(is_hot(&port, &warm), "{url}");
        let hot = port.sockets.hot.as_ref().unwrap();
        assert_eq!(hot.stage, Stage::Serving);
        let to = reach(&port, &warm);
        warm.send_to(b"warm", to).unwrap();
        assert!(hot.source.socket.is_waiting() && !port.sockets.main().is_waiting(), "{url}: it goes to the hot socket");
        assert_eq!(receives_until(&mut port, &warm), 1);
        round_trips(&mut port, &other, 5);
        assert!(is_hot(&port, &warm), "{url}");
        round_trips(&mut port, &warm, 100);
    }
}

#[test]
fn what_others_send_comes_within_few_receives_also_while_the_hot_peer_sends_on() {
    let (warm, other) = (peer("127.0.0.1:0"), peer("127.0.0.1:0"));
    let mut port = hot("udp://127.0.0.1:0", &warm);
    let to = reach(&port, &warm);
    let quiet = |port: &mut UdpPort| (0..300).for_each(|_| assert!(receive(port, 8).is_empty()));
    for at in 0..20 {
        quiet(&mut port);
        (0..at).for_each(|_| drop(receive(&mut port, 8)));
        other.send_to(b"other", to).unwrap();
        let first = receives_until(&mut port, &other);
        assert!(first <= QUIET, "{first}");
        other.send_to(b"other", to).unwrap();
        assert_eq!(receives_until(&mut port, &other), 1, "where one came from more may come");
        round_trips(&mut port, &warm, 20);
    }
    quiet(&mut port);
    repeat(&warm, to, b"warm", 1000);
    other.send_to(b"other", to).unwrap();
    let (mut took, from) = (0, Address::Inet(other.local_addr().unwrap()));
    while !receive(&mut port, 1).iter().any(|datagram| datagram.peer == from) {
        took += 1;
        assert!(took < 3 * BUSY, "starved");
    }
    assert!(is_hot(&port, &warm));
}

#[test]
fn nothing_is_lost_or_overtaken_when_a_peer_becomes_hot_while_its_packets_are_queued() {
    for options in ["", "?gro=0", "?frames=16"] {
        let warm = peer("127.0.0.1:0");
        let mut port = open(&format!("udp://127.0.0.1:0{options}"));
        let to = reach(&port, &warm);
        let mut next = 0u32;
        let mut sent = 0u32;
        for _ in 0..100 {
            for _ in 0..20 {
                warm.send_to(&sent.to_le_bytes(), to).unwrap();
                sent += 1;
            }
            for datagram in receive(&mut port, 16) {
                assert_eq!(*datagram.frame, next.to_le_bytes(), "{options} {:?}", port.counters());
                next += 1;
            }
        }
        assert!(is_hot(&port, &warm));
        while next < sent {
            let came = receive(&mut port, 16);
            assert!(!came.is_empty(), "lost after {next} of {sent}");
            for datagram in came {
                assert_eq!(*datagram.frame, next.to_le_bytes());
                next += 1;
            }
        }
    }
}

#[test]
fn a_hot_peer_that_dies_and_comes_back_is_served_and_its_death_stops_nothing() {
    let (warm, other) = (peer("127.0.0.1:0"), peer("127.0.0.1:0"));
    let mut port = hot("udp://127.0.0.1:0", &warm);
    let address = warm.local_addr().unwrap();
    let gone = warm.try_clone().unwrap();
    drop((warm, gone));
    let dead = |port: &mut UdpPort| {
        let mut frames = Vec::new();
        port.allocate(Purpose::Transmit, &mut frames, 3);
        let mut burst: Vec<_> = frames.into_iter().map(|frame| Datagram { frame, peer: Address::Inet(address) }).collect();
        for datagram in &mut burst {
            datagram.frame.set_range(0, 8);
        }
        port.transmit(&mut burst).unwrap();
        assert!(burst.is_empty());
    };
    for _ in 0..20 {
        dead(&mut port);
        receive(&mut port, 8);
        dead(&mut port);
    }
    let counters = port.counters();
    assert!(counters.network_errors > 0 && counters.send_failed == 0, "{counters:?}");
    round_trips(&mut port, &other, 3);
    dead(&mut port);
    let warm = peer(&address.to_string());
    round_trips(&mut port, &warm, 100);
    assert!(is_hot(&port, &warm));
}

#[test]
fn another_peer_becomes_hot_when_traffic_moves_and_what_the_first_had_queued_still_comes() {
    for (url, place) in places() {
        let (first, second) = (peer(place), peer(place));
        let mut port = hot(url, &first);
        let to = reach(&port, &first);
        // Queued at the hot socket when it is given up.
        repeat(&first, to, b"first", 50);
        port.sockets.retire();
        first.send_to(b"last", to).unwrap();
        assert!(port.sockets.main().is_waiting(), "{url}: what comes after goes to the main socket");
        let mut came = 0;
        for _ in 0..100 {
            let datagrams = receive(&mut port, 8);
            assert!(datagrams.iter().all(|datagram| datagram.peer == Address::Inet(first.local_addr().unwrap())));
            came += datagrams.len();
        }
        assert_eq!(came, 51, "{url}");
        assert!(port.sockets.hot.is_none());
        round_trips(&mut port, &second, 600);
        assert!(is_hot(&port, &second), "{url}");
        round_trips(&mut port, &first, 100);
        assert!(!is_hot(&port, &second), "{url}");
    }
}

#[test]
fn two_peers_in_turn_have_no_socket_of_their_own_and_with_hot_off_nobody_has() {
    let (first, second) = (peer("127.0.0.1:0"), peer("127.0.0.1:0"));
    let mut port = open("udp://127.0.0.1:0");
    for _ in 0..500 {
        round_trips(&mut port, &first, 1);
        round_trips(&mut port, &second, 1);
        assert!(port.sockets.hot.is_none());
    }
    let mut port = open("udp://127.0.0.1:0?hot=0");
    round_trips(&mut port, &first, 600);
    assert!(port.sockets.hot.is_none());
}

#[test]
fn a_burst_to_several_peers_reaches_each_in_order_whichever_is_hot() {
    let peers = [peer("127.0.0.1:0"), peer("127.0.0.1:0")];
    let mut port = hot("udp://127.0.0.1:0", &peers[0]);
    let mut frames = Vec::new();
    port.allocate(Purpose::Transmit, &mut frames, 40);
    let burst = frames.into_iter().enumerate().map(|(n, mut frame)| {
        frame.set_range(0, 4);
        frame.data_mut().copy_from_slice(&(n as u32).to_le_bytes());
        Datagram { frame, peer: Address::Inet(peers[n / 3 % 2].local_addr().unwrap()) }
    });
    assert_eq!(port.transmit(&mut burst.collect()).unwrap(), 40);
    for (index, peer) in peers.iter().enumerate() {
        for n in (0..40u32).filter(|n| (n / 3 % 2) as usize == index) {
            let mut bytes = [0; 8];
            let (len, from) = peer.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..len], from), (&n.to_le_bytes()[..], reach(&port, peer)));
        }
    }
}

#[test]
fn a_sleeper_is_woken_by_either_socket_and_does_not_sleep_before_a_packet_of_either() {
    for late in [false, true] {
        let (warm, other) = (peer("127.0.0.1:0"), peer("127.0.0.1:0"));
        let mut poll = mio::Poll::new().unwrap();
        let waker = std::sync::Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let mut port = open("udp://127.0.0.1:0");
        let to = reach(&port, &warm);
        if !late {
            port.attach_wait(poll.registry(), mio::Token(1), &waker).unwrap();
        }
        round_trips(&mut port, &warm, 300);
        if late {
            port.attach_wait(poll.registry(), mio::Token(1), &waker).unwrap();
        }
        assert!(is_hot(&port, &warm));
        let mut events = mio::Events::with_capacity(8);
        for round in 0..60 {
            // Which peer sends: each, and both.
            let senders = [vec![&warm], vec![&other], vec![&warm, &other]][round % 3].clone();
            while !receive(&mut port, 8).is_empty() {}
            // What woke it before is no news.
            poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            let first = round % 2 == 0;
            if first {
                senders.iter().for_each(|sender| repeat(sender, to, b"wake", 1));
                assert!(!port.prepare_wait(), "it would have slept on a packet");
            } else {
                assert!(port.prepare_wait());
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(1));
                        senders.iter().for_each(|sender| repeat(sender, to, b"wake", 1));
                    });
                    poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
                });
                assert!(!events.is_empty(), "round {round}: slept through a packet");
                port.finish_wait();
            }
            assert!(!receive(&mut port, 1).is_empty(), "round {round}: the first look after finds it");
            for _ in 1..senders.len() {
                assert!((0..=QUIET).any(|_| !receive(&mut port, 1).is_empty()), "round {round}");
            }
        }
        cool(&mut port, &other);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        warm.send_to(b"main", to).unwrap();
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty());
    }
}

#[test]
fn the_address_is_in_use_for_all_others_while_there_is_a_second_socket_and_after() {
    for (url, place) in places() {
        let (warm, other) = (peer(place), peer(place));
        let mut port = hot(url, &warm);
        let Address::Inet(local) = port.local_address() else { panic!() };
        let refused = |place: SocketAddr| {
            let again = UdpPort::open(&format!("udp://{place}").parse().unwrap());
            assert!(matches!(again, Err(PortError::InUse { .. })), "{place}: {again:?}");
            // Not even for who would share it.
            let greedy = socket2::Socket::new(socket2::Domain::for_address(place), socket2::Type::DGRAM, None).unwrap();
            greedy.set_reuse_port(true).unwrap();
            assert!(greedy.bind(&place.into()).is_err(), "{place} was shared");
        };
        refused(local);
        refused(reach(&port, &warm));
        cool(&mut port, &other);
        refused(local);
        refused(reach(&port, &warm));
        drop(port);
        drop(open(&format!("udp://{local}")));
    }
}

#[test]
fn where_no_second_socket_can_be_had_all_goes_on_by_the_main_one() {
    let warm = peer("127.0.0.1:0");
    let mut port = open("udp://127.0.0.1:0");
    // Of another family: it can't be connected.
    port.sockets.make_hot("[2001:db8::1]:7000".parse().unwrap());
    assert!(port.sockets.hot.is_none() && port.sockets.failed_before);
    round_trips(&mut port, &warm, 10);
    let taken = UdpPort::open(&format!("udp://{}", port.local_address()).parse().unwrap());
    assert!(matches!(taken, Err(PortError::InUse { .. })));
    round_trips(&mut port, &warm, 600);
    assert!(is_hot(&port, &warm), "and it is tried again, later");
}

#[test]
fn a_hot_socket_whose_connection_fails_is_given_up_and_its_datagrams_leave_by_the_main_one() {
    let warm = peer("127.0.0.1:0");
    let mut port = hot("udp://127.0.0.1:0", &warm);
    let fd = port.sockets.hot.as_ref().unwrap().source.socket.as_raw_fd();
    // SAFETY: no pointer is given.
    assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_WR) }, 0);
    round_trips(&mut port, &warm, 1);
    assert!(!is_hot(&port, &warm));
    assert_eq!(port.counters().send_failed, 0);
    round_trips(&mut port, &warm, 100);
}

#[test]
fn second_sockets_can_be_made_and_closed_any_number_of_times() {
    let (warm, other) = (peer("127.0.0.1:0"), peer("127.0.0.1:0"));
    let mut port = open("udp://127.0.0.1:0");
    for _ in 0..300 {
        port.sockets.make_hot(warm.local_addr().unwrap());
        assert!(is_hot(&port, &warm));
        round_trips(&mut port, &warm, 2);
        round_trips(&mut port, &other, 1);
        port.sockets.retire();
        (0..GONE).for_each(|_| drop(receive(&mut port, 8)));
        assert!(port.sockets.hot.is_none());
    }
}
