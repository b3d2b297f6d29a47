//! A session's work, through the endpoint that holds it: two endpoints over mem on one thread, in virtual time.

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput};
use tautline_net::class::Class;
use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::{Endpoint, EndpointConfig, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::{PortUrl, open};

const SMALL: usize = 32;
const BURST: usize = 32;
/// A turn takes so long, in virtual time.
const TURN: u64 = 1_000;

static MESSAGE: [u8; SMALL] = [7; SMALL];
static LARGE: [u8; 64 << 10] = [7; 64 << 10];

struct Pair {
    now: Time,
    client: Endpoint,
    server: Endpoint,
    there: SessionId,
    back: SessionId,
}

impl Pair {
    fn new() -> Pair {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
        let mut now = clock.now();
        let endpoint = |name: &str| {
            let url: PortUrl = name.parse().expect("a literal URL");
            let config = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
            Endpoint::new(open(&url, &clock).expect("the name is free"), config, now)
        };
        let (mut client, mut server) = (endpoint("mem://pieces-client"), endpoint("mem://pieces-server"));
        let there = client.connect(server.local_address(), now).expect("both are mem");
        let back = loop {
            now = now.plus_nanos(TURN);
            client.poll(now);
            client.flush(now);
            server.poll(now);
            server.flush(now);
            if let Some(Event::Established { session, .. }) = server.next_event() {
                break session;
            }
        };
        let mut pair = Pair { now, client, server, there, back };
        (0..10).for_each(|_| pair.settle());
        pair
    }

    fn send(&mut self, message: &'static [u8]) {
        self.client.send(self.there, Class::Normal, &[], Payload::from(message), 0, self.now).expect("the window has room");
    }

    /// Takes what the server got: how many messages.
    fn receive(&mut self) -> usize {
        self.server.poll(self.now);
        let events = std::iter::from_fn(|| self.server.next_event());
        events.filter(|event| matches!(event, Event::Message { .. })).count()
    }

    /// Lets the acknowledgements come back, and everything end.
    fn settle(&mut self) {
        self.now += Duration::from_micros(200);
        for endpoint in [&mut self.server, &mut self.client] {
            endpoint.poll(self.now);
            endpoint.flush(self.now);
        }
        self.client.poll(self.now);
        while self.client.next_event().is_some() || self.server.next_event().is_some() {}
        self.now = self.now.plus_nanos(TURN);
    }
}

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("session");
    group.throughput(Throughput::Elements(BURST as u64));
    let pair = std::cell::RefCell::new(Pair::new());
    let settled = || pair.borrow_mut().settle();
    let sent = || {
        let mut pair = pair.borrow_mut();
        pair.settle();
        (0..BURST).for_each(|_| pair.send(&MESSAGE));
        let now = pair.now;
        pair.client.flush(now);
    };
    let received = || {
        sent();
        let mut pair = pair.borrow_mut();
        assert_eq!(pair.receive(), BURST);
        pair.now += Duration::from_micros(200);
    };
    group.bench_function(format!("send {BURST} x {SMALL} B"), |bencher| {
        let send = |()| {
            let mut pair = pair.borrow_mut();
            (0..BURST).for_each(|_| pair.send(&MESSAGE));
            let now = pair.now;
            pair.client.flush(now);
        };
        bencher.iter_batched(settled, send, BatchSize::PerIteration);
    });
    group.bench_function(format!("receive {BURST} x {SMALL} B"), |bencher| {
        bencher.iter_batched(sent, |()| assert_eq!(pair.borrow_mut().receive(), BURST), BatchSize::PerIteration);
    });
    group.bench_function(format!("acknowledge {BURST} x {SMALL} B"), |bencher| {
        // The server's acknowledgement, written and read.
        let acknowledge = |()| {
            let mut pair = pair.borrow_mut();
            let now = pair.now;
            pair.server.poll(now);
            pair.server.flush(now);
            pair.client.poll(now);
        };
        bencher.iter_batched(received, acknowledge, BatchSize::PerIteration);
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function(format!("message of {SMALL} B there and back"), |bencher| {
        bencher.iter(|| {
            let pair = &mut *pair.borrow_mut();
            pair.send(&MESSAGE);
            let now = pair.now;
            pair.client.flush(now);
            assert_eq!(pair.receive(), 1);
            pair.server.send(pair.back, Class::Normal, &[], Payload::from(&MESSAGE[..]), 0, now).expect("the window has room");
            pair.server.flush(now);
            pair.client.poll(now);
            while pair.client.next_event().is_some() {}
            pair.now = now.plus_nanos(TURN);
        });
    });
    settled();
    group.throughput(Throughput::Bytes(LARGE.len() as u64));
    group.bench_function(format!("message of {} KiB one way", LARGE.len() >> 10), |bencher| {
        bencher.iter(|| {
            let pair = &mut *pair.borrow_mut();
            pair.send(&LARGE);
            let mut got = 0;
            while got == 0 {
                pair.client.flush(pair.now);
                got = pair.receive();
                pair.server.flush(pair.now);
                pair.client.poll(pair.now);
                while pair.client.next_event().is_some() {}
                pair.now = pair.now.plus_nanos(TURN);
            }
        });
    });
    group.finish();
}
