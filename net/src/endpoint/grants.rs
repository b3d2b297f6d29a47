//! Which incoming messages may go on: the few with the least left (SRPT with bounded overcommitment; Homa, SIGCOMM 2018, section 3.5), and the
//! oldest, so that nothing starves.
//!
//! How far grants run ahead of what was received is a window for each of these messages, wide enough to keep the path full whatever the hosts
//! do, and all that may be where one peer sends alone: it keeps its own messages in order. Where several send, that is a queue in the switch before this host: then what is granted and not received is bounded over all
//! messages together, to two windows while there are only long ones, and to a credit that keeps the queue short
//! ([`Credit`](crate::session::Credit)) while small ones would wait behind it. The shortest gets nearly all of that, the others a packet.
//!
//! Sessions that finish what they begin come first, and only so many messages are looked at in one turn: neither messages that nobody means to finish nor
//! their number keep the others waiting.

use std::collections::VecDeque;

use super::Endpoint;
use super::event::SessionId;
use crate::clock::Time;
use crate::session::Need;

/// A message that stood still this long although its sender may go on holds no place among those granted, in nanoseconds.
const STALLED: u64 = 50_000_000;
/// What was granted and has not come for so long, or for two round trips if that is more, is not on its way, in nanoseconds: the sender is gone, or
/// busy with others.
const OVERDUE: u64 = 1_000_000;
/// Messages looked at in one turn, of trusted sessions and of those on probation each, or two bursts if that is more. Where there are more,
/// they take turns.
const CONSIDERED: usize = 128;

/// Where a message arrives: its session, the peer's slot, its sequence number.
type Place = (SessionId, u16, u32);

/// What is left to give in one turn.
struct Round {
    /// For so many messages.
    places: usize,
    /// Bytes that were granted and have not come, of all messages looked at so far.
    due: u32,
    /// Something is on its way: when it is here there is another round.
    moving: bool,
}

impl Endpoint {
    /// Gives grants, if something changed that they depend on, or nobody among those looked at since can go on.
    #[inline]
    pub(super) fn give_grants(&mut self, now: Time) {
        if self.shared.grants_due || self.unseen > 0 {
            self.rank(now);
        }
    }

    fn rank(&mut self, now: Time) {
        if std::mem::take(&mut self.shared.grants_due) {
            self.unseen = self.shared.granting.iter().map(VecDeque::len).max().unwrap_or(0);
        }
        self.shared.inflow.update(now);
        let mut round = Round { places: self.shared.config.overcommit, due: 0, moving: false };
        for list in 0..self.shared.granting.len() {
            let ranked = self.consider(list, &mut round, now);
            self.rank_list(list, ranked, &mut round, now);
        }
        // Where nothing is on its way nothing will arrive that brings us back here.
        self.unseen = if round.moving { 0 } else { self.unseen.saturating_sub(self.considered()) };
    }

    fn considered(&self) -> usize {
        CONSIDERED.max(2 * self.shared.config.burst)
    }

    /// Whether a message stands still although its sender may go on.
    fn is_stalled(&self, need: &Need, now: Time) -> bool {
        need.outstanding() > 0 && now.nanos_since(need.progress.max(self.shared.resumed)) > STALLED
    }

