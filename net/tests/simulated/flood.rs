//! What an honest peer notices of a thousand hostile ones, and what those cost its server: a little time, and memory within its bounds.
//!
//! Virtual time knows no cost of computing, so the server here pays: for each packet that it handles, the time that a real one takes. The flood
//! is all the server can take: it keeps the server busy for more than half of the time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::{Endpoint, EndpointConfig, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::sim::{LinkConfig, Network, SimPortConfig, Verdict};
use tautline_net::port::{Address, LocalName};
use tautline_testing::mob::{Abuse, Mob, answer, limits};

const PEERS: usize = 1_000;
/// Packets a second, all hostile peers together.
const RATE: u64 = 1_000_000;
/// What a packet costs the server.
const COST: u64 = 300;
/// How finely time moves.
const TICK: u64 = 1_000;
/// Lengths of the honest peer's messages: one packet, some, and more than may come without grants.
const LENGTHS: [usize; 3] = [64, 4_000, 40_000];
/// The honest p99 is at most this many times that without the flood.
const BOUND: f64 = 3.0;

#[test]
fn a_flood_of_handshakes_leaves_an_honest_peer_alone() {
    flood(&[Abuse::Handshakes]);
}

#[test]
fn a_flood_of_resets_leaves_an_honest_peer_alone() {
    flood(&[Abuse::Resets]);
}

#[test]
fn acknowledgements_of_what_was_not_sent_leave_an_honest_peer_alone() {
    flood(&[Abuse::FalseAcknowledgements]);
}

#[test]
fn long_lists_of_acknowledgements_leave_an_honest_peer_alone() {
    flood(&[Abuse::AcknowledgementLists]);
}

#[test]
fn peers_that_grant_nothing_leave_an_honest_one_alone() {
    flood(&[Abuse::WithheldGrants]);
}

#[test]
fn messages_that_are_never_finished_leave_an_honest_peer_alone() {
    flood(&[Abuse::UnfinishedMessages]);
}

#[test]
fn slow_readers_leave_an_honest_peer_alone() {
    flood(&[Abuse::SlowReaders]);
}

#[test]
fn all_abuses_at_once_leave_an_honest_peer_alone() {
    flood(&Abuse::ALL);
}

fn flood(abuses: &[Abuse]) {
    let mut scene = Scene::new(1, abuses);
    scene.run(Duration::from_millis(30), false);
    let alone = scene.percentiles();
    // Until they have their sessions, and hold what they can.
    scene.run(Duration::from_millis(60), true);
    scene.percentiles();
    let busy = scene.busy;
    scene.run(Duration::from_millis(120), true);
    let beside = scene.percentiles();
    let busy = (scene.busy - busy) as f64 / 120e6;
    assert!(busy > 0.25, "the flood keeps the server busy for only {busy} of the time");
    for (len, (before, count)) in &alone {
        let (during, many) = beside.get(len).copied().unwrap_or_default();
        println!("{abuses:?}: {len} bytes: p99 {before} us alone ({count}), {during} us beside ({many}), server busy {busy:.2}");
        assert!(many > 20, "{len} bytes: only {many} answers");
        assert!(during <= before * BOUND, "{len} bytes: {during} us beside {abuses:?}, {before} us alone");
    }
    for abuse in abuses {
        scene.assert_pressed_by(*abuse);
    }
    scene.recover();
}

/// To whom of the mob, and what.
type Caught = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

struct Scene {
    network: Network,
    clock: Clock,
    server: Endpoint,
    /// When the server has done what it is at, and how long it worked in all.
    free_at: Time,
    busy: u64,
    honest: Endpoint,
    session: SessionId,
    /// What the honest peer waits for, and since when.
    asked: Option<(usize, Time)>,
    /// Whether it asks again once it is answered.
    asks: bool,
    turns: usize,
    took: BTreeMap<usize, Vec<u64>>,
    mob: Mob,
    /// To whom of the mob, and what.
    caught: Caught,
    owed: u64,
}

impl Scene {
    fn new(seed: u64, abuses: &[Abuse]) -> Scene {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
        let link = LinkConfig { delay: Duration::from_micros(10), ..LinkConfig::PERFECT };
        let network = Network::new(seed, clock.clone(), link);
        let caught = Caught::default();
        let catch = caught.clone();
        network.set_filter(move |passing| match passing.to.strip_prefix('m').and_then(|number| number.parse().ok()) {
            Some(number) => {
                catch.borrow_mut().push((number, passing.bytes.to_vec()));
                Verdict::Lose
            }
            None => Verdict::Pass,
        });
        let endpoint = |name: &str, seed| {
            let port = network.port_with(name, SimPortConfig { frames: 1024, ..SimPortConfig::default() }).unwrap();
            Endpoint::new(Box::new(port), EndpointConfig { seed: Some(seed), ..limits() }, clock.now())
        };
        let (server, mut honest) = (endpoint("server", seed), endpoint("honest", seed + 1));
        let address = Address::Local(LocalName::new("server").unwrap());
        let session = honest.connect(address, clock.now()).unwrap();
        let mob = Mob::new(seed, PEERS, abuses);
        let (asked, took) = (None, BTreeMap::new());
        let free_at = clock.now();
        Scene { network, clock, server, free_at, busy: 0, honest, session, asked, asks: true, turns: 0, took, mob, caught, owed: 0 }
    }

