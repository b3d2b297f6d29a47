//! What every port does.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tautline_net::frame::Frame;
use tautline_net::port::{Address, Datagram, LocalName, Port, PortError, Purpose};

use crate::bed::{Bed, Outcome, datagram, fill, packet, sorted};

type Case = (&'static str, fn(Bed) -> Outcome);

/// Every case.
pub(crate) const ALL: &[Case] = &[
    ("datagrams of every size come and go unchanged", every_size),
    ("a burst arrives whole", burst),
    ("a burst to several peers reaches each", several_peers),
    ("a port reaches itself", own_address),
    ("no more is received than asked for", at_most),
    ("a datagram longer than the MTU is lost, counted, and alone in that", oversize),
    ("a datagram longer than the receiver's MTU never arrives cut", longer_than_receivers_mtu),
    ("a peer that can't exist costs only its own datagrams", impossible_peer),
    ("when no data frame is left, control frames are", control_frames),
    ("frames return when they are sent, received, and dropped by another thread", frames_return),
    ("with every receive frame held, datagrams are dropped and counted, and sending goes on", receive_pool_dry),
    ("what is shown of datagrams as they come is what is received of them", shown),
    ("frames that are held are counted, and the owner is told when few are left", frames_low),
    ("a receiver that is full loses datagrams and corrupts none", full_receiver),
    ("who closed and opened again gets what is sent from then on", reopened),
    ("an address has one port at a time", one_port),
    ("packets that wait forbid to sleep", no_sleep_before_packets),
    ("a sleeping receiver is woken by each packet", woken),
];

fn every_size(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let (a, b) = (&mut *a, &mut *b);
    let mtu = a.capabilities().mtu;
    assert!(mtu >= 1000, "an MTU of {mtu}");
    let edges = [1, 2, 3, 7, 8, 55, 56, 57, 63, 64, 65, 127, 128, 129, 247, 248, 249, 255, 256, 257, 512];
    let ends = [mtu / 2, mtu - 65, mtu - 64, mtu - 63, mtu - 1, mtu];
    let steps = (0..mtu).step_by(mtu / 61);
    for (number, len) in edges.into_iter().chain(steps).chain(ends).enumerate() {
        let sent = packet(number, len);
        bed.send(a, b.local_address(), std::slice::from_ref(&sent));
        let mut there = bed.receive(a, b, 1);
        assert_eq!((there[0].peer, &there[0].frame[..]), (a.local_address(), &sent[..]), "{len} bytes there");
        // The received frame itself goes back.
        there[0].peer = a.local_address();
        bed.transmit(b, &mut there);
        let back = bed.receive(b, a, 1);
        assert_eq!((back[0].peer, &back[0].frame[..]), (b.local_address(), &sent[..]), "{len} bytes back");
    }
    Outcome::Conforms
}

fn burst(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let (a, b) = (&mut *a, &mut *b);
    let mtu = a.capabilities().mtu;
    // Runs of equal length, runs that end short, and no runs at all. Not more than any port holds.
    let lengths: Vec<usize> = (0..100).map(|n| if n < 70 { mtu.min(1344) } else { [64, 64, 64, 9, 700][n % 5] }).collect();
    let sent: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
    for round in 0..5 {
        bed.send(a, b.local_address(), &sent);
        let came = bed.receive(a, b, sent.len());
        let mut expected = sent.clone();
        expected.sort();
        assert_eq!(sorted(&came), expected, "round {round}");
    }
    assert_eq!(b.counters().received, 5 * sent.len() as u64);
    assert_eq!(a.counters().transmitted, 5 * sent.len() as u64);
    assert!(bed.drain(a, b).is_empty(), "something came twice");
    Outcome::Conforms
}

fn several_peers(bed: Bed) -> Outcome {
    let mut a = bed.open("");
    let mut peers: Vec<_> = (0..5).map(|_| bed.open("")).collect();
    let mut sent = vec![Vec::new(); peers.len()];
    let mut burst = Vec::new();
    for number in 0..150 {
        // Now alternating, now in runs.
        let peer = if number < 75 { number % peers.len() } else { number / 7 % peers.len() };
        let bytes = packet(number, 100 + number % 3);
        burst.push(datagram(&mut *a, peers[peer].local_address(), &bytes));
        sent[peer].push(bytes);
    }
    bed.transmit(&mut *a, &mut burst);
    for (peer, mut expected) in peers.iter_mut().zip(sent) {
        let came = bed.receive(&mut *a, &mut **peer, expected.len());
        expected.sort();
        assert_eq!(sorted(&came), expected);
    }
    Outcome::Conforms
}

fn own_address(bed: Bed) -> Outcome {
    let mut a = bed.open("");
    let own = a.local_address();
    bed.send(&mut *a, own, &[packet(1, 64)]);
    let mut into = Vec::new();
    for _ in 0..100_000 {
        bed.step(&mut *a);
        if a.receive(&mut into, 8).unwrap() > 0 {
            break;
        }
    }
    assert_eq!(into.len(), 1);
    assert_eq!((into[0].peer, &into[0].frame[..]), (own, &packet(1, 64)[..]));
    Outcome::Conforms
}

fn at_most(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let sent: Vec<Vec<u8>> = (0..50).map(|number| packet(number, 64)).collect();
    bed.send(&mut *a, b.local_address(), &sent);
    let mut came = Vec::new();
    bed.until(&mut *a, &mut *b, |b| {
        let before = came.len();
        let max = 1 + before % 7;
        let count = b.receive(&mut came, max).unwrap();
        assert_eq!(count, came.len() - before);
        assert!(count <= max, "{count} came where {max} were asked for");
        assert_eq!(b.receive(&mut came, 0).unwrap(), 0);
        came.len() == sent.len()
    });
    let mut expected = sent;
    expected.sort();
    assert_eq!(sorted(&came), expected);
    Outcome::Conforms
}

fn oversize(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let mtu = a.capabilities().mtu;
    let to = b.local_address();
    let mut burst: Vec<Datagram> = (0..3).map(|number| datagram(&mut *a, to, &packet(number, 10))).collect();
    let mut long = Frame::detached(mtu + 100);
    long.set_range(0, mtu + 1);
    burst.insert(1, Datagram { frame: long, peer: to });
    bed.transmit(&mut *a, &mut burst);
    let came = bed.drain(&mut *a, &mut *b);
    assert_eq!(sorted(&came), [packet(0, 10), packet(1, 10), packet(2, 10)]);
    assert_eq!(a.counters().send_failed, 1);
    Outcome::Conforms
}

fn longer_than_receivers_mtu(bed: Bed) -> Outcome {
    let mut a = bed.open("");
    let mut b = bed.open("mtu=256");
    let to = b.local_address();
    for (number, len) in [256, 257, 600, 1000, 10].into_iter().enumerate() {
        bed.send(&mut *a, to, &[packet(number, len)]);
    }
    let came = bed.drain(&mut *a, &mut *b);
    assert_eq!(sorted(&came), [packet(0, 256), packet(4, 10)]);
    let lost = a.counters().send_failed + b.counters().dropped_oversize;
    assert_eq!(lost, 3, "lost without being counted");
    Outcome::Conforms
}

fn impossible_peer(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let to = b.local_address();
    let stranger = match to {
        Address::Inet(_) => Address::Local(LocalName::new("stranger").unwrap()),
        Address::Local(_) => Address::Inet("192.0.2.1:7000".parse().unwrap()),
    };
    let peers = [to, stranger, stranger, to];
    let mut burst = peers.iter().enumerate().map(|(number, &peer)| datagram(&mut *a, peer, &packet(number, 64))).collect();
    bed.transmit(&mut *a, &mut burst);
    let came = bed.receive(&mut *a, &mut *b, 2);
    assert_eq!(sorted(&came), [packet(0, 64), packet(3, 64)]);
    assert_eq!(a.counters().send_failed, 2);
    Outcome::Conforms
}

fn control_frames(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let mut data = Vec::new();
    let all = a.allocate(Purpose::Transmit, &mut data, usize::MAX >> 16);
    assert!(all == data.len() && all > 0);
    assert_eq!(a.allocate(Purpose::Transmit, &mut data, 1), 0, "pressure, and not an error");
    let mut control = Vec::new();
    assert_eq!(a.allocate(Purpose::Control, &mut control, 4), 4);
    for (number, frame) in control.into_iter().enumerate() {
        assert!(frame.capacity() >= a.capabilities().mtu && frame.is_empty());
        bed.transmit(&mut *a, &mut Vec::from([fill(frame, b.local_address(), &packet(number, 64))]));
    }
    assert_eq!(bed.receive(&mut *a, &mut *b, 4).len(), 4);
    data.clear();
    assert_eq!(a.allocate(Purpose::Transmit, &mut data, all), all);
    Outcome::Conforms
}

fn frames_return(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open("frames=64"), bed.open("frames=64"));
    let (a, b) = (&mut *a, &mut *b);
    let mut data = Vec::new();
    let all = a.allocate(Purpose::Transmit, &mut data, 1 << 20);
    std::thread::spawn(move || drop(data)).join().unwrap();
    let (sender, receiver) = mpsc::channel::<Vec<Datagram>>();
    let (done, dropped) = mpsc::channel();
    let other = std::thread::spawn(move || {
        for datagrams in receiver {
            drop(datagrams);
            done.send(()).unwrap();
        }
    });
    for round in 0..40 {
        let sent: Vec<Vec<u8>> = (0..10).map(|n| packet(round * 10 + n, 64)).collect();
        bed.send(a, b.local_address(), &sent);
        let came = bed.receive(a, b, 10);
        if round % 2 == 0 {
            sender.send(came).unwrap();
            dropped.recv().unwrap();
        }
    }
    drop(sender);
    other.join().unwrap();
    bed.drain(a, b);
    assert_eq!(b.counters().dropped_no_frame, 0);
    let mut data = Vec::new();
    assert_eq!(a.allocate(Purpose::Transmit, &mut data, 1 << 20), all);
    Outcome::Conforms
}

