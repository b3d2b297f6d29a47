//! Target `handshake`: an endpoint among strangers. Hellos from many addresses with good, stale, foreign and damaged tokens, answers that
//! nobody asked for, resets, packets of sessions that are none; and the endpoint's own handshakes with some of them. Nobody gets a
//! session without having proven its address, or more than its share; a stranger gets no more bytes than it sent; only who saw a
//! packet of a session can reset it.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Arbitrary, Unstructured};
use tautline_net::clock::Time;
use tautline_net::endpoint::{Event, SessionId};
use tautline_net::port::Address;
use tautline_net::wire::{Header, Hello, Kind, Parameters, Refusal, VERSION, Welcome};

use crate::host::{self, Host};
use crate::near::{Damage, Near, Span};
use crate::replay;

/// Steps of one input at most.
const STEPS: usize = 400;
const MTU: usize = 300;
/// How many strangers there are.
const PEERS: u8 = 6;

#[derive(Arbitrary, Debug)]
enum Step {
    Hello {
        from: u8,
        session: u8,
        incarnation: u8,
        token: Token,
        limits: u8,
        damage: Damage,
    },
    /// To a handshake of the endpoint's own, or to none.
    Answer {
        from: u8,
        to: To,
        kind: u8,
        session: u8,
        incarnation: u8,
        token: u8,
        damage: Damage,
    },
    Reset {
        from: u8,
        to: To,
        number: Near,
    },
    /// An empty packet of a session.
    Ack {
        from: u8,
        to: To,
        number: u8,
    },
    Bytes {
        from: u8,
        bytes: [u8; 40],
    },
    Connect {
        peer: u8,
    },
    Close {
        session: u8,
    },
    Turn,
    Pass(Span),
    Timer,
}

#[derive(Arbitrary, Debug)]
enum Token {
    /// The one that the endpoint gave this stranger last.
    Own,
    None,
    /// One that another stranger got.
    Foreign(u8),
    Flipped(u8),
    /// With a time that is off by so much.
    Off(i8),
}

/// A session of the endpoint's.
#[derive(Arbitrary, Debug)]
enum To {
    Known(u8),
    Other(u64),
}

/// What a stranger was given.
#[derive(Clone, Copy)]
struct Challenge {
    token: u64,
    time: u64,
    /// What its hello said: the token is good for these only.
    session: u64,
    incarnation: u64,
}

#[derive(Default)]
struct Stranger {
    challenge: Option<Challenge>,
    /// The last hello without a good token.
    asked: Option<(u64, u64)>,
    /// It has sent a good token back at some time.
    proven: bool,
    /// The endpoint itself has sent it a hello.
    called: bool,
    bytes_in: usize,
    bytes_out: usize,
}

struct Crowd {
    now: Time,
    victim: Host,
    strangers: Vec<Stranger>,
    /// The packet numbers that were sent in sessions, by the id that the stranger gave.
    numbers: BTreeMap<u64, BTreeSet<u32>>,
    /// With whom the sessions are that strangers opened.
    incoming: BTreeMap<SessionId, Address>,
    /// The ids that strangers gave to sessions, by stranger: what resets name.
    remotes: BTreeSet<(u8, u64)>,
}

/// Runs the steps that `data` stands for.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let now = Time::from_nanos(20_000_000_000);
    let mut crowd = Crowd {
        now,
        victim: Host::new(address(0), host::config(3), MTU, input.arbitrary().unwrap_or(true), now),
        strangers: (0..=PEERS).map(|_| Stranger::default()).collect(),
        numbers: BTreeMap::new(),
        incoming: BTreeMap::new(),
        remotes: BTreeSet::new(),
    };
    replay::steps(&mut input, STEPS, |step: Step| crowd.step(step));
    crowd.turn();
    drop(crowd.victim.fall_silent(crowd.now));
    crowd.victim.wire.assert_frames_home();
}

/// Number 0 is the endpoint's own.
fn address(host: u8) -> Address {
    Address::Inet(([10, 0, 0, host], 7000).into())
}

/// The stranger of this number, counted round.
fn stranger(number: u8) -> u8 {
    1 + number % PEERS
}

