//! What happens to a packet on arrival: malformed ones are counted and dropped, the rest find their session.

use std::vec::Drain;

use super::Endpoint;
use super::ahead::MANY;
use super::depart::TOUCHED;
use super::event::{CloseReason, SessionId};
use super::late::Lone;
use super::preview::Preview;
use crate::clock::Time;
use crate::port::{Address, Datagram, PortError};
use crate::session::{Acknowledge, Handled, PartHead};
use crate::wire::{Header, Kind, WireError};

impl Endpoint {
    /// Takes a burst from the port. Returns how many packets came.
    #[inline]
    pub(super) fn arrive(&mut self, now: Time, watch: &mut dyn FnMut(SessionId, &[u8])) -> usize {
        // What the owner has not taken of earlier bursts counts: the rest waits in the port, which is bounded.
        let room = self.shared.config.burst.saturating_sub(self.shared.batches.len());
        if room == 0 {
            return 0;
        }
        let mut preview = Preview { sessions: &self.sessions, integrity: self.integrity, watch };
        match self.port.receive_watching(&mut self.arrivals, room, &mut |peer, datagram| preview.look_at(peer, datagram)) {
            Ok(0) => return 0,
            Ok(_) => {}
            Err(error) => self.receive_failed(&error),
        }
        self.take_burst(now)
    }

    fn take_burst(&mut self, now: Time) -> usize {
        self.shared.copy_out = self.port.receive_frames_low();
        if self.arrivals.len() == 1
            && let Some(datagram) = self.arrivals.pop()
        {
            self.take_or_count(now, datagram, true);
            return 1;
        }
        self.take_several(now)
    }

    fn take_several(&mut self, now: Time) -> usize {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let count = arrivals.len();
        let many = self.sessions.len() >= MANY;
        if many {
            self.begin_to_look_ahead(&arrivals);
        }
        let mut rest = arrivals.drain(..);
        while let Some(datagram) = rest.next() {
            if many {
                self.look_ahead(rest.as_slice());
            }
            let part = if rest.as_slice().is_empty() { None } else { PartHead::of(&datagram.frame) };
            let peer = datagram.peer;
            let taken = self.take_or_count(now, datagram, false);
            // What follows one that was refused was not checked.
            if taken && let Some(part) = part {
                self.take_following(now, &part, peer, &mut rest);
            }
        }
        drop(rest);
        self.arrivals = arrivals;
        count
    }

    /// Packets came for a session.
    #[inline(always)]
    pub(super) fn heard(&mut self, slot: u32, arrived: Time, now: Time) {
        self.shared.heard(slot, arrived);
        self.schedule(slot, now);
    }

