//! Target `network`: two honest endpoints, and between them a network that may do to each packet what it likes: lose it, hold it back,
//! repeat it, damage it; and owners who send, give up, close, and restart. Every message arrives as it was sent, once at most, and the
//! sender of one that did not arrive is told so, unless it gave it up. When the network is well again, what was sent arrives.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{CloseReason, Event, SessionId};
use tautline_net::port::Address;

use crate::host::{self, Host};
use crate::near::{Damage, Length, Span};
use crate::replay;

/// Steps of one input at most.
const STEPS: usize = 300;
const MTU: usize = 600;
/// Largest message in bytes: some tens of packets.
const LONGEST: usize = 20_000;
/// How long a packet takes on the well network, in nanoseconds.
const DELAY: u64 = 10_000;

#[derive(Arbitrary, Debug)]
enum Step {
    Send {
        from: bool,
        class: u8,
        length: Length,
    },
    SendControl {
        from: bool,
    },
    Abandon {
        from: bool,
        which: u8,
    },
    Close {
        from: bool,
    },
    /// The oldest packets on their way arrive.
    Deliver(u8),
    /// One arrives before its time.
    Overtake(u8),
    Lose(u8),
    Repeat(u8),
    Damage {
        which: u8,
        damage: Damage,
    },
    Pass(Span),
    /// Until the next timer of a host.
    Timer {
        of: bool,
    },
    Room {
        of: bool,
        room: u8,
    },
    /// A host stops without a word, and starts again.
    Restart(bool),
}

/// What is known of a message.
struct Sent {
    from: usize,
    length: usize,
    session: SessionId,
    received: bool,
    undelivered: bool,
    abandoned: bool,
}

struct World {
    now: Time,
    hosts: [Host; 2],
    /// The session that each host sends into.
    sessions: [Option<SessionId>; 2],
    /// Packets on their way: to whom, and their bytes.
    way: Vec<(usize, Vec<u8>)>,
    /// By their number, which their bytes begin with; and its token at its sender.
    messages: BTreeMap<u32, Sent>,
    tokens: [BTreeMap<u64, u32>; 2],
    /// Control messages by number, and whether they arrived.
    controls: BTreeMap<u32, bool>,
    starts: u64,
}

/// Runs the steps that `data` stands for.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut world = World::new();
    replay::steps(&mut input, STEPS, |step: Step| world.step(step));
    world.end();
}

fn address(host: usize) -> Address {
    Address::Inet(([10, 0, 0, host as u8 + 1], 7000).into())
}

