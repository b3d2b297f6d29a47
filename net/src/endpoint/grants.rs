//! Which incoming messages may go on: the few with the least left (SRPT with bounded overcommitment; Homa, SIGCOMM 2018, section 3.5), and the
//! oldest, so that nothing starves.

use super::Endpoint;
use super::event::SessionId;
use crate::clock::Time;

/// A message that stood still this long although its sender may go on holds no place among those granted, in nanoseconds.
const STALLED: u64 = 50_000_000;

impl Endpoint {
    /// Gives grants, if something changed that they depend on.
    #[inline]
    pub(super) fn give_grants(&mut self, now: Time) {
        if self.shared.grants_due {
            self.shared.grants_due = false;
            self.rank(now);
        }
    }

    fn rank(&mut self, now: Time) {
        let mut granting = std::mem::take(&mut self.shared.granting);
        let mut ranked = Vec::with_capacity(granting.len());
        granting.retain(|&(session, slot, sequence)| {
            let need = self.sessions.get(session).and_then(|session| session.need(slot, sequence));
            if let Some(need) = need {
                ranked.push((need, session, slot, sequence));
            }
            need.is_some()
        });
        self.shared.granting = granting;
        let oldest = ranked.first().map(|&(_, session, slot, sequence)| (session, slot, sequence));
        ranked.sort_by_key(|(need, ..)| (need.class, need.total - need.received));
        let window = u32::try_from(self.shared.config.grant_window).unwrap_or(u32::MAX);
        let mut places = self.shared.config.overcommit;
        // Memory goes to the oldest that waits for it before any other, or a large message would never find enough.
        let first_waiting = self.shared.granting.iter().copied().find(|&(session, slot, sequence)| {
            self.sessions.get(session).and_then(|session| session.need(slot, sequence)).is_some_and(|need| need.deferred)
        });
        let first_admitted = first_waiting.is_none_or(|entry| self.admit(entry, now));
        let mut room = first_admitted;
        for (need, session, slot, sequence) in ranked {
            let first = oldest == Some((session, slot, sequence));
            if places == 0 && !first {
                continue;
            }
            if need.deferred {
                let admitted = if first_waiting == Some((session, slot, sequence)) {
                    first_admitted
                } else {
                    room = room && self.admit((session, slot, sequence), now);
                    room
                };
                if !admitted {
                    continue;
                }
            }
            let outstanding = need.granted.saturating_sub(need.received);
            let stalled = outstanding > 0 && now.nanos_since(need.progress) > STALLED;
            if !stalled && !first {
                places -= 1;
            }
            // Half a window at a time; as long as something is outstanding, its arrival brings us back here.
            if outstanding <= window / 2 {
                let upto = need.received.saturating_add(window).min(need.total);
                if let Some(entry) = self.sessions.get_mut(session) {
                    entry.grant(slot, sequence, upto);
                    self.schedule(session.slot, now);
                }
            }
        }
    }

    /// Makes room for a message that waits for memory; `false` if there is none.
    fn admit(&mut self, (session, slot, sequence): (SessionId, u16, u32), now: Time) -> bool {
        let Some(entry) = self.sessions.get_mut(session) else { return false };
        entry.admit(slot, sequence, now, &mut self.shared.budget)
    }
}