    /// Takes the packets that follow one with a part of a message, as far as there is nothing more to do about them than to keep their bytes.
    #[inline(never)]
    fn take_following(&mut self, now: Time, part: &PartHead, peer: Address, rest: &mut Drain<'_, Datagram>) {
        let id = SessionId::from_u64(part.session());
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.peer == peer) else { return };
        let Some(mut following) = session.follow(part) else { return };
        while let Some(next) = rest.as_slice().first()
            && following.expects(&next.frame)
            && next.peer == peer
            && (self.integrity || Header::verify(&next.frame).is_ok())
            && following.take(&next.frame)
        {
            drop(rest.next());
        }
        let (count, bytes) = following.end(now);
        self.shared.counters.packets_received += u64::from(count);
        session.followed(count, bytes, now, &mut self.shared);
    }

    #[cold]
    fn receive_failed(&mut self, error: &PortError) {
        if self.shared.counters.port_errors == 0 {
            tracing::warn!(%error, "the port failed to receive");
        }
        self.shared.counters.port_errors += 1;
    }

    #[cold]
    pub(super) fn malformed(&mut self, error: &WireError) {
        tracing::trace!(%error, "dropped a packet");
        self.shared.counters.malformed += 1;
    }

    /// `false`: it was refused.
    #[inline(never)]
    fn take_or_count(&mut self, now: Time, datagram: Datagram, lone: bool) -> bool {
        match self.take(now, datagram, lone) {
            Ok(()) => true,
            Err(error) => {
                self.malformed(&error);
                false
            }
        }
    }

    #[inline(always)]
    fn take(&mut self, now: Time, datagram: Datagram, lone: bool) -> Result<(), WireError> {
        let Datagram { frame, peer } = datagram;
        let (header, kind) = match Header::parse(&frame) {
            Ok(parsed) => parsed,
            Err(error) => return Err(self.unreadable(error, &frame, peer)),
        };
        let header = *header;
        if !self.integrity {
            Header::verify(&frame)?;
        }
        self.shared.counters.packets_received += 1;
        if !matches!(kind, Kind::Data | Kind::Control | Kind::Ack) {
            return self.take_rare(now, &header, kind, &frame, peer);
        }
        let id = SessionId::from_u64(header.session.get());
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.peer == peer) else {
            self.take_stray(id, &header, frame.len(), peer);
            return Ok(());
        };
        // Once a burst: most of its packets are often for the same session.
        if !lone && session.ready & TOUCHED == 0 {
            session.ready |= TOUCHED;
            self.late.touch(id.slot);
            self.shared.heard(id.slot, now);
        }
        let acknowledge = if lone { Acknowledge::Later } else { Acknowledge::Now };
        match session.receive(now, &header, kind, frame, acknowledge, &mut self.shared)? {
            Handled::Closed => self.forget(id.slot, now),
            Handled::Later => self.late.came_alone(Lone { id, header, arrived: now }),
            Handled::Open if lone => self.heard(id.slot, now, now),
            Handled::Open => {}
        }
        Ok(())
    }

    /// A packet whose header can't be read: why.
    #[cold]
    fn unreadable(&mut self, error: WireError, packet: &[u8], peer: Address) -> WireError {
        if let WireError::Version(version) = error {
            // Where bits get damaged it may be those of the version, and the sender speaks ours.
            if !self.integrity
                && let Err(damaged) = Header::verify(packet)
            {
                return damaged;
            }
            self.refuse_version(version, packet, peer);
        }
        error
    }

    /// A packet of `len` bytes for a session that is not known here, or from another address than the session's.
    #[cold]
    fn take_stray(&mut self, id: SessionId, header: &Header, len: usize, peer: Address) {
        self.shared.counters.stray += 1;
        if self.sessions.get(id).is_none() {
            self.reset(header, len, peer);
        }
    }

    /// A packet of a kind that no call needs.
    #[inline(never)]
    fn take_rare(&mut self, now: Time, header: &Header, kind: Kind, packet: &[u8], peer: Address) -> Result<(), WireError> {
        match kind {
            Kind::Data | Kind::Control | Kind::Ack => Ok(()),
            Kind::Acks => self.take_acknowledgements(now, header, packet, peer),
            Kind::Hello => self.accept(now, packet, peer),
            Kind::Challenge | Kind::Welcome | Kind::Refuse => {
                let id = SessionId::from_u64(header.session.get());
                match self.sessions.get_mut(id) {
                    Some(session) if session.peer == peer => {
                        let handled = session.receive_answer(now, kind, packet, &mut self.shared)?;
                        if kind == Kind::Welcome && handled == Handled::Open {
                            self.sessions.learn_remote(id.slot);
                            self.supersede(id.slot, now);
                        }
                        self.after(id.slot, handled, now);
                    }
                    _ => self.shared.counters.stray += 1,
                }
                Ok(())
            }
            Kind::Reset => {
                self.take_reset(now, header, peer);
                Ok(())
            }
        }
    }

    /// The peer does not know a session (it restarted). Only who saw one of our packets can name both its session and its number.
    fn take_reset(&mut self, now: Time, header: &Header, peer: Address) {
        let Some(id) = self.sessions.by_remote(peer, header.session.get()) else {
            self.shared.counters.stray += 1;
            return;
        };
        let session = self.sessions.get_mut(id).expect("the table's own id");
        if session.sent_lately(header.number.get()) {
            let reason = session.reset_reason();
            let handled = session.finish(reason, &mut self.shared);
            self.after(id.slot, handled, now);
        } else {
            self.shared.counters.stray += 1;
        }
    }

    /// A session with a new incarnation of an address ends those with the old ones: that peer restarted.
    pub(super) fn supersede(&mut self, slot: u32, now: Time) {
        let Some(session) = self.sessions.at_mut(slot) else { return };
        let (peer, incarnation) = (session.peer, session.remote_incarnation);
        for other in self.sessions.incarnate(peer, incarnation) {
            let Some(session) = self.sessions.at_mut(other) else { continue };
            if other != slot && session.remote_incarnation != 0 && session.remote_incarnation != incarnation {
                let handled = session.finish(CloseReason::PeerRestarted, &mut self.shared);
                self.after(other, handled, now);
            }
        }
    }
}
