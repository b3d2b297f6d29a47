//! Where sessions live: slots with generations, found by id, by peer, and by the peer's own id.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::event::SessionId;
use crate::port::Address;
use crate::session::Session;

pub(super) struct Table {
    limit: usize,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Established sessions, by the peer's address and the id that the peer gave the session.
    by_remote: HashMap<(Address, u64), u32>,
    by_peer: HashMap<Address, SmallVec<[u32; 2]>>,
    random: fastrand::Rng,
    len: usize,
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
        self.by_peer.entry(session.peer).or_default().push(id.slot);
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
    pub(super) fn by_peer(&self, peer: Address) -> SmallVec<[u32; 2]> {
        self.by_peer.get(&peer).cloned().unwrap_or_default()
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
        if let Some(slots) = self.by_peer.get_mut(&session.peer) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
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