fn receive_pool_dry(bed: Bed) -> Outcome {
    let mut a = bed.open("");
    let mut b = bed.open("frames=16");
    let (a, b) = (&mut *a, &mut *b);
    let sent: Vec<Vec<u8>> = (0..60).map(|number| packet(number, 200)).collect();
    bed.send(a, b.local_address(), &sent);
    let mut held = Vec::new();
    bed.until(a, b, |b| {
        b.receive(&mut held, 32).unwrap();
        held.len() as u64 + b.counters().dropped_no_frame == 60
    });
    assert!((8..=16).contains(&held.len()), "{} are held", held.len());
    assert!(held.iter().all(|datagram| sent.contains(&datagram.frame.to_vec())));
    bed.send(b, a.local_address(), &[packet(100, 300)]);
    assert_eq!(sorted(&bed.receive(b, a, 1)), [packet(100, 300)]);
    held.clear();
    bed.send(a, b.local_address(), &[packet(101, 64)]);
    assert_eq!(sorted(&bed.receive(a, b, 1)), [packet(101, 64)]);
    Outcome::Conforms
}

fn shown(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open("frames=16"));
    let (a, b) = (&mut *a, &mut *b);
    let lengths = [1, 56, 57, 64, 200, 247, 248, 249, 300, a.capabilities().mtu];
    let sent: Vec<Vec<u8>> = (0..60).map(|number| packet(number, lengths[number % lengths.len()])).collect();
    let received = |b: &mut dyn Port, held: &mut Vec<Datagram>| {
        let (before, mut seen) = (held.len(), Vec::new());
        let count = b.receive_watching(held, 5, &mut |peer, bytes| seen.push((*peer, bytes.to_vec()))).unwrap();
        assert_eq!(count, held.len() - before);
        let came: Vec<(Address, Vec<u8>)> = held[before..].iter().map(|one| (one.peer, one.frame.to_vec())).collect();
        assert_eq!(seen, came);
    };
    let mut held = Vec::new();
    for (number, packet) in sent.iter().enumerate() {
        bed.send(a, b.local_address(), std::slice::from_ref(packet));
        bed.until(a, b, |b| {
            received(b, &mut held);
            !held.is_empty()
        });
        assert!(held.iter().all(|one| sent[..=number].contains(&one.frame.to_vec())));
        held.clear();
    }
    // What there is no frame for is not shown either.
    bed.send(a, b.local_address(), &sent);
    bed.until(a, b, |b| {
        received(b, &mut held);
        b.counters().dropped_no_frame > 0
    });
    Outcome::Conforms
}

