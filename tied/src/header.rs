//! The tie on the wire: what a copy carries beside its request, and what two servers tell each other about it.
//!
//! A request's tie is [`TieHeader`], in the request's extension. When a copy starts, its server sends [`Control::Cancel`] to the others',
//! and each answers with [`Control::Outcome`]. All of it is versioned, bounded and checked as a whole: bytes that are not exactly a tie
//! are none, and the request they came with runs untied.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use smallvec::SmallVec;
use tautline_net::port::{Address, LocalName};
use zerocopy::byteorder::little_endian::{U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The tag that a tie's request extension and control messages have in `rpc`.
pub const TAG: u8 = 1;

/// Most copies that one tie can have.
pub const MAX_COPIES: usize = 4;

const VERSION: u8 = 1;

/// Names one tied call. Unguessable, and by that alone nobody's key: servers take it together with the client's address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TieId(pub u128);

impl std::fmt::Debug for TieId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What becomes of a copy that is still queued when another one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// It is dropped, and its client told so.
    #[default]
    Cancel,
    /// It waits in the background class: idle time may still run it, which helps when the started copy stalls.
    Demote,
}

/// What a copy carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieHeader {
    /// The tie.
    pub id: TieId,
    /// What becomes of a queued loser.
    pub mode: Mode,
    /// Which of `copies` this one is. If two start, the lower rank goes on.
    pub rank: u8,
    /// The addresses of all copies' servers, this one's included, by rank: 2 to 4, all different.
    pub copies: SmallVec<[Address; MAX_COPIES]>,
}

/// What servers tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// "My copy started: drop yours."
    Cancel {
        /// The tie.
        id: TieId,
        /// What to do with a queued copy.
        mode: Mode,
        /// The rank of the copy that started.
        from: u8,
        /// The rank of the copy to drop.
        to: u8,
        /// The client, as the sender knows it. Only its own copies are meant.
        client: Address,
        /// When the copy started by the sender's clock; comes back in the outcome and means nothing to anyone else.
        sent_at: u64,
    },
    /// What became of it.
    Outcome {
        /// The tie.
        id: TieId,
        /// The rank of the copy that was to be dropped.
        from: u8,
        /// The rank of the copy that started.
        to: u8,
        /// What happened.
        outcome: Outcome,
        /// As it came.
        sent_at: u64,
    },
}

/// What a cancel did to the copy it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// It was queued, and is dropped.
    Dropped = 1,
    /// It was queued, and waits in the background now.
    Demoted = 2,
    /// It had started, and its cancellation token fired: the sender's outranks it.
    Stopped = 3,
    /// It had started and goes on: it outranks the sender's.
    Kept = 4,
    /// No such copy: it has not arrived (a tombstone waits for it) or is over.
    Unknown = 5,
}

/// Why bytes are not a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TieError {
    /// Too short or too long for what they say they hold.
    #[error("a tie of the wrong length")]
    Length,
    /// A version that this build does not speak.
    #[error("tie version {0} is not spoken here")]
    Version(u8),
    /// A field has a value that means nothing.
    #[error("a tie with an unknown {0}")]
    Field(&'static str),
    /// Less than two copies, more than four, a rank that is not among them, or a server twice.
    #[error("a tie whose copies make no sense")]
    Copies,
}

/// The most bytes that a tie header takes.
pub const MAX_HEADER: usize = size_of::<Head>() + MAX_COPIES * MAX_ADDRESS;
/// The most bytes that a control message takes.
pub const MAX_CONTROL: usize = size_of::<ControlHead>() + MAX_ADDRESS;
/// A kind byte, a length byte and a name, or a kind byte and an IPv6 address with its port.
const MAX_ADDRESS: usize = 2 + LocalName::MAX;

/// Encoded bytes, on the stack.
pub type Bytes = SmallVec<[u8; 128]>;

const _: () = assert!(MAX_HEADER <= 128 && MAX_CONTROL <= 128, "must stay inline, and below rpc's 200 bytes of extension");

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    mode: u8,
    rank: u8,
    copies: u8,
    id: U128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ControlHead {
    version: u8,
    kind: u8,
    /// The mode of a cancel, the outcome of an outcome.
    what: u8,
    from: u8,
    to: u8,
    reserved: [u8; 3],
    id: U128,
    sent_at: U64,
}

const CANCEL: u8 = 1;
const OUTCOME: u8 = 2;

impl TieHeader {
    /// Reads an extension's bytes.
    pub fn parse(bytes: &[u8]) -> Result<TieHeader, TieError> {
        let (head, mut rest) = Head::ref_from_prefix(bytes).map_err(|_| TieError::Length)?;
        if head.version != VERSION {
            return Err(TieError::Version(head.version));
        }
        let mode = Mode::from_wire(head.mode)?;
        if !(2..=MAX_COPIES).contains(&usize::from(head.copies)) || head.rank >= head.copies {
            return Err(TieError::Copies);
        }
        let mut copies = SmallVec::new();
        for _ in 0..head.copies {
            let address = parse_address(&mut rest)?;
            if copies.contains(&address) {
                return Err(TieError::Copies);
            }
            copies.push(address);
        }
        if !rest.is_empty() {
            return Err(TieError::Length);
        }
        Ok(TieHeader { id: TieId(head.id.get()), mode, rank: head.rank, copies })
    }

