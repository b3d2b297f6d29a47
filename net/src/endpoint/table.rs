//! Where sessions live: slots with generations, found by id, by peer, and by the peer's own id.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::event::SessionId;
use crate::port::Address;
use crate::session::Session;
use crate::sync::prefetch;

pub(super) struct Table {
    limit: usize,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Established sessions, by the peer's address and the id that the peer gave the session.
    by_remote: HashMap<(Address, u64), u32>,
    by_peer: HashMap<Address, Peer>,
    random: fastrand::Rng,
    len: usize,
}

/// The sessions with one address.
#[derive(Default)]
struct Peer {
    slots: SmallVec<[u32; 2]>,
    /// The incarnation of all that are established; 0 before any.
    incarnation: u64,
}

struct Entry {
    generation: u32,
    session: Option<Box<Session>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Table {
    pub(super) fn new(limit: usize, random: fastrand::Rng) -> Table {
        Table { limit, entries: Vec::new(), free: Vec::new(), by_remote: HashMap::new(), by_peer: HashMap::new(), random, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.entries.iter().filter_map(|entry| entry.session.as_deref())
    }

    /// An unused id, for [`Table::fill`]; `None` when the table is full. Generations start at random, so that nobody guesses them.
    pub(super) fn reserve(&mut self) -> Option<SessionId> {
        if self.len >= self.limit {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: self.random.u32(1..), session: None });
            self.entries.len() as u32 - 1
        });
        Some(SessionId { slot, generation: self.entries[slot as usize].generation })
    }

    /// Puts a session to its reserved id.
    pub(super) fn fill(&mut self, id: SessionId, session: Session) {
        self.by_peer.entry(session.peer).or_default().slots.push(id.slot);
        if session.remote != 0 {
            self.by_remote.insert((session.peer, session.remote), id.slot);
        }
        self.entries[id.slot as usize].session = Some(Box::new(session));
        self.len += 1;
    }

    /// Records the peer's id for a session, which its handshake brought.
    pub(super) fn learn_remote(&mut self, slot: u32) {
        if let Some(session) = self.at_mut(slot) {
            let key = (session.peer, session.remote);
            self.by_remote.insert(key, slot);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        let entry = self.entries.get(id.slot as usize)?;
        if entry.generation == id.generation { entry.session.as_deref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation == id.generation { entry.session.as_deref_mut() } else { None }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.entries.get_mut(slot as usize)?.session.as_deref_mut()
    }

    /// The session that `peer` knows by this id of its own.
    pub(super) fn by_remote(&self, peer: Address, remote: u64) -> Option<SessionId> {
        let slot = *self.by_remote.get(&(peer, remote))?;
        self.entries[slot as usize].session.as_ref().map(|session| session.id)
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

    /// Asks for a session's memory, which is not looked at yet.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32) {
        if let Some(session) = self.at(slot) {
            prefetch::value(session);
        }
    }

    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<&Session> {
        self.entries.get(slot as usize)?.session.as_deref()
    }

    /// Takes a session out; its id is never valid again.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Session>> {
        let entry = self.entries.get_mut(slot as usize)?;
        let session = entry.session.take()?;
        // By a step that the peer of the last session can't guess.
        entry.generation = entry.generation.wrapping_add(self.random.u32(1..1 << 16)).max(1);
        self.free.push(slot);
        self.len -= 1;
        if session.remote != 0 && self.by_remote.get(&(session.peer, session.remote)) == Some(&slot) {
            self.by_remote.remove(&(session.peer, session.remote));
        }
        if let Some(peer) = self.by_peer.get_mut(&session.peer) {
            peer.slots.retain(|other| *other != slot);
            if peer.slots.is_empty() {
                self.by_peer.remove(&session.peer);
            }
        }
        Some(session)
    }

    /// Takes all sessions out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Session>> + use<> {
        self.by_remote.clear();
        self.by_peer.clear();
        self.len = 0;
        std::mem::take(&mut self.entries).into_iter().filter_map(|entry| entry.session)
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