fn frames_low(bed: Bed) -> Outcome {
    // As an endpoint has it: in a box.
    fn low(port: &impl Port) -> bool {
        port.receive_frames_low()
    }
    let mut a = bed.open("");
    // More than the port itself keeps ready, so that what is held decides.
    let mut b = bed.open("frames=256");
    let before = b.frames_out();
    assert!(before.receive <= 64 && !low(&b), "{before:?}");
    let mut held = Vec::new();
    for number in 0..225 {
        bed.send(&mut *a, b.local_address(), &[packet(number, 64)]);
        held.append(&mut bed.receive(&mut *a, &mut *b, 1));
        assert!(number > 100 || !low(&b), "with {number} of 256 held: {:?}", b.frames_out());
    }
    assert!(low(&b) && b.frames_out().receive >= 225, "{:?}", b.frames_out());
    let mut data = Vec::new();
    let all = b.allocate(Purpose::Transmit, &mut data, 1 << 20);
    assert_eq!(b.frames_out().transmit, before.transmit + all);
    data.clear();
    std::thread::spawn(move || drop(held)).join().unwrap();
    let after = b.frames_out();
    assert!(after.receive <= 64 && after.transmit == before.transmit && !low(&b), "{before:?} {after:?}");
    Outcome::Conforms
}

