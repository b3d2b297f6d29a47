//! A thousand hostile peers, spoken by hand on the wire: each floods its victim in one way, and does whatever handshake that takes. It moves no
//! packets itself, so that a simulated network and real sockets can carry them.

use tautline_net::class::Class;
use tautline_net::endpoint::EndpointConfig;
use tautline_net::wire::{Acknowledgement, DATA_OVERHEAD, Fragment, Header, Hello, Item, ItemKind, Kind, Parameters, Welcome};
use zerocopy::IntoBytes;

/// Largest datagram of a hostile peer, and what it holds of a message.
pub const MTU: usize = 1344;
const FRAGMENT: usize = MTU - DATA_OVERHEAD;
/// Slots below this are for control messages.
const FIRST_SLOT: u16 = 64;
/// A message that begins with this asks for [`LONG`] bytes.
const ASK: u8 = b'L';
/// Length of an answer to who asks for a long one.
pub const LONG: usize = 256 << 10;

/// Longest message that the victim takes.
const LARGEST: usize = 4 << 20;

/// The victim's limits, low enough that the flood meets them within a second.
pub fn limits() -> EndpointConfig {
    EndpointConfig {
        max_message: LARGEST,
        reassembly_bytes: 32 << 20,
        send_bytes_total: 64 << 20,
        max_sessions: 4_000,
        max_sessions_per_peer: 8,
        ..EndpointConfig::default()
    }
}

/// What a peer that is spoken by hand says of itself in its hello.
pub fn parameters(mtu: usize) -> Parameters {
    Parameters {
        mtu: (mtu as u32).into(),
        max_message: (64u32 << 20).into(),
        unscheduled: 1000.into(),
        slots: 1000.into(),
        reserved: 0.into(),
        ack_delay: 100.into(),
        peer_timeout: 3000.into(),
    }
}

/// What a hostile peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abuse {
    /// Begins handshakes, under new names; now and then it ends one, and so gets another session.
    Handshakes,
    /// Resets sessions, guessing their ids, and talks into sessions that are not there.
    Resets,
    /// Acknowledges what was not sent.
    FalseAcknowledgements,
    /// Has long answers sent, and acknowledges over and over, in lists as long as a packet holds, what it was sent, what it was not sent, and what
    /// others were sent.
    AcknowledgementLists,
    /// Has long answers sent, and grants nothing of them.
    WithheldGrants,
    /// Begins long messages and finishes none, moving each on now and then.
    UnfinishedMessages,
    /// Has long answers sent, and takes them as slowly as it can.
    SlowReaders,
}

impl Abuse {
    /// All of them.
    pub const ALL: [Abuse; 7] = [
        Abuse::Handshakes,
        Abuse::Resets,
        Abuse::FalseAcknowledgements,
        Abuse::AcknowledgementLists,
        Abuse::WithheldGrants,
        Abuse::UnfinishedMessages,
        Abuse::SlowReaders,
    ];
}

/// What a victim's application answers to a message: the same again, or a long one where that is asked for.
pub fn answer(message: &[u8]) -> Vec<u8> {
    if message.first() == Some(&ASK) { vec![7; LONG] } else { message.to_vec() }
}

/// The hostile peers.
#[derive(Debug)]
pub struct Mob {
    members: Vec<Member>,
    random: fastrand::Rng,
    next: usize,
}

#[derive(Debug)]
struct Member {
    abuse: Abuse,
    /// Its own name for its session, and for itself.
    own: (u64, u64),
    /// From the latest challenge.
    token: (u64, u64),
    /// The victim's id for the session; 0 before the handshake.
    session: u64,
    number: u32,
    /// The largest number that the victim sent, and which came before it.
    seen: u32,
    below: u64,
    /// Per slot: the sequence number of its message, and the fragments sent of that.
    slots: [(u32, u32); 8],
    /// An answer that it is sent: slot, sequence, bytes granted.
    answer: Option<(u16, u32, u32)>,
}