impl Crowd {
    fn step(&mut self, step: Step) {
        match step {
            Step::Hello { from, session, incarnation, token, limits, damage } => {
                self.hello(stranger(from), session, incarnation, &token, limits, damage);
            }
            Step::Answer { from, to, kind, session, incarnation, token, damage } => {
                let kind = [Kind::Challenge, Kind::Welcome, Kind::Refuse][usize::from(kind) % 3];
                let mut packet = vec![0; Welcome::PACKET];
                let to = self.session(&to);
                if kind == Kind::Refuse {
                    let incarnation = self.victim.endpoint().incarnation().wrapping_add(u64::from(incarnation));
                    let refusal = Refusal { reason: token, version: session, reserved: [0; 6], incarnation: incarnation.into() };
                    refusal.emit(&mut packet);
                } else {
                    let welcome = Welcome {
                        session: u64::from(session).into(),
                        incarnation: u64::from(incarnation).into(),
                        parameters: parameters(token),
                        token: u64::from(token).into(),
                        token_time: 0.into(),
                    };
                    welcome.emit(&mut packet);
                }
                if kind == Kind::Welcome {
                    self.remotes.insert((stranger(from), u64::from(session)));
                }
                Header { session: to.into(), ..Header::new(kind) }.emit(&mut packet);
                self.arrive(stranger(from), packet, damage);
            }
            Step::Reset { from, to, number } => self.reset(stranger(from), &to, number),
            Step::Ack { from, to, number } => {
                let mut packet = vec![0; Header::LEN];
                let to = self.session(&to);
                Header { session: to.into(), number: u32::from(number).into(), ..Header::new(Kind::Ack) }.emit(&mut packet);
                self.arrive(stranger(from), packet, Damage::NONE);
            }
            Step::Bytes { from, bytes } => {
                self.strangers[usize::from(stranger(from))].bytes_in += bytes.len();
                self.victim.wire.arrive(address(stranger(from)), bytes.to_vec());
                self.turn();
            }
            Step::Connect { peer } => {
                let peer = stranger(peer);
                self.strangers[usize::from(peer)].called |= self.victim.connect(address(peer), self.now).is_some();
            }
            Step::Close { session } => {
                if let Some(session) = self.victim.session(session) {
                    self.victim.endpoint().close(session, self.now);
                }
            }
            Step::Turn => self.turn(),
            Step::Pass(span) => {
                self.turn();
                self.now = self.now.plus_nanos(span.nanos());
                self.turn();
            }
            Step::Timer => {
                self.turn();
                self.now = self.victim.endpoint().next_timeout(self.now).unwrap_or(self.now).max(self.now);
                self.turn();
            }
        }
    }

    fn session(&self, to: &To) -> u64 {
        match *to {
            To::Known(which) => self.victim.session(which).map_or(0, SessionId::as_u64),
            To::Other(session) => session,
        }
    }

    fn hello(&mut self, from: u8, session: u8, incarnation: u8, token: &Token, limits: u8, damage: Damage) {
        let own = self.strangers[usize::from(from)].challenge;
        let foreign = |which: u8| self.strangers[usize::from(stranger(which))].challenge;
        let (token, time) = match *token {
            Token::Own => own.map(|own| (own.token, own.time)),
            Token::None => None,
            Token::Foreign(which) => foreign(which).map(|other| (other.token, other.time)),
            Token::Flipped(bit) => own.map(|own| (own.token ^ 1 << (bit % 64), own.time)),
            Token::Off(by) => own.map(|own| (own.token, own.time.wrapping_add_signed(i64::from(by)))),
        }
        .unwrap_or((0, 0));
        let (session, incarnation) = (u64::from(session), u64::from(incarnation));
        let hello = Hello {
            session: session.into(),
            incarnation: incarnation.into(),
            parameters: parameters(limits),
            token: token.into(),
            token_time: time.into(),
        };
        let mut packet = vec![0; Hello::PACKET];
        Header::new(Kind::Hello).emit(&mut packet);
        hello.emit(&mut packet);
        // What arrives before is of another hello.
        self.turn();
        self.remotes.insert((from, session));
        self.arrive(from, packet, damage);
    }

    /// Damaged or not, it has a right checksum.
    fn arrive(&mut self, from: u8, mut packet: Vec<u8>, damage: Damage) {
        damage.to(&mut packet);
        if let Ok((_, Kind::Hello)) = Header::parse(&packet)
            && let Ok(hello) = Hello::parse(&packet)
        {
            let known = &mut self.strangers[usize::from(from)];
            let asked = (hello.session.get(), hello.incarnation.get());
            known.asked = Some(asked);
            known.proven |= known.challenge.is_some_and(|own| {
                (own.session, own.incarnation) == asked && (own.token, own.time) == (hello.token.get(), hello.token_time.get())
            });
        }
        if packet.len() >= Header::LEN {
            Header::seal(&mut packet);
        }
        self.strangers[usize::from(from)].bytes_in += packet.len();
        self.victim.wire.arrive(address(from), packet);
        self.turn();
    }

