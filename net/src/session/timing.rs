//! What a session does when its time has come: probes, pings, and the end of one whose peer is silent.

use std::time::Duration;

use super::receiving::settle;
use super::{ACK_FACTOR, Handled, PROBE_PACKETS, STALL_FACTOR, Session, Shared, State};
use crate::clock::Time;
use crate::endpoint::CloseReason;
use crate::wire::Item;

impl Session {
    /// Whether a timer may be due very soon.
    #[inline]
    pub(crate) fn is_hasty(&self) -> bool {
        self.state == State::Opening || self.recovery.suspects_loss()
    }

    /// Whether it wants nothing but to send the acknowledgement that it may owe, and to be looked at while something is under way; its timer for
    /// what is rare stands already.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        !self.is_stirred() && self.stall_check == Time::NEVER && self.armed != Time::NEVER
    }

    /// Whether something was sent of which nothing is known.
    #[inline]
    pub(crate) fn has_under_way(&self) -> bool {
        self.recovery.is_waiting()
    }

    /// How long the peer has owed this side a sign of life: since the last one, or since the oldest packet that it owes an acknowledgement was
    /// sent. While the session opens, since it began to. Zero where nothing is owed.
    pub(crate) fn silence(&self, now: Time, shared: &Shared) -> Duration {
        let owed = match self.opening {
            Some(_) => Some(self.last_heard),
            None => self.recovery.oldest().map(|oldest| oldest.max(self.last_heard)),
        };
        // While this side did not look, it heard nothing.
        owed.map_or(Duration::ZERO, |owed| now.since(owed.max(shared.resumed)))
    }

    /// When to call [`Session::on_timeout`] at the latest.
    pub(crate) fn timeout(&self, shared: &Shared) -> Time {
        match &self.opening {
            Some(opening) => opening.due(),
            None => self.recovery.due(self.limits.ack_delay).min(self.patience(shared)),
        }
    }

    /// The same for a session that is open, as if nothing were under way.
    #[inline]
    pub(crate) fn patience(&self, shared: &Shared) -> Time {
        self.last_heard.max(self.last_ping).plus_nanos(shared.quiet).min(self.stall_check)
    }

    /// Does what is due: probes, pings, and the end of a session whose peer is silent.
    pub(crate) fn on_timeout(&mut self, now: Time, shared: &mut Shared) -> Handled {
        if self.state == State::Closed {
            return Handled::Closed;
        }
        if let Some(opening) = &mut self.opening {
            return if opening.expired(now) { self.finish(CloseReason::TimedOut, shared) } else { Handled::Open };
        }
        let peer_timeout = shared.config.peer_timeout;
        if now >= self.last_heard.max(shared.resumed) + peer_timeout {
            let reason = if self.state == State::Closing { CloseReason::Local } else { CloseReason::PeerDead };
            return self.finish(reason, shared);
        }
        if now >= self.last_heard.max(self.last_ping).plus_nanos(shared.quiet) {
            self.last_ping = now;
            self.items.push(Item::ping());
        }
        let before = |time_outs: u64| Time::from_nanos(now.as_nanos().saturating_sub(peer_timeout.as_nanos() as u64 * time_outs));
        if now >= self.stall_check {
            // While this side did not look, nothing could go on.
            let deadline = before(STALL_FACTOR);
            if shared.resumed < deadline && self.incoming.is_stalled(deadline) {
                return self.finish(CloseReason::Protocol, shared);
            }
            let lately = Time::from_nanos(now.as_nanos().saturating_sub(shared.quiet));
            if shared.resumed < lately && self.incoming.is_stalled(lately) {
                self.incoming.distrust(&mut shared.budget);
                // It may hold the place that others wait for, and nothing need arrive that shows it.
                shared.grants_due = true;
            }
            let next = now.plus_nanos(shared.quiet);
            self.stall_check = if self.incoming.is_empty() { Time::NEVER } else { next };
        }
        // It talks, and acknowledges nothing: as good as dead, or worse.
        if self.recovery.oldest().is_some_and(|oldest| oldest.max(shared.resumed) < before(ACK_FACTOR)) {
            return self.finish(CloseReason::PeerDead, shared);
        }
        let (outgoing, items) = (&mut self.outgoing, &mut self.items);
        let (progress, probe) = self.recovery.on_timeout(now, self.limits.ack_delay, |verdict, content| {
            settle(outgoing, items, verdict, content);
        });
        self.react(now, progress, shared);
        if probe {
            shared.counters.probes += 1;
            self.probe_packets = PROBE_PACKETS;
            if self.outgoing.most_urgent().is_none() && !self.outgoing.has_urgent() && self.items.is_empty() {
                self.items.push(Item::ping());
            }
        }
        self.close_when_drained()
    }
}
