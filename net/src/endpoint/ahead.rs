//! A look ahead at the sessions that are needed next, so that their memory is on its way before they are: with many of them it is in no near
//! cache.

use super::Endpoint;
use super::event::SessionId;
use crate::port::Datagram;
use crate::wire::{Acknowledgement, Header};

/// Fewer sessions than this are in the cache anyway.
pub(super) const MANY: usize = 256;

/// How many packets ahead a session is asked for.
const AHEAD: usize = 4;

impl Endpoint {
    /// Says that messages are about to be sent into these sessions, all of them: a hint, without any effect but that they are found
    /// faster, where there are too many sessions for a processor's cache. Worth its cost for a few sessions and more, as many as one turn sends into.
    pub fn prepare(&self, sessions: &[SessionId]) {
        if self.sessions.len() < MANY {
            return;
        }
        for session in sessions {
            self.sessions.prefetch(session.slot);
        }
    }

    /// Asks for what the first packets of a burst need.
    pub(super) fn begin_to_look_ahead(&self, arrivals: &[Datagram]) {
        for datagram in arrivals.iter().take(AHEAD) {
            slot_of(datagram).inspect(|slot| self.sessions.prefetch(*slot));
        }
    }

    /// Asks for what a packet some way ahead needs; `rest` are those after the one that is taken now.
    #[inline]
    pub(super) fn look_ahead(&self, rest: &[Datagram]) {
        if let Some(slot) = rest.get(AHEAD - 1).and_then(slot_of) {
            self.sessions.prefetch(slot);
        }
    }

    /// The same for the acknowledgements of a packet, of which the one at `at` is taken now.
    #[inline]
    pub(super) fn look_ahead_in(&self, list: &[Acknowledgement], at: usize) {
        if let Some(one) = list.get(at + AHEAD) {
            self.sessions.prefetch(SessionId::from_u64(one.session.get()).slot);
        }
    }
}

/// The slot of the session that a datagram names, if it is one of ours at all: nothing is checked.
#[inline]
fn slot_of(datagram: &Datagram) -> Option<u32> {
    const AT: usize = std::mem::offset_of!(Header, session);
    let word = datagram.frame.get(AT..AT + 8)?;
    Some(SessionId::from_u64(u64::from_le_bytes(word.try_into().expect("eight bytes"))).slot)
}
