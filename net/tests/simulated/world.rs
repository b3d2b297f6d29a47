//! Endpoints on one simulated network, moved turn by turn.

use std::collections::VecDeque;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::{CloseReason, Endpoint, EndpointConfig, Event, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::Address;
use tautline_net::port::LocalName;
use tautline_net::port::sim::{LinkConfig, Network, SimPortConfig};

/// Shortest step of virtual time: a poll loop does not turn faster.
const TURN: u64 = 500;

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    pub(crate) hosts: Vec<Host>,
    seed: u64,
}

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) config: EndpointConfig,
    pub(crate) port: SimPortConfig,
    /// `None` while it is down.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) events: VecDeque<Event>,
    /// By how many nanoseconds its clock is ahead of the world's.
    pub(crate) ahead: u64,
    /// Its process is stopped: it is not polled, and its packets wait.
    pub(crate) stopped: bool,
    starts: u64,
}

pub(crate) fn link(delay_us: u64) -> LinkConfig {
    LinkConfig { delay: Duration::from_micros(delay_us), ..LinkConfig::default() }
}

impl World {
    pub(crate) fn new(seed: u64, link: LinkConfig) -> World {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
        World { network: Network::new(seed, clock.clone(), link), clock, hosts: Vec::new(), seed }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The time by a host's own clock.
    pub(crate) fn time(&self, at: usize) -> Time {
        self.clock.now().plus_nanos(self.hosts[at].ahead)
    }

    /// Adds a host and starts it.
    pub(crate) fn host(&mut self, name: &str, config: EndpointConfig) -> usize {
        self.host_on(name, config, SimPortConfig::default())
    }

    pub(crate) fn host_on(&mut self, name: &str, config: EndpointConfig, port: SimPortConfig) -> usize {
        let (name, endpoint, events) = (name.to_owned(), None, VecDeque::new());
        self.hosts.push(Host { name, config, port, endpoint, events, ahead: 0, stopped: false, starts: 0 });
        self.start(self.hosts.len() - 1);
        self.hosts.len() - 1
    }

    /// Two hosts with default limits, and an established session from the first to the second.
    pub(crate) fn pair(seed: u64, link: LinkConfig) -> (World, SessionId, SessionId) {
        World::pair_with(seed, link, EndpointConfig::default())
    }

    pub(crate) fn pair_with(seed: u64, link: LinkConfig, config: EndpointConfig) -> (World, SessionId, SessionId) {
        let mut world = World::new(seed, link);
        world.host("a", config.clone());
        world.host("b", config);
        let (there, back) = world.connect(0, 1);
        (world, there, back)
    }

    pub(crate) fn start(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.starts += 1;
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(at as u64 * 1_009 + host.starts);
        let config = EndpointConfig { seed: Some(seed), ..host.config.clone() };
        let port = self.network.port_with(&host.name, host.port).unwrap();
        host.endpoint = Some(Endpoint::new(Box::new(port), config, self.clock.now().plus_nanos(host.ahead)));
    }

    /// Stops a host's process, or lets it go on.
    pub(crate) fn stop(&mut self, at: usize, stopped: bool) {
        let host = &mut self.hosts[at];
        host.stopped = stopped;
        if stopped { self.network.pause(&host.name) } else { self.network.resume(&host.name) }.unwrap();
    }

    /// Stops a host at once, without a word to its peers.
    pub(crate) fn kill(&mut self, at: usize) {
        let name = self.hosts[at].name.clone();
        // What it says as it goes is lost.
        let others: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).filter(|other| *other != name).collect();
        for other in &others {
            self.network.partition(&name, other).unwrap();
        }
        self.hosts[at].endpoint = None;
        self.hosts[at].events.clear();
        for other in &others {
            self.network.heal(&name, other).unwrap();
        }
    }

    pub(crate) fn endpoint(&mut self, at: usize) -> &mut Endpoint {
        self.hosts[at].endpoint.as_mut().expect("the host is up")
    }

