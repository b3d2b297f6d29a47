//! Seeds of everything that networks, hosts and strangers do to two peers.
//!
//! Faults, each with chances of its own in each seed: loss, delay, jitter, duplication, reordering, corruption, truncation and replay by the
//! links; partitions of both directions and of one; ports that stand still and processes that do; kills and restarts; clocks that start hours
//! apart, jump ahead by up to an hour, and step back a little; forged packets. The peers send, give up messages, and hold on to what they received.
//!
//! Checked at every step: a message arrives once at most, as it was sent, and ends once at most; memory, sessions and frames stay within their
//! limits. At the end: every message has arrived, or its sender was told; everything borrowed is back; nobody waits for anything.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{EndpointConfig, EndpointCounters, EndpointUsage, Event, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::FramesOut;
use tautline_net::port::sim::{LinkConfig, LinkCounters, SimPortConfig};
use tautline_testing::forger::Forger;
use tautline_testing::seeds;

use crate::ledger::Ledger;
use crate::world::{World, link};

const HOSTS: [&str; 2] = ["a", "b"];
const HOUR: u64 = 3_600_000_000_000;
const REASSEMBLY: usize = 400_000;
const SEND_BYTES: usize = 2 << 20;
const SESSIONS: usize = 12;
const FRAMES: usize = 96;
const BURST: usize = 48;

#[test]
fn bad_networks_and_restarts_break_no_promise_in_seeds() {
    seeds::each(|seed| Run::new(seed).go());
}

#[test]
fn the_seeds_meet_every_fault() {
    let mut met = Met::default();
    for seed in 0..40 {
        met.add(&Run::new(seed).go());
    }
    let Met { link, endpoint, kills, stops, jumps, gave_up } = met;
    let links = [link.lost, link.partitioned, link.duplicated, link.reordered, link.corrupted, link.truncated, link.replayed];
    assert!(links.iter().all(|count| *count > 0), "{link:?}");
    let noticed = [endpoint.malformed, endpoint.stray, endpoint.resets, endpoint.challenges, endpoint.duplicate_packets];
    assert!(noticed.iter().all(|count| *count > 0), "{endpoint:?}");
    assert!([kills, stops, jumps, gave_up].iter().all(|count| *count > 0), "{kills} {stops} {jumps} {gave_up}");
}

/// What a run has met.
#[derive(Debug, Default)]
struct Met {
    link: LinkCounters,
    endpoint: EndpointCounters,
    kills: u64,
    stops: u64,
    jumps: u64,
    gave_up: u64,
}

impl Met {
    fn add(&mut self, other: &Met) {
        let (to, from) = (&mut self.link, other.link);
        to.lost += from.lost;
        to.partitioned += from.partitioned;
        to.duplicated += from.duplicated;
        to.reordered += from.reordered;
        to.corrupted += from.corrupted;
        to.truncated += from.truncated;
        to.replayed += from.replayed;
        let (to, from) = (&mut self.endpoint, other.endpoint);
        to.malformed += from.malformed;
        to.stray += from.stray;
        to.resets += from.resets;
        to.challenges += from.challenges;
        to.duplicate_packets += from.duplicate_packets;
        self.kills += other.kills;
        self.stops += other.stops;
        self.jumps += other.jumps;
        self.gave_up += other.gave_up;
    }
}