    fn run(&mut self, span: Duration, flood: bool) {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            if flood {
                self.attack();
            }
            self.serve();
            self.ask();
            self.clock.advance_to(self.clock.now().plus_nanos(TICK));
        }
    }

    /// What the mob hears, and what it sends in one tick.
    fn attack(&mut self) {
        for (member, packet) in self.caught.borrow_mut().drain(..) {
            self.mob.take(member, &packet);
        }
        self.owed += RATE * TICK;
        while self.owed >= 1_000_000_000 {
            self.owed -= 1_000_000_000;
            let (member, packet) = self.mob.packet();
            self.network.inject(&format!("m{member}"), "server", &packet).unwrap();
        }
    }

    /// One turn of the server, if it is not still at the last one.
    fn serve(&mut self) {
        let now = self.clock.now();
        if now < self.free_at {
            return;
        }
        let sent = self.server.counters().packets_sent;
        let mut handled = self.server.poll(now) as u64;
        while let Some(event) = self.server.next_event() {
            if let Event::Message { session, class, payload } = event {
                // A session may hold as much as it may; more is refused.
                let _ = self.server.send(session, class, &[], Payload::from(answer(&payload)), 0, now);
            }
        }
        self.server.flush(now);
        handled += self.server.counters().packets_sent - sent;
        self.busy += handled * COST;
        self.free_at = now.plus_nanos(handled * COST);
        let (limits, usage) = (limits(), &self.server);
        assert!(usage.reassembly_bytes() <= limits.reassembly_bytes, "{} bytes for reassembly", usage.reassembly_bytes());
        assert!(usage.send_bytes() <= limits.send_bytes_total, "{} bytes to send", usage.send_bytes());
        assert!(usage.session_count() <= limits.max_sessions, "{} sessions", usage.session_count());
    }

    /// One turn of the honest peer, which has one message outstanding.
    fn ask(&mut self) {
        let now = self.clock.now();
        self.honest.poll(now);
        while let Some(event) = self.honest.next_event() {
            match event {
                Event::Message { payload, .. } => {
                    let (len, since) = self.asked.take().expect("it asked");
                    assert_eq!(payload.len(), len);
                    self.took.entry(len).or_default().push(now.nanos_since(since));
                }
                Event::Closed { reason, .. } => panic!("the honest peer's session is over: {reason}"),
                _ => {}
            }
        }
        if self.asks && self.asked.is_none() && self.honest.is_established(self.session) {
            let len = LENGTHS[self.turns % LENGTHS.len()];
            self.turns += 1;
            self.honest.send(self.session, Class::Normal, &[], Payload::from(vec![1; len]), 0, now).unwrap();
            self.asked = Some((len, now));
        }
        self.honest.flush(now);
    }

    /// By length: the p99 since this was last asked, in microseconds, and of how many.
    fn percentiles(&mut self) -> BTreeMap<usize, (f64, usize)> {
        let took = std::mem::take(&mut self.took);
        let percentile = |mut times: Vec<u64>| {
            times.sort_unstable();
            (times[(times.len() - 1) * 99 / 100] as f64 / 1e3, times.len())
        };
        took.into_iter().map(|(len, times)| (len, percentile(times))).collect()
    }

    /// The abuse was one: it got as far as it can get.
    fn assert_pressed_by(&self, abuse: Abuse) {
        let (limits, counters, server) = (limits(), self.server.counters(), &self.server);
        let pressed = match abuse {
            Abuse::Handshakes => counters.challenges > 10_000 && server.session_count() > PEERS / 2,
            Abuse::Resets => counters.resets > 5_000,
            Abuse::FalseAcknowledgements => counters.malformed > 10_000,
            Abuse::AcknowledgementLists => counters.stray > 10_000,
            Abuse::UnfinishedMessages => counters.deferred > 1_000 && server.reassembly_bytes() > limits.reassembly_bytes / 4,
            Abuse::WithheldGrants | Abuse::SlowReaders => server.send_bytes() > limits.send_bytes_total / 4,
        };
        assert!(pressed, "{abuse:?}: {:?}, {counters:?}", server.usage());
    }

    /// After the flood all is as before it.
    fn recover(&mut self) {
        self.asks = false;
        let end = self.clock.now() + Duration::from_secs(30);
        while self.clock.now() < end {
            self.serve();
            self.ask();
            let now = self.clock.now();
            let timers = [self.server.next_timeout(now), self.honest.next_timeout(now), self.network.next_arrival()];
            let next = timers.into_iter().flatten().min().unwrap_or(end).min(end);
            self.clock.advance_to(next.max(now.plus_nanos(TICK)));
        }
        assert!(self.asked.is_none(), "the honest peer has no answer");
        let usage = self.server.usage();
        assert_eq!(usage.sessions, 1, "the honest peer's");
        assert_eq!((usage.reassembly_bytes, usage.receiving, usage.frames.receive), (0, 0, 0), "{usage:?}");
        assert_eq!((usage.send_bytes, usage.sending), (0, 0), "{usage:?}");
    }
}
