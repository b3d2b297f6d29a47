//! Where sessions live: slots with generations, found by id, by peer, and by the peer's own id.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::event::SessionId;
use crate::port::Address;
use crate::session::Session;
use crate::sync::prefetch;

/// Sessions that lie together. A chunk never moves, so that growing copies none, and has no room that is not used by the next ones.
const CHUNK: usize = 16;

pub(super) struct Table {
    limit: usize,
    /// The generation of each slot.
    generations: Vec<u32>,
    chunks: Chunks,
    free: Vec<u32>,
    by_remote: ByRemote,
    by_peer: HashMap<Address, Peer>,
    random: fastrand::Rng,
    len: usize,
}

/// The slots of established sessions, by the peer's address and the id that the peer gave the session: these are in the session, so an entry is no
/// more than its slot.
#[derive(Default)]
struct ByRemote {
    slots: HashTable<u32>,
    state: RandomState,
}

/// The sessions in the slots, [`CHUNK`] by [`CHUNK`]: the whole path from a packet to its session is an index.
type Chunks = Vec<Box<[Option<Session>; CHUNK]>>;

#[inline]
fn at(chunks: &Chunks, slot: u32) -> Option<&Session> {
    let slot = slot as usize;
    chunks.get(slot / CHUNK)?[slot % CHUNK].as_ref()
}

/// What the peer knows a session by.
type Name = (Address, u64);

fn name(chunks: &Chunks, slot: u32) -> Option<Name> {
    at(chunks, slot).map(|session| (session.peer, session.remote))
}

impl ByRemote {
    fn get(&self, wanted: Name, chunks: &Chunks) -> Option<u32> {
        self.slots.find(self.state.hash_one(wanted), |slot| name(chunks, *slot) == Some(wanted)).copied()
    }

    /// Adds a session that is in its slot, in the place of one with the same name.
    fn insert(&mut self, slot: u32, chunks: &Chunks) {
        let Some(new) = name(chunks, slot) else { return };
        let hash = self.state.hash_one(new);
        match self.slots.find_mut(hash, |other| name(chunks, *other) == Some(new)) {
            Some(other) => *other = slot,
            None => {
                self.slots.insert_unique(hash, slot, |slot| name(chunks, *slot).map_or(0, |name| self.state.hash_one(name)));
            }
        }
    }

    /// Drops the entry of a session that was in this slot, if it has one.
    fn remove(&mut self, slot: u32, name: Name) {
        if let Ok(entry) = self.slots.find_entry(self.state.hash_one(name), |other| *other == slot) {
            entry.remove();
        }
    }
}

/// The sessions with one address.
#[derive(Default)]
struct Peer {
    slots: SmallVec<[u32; 2]>,
    /// The incarnation of all that are established; 0 before any.
    incarnation: u64,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Table {
    pub(super) fn new(limit: usize, random: fastrand::Rng) -> Table {
        Table {
            limit,
            generations: Vec::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            by_remote: ByRemote::default(),
            by_peer: HashMap::new(),
            random,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).flatten()
    }

    /// An unused id, for [`Table::fill`]; `None` when the table is full. Generations start at random, so that nobody guesses them.
    pub(super) fn reserve(&mut self) -> Option<SessionId> {
        if self.len >= self.limit {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            if self.generations.len() == self.chunks.len() * CHUNK {
                let chunk: Box<[Option<Session>]> = std::iter::repeat_with(|| None).take(CHUNK).collect();
                self.chunks.push(chunk.try_into().expect("it is as long as a chunk"));
            }
            self.generations.push(self.random.u32(1..));
            self.generations.len() as u32 - 1
        });
        Some(SessionId { slot, generation: self.generations[slot as usize] })
    }

    /// Puts a session to its reserved id.
    pub(super) fn fill(&mut self, id: SessionId, session: Session) {
        self.by_peer.entry(session.peer).or_default().slots.push(id.slot);
        let has_remote = session.remote != 0;
        *self.place(id.slot).expect("it was reserved") = Some(session);
        if has_remote {
            self.by_remote.insert(id.slot, &self.chunks);
        }
        self.len += 1;
    }

    /// Records the peer's id for a session, which its handshake brought.
    pub(super) fn learn_remote(&mut self, slot: u32) {
        self.by_remote.insert(slot, &self.chunks);
    }