fn full_receiver(bed: Bed) -> Outcome {
    let mut a = bed.open("");
    let mut b = bed.open(bed.fabric.shallow);
    let (a, b) = (&mut *a, &mut *b);
    const MANY: usize = 6000;
    for number in (0..MANY).step_by(50) {
        let sent: Vec<Vec<u8>> = (number..number + 50).map(|number| packet(number, 500)).collect();
        bed.send(a, b.local_address(), &sent);
    }
    let came = {
        let mut came = Vec::new();
        loop {
            let more = bed.drain(a, b);
            if more.is_empty() {
                break came;
            }
            came.extend(sorted(&more));
        }
    };
    assert!(!came.is_empty() && came.len() < MANY, "{} of {MANY} came", came.len());
    for bytes in &came {
        let number = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert_eq!(*bytes, packet(number, 500));
    }
    bed.send(a, b.local_address(), &[packet(1, 64)]);
    assert_eq!(sorted(&bed.receive(a, b, 1)), [packet(1, 64)]);
    Outcome::Conforms
}

fn reopened(bed: Bed) -> Outcome {
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let place = b.local_address();
    bed.send(&mut *a, place, &[packet(0, 64)]);
    bed.receive(&mut *a, &mut *b, 1);
    drop(b);
    for number in 1..20 {
        bed.send(&mut *a, place, &[packet(number, 64)]);
        bed.step(&mut *a);
        a.receive(&mut Vec::new(), 8).unwrap();
    }
    // What a link still holds comes to nobody.
    for _ in 0..200 {
        bed.step(&mut *a);
        a.receive(&mut Vec::new(), 8).unwrap();
    }
    let mut b = bed.open_at(&place.to_string(), "").unwrap();
    assert_eq!(b.local_address(), place);
    bed.send(&mut *a, place, &[packet(20, 64)]);
    assert_eq!(sorted(&bed.receive(&mut *a, &mut *b, 1)), [packet(20, 64)]);
    bed.send(&mut *b, a.local_address(), &[packet(21, 64)]);
    assert_eq!(sorted(&bed.receive(&mut *b, &mut *a, 1)), [packet(21, 64)]);
    Outcome::Conforms
}

