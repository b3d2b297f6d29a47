//! The peers that a node calls: an address, the session to it if there is one, and the credits.

use std::cell::Cell;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use tautline_net::class::Class;
use tautline_net::endpoint::SessionId;
use tautline_net::port::{Address, AddressError, PortUrl};

use super::table::NIL;
use crate::credit::Account;

/// A node to call, by its address. Sessions to it are opened when they are needed, and again after they have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) address: Address,
}

impl Peer {
    /// The address.
    pub fn address(self) -> Address {
        self.address
    }

    /// The peer at an address, not looked up yet: the first call does.
    pub(crate) fn unresolved(address: Address) -> Peer {
        Peer { index: NIL, generation: 0, address }
    }
}

impl From<Peer> for Address {
    fn from(peer: Peer) -> Address {
        peer.address
    }
}

/// What a peer can be named by: an [`Address`], a URL without options, a socket address, or a [`Peer`].
pub trait ToAddress {
    /// The address. An error if it is not one, or a URL with options: those say how a node's own port works, and nothing of a peer.
    fn to_address(&self) -> Result<Address, AddressError>;
}

impl ToAddress for Address {
    fn to_address(&self) -> Result<Address, AddressError> {
        Ok(*self)
    }
}

impl ToAddress for Peer {
    fn to_address(&self) -> Result<Address, AddressError> {
        Ok(self.address)
    }
}

impl ToAddress for std::net::SocketAddr {
    fn to_address(&self) -> Result<Address, AddressError> {
        Ok(Address::from(*self))
    }
}

impl ToAddress for PortUrl {
    fn to_address(&self) -> Result<Address, AddressError> {
        if self.options.is_empty() { Ok(self.address) } else { Err(AddressError::PeerOptions(Box::new(self.clone()))) }
    }
}

impl ToAddress for str {
    fn to_address(&self) -> Result<Address, AddressError> {
        self.parse::<PortUrl>()?.to_address()
    }
}

impl ToAddress for String {
    fn to_address(&self) -> Result<Address, AddressError> {
        self.as_str().to_address()
    }
}

impl<T: ToAddress + ?Sized> ToAddress for &T {
    fn to_address(&self) -> Result<Address, AddressError> {
        (**self).to_address()
    }
}

/// The address that `name` stands for, if a peer can have it.
pub(crate) fn reachable(name: &impl ToAddress) -> Result<Address, AddressError> {
    match name.to_address()? {
        Address::Inet(address) if address.port() == 0 => Err(AddressError::PortZero(address)),
        Address::Inet(address) if address.ip().to_canonical().is_unspecified() => Err(AddressError::Wildcard(address)),
        address => Ok(address),
    }
}

/// One peer and class: credits, and the calls that wait for one, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) account: Account,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) waiting: u32,
    /// Counts the credits that came back, and those taken without one: while it stands still nothing moves.
    pub(crate) moved: u32,
}

impl Lane {
    /// Puts a call at the end of the line, behind the one given back, if there is one.
    pub(crate) fn join(&mut self, slot: u32) -> u32 {
        let last = std::mem::replace(&mut self.tail, slot);
        if last == NIL {
            self.head = slot;
        }
        self.waiting += 1;
        last
    }
}

/// One peer.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub(crate) generation: u32,
    pub(crate) address: Address,
    pub(crate) session: Option<SessionId>,
    /// Calls to it that have not ended.
    pub(crate) calls: u32,
    pub(crate) lanes: [Lane; Class::COUNT],
}

/// All peers.
#[derive(Debug)]
pub(crate) struct Peers {
    list: Vec<PeerState>,
    by_address: HashMap<Address, u32, RandomState>,
    limit: usize,
    initial_credit: u16,
    /// The place found last: a server of ties speaks to few others.
    last: Cell<usize>,
    /// Where the search for an idle peer to forget goes on.
    hand: usize,
}

impl Peers {
    pub(crate) fn new(limit: usize, initial_credit: u16) -> Peers {
        Peers { list: Vec::new(), by_address: HashMap::default(), limit, initial_credit, last: Cell::new(0), hand: 0 }
    }

    /// The peer's place, made if it is new. `None` if there are as many as may be and none is idle.
    #[inline]
    pub(crate) fn resolve(&mut self, peer: &Peer) -> Option<u32> {
        match self.list.get(peer.index as usize) {
            Some(known) if known.generation == peer.generation => Some(peer.index),
            _ => self.find_or_add(peer.address),
        }
    }

    pub(crate) fn handle(&mut self, address: Address) -> Peer {
        match self.find_or_add(address) {
            Some(index) => Peer { index, generation: self.list[index as usize].generation, address },
            None => Peer::unresolved(address),
        }
    }