    #[inline]
    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        if self.is_current(id) { self.at(id.slot) } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        if self.is_current(id) { self.at_mut(id.slot) } else { None }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.place(slot)?.as_mut()
    }

    #[inline]
    fn is_current(&self, id: SessionId) -> bool {
        self.generations.get(id.slot as usize) == Some(&id.generation)
    }

    #[inline]
    fn place(&mut self, slot: u32) -> Option<&mut Option<Session>> {
        let slot = slot as usize;
        Some(&mut self.chunks.get_mut(slot / CHUNK)?[slot % CHUNK])
    }

    /// The session that `peer` knows by this id of its own.
    pub(super) fn by_remote(&self, peer: Address, remote: u64) -> Option<SessionId> {
        let slot = self.by_remote.get((peer, remote), &self.chunks)?;
        self.at(slot).map(|session| session.id)
    }

    /// The sessions with an address.
    pub(super) fn by_peer(&self, peer: Address) -> &[u32] {
        self.by_peer.get(&peer).map_or(&[], |peer| &peer.slots)
    }

    /// Whether no session with an address is of another incarnation than this.
    pub(super) fn is_only(&self, peer: Address, incarnation: u64) -> bool {
        self.by_peer.get(&peer).is_none_or(|peer| peer.incarnation == 0 || peer.incarnation == incarnation)
    }

    /// From now on an address's sessions are of this incarnation. Those of the one before, if there was another.
    pub(super) fn incarnate(&mut self, peer: Address, incarnation: u64) -> SmallVec<[u32; 2]> {
        match self.by_peer.get_mut(&peer) {
            Some(peer) if peer.incarnation != incarnation => {
                let before = std::mem::replace(&mut peer.incarnation, incarnation);
                if before == 0 { SmallVec::new() } else { peer.slots.clone() }
            }
            _ => SmallVec::new(),
        }
    }

    /// Asks for what a message needs of a session's memory, which is not looked at yet.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32) {
        self.prefetch_some(slot, Session::BUSY);
    }

    /// The same for an acknowledgement.
    #[inline]
    pub(super) fn prefetch_front(&self, slot: u32) {
        self.prefetch_some(slot, Session::FRONT);
    }

    #[inline(always)]
    fn prefetch_some(&self, slot: u32, len: usize) {
        let slot = slot as usize;
        if let Some(chunk) = self.chunks.get(slot / CHUNK) {
            prefetch::bytes(std::ptr::from_ref(&chunk[slot % CHUNK]).cast(), len);
        }
    }

    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<&Session> {
        at(&self.chunks, slot)
    }

    /// Takes a session out; its id is never valid again.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Session> {
        let session = self.place(slot)?.take()?;
        // By a step that the peer of the last session can't guess.
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(self.random.u32(1..1 << 16)).max(1);
        self.free.push(slot);
        self.len -= 1;
        self.by_remote.remove(slot, (session.peer, session.remote));
        if let Some(peer) = self.by_peer.get_mut(&session.peer) {
            peer.slots.retain(|other| *other != slot);
            if peer.slots.is_empty() {
                self.by_peer.remove(&session.peer);
            }
        }
        Some(session)
    }

    /// Takes all sessions out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Session> + use<> {
        self.by_remote.slots.clear();
        self.by_peer.clear();
        self.len = 0;
        self.generations.clear();
        std::mem::take(&mut self.chunks).into_iter().flat_map(|chunk| *chunk).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::LocalName;

    #[test]
    fn only_another_incarnation_of_an_address_brings_up_the_sessions_before_it() {
        let mut table = Table::new(10, fastrand::Rng::with_seed(1));
        let [one, other] = ["one", "other"].map(|name| Address::Local(LocalName::new(name).unwrap()));
        for (peer, slot) in [(one, 1), (one, 2), (other, 3)] {
            table.by_peer.entry(peer).or_default().slots.push(slot);
        }
        assert!(table.is_only(one, 7) && table.incarnate(one, 7).is_empty(), "the first one is news to nobody");
        assert!(table.is_only(one, 7) && table.incarnate(one, 7).is_empty(), "and the same again");
        assert!(!table.is_only(one, 8) && table.is_only(other, 8));
        assert_eq!(table.incarnate(one, 8).as_slice(), [1, 2]);
        assert!(table.is_only(one, 8) && !table.is_only(one, 7));
        assert!(table.incarnate(Address::Local(LocalName::new("nobody").unwrap()), 7).is_empty());
    }
}