struct Run {
    world: World,
    random: fastrand::Rng,
    forger: Forger,
    ledger: Ledger,
    /// The session that each host sends into.
    sessions: [Option<SessionId>; 2],
    /// What each host received and has not let go of.
    kept: [Vec<Payload>; 2],
    met: Met,
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
            reassembly_bytes: REASSEMBLY,
            send_bytes_total: SEND_BYTES,
            max_sessions: SESSIONS,
            message_slots: random.u16(65..200),
            ..EndpointConfig::default()
        };
        for name in HOSTS {
            let at = world.host_on(name, config.clone(), SimPortConfig { frames: FRAMES, ..SimPortConfig::default() });
            world.hosts[at].ahead = random.u64(0..HOUR);
            world.hosts[at].endpoint = None;
            world.start(at);
        }
        let forger = Forger::watch(&world.network, seed);
        Run { world, random, forger, ledger: Ledger::default(), sessions: [None; 2], kept: Default::default(), met: Met::default() }
    }

    fn go(mut self) -> Met {
        for _ in 0..60 {
            self.act();
            let span = Duration::from_micros(self.random.u64(1..3_000));
            self.pass(span);
        }
        self.heal();
        self.kept = Default::default();
        self.pass(Duration::from_secs(8));
        (0..2).for_each(|at| self.close(at));
        self.pass(Duration::from_secs(3));
        self.kept = Default::default();
        self.finish();
        self.met
    }

    fn close(&mut self, at: usize) {
        let now = self.world.time(at);
        if let Some(session) = self.sessions[at].take() {
            self.world.endpoint(at).close(session, now);
            // A session that was still opening has ended at once.
            let endpoint = self.world.endpoint(at);
            let events: Vec<Event> = std::iter::from_fn(|| endpoint.next_event()).collect();
            events.into_iter().for_each(|event| self.take(at, event));
        }
    }

    fn act(&mut self) {
        let at = self.random.usize(0..2);
        let (from, to) = (HOSTS[at], HOSTS[1 - at]);
        match self.random.u32(0..120) {
            0..70 => self.send(at),
            70..73 => self.world.network.partition(from, to).unwrap(),
            73 => HOSTS.iter().zip(["b", "a"]).for_each(|(from, to)| self.world.network.partition(from, to).unwrap()),
            74..82 => {
                self.world.network.heal(from, to).unwrap();
                self.world.network.heal(to, from).unwrap();
            }
            82..84 => self.world.network.pause(from).unwrap(),
            84..86 => {
                self.met.stops += 1;
                self.world.stop(at, true);
            }
            86..93 => (0..2).for_each(|at| self.world.stop(at, false)),
            93..96 => {
                if self.world.hosts[at].endpoint.is_some() {
                    self.met.kills += 1;
                    self.world.kill(at);
                    self.ledger.killed(at);
                    self.sessions[at] = None;
                }
            }
            96..99 => {
                if self.world.hosts[at].endpoint.is_none() {
                    self.world.start(at);
                }
            }
            99..101 => {
                let by = if self.random.bool() { self.random.u64(0..HOUR) } else { self.random.u64(0..1_000_000_000) };
                self.met.jumps += 1;
                self.world.hosts[at].ahead += by;
            }
            101 => {
                // As between the counters of two processors that are not quite in step.
                let ahead = &mut self.world.hosts[at].ahead;
                *ahead = ahead.saturating_sub(self.random.u64(0..10_000));
            }
            102..111 => (0..self.random.u32(1..10)).for_each(|_| self.forger.forge(to, from)),
            111..114 => self.kept[at].clear(),
            114..117 => {
                if let Some((from, session, message)) = self.ledger.give_up(&mut self.random) {
                    let now = self.world.time(from);
                    self.met.gave_up += 1;
                    self.world.endpoint(from).abandon(session, message, now);
                }
            }
            117 => self.close(at),
            _ => self.pass(Duration::from_millis(700)),
        }
    }

    fn send(&mut self, at: usize) {
        let (peer, now) = (self.world.address(1 - at), self.world.time(at));
        let Some(endpoint) = &mut self.world.hosts[at].endpoint else { return };
        let session = match self.sessions[at] {
            Some(session) => session,
            // There may be too many, of those that restarts and late hellos left.
            None => match endpoint.connect(peer, now) {
                Ok(session) => session,
                Err(_) => return,
            },
        };
        self.sessions[at] = Some(session);
        for _ in 0..self.random.u32(1..12) {
            let len = 8 + match self.random.u32(0..10) {
                0 => self.random.usize(100_000..290_000),
                1..4 => self.random.usize(4_000..20_000),
                _ => self.random.usize(0..500),
            };
            if self.random.u32(0..10) == 0 {
                let (number, body) = self.ledger.write(len.min(200), true);
                if endpoint.send_control(session, &body, now).is_ok() {
                    self.ledger.accepted(at, number, len.min(200), None);
                }
                continue;
            }
            let class = Class::ALL[self.random.usize(0..4)];
            let (number, body) = self.ledger.write(len, false);
            match endpoint.send(session, class, &[], Payload::from(body), number, now) {
                Ok(id) => self.ledger.accepted(at, number, len, Some((session, id))),
                Err(error) => assert_eq!(error, SendError::Full),
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
                let (held, sending) = (endpoint.reassembly_bytes(), endpoint.send_bytes());
                assert!(held <= REASSEMBLY, "{held} bytes of incomplete messages");
                assert!(sending <= SEND_BYTES, "{sending} bytes to send");
                assert!(endpoint.session_count() <= SESSIONS, "{} sessions", endpoint.session_count());
            }
        }
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Closed { session, .. } if self.sessions[at] == Some(session) => self.sessions[at] = None,
            Event::Established { peer, .. } => assert_eq!(peer, self.world.address(1 - at), "a stranger got a session"),
            _ => {}
        }
        if let Some(payload) = self.ledger.take(at, event)
            && self.random.u32(0..4) == 0
        {
            self.kept[at].push(payload);
        }
    }

    /// Ends all faults.
    fn heal(&mut self) {
        for at in 0..2 {
            self.world.network.heal(HOSTS[at], HOSTS[1 - at]).unwrap();
            self.world.stop(at, false);
            if self.world.hosts[at].endpoint.is_none() {
                self.world.start(at);
            }
        }
        self.world.network.link("a", "b", link(20)).unwrap();
    }

    fn finish(&mut self) {
        if std::env::var_os("TAUTLINE_SEED").is_some() {
            for host in &self.world.hosts {
                eprintln!("{:#?}", host.endpoint);
            }
        }
        for at in 0..2 {
            let endpoint = self.world.endpoint(at);
            let usage = endpoint.usage();
            // Of the frames to send with, an endpoint keeps up to one burst of each kind.
            let frames = usage.frames;
            let rest = FramesOut { receive: 0, transmit: frames.transmit.min(BURST), control: frames.control.min(BURST) };
            assert_eq!(
                usage,
                EndpointUsage { frames: rest, kept_bytes: usage.kept_bytes, ..EndpointUsage::default() },
                "host {at} has not given everything back"
            );
        }
        self.ledger.close();
        for (from, to) in [("a", "b"), ("b", "a")] {
            self.met.add(&Met { link: self.world.network.link_counters(from, to), ..Met::default() });
        }
        for at in 0..2 {
            self.met.add(&Met { endpoint: self.world.endpoint(at).counters(), ..Met::default() });
        }
    }
}