    fn reset(&mut self, from: u8, to: &To, number: Near) {
        self.turn();
        // A reset names a session as its sender did, in packets of the endpoint's.
        let remotes: Vec<u64> = self.remotes.iter().filter(|(of, _)| *of == from).map(|(_, session)| *session).collect();
        let session = match *to {
            To::Known(which) if !remotes.is_empty() => remotes[usize::from(which) % remotes.len()],
            To::Known(_) => 0,
            To::Other(session) => session,
        };
        let sent = self.numbers.get(&session);
        let latest = sent.and_then(|sent| sent.last().copied()).unwrap_or(0);
        let number = number.to(latest);
        let could_know = sent.is_some_and(|sent| sent.contains(&number));
        let before: Vec<SessionId> = self.victim.sessions().collect();
        let mut packet = vec![0; Header::LEN];
        Header { session: session.into(), number: number.into(), ..Header::new(Kind::Reset) }.emit(&mut packet);
        self.arrive(from, packet, Damage::NONE);
        let after: Vec<SessionId> = self.victim.sessions().collect();
        assert!(could_know || before == after, "a guessed reset, session {session} number {number}, ended one of {before:?}");
        assert!(before.len() <= after.len() + 1, "one reset ended several sessions");
    }

    fn turn(&mut self) {
        for event in self.victim.turn(self.now) {
            if let Event::Established { session, peer, incoming } = event {
                let Some(known) = (1..=PEERS).find(|number| address(*number) == peer) else { panic!("a session with {peer}") };
                let proven = self.strangers[usize::from(known)].proven;
                assert!(!incoming || proven, "{peer} got a session, and has proven nothing");
                if incoming {
                    self.incoming.insert(session, peer);
                }
            }
        }
        for (to, packet) in self.victim.wire.sent() {
            let Some(number) = (1..=PEERS).find(|number| address(*number) == to) else { panic!("a packet to {to}") };
            self.note(number, &packet);
        }
        // What a stranger gets before it has proven its address is no more than what it sent.
        for (number, known) in self.strangers.iter().enumerate().filter(|(_, known)| !known.proven && !known.called) {
            assert!(known.bytes_out <= known.bytes_in, "stranger {number} sent {} and got {}", known.bytes_in, known.bytes_out);
        }
        for number in 1..=PEERS {
            let of = self.victim.sessions().filter(|session| self.incoming.get(session) == Some(&address(number))).count();
            assert!(of <= host::SESSIONS_PER_PEER, "{of} sessions of one stranger");
        }
    }

    fn note(&mut self, to: u8, packet: &[u8]) {
        let known = &mut self.strangers[usize::from(to)];
        known.bytes_out += packet.len();
        let Ok((header, kind)) = Header::parse(packet) else { unreachable!("the wire has checked it") };
        match kind {
            Kind::Challenge => {
                if let Ok(challenge) = Welcome::parse(packet)
                    && let Some((session, incarnation)) = known.asked
                {
                    let (token, time) = (challenge.token.get(), challenge.token_time.get());
                    known.challenge = Some(Challenge { token, time, session, incarnation });
                }
            }
            Kind::Data | Kind::Control | Kind::Ack | Kind::Acks => {
                self.numbers.entry(header.session.get()).or_default().insert(header.number.get());
            }
            _ => {}
        }
    }
}

fn parameters(limits: u8) -> Parameters {
    Parameters {
        mtu: (if limits & 1 == 0 { 300 } else { 255u32 }).into(),
        max_message: (if limits & 2 == 0 { 50_000 } else { 0u32 }).into(),
        unscheduled: 1000.into(),
        slots: (if limits & 4 == 0 { 16 } else { 0u16 }).into(),
        reserved: 0.into(),
        ack_delay: 100.into(),
        peer_timeout: (if limits & 8 == 0 { 300 } else { 0u32 }).into(),
    }
}

const _: () = assert!(VERSION == 1, "hellos of this version are what `arrive` reads");
