//! Seeds of everything that networks and peers do, with invariants checked as it goes.

use std::collections::HashMap;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{EndpointConfig, Event, SessionId};
use tautline_net::port::sim::LinkConfig;

use crate::world::{World, link, pattern};

/// Seeds of a default run.
const SEEDS: u64 = 100;

#[test]
fn seeds_of_bad_networks_and_restarts_break_no_promise() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number of seeds"));
    let seeds = match (number("TAUTLINE_SEED"), number("TAUTLINE_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SEEDS),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| Run::new(seed).go());
        if let Err(cause) = run {
            eprintln!("seed {seed} failed: repeat it with TAUTLINE_SEED={seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Undelivered { transmitted: bool },
}

struct Run {
    world: World,
    random: fastrand::Rng,
    /// By token: the fate as its sender knows it, its length, and how often it was received.
    messages: HashMap<u64, (Fate, usize, u32)>,
    /// The session that each host sends into.
    sessions: [Option<SessionId>; 2],
    next_token: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rate = |most: f64| if random.bool() { 0.0 } else { random.f64() * most };
        let bad = LinkConfig {
            loss: rate(0.2),
            duplicate: rate(0.2),
            reorder: rate(0.2),
            corrupt: rate(0.1),
            truncate: rate(0.1),
            replay: rate(0.1),
            jitter: Duration::from_nanos((rate(200_000.0)) as u64),
            ..link(random.u64(1..500))
        };
        let mut world = World::new(seed, bad);
        let config = EndpointConfig {
            peer_timeout: Duration::from_millis(500),
            max_message: 300_000,
            reassembly_bytes: 400_000,
            message_slots: random.u16(65..200),
            ..EndpointConfig::default()
        };
        world.host("a", config.clone());
        world.host("b", config);
        Run { world, random, messages: HashMap::new(), sessions: [None; 2], next_token: 1 }
    }

    fn go(mut self) {
        for _ in 0..60 {
            self.act();
            let span = Duration::from_micros(self.random.u64(1..3_000));
            self.pass(span);
        }
        // Everything heals; every wait must end.
        for (from, to) in [("a", "b"), ("b", "a")] {
            self.world.network.heal(from, to).unwrap();
            self.world.network.resume(from).unwrap();
        }
        self.world.network.link("a", "b", link(20)).unwrap();
        for at in 0..2 {
            if self.world.hosts[at].endpoint.is_none() {
                self.world.start(at);
            }
        }
        self.pass(Duration::from_secs(8));
        for at in 0..2 {
            if let Some(session) = self.sessions[at] {
                let now = self.world.now();
                self.world.endpoint(at).close(session, now);
            }
        }
        self.pass(Duration::from_secs(3));
        self.finish();
    }

    fn act(&mut self) {
        let at = self.random.usize(0..2);
        let (from, to) = if at == 0 { ("a", "b") } else { ("b", "a") };
        match self.random.u32(0..100) {
            0..70 => self.send(at),
            70..73 => self.world.network.partition(from, to).unwrap(),
            73..82 => {
                self.world.network.heal(from, to).unwrap();
                self.world.network.heal(to, from).unwrap();
            }
            82..85 => self.world.network.pause(from).unwrap(),
            85..92 => {
                self.world.network.resume(from).unwrap();
                self.world.network.resume(to).unwrap();
            }
            92..95 => {
                self.collect();
                if self.world.hosts[at].endpoint.is_some() {
                    self.world.kill(at);
                    self.sessions[at] = None;
                }
            }
            95..98 => {
                if self.world.hosts[at].endpoint.is_none() {
                    self.world.start(at);
                }
            }
            _ => self.pass(Duration::from_millis(700)),
        }
    }

    fn send(&mut self, at: usize) {
        if self.world.hosts[at].endpoint.is_none() {
            return;
        }
        let session = match self.sessions[at] {
            Some(session) => session,
            None => self.world.open(at, 1 - at),
        };
        self.sessions[at] = Some(session);
        for _ in 0..self.random.u32(1..12) {
            let token = self.next_token;
            let len = 8 + match self.random.u32(0..10) {
                0 => self.random.usize(100_000..290_000),
                1..4 => self.random.usize(4_000..20_000),
                _ => self.random.usize(0..500),
            };
            let mut body = pattern(len, token);
            body[..8].copy_from_slice(&token.to_le_bytes());
            if self.world.send(at, session, Class::ALL[self.random.usize(0..4)], body, token).is_ok() {
                self.next_token += 1;
                self.messages.insert(token, (Fate::Accepted, len, 0));
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.world.now() + span;
        while self.world.now() < end {
            self.world.step(end);
            self.collect();
        }
    }

    fn collect(&mut self) {
        for at in 0..2 {
            while let Some(event) = self.world.hosts[at].events.pop_front() {
                self.take(at, event);
            }
            if let Some(endpoint) = &self.world.hosts[at].endpoint {
                assert!(endpoint.reassembly_bytes() <= 400_000, "reassembly memory beyond its bound");
            }
        }
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Message { payload, .. } => {
                let token = u64::from_le_bytes(payload[..8].try_into().unwrap());
                let (fate, len, received) = self.messages.get_mut(&token).expect("a message that was never sent");
                *received += 1;
                assert_eq!(*received, 1, "message {token} was delivered twice");
                assert_ne!(*fate, Fate::Undelivered { transmitted: false }, "message {token} was said never to have left");
                assert_eq!(payload.len(), *len);
                assert!(payload[8..] == pattern(*len, token)[8..], "message {token} was damaged");
            }
            Event::Undelivered { token, transmitted, .. } => {
                let (fate, _, received) = self.messages.get_mut(&token).expect("the token of no message");
                assert_eq!(*fate, Fate::Accepted, "message {token} ended twice");
                assert!(transmitted || *received == 0, "message {token} was received, and said never to have left");
                *fate = Fate::Undelivered { transmitted };
            }
            Event::Closed { session, .. } => {
                if self.sessions[at] == Some(session) {
                    self.sessions[at] = None;
                }
            }
            Event::Established { .. } | Event::Control { .. } => {}
        }
    }

    fn finish(&mut self) {
        if std::env::var_os("TAUTLINE_SEED").is_some() {
            for host in &self.world.hosts {
                eprintln!("{:#?}", host.endpoint);
            }
        }
        for at in 0..2 {
            let endpoint = self.world.endpoint(at);
            assert_eq!(endpoint.session_count(), 0, "sessions are left on host {at}");
            assert_eq!(endpoint.reassembly_bytes(), 0, "reassembly memory was not given back");
            assert_eq!(endpoint.send_bytes(), 0, "send memory was not given back");
        }
    }
}