fn one_port(bed: Bed) -> Outcome {
    let a = bed.open("");
    let place = a.local_address();
    let Err(error) = bed.open_at(&place.to_string(), "") else { panic!("two ports at {place}") };
    assert!(matches!(error, PortError::InUse { address } if address == place), "{error}");
    Outcome::Conforms
}

fn no_sleep_before_packets(bed: Bed) -> Outcome {
    if !bed.fabric.sleeps {
        return Outcome::DoesNotApply("nothing arrives while its thread sleeps");
    }
    let (mut a, mut b) = (bed.open(""), bed.open(""));
    let (a, b) = (&mut *a, &mut *b);
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    b.attach_wait(poll.registry(), mio::Token(1), &waker).unwrap();
    bed.until(a, b, |b| {
        let quiet = b.prepare_wait();
        b.finish_wait();
        quiet
    });
    bed.send(a, b.local_address(), &[packet(1, 64), packet(2, 64), packet(3, 64)]);
    // Until the last one has been received, one is waiting: in the device, or within the port.
    let mut came = Vec::new();
    bed.until(a, b, |b| {
        let quiet = b.prepare_wait();
        b.finish_wait();
        if !quiet {
            b.receive(&mut came, 1).unwrap();
        }
        came.len() == 3
    });
    bed.until(a, b, |b| {
        b.receive(&mut came, 1).unwrap();
        let quiet = b.prepare_wait();
        b.finish_wait();
        quiet
    });
    assert_eq!(came.len(), 3);
    Outcome::Conforms
}

fn woken(bed: Bed) -> Outcome {
    if !bed.fabric.sleeps {
        return Outcome::DoesNotApply("nothing arrives while its thread sleeps");
    }
    const ROUNDS: usize = 300;
    let mut a = bed.open("");
    let own = a.local_address();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let bed = &bed;
        // The echo sleeps until there is something for it.
        let fabric = bed.fabric;
        scope.spawn(move || {
            let bed = Bed::new(fabric);
            let mut b = bed.open("");
            tell.send(b.local_address()).unwrap();
            let mut poll = mio::Poll::new().unwrap();
            let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
            b.attach_wait(poll.registry(), mio::Token(1), &waker).unwrap();
            let mut events = mio::Events::with_capacity(8);
            let (mut came, mut echoed, mut slept) = (Vec::new(), 0, 0);
            while echoed < ROUNDS {
                if b.receive(&mut came, 8).unwrap() > 0 {
                    echoed += came.len();
                    let back = came.drain(..).map(|datagram| Datagram { peer: own, ..datagram });
                    bed.transmit(&mut *b, &mut back.collect());
                } else if b.prepare_wait() {
                    poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
                    b.finish_wait();
                    assert!(!events.is_empty(), "slept through a packet after {echoed} rounds");
                    slept += 1;
                }
            }
            // Let go what a wrapper holds back.
            for _ in 0..200 {
                bed.step(&mut *b);
            }
            assert!(slept > 0, "it never slept");
        });
        let to = told.recv().unwrap();
        for round in 0..ROUNDS {
            // Now at once, now when the receiver sleeps for certain.
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            bed.send(&mut *a, to, &[packet(round, 64)]);
            let mut came = Vec::new();
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while came.is_empty() {
                assert!(std::time::Instant::now() < deadline, "round {round}: no echo");
                bed.step(&mut *a);
                a.receive(&mut came, 8).unwrap();
            }
            assert_eq!(sorted(&came), [packet(round, 64)]);
        }
    });
    Outcome::Conforms
}
