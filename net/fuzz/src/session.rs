//! Target `session`: an endpoint with one peer, who has the right to a session and says anything in it, in packets that are almost
//! right, at any time; and an owner who sends, gives up, closes and keeps what was received. Nothing panics, every bound holds, the
//! endpoint always comes to rest, every session ends once its peer is silent, and all memory and every frame comes back.

use arbitrary::{Arbitrary, Unstructured};
use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::Address;
use tautline_net::wire::{
    Acknowledgement, DATA_OVERHEAD, Fragment, Header, Hello, Item, Kind, MIN_MTU, Parameters, Refusal, Welcome,
};

use crate::host::{self, Host, MAX_MESSAGE};
use crate::near::{Damage, Length, Near, Span};
use crate::replay;

/// Steps of one input at most.
const STEPS: usize = 400;
/// Slots below this one are for control messages.
const CONTROL_SLOTS: u8 = 64;

#[derive(Arbitrary, Debug)]
struct Setup {
    /// Who opens the session.
    incoming: bool,
    integrity: bool,
    mtu: u16,
    peer: Limits,
}

/// What the peer says in its half of the handshake.
#[derive(Arbitrary, Debug)]
struct Limits {
    mtu: u16,
    max_message: Length,
    unscheduled: u16,
    slots: u16,
    ack_delay: u16,
    peer_timeout: u16,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer says something.
    Packet {
        body: Body,
        number: Near,
        acknowledge: Near,
        bits: Bits,
        held_back: u16,
    },
    /// A packet's worth of a message, as an honest sender would go on.
    Whole {
        slot: u8,
        class: u8,
        packets: u8,
        last: u16,
    },
    /// The peer acknowledges all that it got.
    Acknowledge,
    /// A packet of the peer's comes again, perhaps damaged.
    Again {
        which: u8,
        damage: Damage,
    },
    /// A packet of the endpoint's own comes back to it.
    Reflect {
        which: u8,
        damage: Damage,
    },
    /// Bytes.
    Bytes([u8; 12]),
    /// The endpoint takes what has arrived.
    Turn,
    /// Time passes.
    Pass(Span),
    /// Time passes until the next timer.
    Timer,
    /// The owner sends.
    Send {
        session: u8,
        class: u8,
        length: Length,
    },
    SendControl {
        session: u8,
        length: u8,
    },
    Abandon {
        which: u8,
    },
    Close {
        session: u8,
    },
    Connect,
    /// The owner drops what it was given, or keeps it from now on.
    Keep(bool),
    /// The device takes so many datagrams more.
    Room(u8),
    /// The owner goes to sleep and wakes up.
    Wait,
}

#[derive(Arbitrary, Debug)]
enum Body {
    Data { slot: u8, sequence: Near, total: Length, offset: Offset, class: u8, payload: Size },
    Items([Said; 3]),
    Item(Said),
    Ack,
    Reset { number: Near },
    Answer { kind: Answer, token: u8, limits: Limits },
    Hello { token: u8, limits: Limits },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Answer {
    Challenge,
    Welcome,
    Refuse,
}

#[derive(Arbitrary, Debug)]
enum Offset {
    /// Of a fragment of this number.
    Fragment(u8),
    Any(u32),
}

#[derive(Arbitrary, Debug)]
enum Size {
    /// As long as it should be.
    Right,
    Other(u16),
}

/// An item about a message: one that the endpoint sent, or any.
#[derive(Arbitrary, Debug)]
struct Said {
    kind: u8,
    message: About,
    sequence: Near,
    value: Length,
}

#[derive(Arbitrary, Debug)]
enum About {
    /// A message that the endpoint sent.
    Seen(u8),
    /// The one whose packet came last.
    Latest,
    Slot(u8),
}

#[derive(Arbitrary, Debug)]
enum Bits {
    All,
    None,
    Some(u64),
}

/// Runs the steps that `data` stands for.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(setup) = Setup::arbitrary(&mut input) else { return };
    replay::show(&setup);
    let Some(mut talk) = Talk::begin(&setup) else { return };
    replay::steps(&mut input, STEPS, |step: Step| talk.step(step));
    talk.end();
}

