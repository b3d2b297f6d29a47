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
            let need = self.sessions.get(session).and_then(|session| session.need(slot, sequence, &self.shared.budget));
            if let Some(need) = need {
                ranked.push((need, (session, slot, sequence)));
            }
            need.is_some()
        });
        self.shared.granting = granting;
        let oldest = ranked.first().map(|(_, place)| *place);
        // Memory goes to the oldest that waits for it before any other, or a large message would never find enough.
        let first_waiting = ranked.iter().find(|(need, _)| need.deferred && !need.crowded).map(|(_, place)| *place);
        let first_admitted = first_waiting.is_some_and(|place| self.admit(place, now));
        let mut room = first_waiting.is_none() || first_admitted;
        ranked.sort_by_key(|(need, _)| (need.class, need.total - need.received));
        let most = u32::try_from(self.shared.config.grant_window).unwrap_or(u32::MAX);
        self.shared.inflow.update(now);
        let mut places = self.shared.config.overcommit;
        let mut waiting = 0;
        for (need, place) in ranked {
            let first = oldest == Some(place);
            if need.deferred {
                let admitted =
                    if first_waiting == Some(place) { first_admitted } else { room && !need.crowded && self.admit(place, now) };
                if !admitted {
                    // Who waits for its own session holds up nobody else.
                    if !self.is_crowded(place) {
                        room = false;
                        waiting += 1;
                    }
                    continue;
                }
            }
            if places == 0 && !first {
                continue;
            }
            let outstanding = need.granted.saturating_sub(need.received);
            let stalled = outstanding > 0 && now.nanos_since(need.progress) > STALLED;
            if !stalled && !first {
                places -= 1;
            }
            let (session, slot, sequence) = place;
            let path = self.sessions.get(session).map_or(0, |session| self.shared.inflow.of_round_trip(session.shortest_trip()));
            // Twice what the path holds, so that the grant for the next byte is there before the last one.
            let window = path.saturating_mul(2).clamp(most / 8, most);
            // Half a window at a time; as long as something is outstanding, its arrival brings us back here.
            if outstanding <= window / 2 {
                let upto = need.received.saturating_add(window).min(need.total);
                if let Some(entry) = self.sessions.get_mut(session) {
                    entry.grant(slot, sequence, upto);
                    self.schedule(session.slot, now);
                }
            }
        }
        self.shared.budget.waiting = waiting;
    }

    fn is_crowded(&self, (session, slot, sequence): (SessionId, u16, u32)) -> bool {
        let need = self.sessions.get(session).and_then(|session| session.need(slot, sequence, &self.shared.budget));
        need.is_some_and(|need| need.crowded)
    }

    /// Makes room for a message that waits for memory; `false` if there is none.
    fn admit(&mut self, (session, slot, sequence): (SessionId, u16, u32), now: Time) -> bool {
        let Some(entry) = self.sessions.get_mut(session) else { return false };
        entry.admit(slot, sequence, now, &mut self.shared.budget)
    }
}