    pub(crate) fn address(&self, at: usize) -> Address {
        Address::Local(LocalName::new(&self.hosts[at].name).unwrap())
    }

    pub(crate) fn open(&mut self, from: usize, to: usize) -> SessionId {
        let (peer, now) = (self.address(to), self.time(from));
        self.endpoint(from).connect(peer, now).unwrap()
    }

    /// Opens a session and waits until both sides have it: their ids.
    pub(crate) fn connect(&mut self, from: usize, to: usize) -> (SessionId, SessionId) {
        let there = self.open(from, to);
        let mut back = None;
        assert!(self.run(Duration::from_secs(5), |world| {
            for event in world.hosts[to].events.drain(..) {
                if let Event::Established { session, incoming: true, .. } = event {
                    back = Some(session);
                }
            }
            back.is_some() && world.endpoint(from).is_established(there)
        }));
        self.hosts[from].events.clear();
        (there, back.unwrap())
    }

    pub(crate) fn send(
        &mut self,
        from: usize,
        session: SessionId,
        class: Class,
        body: Vec<u8>,
        token: u64,
    ) -> Result<(), SendError> {
        let now = self.time(from);
        self.endpoint(from).send(session, class, b"", Payload::from(body), token, now).map(|_| ())
    }

    /// One turn of every host: whether something happened that its owner may want to act on.
    pub(crate) fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let mut news = false;
        for host in self.hosts.iter_mut().filter(|host| !host.stopped) {
            let Some(endpoint) = &mut host.endpoint else { continue };
            let now = now.plus_nanos(host.ahead);
            endpoint.poll(now);
            while let Some(event) = endpoint.next_event() {
                host.events.push_back(event);
                news = true;
            }
            endpoint.flush(now);
        }
        news
    }

    /// Moves time to the next thing that happens, at most by `limit`.
    pub(crate) fn step(&mut self, limit: Time) {
        let news = self.turn();
        let now = self.clock.now();
        if news {
            self.clock.advance_to(now.plus_nanos(TURN));
            return;
        }
        let running = self.hosts.iter().filter(|host| !host.stopped);
        let timers = running.filter_map(|host| {
            let due = host.endpoint.as_ref()?.next_timeout(now.plus_nanos(host.ahead))?;
            Some(Time::from_nanos(due.as_nanos().saturating_sub(host.ahead)))
        });
        let next = timers.chain(self.network.next_arrival()).min().unwrap_or(limit);
        self.clock.advance_to(next.max(now.plus_nanos(TURN)).min(limit.max(now.plus_nanos(TURN))));
    }

    /// Turns until `done`, at most for this long: whether it was.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end = self.now() + limit;
        loop {
            if done(self) {
                return true;
            }
            if self.now() >= end {
                return false;
            }
            self.step(end);
        }
    }

    /// Turns for this long.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.run(span, |_| false);
    }

    /// The payloads of the messages that a host got since it was last asked; other events are dropped.
    pub(crate) fn messages(&mut self, at: usize) -> Vec<Payload> {
        self.hosts[at]
            .events
            .drain(..)
            .filter_map(|event| match event {
                Event::Message { payload, .. } => Some(payload),
                _ => None,
            })
            .collect()
    }

    /// Waits for the session's end: the reason, and the undelivered messages' tokens.
    pub(crate) fn closed(&mut self, at: usize, session: SessionId, limit: Duration) -> Option<(CloseReason, Vec<(u64, bool)>)> {
        let mut undelivered = Vec::new();
        let mut reason = None;
        self.run(limit, |world| {
            for event in world.hosts[at].events.drain(..) {
                match event {
                    Event::Undelivered { session: from, token, transmitted } if from == session => {
                        undelivered.push((token, transmitted));
                    }
                    Event::Closed { session: from, reason: why } if from == session => reason = Some(why),
                    _ => {}
                }
            }
            reason.is_some()
        });
        reason.map(|reason| (reason, undelivered))
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(salt);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}