    /// The extension's bytes. More than [`MAX_COPIES`] copies can't be said: those past it are left out.
    pub fn emit(&self) -> Bytes {
        let copies = &self.copies[..self.copies.len().min(MAX_COPIES)];
        let head =
            Head { version: VERSION, mode: self.mode as u8, rank: self.rank, copies: copies.len() as u8, id: U128::new(self.id.0) };
        let mut bytes = Bytes::from_slice(head.as_bytes());
        for address in copies {
            emit_address(address, &mut bytes);
        }
        bytes
    }
}

impl Control {
    /// Where `sent_at` is in the message's bytes: eight of them, little-endian. Those before it name the tie, the ranks and what is said.
    pub const SENT_AT: usize = std::mem::offset_of!(ControlHead, sent_at);

    /// Reads a control message.
    pub fn parse(bytes: &[u8]) -> Result<Control, TieError> {
        let (head, mut rest) = ControlHead::ref_from_prefix(bytes).map_err(|_| TieError::Length)?;
        if head.version != VERSION {
            return Err(TieError::Version(head.version));
        }
        let (id, from, to, sent_at) = (TieId(head.id.get()), head.from, head.to, head.sent_at.get());
        if usize::from(from) >= MAX_COPIES || usize::from(to) >= MAX_COPIES || from == to {
            return Err(TieError::Copies);
        }
        let control = match head.kind {
            CANCEL => {
                Control::Cancel { id, mode: Mode::from_wire(head.what)?, from, to, client: parse_address(&mut rest)?, sent_at }
            }
            OUTCOME => Control::Outcome { id, from, to, outcome: Outcome::from_wire(head.what)?, sent_at },
            _ => return Err(TieError::Field("kind")),
        };
        if rest.is_empty() { Ok(control) } else { Err(TieError::Length) }
    }

    /// The message's bytes.
    pub fn emit(&self) -> Bytes {
        let (kind, what, from, to, id, sent_at) = match *self {
            Control::Cancel { id, mode, from, to, sent_at, .. } => (CANCEL, mode as u8, from, to, id, sent_at),
            Control::Outcome { id, from, to, outcome, sent_at } => (OUTCOME, outcome as u8, from, to, id, sent_at),
        };
        let head = ControlHead {
            version: VERSION,
            kind,
            what,
            from,
            to,
            reserved: [0; 3],
            id: U128::new(id.0),
            sent_at: U64::new(sent_at),
        };
        let mut bytes = Bytes::from_slice(head.as_bytes());
        if let Control::Cancel { client, .. } = self {
            emit_address(client, &mut bytes);
        }
        bytes
    }
}

impl Mode {
    fn from_wire(value: u8) -> Result<Mode, TieError> {
        match value {
            0 => Ok(Mode::Cancel),
            1 => Ok(Mode::Demote),
            _ => Err(TieError::Field("mode")),
        }
    }
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Outcome; 5] = [Outcome::Dropped, Outcome::Demoted, Outcome::Stopped, Outcome::Kept, Outcome::Unknown];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Dropped => "dropped",
            Outcome::Demoted => "demoted",
            Outcome::Stopped => "stopped",
            Outcome::Kept => "kept",
            Outcome::Unknown => "unknown",
        }
    }

    fn from_wire(value: u8) -> Result<Outcome, TieError> {
        Outcome::ALL.into_iter().find(|outcome| *outcome as u8 == value).ok_or(TieError::Field("outcome"))
    }
}

const IPV4: u8 = 4;
const IPV6: u8 = 6;
const LOCAL: u8 = 1;

/// IPv6 scopes and flow labels stay behind: they mean something on one machine only.
fn emit_address(address: &Address, into: &mut Bytes) {
    match address {
        Address::Inet(SocketAddr::V4(address)) => {
            into.push(IPV4);
            into.extend_from_slice(&address.ip().octets());
            into.extend_from_slice(&address.port().to_be_bytes());
        }
        Address::Inet(SocketAddr::V6(address)) => {
            into.push(IPV6);
            into.extend_from_slice(&address.ip().octets());
            into.extend_from_slice(&address.port().to_be_bytes());
        }
        Address::Local(name) => {
            let name = name.as_str().as_bytes();
            into.push(LOCAL);
            into.push(name.len() as u8);
            into.extend_from_slice(name);
        }
    }
}