impl Mob {
    /// `count` peers that do `abuses` in turns, against a victim with these [`limits`].
    pub fn new(seed: u64, count: usize, abuses: &[Abuse]) -> Mob {
        let mut random = fastrand::Rng::with_seed(seed);
        let members = (0..count).map(|n| Member::new(abuses[n % abuses.len()], &mut random)).collect();
        Mob { members, random, next: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whose turn it is to send.
    pub fn turn(&self) -> usize {
        self.next
    }

    /// How many have a session, as far as they know.
    pub fn sessions(&self) -> usize {
        self.members.iter().filter(|member| member.session != 0).count()
    }

    /// The next packet, and which peer sends it. They take turns.
    pub fn packet(&mut self) -> (usize, Vec<u8>) {
        let at = self.next;
        self.next = (at + 1) % self.members.len();
        let member = &mut self.members[at];
        let mut packet = member.packet(&mut self.random);
        Header::seal(&mut packet);
        (at, packet)
    }

    /// Takes a packet that the victim sent to a peer.
    pub fn take(&mut self, at: usize, packet: &[u8]) {
        let member = &mut self.members[at];
        let Ok((header, kind)) = Header::parse(packet) else { return };
        match kind {
            Kind::Challenge => {
                if let Ok(challenge) = Welcome::parse(packet) {
                    member.token = (challenge.token.get(), challenge.token_time.get());
                }
            }
            Kind::Welcome => {
                if let Ok(welcome) = Welcome::parse(packet) {
                    member.begin(welcome.session.get());
                }
            }
            Kind::Reset | Kind::Refuse => *member = Member::new(member.abuse, &mut self.random),
            Kind::Data | Kind::Control | Kind::Ack | Kind::Acks => member.hear(header.number.get(), kind, packet),
            Kind::Hello => {}
        }
    }
}

impl Member {
    fn new(abuse: Abuse, random: &mut fastrand::Rng) -> Member {
        let own = (random.u64(1..), random.u64(1..));
        Member { abuse, own, token: (0, 0), session: 0, number: 0, seen: 0, below: 0, slots: [(0, 0); 8], answer: None }
    }

    fn begin(&mut self, session: u64) {
        (self.session, self.number, self.seen, self.below) = (session, 0, 0, 0);
        (self.slots, self.answer) = ([(0, 0); 8], None);
    }

    /// What the victim sent in the session.
    fn hear(&mut self, number: u32, kind: Kind, packet: &[u8]) {
        if number > self.seen {
            let by = number - self.seen;
            self.below = if by > 63 { 0 } else { self.below << by | 1 << (by - 1) };
            self.seen = number;
        } else if number < self.seen && self.seen - number <= 64 {
            self.below |= 1 << (self.seen - number - 1);
        }
        if kind == Kind::Data
            && let Ok((fragment, _)) = Fragment::parse(packet)
            && fragment.total.get() as usize > FRAGMENT
        {
            let (slot, sequence) = (fragment.slot.get(), fragment.sequence.get());
            let granted = self.answer.filter(|known| (known.0, known.1) == (slot, sequence)).map_or(0, |known| known.2);
            self.answer = Some((slot, sequence, granted));
        }
        if kind == Kind::Control
            && let Ok(items) = Item::parse(packet)
            && items.iter().any(|item| item.kind() == Some(ItemKind::Close))
        {
            self.session = 0;
        }
    }

    fn packet(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        match self.abuse {
            Abuse::Handshakes => {
                // A new name each time but where a session is to come of it.
                if self.token == (0, 0) || random.u32(0..20) != 0 {
                    self.own = (random.u64(1..), random.u64(1..));
                    self.token = (0, 0);
                }
                return self.hello();
            }
            Abuse::Resets => return self.reset(random),
            _ if self.session == 0 => return self.hello(),
            _ => {}
        }
        match self.abuse {
            Abuse::FalseAcknowledgements => {
                let mut packet = self.begin_packet(Kind::Ack);
                let mut header = *Header::parse(&packet).expect("just made").0;
                let ahead = [random.u32(1..1000), 1 << 31, random.u32(..)][random.usize(0..3)];
                (header.ack_largest, header.ack_bits) = (self.seen.wrapping_add(ahead).into(), random.u64(..).into());
                header.emit(&mut packet);
                packet
            }
            // Long answers must be on their way.
            Abuse::AcknowledgementLists if random.u32(0..10) != 0 => self.acknowledgements(random),
            Abuse::UnfinishedMessages => self.unfinished(random),
            Abuse::SlowReaders if random.bool() => self.grant_little(),
            _ => {
                let slot = random.usize(0..8);
                self.slots[slot].0 += 1;
                self.fragment(slot, 0, 64, 64, ASK)
            }
        }
    }

    fn hello(&self) -> Vec<u8> {
        let mut packet = vec![0; Hello::PACKET];
        Header::new(Kind::Hello).emit(&mut packet);
        let parameters = parameters(MTU);
        let (session, incarnation) = (self.own.0.into(), self.own.1.into());
        let (token, token_time) = (self.token.0.into(), self.token.1.into());
        Hello { session, incarnation, parameters, token, token_time }.emit(&mut packet);
        packet
    }

    fn reset(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let kind = [Kind::Reset, Kind::Reset, Kind::Data, Kind::Ack][random.usize(0..4)];
        let mut packet = vec![0; if kind == Kind::Data { 100 } else { Header::LEN }];
        let session = random.u64(..) << 32 | u64::from(random.u32(0..2000));
        Header { session: session.into(), number: random.u32(..).into(), ..Header::new(kind) }.emit(&mut packet);
        packet
    }

    /// The start of a packet in the session. It acknowledges what was received.
    fn begin_packet(&mut self, kind: Kind) -> Vec<u8> {
        self.number += 1;
        let mut packet = vec![0; Header::LEN];
        let mut header = Header::new(kind);
        (header.number, header.session) = (self.number.into(), self.session.into());
        (header.ack_largest, header.ack_bits) = (self.seen.into(), self.below.into());
        header.emit(&mut packet);
        packet
    }

    fn fragment(&mut self, slot: usize, offset: u32, total: u32, len: usize, fill: u8) -> Vec<u8> {
        let sequence = self.slots[slot].0;
        let mut packet = self.begin_packet(Kind::Data);
        packet.resize(DATA_OVERHEAD + len, fill);
        let (slot, class) = ((FIRST_SLOT + slot as u16).into(), Class::Normal as u8);
        let (sequence, total, offset) = (sequence.into(), total.into(), offset.into());
        Fragment { slot, class, shift: 0, sequence, total, offset }.emit(&mut packet);
        packet
    }

    /// The first fragment of a message, or now and then another, so that the message moves and never ends.
    fn unfinished(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let slot = random.usize(0..8);
        let total = [LARGEST as u32, LARGEST as u32 / 3, 20_000][slot % 3];
        let (sequence, sent) = self.slots[slot];
        let last = total / FRAGMENT as u32 - 1;
        if sequence == 0 || sent >= last || random.u32(0..50) == 0 {
            self.slots[slot] = (sequence + 1, 1);
            return self.fragment(slot, 0, total, FRAGMENT, 1);
        }
        self.slots[slot].1 += 1;
        self.fragment(slot, sent * FRAGMENT as u32, total, FRAGMENT, 1)
    }

    /// A list of acknowledgements as long as a packet holds.
    fn acknowledgements(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut packet = self.begin_packet(Kind::Acks);
        while packet.len() + Acknowledgement::LEN <= MTU {
            let other = random.u64(..) << 32 | u64::from(random.u32(0..2000));
            let one = match random.u32(0..20) {
                0 => Acknowledgement::new(self.session, self.seen.wrapping_add(random.u32(1..1000)), 0),
                1 => Acknowledgement::new(other, random.u32(..), 0),
                _ => Acknowledgement::new(self.session, self.seen.saturating_sub(random.u32(0..64)), 0),
            };
            let at = packet.len();
            packet.resize(at + Acknowledgement::LEN, 0);
            one.emit(&mut packet[at..]);
        }
        packet
    }

    /// Grants one more fragment of the answer that is on its way.
    fn grant_little(&mut self) -> Vec<u8> {
        let Some((slot, sequence, granted)) = self.answer else { return self.begin_packet(Kind::Ack) };
        self.answer = Some((slot, sequence, granted + FRAGMENT as u32));
        let mut packet = self.begin_packet(Kind::Control);
        packet.extend_from_slice(Item::grant(slot, sequence, granted + FRAGMENT as u32, 0).as_bytes());
        packet
    }
}