    pub(crate) fn find(&self, address: Address) -> Option<&PeerState> {
        if let Some(last) = self.list.get(self.last.get()).filter(|last| last.address == address) {
            return Some(last);
        }
        let index = *self.by_address.get(&address)? as usize;
        self.last.set(index);
        Some(&self.list[index])
    }

    pub(crate) fn find_mut(&mut self, address: Address) -> Option<&mut PeerState> {
        self.by_address.get(&address).map(|&index| &mut self.list[index as usize])
    }

    pub(crate) fn index_of(&self, address: Address) -> Option<u32> {
        self.by_address.get(&address).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PeerState> {
        self.list.iter()
    }

    #[cold]
    fn find_or_add(&mut self, address: Address) -> Option<u32> {
        if let Some(&index) = self.by_address.get(&address) {
            return Some(index);
        }
        let lane = Lane { account: Account::new(self.initial_credit), head: NIL, tail: NIL, waiting: 0, moved: 0 };
        let fresh = PeerState { generation: 1, address, session: None, calls: 0, lanes: [lane; Class::COUNT] };
        let index = if self.list.len() < self.limit.min(NIL as usize) {
            self.list.push(fresh);
            self.list.len() - 1
        } else {
            let index = self.idle()?;
            let old = std::mem::replace(&mut self.list[index], fresh);
            self.list[index].generation = old.generation.wrapping_add(1).max(1);
            self.by_address.remove(&old.address);
            index
        };
        self.by_address.insert(address, index as u32);
        Some(index as u32)
    }

    /// A peer that nothing is going on with; each is looked at once at most.
    fn idle(&mut self) -> Option<usize> {
        for _ in 0..self.list.len() {
            let at = self.hand % self.list.len();
            self.hand = at + 1;
            if self.list[at].calls == 0 && self.list[at].session.is_none() {
                return Some(at);
            }
        }
        None
    }
}

impl std::ops::Index<u32> for Peers {
    type Output = PeerState;

    fn index(&self, index: u32) -> &PeerState {
        &self.list[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Peers {
    fn index_mut(&mut self, index: u32) -> &mut PeerState {
        &mut self.list[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], port)))
    }

    #[test]
    fn a_full_table_forgets_an_idle_peer_and_never_a_busy_one() {
        let mut peers = Peers::new(2, 8);
        let (first, second) = (peers.handle(address(1)), peers.handle(address(2)));
        let busy = peers.resolve(&first).unwrap();
        peers[busy].calls = 1;
        let third = peers.handle(address(3));
        assert_eq!(third.index, second.index);
        assert_eq!(peers.resolve(&first), Some(busy));
        let third = peers.resolve(&third).unwrap();
        peers[third].calls = 1;
        assert_eq!(peers.resolve(&second), None, "nobody is idle");
        peers[third].calls = 0;
        // A stale handle finds its peer again, by its address.
        let again = peers.resolve(&second).unwrap();
        assert_eq!(peers[again].address, address(2));
    }

    #[test]
    fn a_peer_is_named_by_url_or_address() {
        assert_eq!("udp://127.0.0.1:7".to_address(), Ok(address(7)));
        assert!("127.0.0.1:7".to_address().is_err());
        assert_eq!(reachable(&"udp://127.0.0.1:7"), Ok(address(7)));
        assert_eq!(reachable(&"mem://a").unwrap().to_string(), "a");
    }

    #[test]
    fn the_url_of_a_peer_has_no_options() {
        let node = crate::Node::builder("mem://peer-options").build().unwrap();
        for name in ["udp://127.0.0.1:7?loss=0.5", "mem://a?trace=1"] {
            let error = node.local().peer(name).unwrap_err();
            assert_eq!(error, node.local().peer(name.parse::<PortUrl>().unwrap()).unwrap_err());
            assert!(error.to_string().starts_with(&format!("{name} can't be a peer: options belong to the URL")), "{error}");
            assert!(name.to_address().is_err());
        }
    }

    #[test]
    fn nobody_is_reached_at_port_zero_or_everywhere() {
        let node = crate::Node::builder("mem://port-zero").build().unwrap();
        let error = node.local().peer("udp://127.0.0.1:0").unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:0 can't be a peer: port 0"), "{error}");
        let error = node.local().peer("udp://0.0.0.0:7000").unwrap_err();
        assert_eq!(error, AddressError::Wildcard(([0, 0, 0, 0], 7000).into()));
        let call = |peer: &str| node.handle().call(peer, crate::Method::named("a/B"), "", Default::default()).wait();
        let error = call("udp://127.0.0.1:0").unwrap_err();
        assert_eq!((error.fate(), error), (crate::Fate::NotSent, AddressError::PortZero(([127, 0, 0, 1], 0).into()).into()));
        assert!(call("127.0.0.1:7").unwrap_err().to_string().contains("scheme://address"));
    }
}