struct Talk {
    now: Time,
    victim: Host,
    peer: Address,
    /// Bytes of payload in a data packet.
    fragment: u32,
    integrity: bool,
    /// The victim's session with the peer; names nothing once that has ended.
    session: SessionId,
    /// The number of the peer's latest packet.
    mine: u32,
    /// The largest number that came from the victim.
    theirs: u32,
    sequences: [u32; 256],
    /// Slot, sequence and length of messages that the victim sent.
    seen: Vec<(u16, u32, u32)>,
    /// Packets of the peer's, and of the victim's.
    said: Vec<Vec<u8>>,
    heard: Vec<Vec<u8>>,
    kept: Option<Vec<Payload>>,
}

impl Talk {
    /// Lets the two shake hands. `None` if the peer's limits are of no use.
    fn begin(setup: &Setup) -> Option<Talk> {
        let now = Time::from_nanos(1_000_000_000);
        let [here, peer] = [1, 2].map(|host| Address::Inet(([10, 0, 0, host], 7000).into()));
        let mtu = MIN_MTU + usize::from(setup.mtu) % 1200;
        let victim = Host::new(here, host::config(7), mtu, setup.integrity, now);
        let parameters = setup.peer.parameters();
        let fragment = (mtu as u32).min(parameters.mtu.get()).saturating_sub(DATA_OVERHEAD as u32).max(1);
        let mut talk = Talk {
            now,
            victim,
            peer,
            fragment,
            integrity: setup.integrity,
            session: SessionId::from_u64(0),
            mine: 0,
            theirs: 0,
            sequences: [1; 256],
            seen: Vec::new(),
            said: Vec::new(),
            heard: Vec::new(),
            kept: None,
        };
        if setup.incoming {
            talk.say_hello(0, 0, parameters);
            talk.turn();
            let challenge = talk.heard.last().and_then(|packet| Welcome::parse(packet).ok())?;
            talk.say_hello(challenge.token.get(), challenge.token_time.get(), parameters);
            talk.turn();
        } else {
            talk.session = talk.victim.connect(peer, now)?;
            talk.turn();
            talk.answer(Answer::Challenge, 9, parameters);
            talk.turn();
            talk.answer(Answer::Welcome, 9, parameters);
            talk.turn();
        }
        let session = talk.session;
        talk.victim.endpoint().is_established(session).then_some(talk)
    }

    fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Packet { body, number, acknowledge, bits, held_back } => {
                let right = self.mine.wrapping_add(1);
                let number = number.to(right);
                if number == right {
                    self.mine = right;
                }
                let header = Header {
                    number: number.into(),
                    session: self.session.as_u64().into(),
                    ack_largest: acknowledge.to(self.theirs).into(),
                    ack_bits: match bits {
                        Bits::All => u64::MAX,
                        Bits::None => 0,
                        Bits::Some(bits) => bits,
                    }
                    .into(),
                    ack_delay: held_back.into(),
                    ..Header::new(Kind::Ack)
                };
                self.say(body, header);
            }
            Step::Whole { slot, class, packets, last } => self.whole(slot, class % 4, packets % 8, u32::from(last)),
            Step::Acknowledge => {
                self.mine = self.mine.wrapping_add(1);
                let header = self.header(Kind::Ack);
                self.utter(header, Vec::new());
            }
            Step::Again { which, damage } => self.once_more(false, which, damage),
            Step::Reflect { which, damage } => self.once_more(true, which, damage),
            Step::Bytes(bytes) => self.victim.wire.arrive(self.peer, bytes.to_vec()),
            Step::Turn => self.turn(),
            Step::Pass(span) => {
                self.turn();
                self.now = self.now.plus_nanos(span.nanos());
                self.turn();
            }
            Step::Timer => {
                self.turn();
                let due = self.victim.endpoint().next_timeout(now);
                self.now = due.unwrap_or(now);
                self.turn();
            }
            Step::Send { session, class, length } => {
                if let Some(session) = self.victim.session(session) {
                    let body = vec![0x5a; length.within(MAX_MESSAGE + 1)];
                    // It may be full: the peer acknowledges what it likes.
                    let _ = self.victim.send(session, Class::ALL[usize::from(class) % Class::COUNT], body, now);
                }
            }
            Step::SendControl { session, length } => {
                if let Some(session) = self.victim.session(session) {
                    let _ = self.victim.endpoint().send_control(session, &vec![1; usize::from(length)], now);
                }
            }
            Step::Abandon { which } => {
                // What the endpoint has said is heard first: a message that it called undelivered can't be given up any more.
                self.turn();
                if let Some(token) = self.victim.message(which) {
                    self.victim.abandon(token, now);
                }
            }
            Step::Close { session } => {
                if let Some(session) = self.victim.session(session) {
                    self.victim.endpoint().close(session, now);
                }
            }
            Step::Connect => _ = self.victim.connect(self.peer, now),
            Step::Keep(keep) => self.kept = keep.then(Vec::new),
            Step::Room(room) => self.victim.wire.set_room(if room == u8::MAX { usize::MAX } else { usize::from(room) }),
            Step::Wait => {
                self.victim.endpoint().before_wait(now);
                self.victim.endpoint().after_wait();
                self.turn();
            }
        }
    }

    /// A header as an honest peer would write it.
    fn header(&self, kind: Kind) -> Header {
        Header {
            number: self.mine.into(),
            session: self.session.as_u64().into(),
            ack_largest: self.theirs.into(),
            ack_bits: u64::MAX.into(),
            ..Header::new(kind)
        }
    }

    fn say(&mut self, body: Body, header: Header) {
        let mut rest = Vec::new();
        let mut header = header;
        let kind = match body {
            Body::Data { slot, sequence, total, offset, class, payload } => {
                let known = self.sequences[usize::from(slot)];
                let total = total.within(MAX_MESSAGE + 1_000) as u32;
                let offset = match offset {
                    Offset::Fragment(number) => u32::from(number) * self.fragment,
                    Offset::Any(offset) => offset,
                };
                // Of zeros, which are the lengths of empty messages behind the first.
                let bundle = (150..=200).contains(&class);
                let (total, offset) =
                    if bundle { (total % self.fragment, offset % (total % self.fragment + 2)) } else { (total, offset) };
                let len = match payload {
                    Size::Right if bundle => total,
                    Size::Right => total.saturating_sub(offset).min(self.fragment),
                    Size::Other(len) => u32::from(len) % 1500,
                };
                let fragment = Fragment {
                    slot: u16::from(slot).into(),
                    class: if class > 200 { Fragment::CONTROL } else { class % 5 },
                    shift: if bundle { Fragment::BUNDLE } else { 0 },
                    sequence: sequence.to(known).into(),
                    total: total.into(),
                    offset: offset.into(),
                };
                rest = vec![0; Fragment::LEN + len as usize];
                write(&mut rest, |packet| fragment.emit(packet));
                Kind::Data
            }
            Body::Items(items) => {
                items.iter().for_each(|item| rest.extend_from_slice(&self.item(item)));
                Kind::Control
            }
            Body::Item(item) => {
                rest = self.item(&item).to_vec();
                Kind::Control
            }
            // Told by a field that any value may have, so that what was found before still says what it said.
            Body::Ack if header.ack_delay.get() % 8 == 7 => {
                self.list(&header, &mut rest);
                Kind::Acks
            }
            Body::Ack => Kind::Ack,
            Body::Reset { number } => {
                header.number = number.to(self.theirs).into();
                Kind::Reset
            }
            Body::Answer { kind, token, limits } => return self.answer(kind, u64::from(token), limits.parameters()),
            Body::Hello { token, limits } => return self.say_hello(u64::from(token), 0, limits.parameters()),
        };
        header.kind = kind as u8;
        self.utter(header, rest);
    }

    /// Acknowledgements that share a packet, of sessions that there are or not, and of what was sent or not: as the header's fields have it.
    fn list(&self, header: &Header, rest: &mut Vec<u8>) {
        let (delay, bits) = (header.ack_delay.get(), header.ack_bits.get());
        for number in 0..1 + delay / 8 % 4 {
            let session = header.session.get() ^ u64::from(bits >> number & 1 == 0 && delay & 64 != 0);
            let largest = header.ack_largest.get().wrapping_sub(u32::from(number));
            let one = Acknowledgement::new(session, largest, u64::from(delay));
            let at = rest.len();
            rest.resize(at + Acknowledgement::LEN, 0);
            one.emit(&mut rest[at..]);
        }
        if delay & 128 != 0 {
            // No sender writes that.
            rest.pop();
        }
    }

    fn item(&self, said: &Said) -> [u8; Item::LEN] {
        let (slot, sequence, total) = match said.message {
            About::Seen(which) if !self.seen.is_empty() => self.seen[usize::from(which) % self.seen.len()],
            About::Latest | About::Seen(_) => self.seen.last().copied().unwrap_or_default(),
            About::Slot(slot) => (u16::from(slot), self.sequences[usize::from(slot)], 0),
        };
        let value = match said.value {
            Length::Short(0) => total,
            ref other => other.bytes(),
        };
        let mut bytes = [0; Item::LEN];
        bytes[0] = said.kind % 8;
        bytes[2..4].copy_from_slice(&slot.to_le_bytes());
        bytes[4..8].copy_from_slice(&said.sequence.to(sequence).to_le_bytes());
        bytes[8..12].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// The next message of a slot, all of it.
    fn whole(&mut self, slot: u8, class: u8, packets: u8, last: u32) {
        let sequence = self.sequences[usize::from(slot)];
        self.sequences[usize::from(slot)] = sequence.wrapping_add(1);
        let control = slot < CONTROL_SLOTS;
        let class = if control { Fragment::CONTROL } else { class };
        let packets = if control { 0 } else { u32::from(packets) };
        let total = packets * self.fragment + last % self.fragment;
        for number in 0..=packets {
            let offset = number * self.fragment;
            let len = (total - offset).min(self.fragment);
            if len == 0 && total > 0 {
                continue;
            }
            let fragment = Fragment {
                slot: u16::from(slot).into(),
                class,
                shift: 0,
                sequence: sequence.into(),
                total: total.into(),
                offset: offset.into(),
            };
            let mut rest = vec![slot; Fragment::LEN + len as usize];
            write(&mut rest, |packet| fragment.emit(packet));
            self.mine = self.mine.wrapping_add(1);
            let header = self.header(Kind::Data);
            self.utter(header, rest);
        }
    }

    fn answer(&mut self, kind: Answer, token: u64, parameters: Parameters) {
        let mut packet = vec![0; Hello::PACKET];
        let (kind, len) = match kind {
            Answer::Challenge | Answer::Welcome => {
                let welcome = Welcome {
                    session: 99.into(),
                    incarnation: 5.into(),
                    parameters,
                    token: token.into(),
                    token_time: self.now.as_nanos().into(),
                };
                welcome.emit(&mut packet);
                (if matches!(kind, Answer::Welcome) { Kind::Welcome } else { Kind::Challenge }, Welcome::PACKET)
            }
            Answer::Refuse => {
                let incarnation = self.victim.endpoint().incarnation();
                Refusal { reason: token as u8, version: 1, reserved: [0; 6], incarnation: incarnation.into() }.emit(&mut packet);
                (Kind::Refuse, Refusal::PACKET)
            }
        };
        let header = Header { session: self.session.as_u64().into(), ..Header::new(kind) };
        self.utter(header, packet[Header::LEN..len].to_vec());
    }

    fn say_hello(&mut self, token: u64, token_time: u64, parameters: Parameters) {
        let hello =
            Hello { session: 99.into(), incarnation: 5.into(), parameters, token: token.into(), token_time: token_time.into() };
        let mut packet = vec![0; Hello::PACKET];
        hello.emit(&mut packet);
        self.utter(Header::new(Kind::Hello), packet.split_off(Header::LEN));
    }

    /// Puts a packet on the way.
    fn utter(&mut self, header: Header, rest: Vec<u8>) {
        let mut packet = vec![0; Header::LEN];
        header.emit(&mut packet);
        packet.extend_from_slice(&rest);
        if !self.integrity {
            Header::seal(&mut packet);
        }
        remember(&mut self.said, packet.clone());
        self.victim.wire.arrive(self.peer, packet);
    }

    fn once_more(&mut self, reflect: bool, which: u8, damage: Damage) {
        let from = if reflect { &self.heard } else { &self.said };
        if from.is_empty() {
            return;
        }
        let mut packet = from[usize::from(which) % from.len()].clone();
        damage.to(&mut packet);
        if !self.integrity && packet.len() >= Header::LEN && which & 0x80 != 0 {
            Header::seal(&mut packet);
        }
        self.victim.wire.arrive(self.peer, packet);
    }

    fn turn(&mut self) {
        for event in self.victim.turn(self.now) {
            match event {
                Event::Established { session, incoming: true, .. } => self.session = session,
                Event::Message { payload, .. } | Event::Control { payload, .. } => {
                    if let Some(kept) = &mut self.kept {
                        kept.push(payload);
                    }
                }
                _ => {}
            }
        }
        for (to, packet) in self.victim.wire.sent() {
            assert_eq!(to, self.peer);
            let Ok((header, kind)) = Header::parse(&packet) else { unreachable!("the wire has checked it") };
            if matches!(kind, Kind::Data | Kind::Control | Kind::Ack | Kind::Acks) {
                self.theirs = self.theirs.max(header.number.get());
            }
            if kind == Kind::Data
                && let Ok((fragment, _)) = Fragment::parse(&packet)
            {
                let message = (fragment.slot.get(), fragment.sequence.get(), fragment.total.get());
                if self.seen.last() != Some(&message) {
                    self.seen.push(message);
                }
            }
            remember(&mut self.heard, packet);
        }
    }

    fn end(mut self) {
        self.turn();
        let (_, events) = self.victim.fall_silent(self.now);
        drop((events, self.kept));
        self.victim.wire.assert_frames_home();
    }
}

impl Limits {
    fn parameters(&self) -> Parameters {
        Parameters {
            mtu: (MIN_MTU as u32 + u32::from(self.mtu)).into(),
            max_message: self.max_message.bytes().max(1).into(),
            unscheduled: u32::from(self.unscheduled).into(),
            slots: self.slots.max(1).into(),
            reserved: 0.into(),
            ack_delay: u32::from(self.ack_delay).into(),
            peer_timeout: u32::from(self.peer_timeout).max(1).into(),
        }
    }
}

/// Emits what belongs after a packet's header into `rest`, which is what follows it.
fn write(rest: &mut Vec<u8>, emit: impl FnOnce(&mut [u8])) {
    rest.splice(..0, [0; Header::LEN]);
    emit(rest);
    rest.drain(..Header::LEN);
}

/// Keeps the latest few.
fn remember(packets: &mut Vec<Vec<u8>>, packet: Vec<u8>) {
    if packets.len() == 64 {
        packets.remove(0);
    }
    packets.push(packet);
}