    /// The messages of a list whose turn it is and that need grants, the latest first.
    fn consider(&mut self, list: usize, round: &mut Round, now: Time) -> Vec<(Need, Place)> {
        let count = self.shared.granting[list].len().min(self.considered());
        let mut considered = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(place) = self.shared.granting[list].pop_front() else { break };
            let (session, slot, sequence) = place;
            let Some(session) = self.sessions.get(session) else { continue };
            let Some(need) = session.need(slot, sequence, &self.shared.budget) else { continue };
            if now.nanos_since(need.progress) <= OVERDUE.max(2 * session.shortest_trip()) {
                round.due = need.outstanding().saturating_add(round.due);
            }
            round.moving |= need.outstanding() > 0 && !self.is_stalled(&need, now);
            // Granted to its end, it only counts until it is there.
            if need.granted < need.total {
                considered.push((need, place));
            }
            // Behind all others: where all are considered that is their order again.
            self.shared.granting[usize::from(!session.is_trusted())].push_back(place);
        }
        considered
    }

    fn rank_list(&mut self, list: usize, mut ranked: Vec<(Need, Place)>, round: &mut Round, now: Time) {
        let oldest = ranked.last().map(|(_, place)| *place);
        // Memory goes to the oldest that waits for it before any other, or a large message would never find enough.
        let first_waiting = ranked.iter().rev().find(|(need, _)| need.deferred && !need.crowded).map(|(_, place)| *place);
        let first_admitted = first_waiting.is_some_and(|place| self.admit(place, now));
        let mut room = first_waiting.is_none() || first_admitted;
        ranked.sort_by_key(|(need, _)| (need.class, need.total - need.received));
        let most = u32::try_from(self.shared.config.grant_window).unwrap_or(u32::MAX);
        let company = self.shared.in_company(now);
        let contended = company && self.shared.is_mixed(now);
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
            let outstanding = need.outstanding();
            let stalled = self.is_stalled(&need, now);
            let session = place.0;
            if stalled && let Some(session) = self.sessions.get_mut(session) {
                session.distrust(&mut self.shared.budget);
            }
            if round.places == 0 && !first {
                continue;
            }
            if !stalled && !first {
                round.places -= 1;
            }
            let path = self.sessions.get(session).map_or(0, |session| self.shared.inflow.of_round_trip(session.shortest_trip()));
            let start = need.granted.max(need.received);
            let left = need.total - start;
            let (window, all, worth) = if contended {
                // A quarter more than the path holds: the rest of the last packet, and the turns of two poll loops.
                let ceiling = path.saturating_add(path / 4).clamp(most / 16, most);
                let credit = self.shared.credit.within(ceiling as usize) as u32;
                // Small steps, so that a sender hands its port no burst that its own small messages would wait behind.
                (credit, credit, credit / 8)
            } else {
                // Twice what the path holds, so that the grant for the next byte is there before the last one; half a window at a time. One peer
                // alone queues nothing before us, and keeps its own messages in order: it is asked to wait as rarely as can be.
                let window = if company { path.saturating_mul(2).clamp(most / 8, most) } else { most };
                (window, if company { window.saturating_mul(2) } else { u32::MAX }, window / 2)
            };
            let more = window.saturating_sub(outstanding).min(all.saturating_sub(round.due));
            if contended && more < left {
                self.shared.credit.exhaust();
            }
            // Who holds a place has a packet under way: its arrival brings us back here, whatever became of the others.
            let (more, worth) = if outstanding == 0 { (more.max(1), 1) } else { (more, worth) };
            if more >= worth.min(left) {
                let more = more.min(left);
                round.due = round.due.saturating_add(more);
                round.moving |= !stalled;
                self.grant(place, start + more, now);
            }
        }
        self.shared.budget.waiting[list] = waiting;
    }

    fn grant(&mut self, (session, slot, sequence): Place, upto: u32, now: Time) {
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.grant(slot, sequence, upto, now, &self.shared);
            self.schedule(session.slot, now);
        }
    }

    fn is_crowded(&self, (session, slot, sequence): Place) -> bool {
        let need = self.sessions.get(session).and_then(|session| session.need(slot, sequence, &self.shared.budget));
        need.is_some_and(|need| need.crowded)
    }

    /// Makes room for a message that waits for memory; `false` if there is none.
    fn admit(&mut self, (session, slot, sequence): Place, now: Time) -> bool {
        let Some(entry) = self.sessions.get_mut(session) else { return false };
        entry.admit(slot, sequence, now, &mut self.shared)
    }
}
