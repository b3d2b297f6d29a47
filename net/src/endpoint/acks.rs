//! Acknowledgements that find no packet to ride on: those that are due together to one peer share one.
//!
//! Every acknowledgement waits for equally long, so the sessions that owe one stand in the order in which they are due. With many sessions between the
//! same two endpoints most find nothing to ride on; a packet for each would cost as much as the messages themselves.

use super::Endpoint;
use super::ahead::MANY;
use super::depart::{DUE, OWING};
use super::event::SessionId;
use crate::clock::Time;
use crate::frame::Frame;
use crate::port::Address;
use crate::session::{Handled, Session};
use crate::wire::{Acknowledgement, Header, Kind, WireError};

/// Packets of acknowledgements written at once, each to another peer: where there are more, the first ones leave with what is in them.
const OPEN: usize = 4;
/// Sessions are asked for so many acknowledgements ahead.
const AHEAD: usize = 8;
/// An acknowledgement that is due within this part of its delay rides on another to the same peer.
const SOON: u64 = 4;

/// A packet that takes more acknowledgements.
#[derive(Debug)]
struct Open {
    frame: Frame,
    peer: Address,
    /// Where it must end.
    limit: usize,
}

/// The packets that are being written.
#[derive(Debug)]
pub(super) struct Acks {
    open: Vec<Open>,
}

impl Acks {
    pub(super) fn new() -> Acks {
        Acks { open: Vec::with_capacity(OPEN) }
    }

    /// A packet to this peer that has room.
    #[inline]
    fn find(&mut self, peer: Address) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.peer == peer && open.has_room())
    }

    /// Has a session's acknowledgement ride in the packet that was begun last, if that goes to the same peer: most often it does.
    #[inline]
    fn add_to_last(&mut self, session: &mut Session, now: Time) -> bool {
        self.open.last_mut().is_some_and(|open| open.has_room() && open.peer == session.peer && open.add(session, now))
    }

    /// Begins a packet. Gives one that leaves instead of being kept open.
    fn begin(&mut self, new: Open) -> Option<Open> {
        match self.open.iter_mut().find(|open| open.peer == new.peer) {
            // What it says did not fit there.
            Some(open) if open.has_room() => Some(new),
            Some(open) => Some(std::mem::replace(open, new)),
            None => {
                let first = (self.open.len() >= OPEN).then(|| self.open.remove(0));
                self.open.push(new);
                first
            }
        }
    }
}

impl Open {
    #[inline]
    fn has_room(&self) -> bool {
        self.frame.len() + Acknowledgement::LEN <= self.limit
    }

    /// Adds what the session owes; `false` if that is more than fits here.
    #[inline]
    fn add(&mut self, session: &mut Session, now: Time) -> bool {
        let Some(acknowledgement) = session.acknowledge_along(now) else { return false };
        let end = self.frame.len();
        self.frame.set_range(0, end + Acknowledgement::LEN);
        acknowledgement.emit(&mut self.frame.data_mut()[end..]);
        true
    }
}

impl Endpoint {
    /// Queues the acknowledgements that found nothing to ride on until they were due.
    #[inline]
    pub(super) fn acknowledge_due(&mut self, now: Time) {
        if self.departures.owes_now() {
            self.acknowledge_until(now, now);
        }
    }

    /// Sends every acknowledgement that waits for something to ride on: nothing will come for a while.
    pub(super) fn flush_acknowledgements(&mut self, now: Time) {
        self.acknowledge_until(Time::NEVER, now);
        self.flush(now);
    }

    fn acknowledge_until(&mut self, by: Time, now: Time) {
        let done = self.acknowledge_at_once(now) && self.acknowledge_in_line(by, now);
        self.departures.starved |= !done;
        self.departures.look_at_owing(now);
        while let Some(open) = self.acks.open.pop() {
            self.finish_acknowledgements(open);
        }
    }

    /// Those that should not wait. `false`: frames ran out.
    fn acknowledge_at_once(&mut self, now: Time) -> bool {
        while let Some(slot) = self.departures.due.pop() {
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            session.ready &= !DUE;
            if session.acknowledgement_due() <= now && !self.acknowledge(slot, now) {
                if let Some(session) = self.sessions.at_mut(slot) {
                    session.ready |= DUE;
                    self.departures.due.push(slot);
                }
                return false;
            }
        }
        true
    }

