//! A look ahead at the sessions that are needed next, so that their memory is on its way before they are: with many of them it is in no near
//! cache.

use super::Endpoint;
use super::event::SessionId;
use crate::port::Datagram;
use crate::wire::Header;

/// Fewer sessions than this are in the cache anyway.
pub(super) const MANY: usize = 256;

/// How many packets ahead a session is asked for, then what it points to, and what that points to.
const SESSION: usize = 12;
const POINTED: usize = 6;
const BYTES: usize = 3;

impl Endpoint {
    /// Says that messages are about to be sent into these sessions, all of them: a hint, without any effect but that they are found
    /// faster, where there are too many sessions for a processor's cache. Worth its cost for a few sessions and more, as many as one turn sends into.
    pub fn prepare(&self, sessions: &[SessionId]) {
        if self.sessions.len() < MANY {
            return;
        }
        for session in sessions {
            self.ask_for_session(session.slot);
        }
        for session in sessions {
            self.ask_for_pointed(session.slot);
        }
        for session in sessions {
            self.ask_for_bytes(session.slot);
        }
    }

    /// Asks for what the first packets of a burst need.
    pub(super) fn begin_to_look_ahead(&self, arrivals: &[Datagram]) {
        for datagram in arrivals.iter().take(SESSION) {
            slot_of(datagram).inspect(|slot| self.ask_for_session(*slot));
        }
        for datagram in arrivals.iter().take(POINTED) {
            slot_of(datagram).inspect(|slot| self.ask_for_pointed(*slot));
        }
        for datagram in arrivals.iter().take(BYTES) {
            slot_of(datagram).inspect(|slot| self.ask_for_bytes(*slot));
        }
    }

    /// Asks for what packets some way ahead need; `rest` are those after the one that is taken now.
    #[inline]
    pub(super) fn look_ahead(&self, rest: &[Datagram]) {
        self.look_ahead_in(|ahead| rest.get(ahead - 1).and_then(slot_of));
    }

    /// The same where `slot` says whose turn comes so many turns later.
    #[inline]
    pub(super) fn look_ahead_in(&self, slot: impl Fn(usize) -> Option<u32>) {
        if let Some(slot) = slot(SESSION) {
            self.ask_for_session(slot);
        }
        if let Some(slot) = slot(POINTED) {
            self.ask_for_pointed(slot);
        }
        if let Some(slot) = slot(BYTES) {
            self.ask_for_bytes(slot);
        }
    }

    #[inline]
    fn ask_for_session(&self, slot: u32) {
        self.sessions.prefetch(slot);
    }

    #[inline]
    fn ask_for_pointed(&self, slot: u32) {
        self.sessions.at(slot).inspect(|session| session.prefetch_pointed());
    }

    #[inline]
    fn ask_for_bytes(&self, slot: u32) {
        self.sessions.at(slot).inspect(|session| session.prefetch_bytes());
    }
}

/// The slot of the session that a datagram names, if it is one of ours at all: nothing is checked.
#[inline]
fn slot_of(datagram: &Datagram) -> Option<u32> {
    const AT: usize = std::mem::offset_of!(Header, session);
    let word = datagram.frame.get(AT..AT + 8)?;
    Some(SessionId::from_u64(u64::from_le_bytes(word.try_into().expect("eight bytes"))).slot)
}