impl World {
    fn new() -> World {
        let now = Time::from_nanos(1_000_000_000);
        let host = |at: usize| Host::new(address(at), host::config(at as u64), MTU, false, now);
        let (sessions, way, messages, tokens, controls) = Default::default();
        World { now, hosts: [host(0), host(1)], sessions, way, messages, tokens, controls, starts: 2 }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send { from, class, length } => self.send(usize::from(from), class, length),
            Step::SendControl { from } => self.send_control(usize::from(from)),
            Step::Abandon { from, which } => {
                let from = usize::from(from);
                if let Some(token) = self.hosts[from].message(which) {
                    self.hosts[from].abandon(token, self.now);
                    let number = self.tokens[from][&token];
                    self.messages.get_mut(&number).expect("numbered when it was sent").abandoned = true;
                }
            }
            Step::Close { from } => {
                let from = usize::from(from);
                if let Some(session) = self.sessions[from].take() {
                    self.hosts[from].endpoint().close(session, self.now);
                }
            }
            Step::Deliver(count) => {
                for _ in 0..=count {
                    self.deliver(0);
                }
            }
            Step::Overtake(which) => self.deliver(usize::from(which)),
            Step::Lose(which) => {
                if let Some(at) = self.at(which) {
                    self.way.remove(at);
                }
            }
            Step::Repeat(which) => {
                if let Some(at) = self.at(which) {
                    self.way.push(self.way[at].clone());
                }
            }
            Step::Damage { which, damage } => {
                if let Some(at) = self.at(which) {
                    damage.to(&mut self.way[at].1);
                }
            }
            Step::Pass(span) => {
                self.turn();
                self.now = self.now.plus_nanos(span.nanos());
            }
            Step::Timer { of } => {
                self.turn();
                let due = self.hosts[usize::from(of)].endpoint().next_timeout(self.now);
                self.now = due.unwrap_or(self.now).max(self.now);
            }
            Step::Room { of, room } => {
                let room = if room == u8::MAX { usize::MAX } else { usize::from(room) };
                self.hosts[usize::from(of)].wire.set_room(room);
            }
            Step::Restart(of) => self.restart(usize::from(of)),
        }
        self.turn();
    }

    fn send(&mut self, from: usize, class: u8, length: Length) {
        let session = match self.sessions[from] {
            Some(session) => session,
            None => match self.hosts[from].connect(address(1 - from), self.now) {
                Some(session) => session,
                None => return,
            },
        };
        self.sessions[from] = Some(session);
        let number = self.messages.len() as u32;
        let body = pattern(number, 4 + length.within(LONGEST - 4));
        let length = body.len();
        let (token, answer) = self.hosts[from].send(session, Class::ALL[usize::from(class) % Class::COUNT], body, self.now);
        if answer.is_ok() {
            self.tokens[from].insert(token, number);
            self.messages.insert(number, Sent { from, length, session, received: false, undelivered: false, abandoned: false });
        }
    }

    fn send_control(&mut self, from: usize) {
        let number = self.controls.len() as u32;
        if let Some(session) = self.sessions[from]
            && self.hosts[from].endpoint().send_control(session, &number.to_le_bytes(), self.now).is_ok()
        {
            self.controls.insert(number, false);
        }
    }

    fn at(&self, which: u8) -> Option<usize> {
        (!self.way.is_empty()).then(|| usize::from(which) % self.way.len())
    }

    fn deliver(&mut self, which: usize) {
        if self.way.is_empty() {
            return;
        }
        let (to, packet) = self.way.remove(which % self.way.len());
        self.hosts[to].wire.arrive(address(1 - to), packet);
        self.turn();
    }

    fn restart(&mut self, at: usize) {
        self.hosts[at].stop();
        self.hosts[at].wire.assert_frames_home();
        self.hosts[at] = Host::new(address(at), host::config(self.starts), MTU, false, self.now);
        self.starts += 1;
        self.sessions[at] = None;
        // Nobody is left who could be told.
        self.messages.values_mut().filter(|message| message.from == at).for_each(|message| message.abandoned = true);
        self.tokens[at].clear();
    }

    fn turn(&mut self) {
        for at in 0..2 {
            let events = self.hosts[at].turn(self.now);
            events.into_iter().for_each(|event| self.take(at, event));
            for (to, packet) in self.hosts[at].wire.sent() {
                assert_eq!(to, address(1 - at));
                self.way.push((1 - at, packet));
            }
        }
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Message { payload, .. } => {
                let number = u32::from_le_bytes(payload[..4].try_into().expect("every message has four bytes"));
                let sent = self.messages.get_mut(&number).expect("a message that was never sent");
                assert_eq!((sent.from, sent.length), (1 - at, payload.len()));
                assert!(payload[..] == pattern(number, sent.length)[..], "message {number} was damaged");
                assert!(!std::mem::replace(&mut sent.received, true), "message {number} arrived twice");
            }
            Event::Control { payload, .. } => {
                let number = u32::from_le_bytes(payload[..].try_into().expect("four bytes"));
                let arrived = self.controls.get_mut(&number).expect("a control message that was never sent");
                assert!(!std::mem::replace(arrived, true), "control message {number} arrived twice");
            }
            Event::Undelivered { token, transmitted, .. } => {
                let number = self.tokens[at][&token];
                let sent = self.messages.get_mut(&number).expect("numbered when it was sent");
                assert!(transmitted || !sent.received, "message {number} arrived, and is said never to have left");
                sent.undelivered = true;
            }
            Event::Closed { session, reason } => {
                assert!(!matches!(reason, CloseReason::Protocol | CloseReason::Version(_)), "honest peers: {reason}");
                if self.sessions[at] == Some(session) {
                    self.sessions[at] = None;
                }
            }
            Event::Established { .. } => {}
        }
    }

    /// The network is well again, for as long as anything is under way.
    fn end(mut self) {
        self.hosts.iter().for_each(|host| host.wire.set_room(usize::MAX));
        let mut steps = 0;
        let limit = self.now.plus_nanos(3_000_000_000);
        while self.now < limit {
            steps += 1;
            assert!(
                steps < 200_000,
                "the two don't come to rest: {:#?}",
                self.hosts.each_mut().map(|host| format!("{:#?}", host.endpoint()))
            );
            self.turn();
            let arriving = std::mem::take(&mut self.way);
            let timers = self.hosts.iter_mut().filter_map(|host| host.endpoint().next_timeout(self.now));
            let next = timers.min().unwrap_or(limit).max(self.now.plus_nanos(500));
            self.now = if arriving.is_empty() { next } else { next.min(self.now.plus_nanos(DELAY)) };
            for (to, packet) in arriving {
                self.hosts[to].wire.arrive(address(1 - to), packet);
            }
        }
        for (number, sent) in &self.messages {
            let known = sent.received || sent.undelivered || sent.abandoned;
            assert!(known, "message {number}, {} bytes into {:?}, got lost", sent.length, sent.session);
        }
        for host in &mut self.hosts {
            // What was received and acknowledged late is not of interest any more.
            drop(host.fall_silent(self.now));
            host.wire.assert_frames_home();
        }
    }
}

/// The bytes of a message.
fn pattern(number: u32, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length as u32).map(|at| (at ^ at >> 8 ^ number) as u8).collect();
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}