    /// Those whose time has come by then, and what can ride on them. `false`: frames ran out.
    fn acknowledge_in_line(&mut self, by: Time, now: Time) -> bool {
        let soon = by.max(now.plus_nanos(self.shared.ack_delay / SOON));
        let many = self.sessions.len() >= MANY;
        while let Some((due, slot)) = self.departures.owing.take(if self.acks.open.is_empty() { by } else { soon }) {
            if many && let Some(ahead) = self.departures.owing.ahead(AHEAD) {
                self.sessions.prefetch_front(ahead);
            }
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            session.ready &= !OWING;
            // It may have left with something, and something else have come.
            let owed = session.acknowledgement_due();
            if owed == Time::NEVER {
                continue;
            }
            if owed <= soon && self.acks.add_to_last(session, now) {
                continue;
            }
            let waits = owed > by && (owed > soon || self.acks.find(session.peer).is_none());
            if !waits && self.acknowledge(slot, now) {
                continue;
            }
            if let Some(session) = self.sessions.at_mut(slot) {
                session.ready |= OWING;
                self.departures.owing.add(slot, owed);
            }
            if !waits {
                return false;
            }
            if due > by {
                // It is not time yet for this one and those behind it, and the first that can't ride ends the ride.
                return true;
            }
        }
        true
    }

    /// Writes what a session owes to the packet for its peer. `false`: no frame.
    #[inline]
    fn acknowledge(&mut self, slot: u32, now: Time) -> bool {
        let Some(session) = self.sessions.at_mut(slot) else { return true };
        let peer = session.peer;
        if let Some(open) = self.acks.find(peer)
            && open.add(session, now)
        {
            return true;
        }
        let Some(mut frame) = self.departures.control_frame(self.port.as_mut()) else { return false };
        session.emit_acknowledgement(now, &mut frame);
        let limit = session.longest_packet().min(frame.capacity());
        if let Some(finished) = self.acks.begin(Open { frame, peer, limit }) {
            self.finish_acknowledgements(finished);
        }
        true
    }

    fn finish_acknowledgements(&mut self, open: Open) {
        let Open { mut frame, peer, .. } = open;
        if frame.len() > Header::LEN {
            frame.data_mut()[std::mem::offset_of!(Header, kind)] = Kind::Acks as u8;
        }
        self.departures.push(frame, peer);
    }

    /// Takes a packet of acknowledgements of several sessions: each for itself, so that one that is over, or somebody else's, does not keep the
    /// others from theirs.
    pub(super) fn take_acknowledgements(
        &mut self,
        now: Time,
        header: &Header,
        packet: &[u8],
        peer: Address,
    ) -> Result<(), WireError> {
        let list = Acknowledgement::parse(packet)?;
        let id = SessionId::from_u64(header.session.get());
        match self.sessions.get_mut(id) {
            Some(session) if session.peer == peer => {
                // A copy of one that came before.
                let Some(handled) = session.receive_alone(now, header, &mut self.shared)? else { return Ok(()) };
                self.shared.heard(id.slot, now);
                self.after(id.slot, handled, now);
            }
            Some(_) => self.shared.counters.stray += 1,
            None => {
                self.shared.counters.stray += 1;
                self.reset(header, packet.len(), peer);
            }
        }
        let many = self.sessions.len() >= MANY;
        let mut result = Ok(());
        for at in 0..list.len() {
            if many {
                self.look_ahead_in(list, at);
            }
            if let Err(error) = self.take_acknowledgement(now, &list[at], peer) {
                result = Err(error);
            }
        }
        result
    }

    #[inline]
    fn take_acknowledgement(&mut self, now: Time, one: &Acknowledgement, peer: Address) -> Result<(), WireError> {
        let id = SessionId::from_u64(one.session.get());
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.peer == peer) else {
            self.shared.counters.stray += 1;
            return Ok(());
        };
        let handled = session.receive_acknowledgement_along(now, one, &mut self.shared)?;
        // Nearly always it frees memory, and nothing else.
        if handled == Handled::Open && !session.is_stirred() {
            self.timers.acknowledged(session);
        } else {
            self.after(id.slot, handled, now);
        }
        Ok(())
    }
}