fn parse_address(bytes: &mut &[u8]) -> Result<Address, TieError> {
    let [kind] = take::<1>(bytes)?;
    match kind {
        IPV4 => Ok(Address::Inet(SocketAddrV4::new(Ipv4Addr::from(take::<4>(bytes)?), u16::from_be_bytes(take(bytes)?)).into())),
        IPV6 => {
            Ok(Address::Inet(SocketAddrV6::new(Ipv6Addr::from(take::<16>(bytes)?), u16::from_be_bytes(take(bytes)?), 0, 0).into()))
        }
        LOCAL => {
            let [len] = take::<1>(bytes)?;
            let (name, rest) = bytes.split_at_checked(usize::from(len)).ok_or(TieError::Length)?;
            *bytes = rest;
            let name = std::str::from_utf8(name).map_err(|_| TieError::Field("name"))?;
            Ok(Address::Local(LocalName::new(name).map_err(|_| TieError::Field("name"))?))
        }
        _ => Err(TieError::Field("address")),
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], TieError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(TieError::Length)?;
    *bytes = rest;
    Ok(*taken)
}

/// Are these the same place, whichever way each is written?
pub fn same_place(a: &Address, b: &Address) -> bool {
    canonical(a) == canonical(b)
}

/// The one way to write an address that every server has for it: without an IPv6 scope, which is each machine's own, and without
/// the IPv6 coat that a socket for both families puts on IPv4 addresses.
pub fn canonical(address: &Address) -> Address {
    match address {
        Address::Inet(address) => Address::Inet((address.ip().to_canonical(), address.port()).into()),
        local => *local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = Address> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| Address::Inet(SocketAddrV4::new(ip.into(), port).into())),
            (any::<[u8; 16]>(), any::<u16>()).prop_map(|(ip, port)| Address::Inet(SocketAddrV6::new(ip.into(), port, 0, 0).into())),
            "[a-zA-Z0-9._-]{1,22}".prop_map(|name| Address::Local(LocalName::new(&name).unwrap())),
        ]
    }

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::Cancel), Just(Mode::Demote)]
    }

    fn header() -> impl Strategy<Value = TieHeader> {
        (any::<u128>(), mode(), prop::collection::hash_set(address(), 2..=MAX_COPIES), any::<u8>()).prop_map(
            |(id, mode, copies, rank)| TieHeader {
                id: TieId(id),
                mode,
                rank: rank % copies.len() as u8,
                copies: copies.into_iter().collect(),
            },
        )
    }

    fn control() -> impl Strategy<Value = Control> {
        let ranks = (0u8..4, 0u8..4).prop_filter("two copies", |(from, to)| from != to);
        (any::<u128>(), mode(), ranks, address(), any::<u64>(), prop::sample::select(&Outcome::ALL[..]), any::<bool>()).prop_map(
            |(id, mode, (from, to), client, sent_at, outcome, cancel)| match cancel {
                true => Control::Cancel { id: TieId(id), mode, from, to, client, sent_at },
                false => Control::Outcome { id: TieId(id), from, to, outcome, sent_at },
            },
        )
    }

    proptest! {
        #[test]
        fn a_tie_survives_the_wire(header in header()) {
            let bytes = header.emit();
            prop_assert!(bytes.len() <= MAX_HEADER && !bytes.spilled());
            prop_assert_eq!(TieHeader::parse(&bytes), Ok(header));
        }

        #[test]
        fn control_survives_the_wire(control in control()) {
            let bytes = control.emit();
            prop_assert!(bytes.len() <= MAX_CONTROL && !bytes.spilled());
            prop_assert_eq!(Control::parse(&bytes), Ok(control));
        }

        #[test]
        fn arbitrary_bytes_are_read_or_refused_and_what_is_read_is_canonical(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            if let Ok(header) = TieHeader::parse(&bytes) {
                prop_assert_eq!(&header.emit()[..], &bytes[..]);
            }
            let _ = Control::parse(&bytes);
        }

        #[test]
        fn a_damaged_tie_is_read_or_refused(header in header(), at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
            let mut bytes = header.emit();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = TieHeader::parse(&bytes);
            prop_assert_eq!(TieHeader::parse(&header.emit()[..cut.index(bytes.len())]).ok(), None, "cut short");
            bytes.clear();
            bytes.extend_from_slice(&header.emit());
            bytes.push(to);
            prop_assert_eq!(TieHeader::parse(&bytes), Err(TieError::Length), "too long");
        }
    }

    #[test]
    fn senseless_copies_are_refused() {
        let local = |name| Address::Local(LocalName::new(name).unwrap());
        let tie = |rank, copies: &[Address]| TieHeader { id: TieId(1), mode: Mode::Cancel, rank, copies: copies.into() }.emit();
        assert_eq!(TieHeader::parse(&tie(0, &[local("a")])), Err(TieError::Copies));
        assert_eq!(TieHeader::parse(&tie(2, &[local("a"), local("b")])), Err(TieError::Copies));
        assert_eq!(TieHeader::parse(&tie(0, &[local("a"), local("a")])), Err(TieError::Copies), "one server twice");
        assert!(TieHeader::parse(&tie(1, &[local("a"), local("b")])).is_ok());
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut bytes = Control::Outcome { id: TieId(1), from: 0, to: 1, outcome: Outcome::Kept, sent_at: 0 }.emit();
        bytes[0] = 9;
        assert_eq!(Control::parse(&bytes), Err(TieError::Version(9)));
        assert_eq!(TieHeader::parse(&bytes), Err(TieError::Version(9)));
    }
}
