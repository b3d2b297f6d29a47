//! The calls of a node, the lists that they are in, and the credits that they hold. It knows no network: what it decides is
//! carried out in [`submit`](super::submit), and its properties are tested here alone.

use std::hint::cold_path;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{MessageId, SessionId};
use tautline_net::timer::Wheel;

use super::call::{CallId, Cold, Held, Sink, Slot, Start, State};
use super::peers::Peers;
use crate::method::Method;

/// No slot, no peer: the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// How long the first call in line waits while no credit moves.
const PATIENCE: Duration = Duration::from_millis(100);

/// The calls.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    cold: Vec<Cold>,
    free: Vec<u32>,
    limit: usize,
    live: usize,
    /// The newest call sent in each session, by session slot.
    sessions: Vec<u32>,
    /// Deadlines, by call slot.
    pub(crate) wheel: Wheel,
    pub(crate) peers: Peers,
}

/// What a new call is made of.
#[derive(Debug)]
pub(crate) struct NewCall {
    pub(crate) peer: u32,
    pub(crate) class: Class,
    pub(crate) method: Method,
    pub(crate) series: u32,
    pub(crate) notify_start: bool,
    pub(crate) begun: Time,
    pub(crate) due: Time,
    pub(crate) sink: Sink,
}

/// Whether a call may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It holds a credit: send it.
    Send,
    /// It is in its peer's line.
    Wait,
    /// The line is full.
    Full,
}

impl Table {
    pub(crate) fn new(limit: usize, peers: Peers) -> Table {
        Table {
            slots: Vec::new(),
            cold: Vec::new(),
            free: Vec::new(),
            limit: limit.min(NIL as usize),
            live: 0,
            sessions: Vec::new(),
            wheel: Wheel::new(),
            peers,
        }
    }

    /// Calls that have not been freed.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Makes a call in a vacant slot, in the state `Waiting`, and takes a credit for it, or puts it at the end of its peer's line, which holds
    /// `limit` calls.
    #[inline(always)]
    pub(crate) fn open(&mut self, slot: u32, call: NewCall, limit: usize) -> (CallId, Turn) {
        let NewCall { peer, class, method, series, notify_start, begun, due, sink } = call;
        let place = &mut self.slots[slot as usize];
        let generation = place.generation.wrapping_add(1);
        (place.generation, place.state) = (generation, State::Waiting);
        place.sink.become_another(sink);
        (place.class, place.notify_start, place.method) = (class, notify_start, method);
        (place.peer, place.series, place.begun, place.due) = (peer, series, begun, due);
        self.live += 1;
        if due != Time::NEVER {
            self.wheel.insert(slot, due);
        }
        let peer = &mut self.peers[peer];
        peer.calls += 1;
        let lane = &mut peer.lanes[class.index()];
        // Who came earlier goes first, even if a credit is free at this moment.
        let turn = if lane.waiting == 0 && lane.account.take() {
            Turn::Send
        } else if lane.waiting as usize >= limit {
            self.slots[slot as usize].in_no_list();
            Turn::Full
        } else {
            let last = lane.join(slot);
            if last != NIL {
                self.slots[last as usize].next = slot;
            }
            let place = &mut self.slots[slot as usize];
            place.in_no_list();
            place.previous = last;
            Turn::Wait
        };
        (CallId { slot, generation }, turn)
    }

    /// A slot for a new call. `None` if there are as many calls as may be.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<u32> {
        match self.free.pop() {
            Some(slot) => Some(slot),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        if self.slots.len() >= self.limit {
            return None;
        }
        self.slots.push(Slot::free());
        self.cold.push(Cold::default());
        Some(self.slots.len() as u32 - 1)
    }

    /// Whether a call waits in line.
    #[inline]
    pub(crate) fn has_waiting(&self, peer: u32, class: Class) -> bool {
        self.peers[peer].lanes[class.index()].waiting > 0
    }

    /// The next call in line, with a credit taken for it; `None` if nobody waits or no credit is free.
    pub(crate) fn next_waiting(&mut self, peer: u32, class: Class) -> Option<u32> {
        let lane = &mut self.peers[peer].lanes[class.index()];
        if lane.waiting == 0 || !lane.account.take() {
            return None;
        }
        let slot = lane.head;
        self.leave_line(slot);
        self.arm(slot);
        Some(slot)
    }

    /// Sets the timer of a call in line: for its deadline, or for when it has waited long.
    pub(crate) fn wait(&mut self, slot: u32, now: Time) {
        let Slot { peer, class, due, .. } = self.slots[slot as usize];
        self.cold[slot as usize].moved = self.peers[peer].lanes[class.index()].moved;
        self.wheel.insert(slot, due.min(now + PATIENCE));
    }

    /// The timer of a call in line has fired, before its deadline. If it is the first in line and no credit has moved all the time,
    /// it takes one that does not exist, and is to be sent: `true`.
    ///
    /// Servers whose handlers call each other can hold all credits and wait for each other's; one call more at a time ends that.
    pub(crate) fn overdraw(&mut self, slot: u32, now: Time) -> bool {
        let Slot { peer, class, .. } = self.slots[slot as usize];
        let lane = &mut self.peers[peer].lanes[class.index()];
        if lane.head != slot || lane.moved != self.cold[slot as usize].moved {
            self.wait(slot, now);
            return false;
        }
        lane.moved = lane.moved.wrapping_add(1);
        lane.account.overdraw();
        self.leave_line(slot);
        self.arm(slot);
        true
    }

    /// Sets the timer of a call that is not in line (any more): for its deadline, if it has one.
    fn arm(&mut self, slot: u32) {
        self.wheel.insert(slot, self.slots[slot as usize].due);
    }

    /// The call, which holds a credit, was given to its session.
    #[inline(always)]
    pub(crate) fn sent(&mut self, slot: u32, session: SessionId, message: MessageId) {
        if self.sessions.len() <= session.slot() {
            self.add_session(session);
        }
        let next = std::mem::replace(&mut self.sessions[session.slot()], slot);
        if next != NIL {
            self.slots[next as usize].previous = slot;
        }
        let call = &mut self.slots[slot as usize];
        call.session = session;
        (call.previous, call.next) = (NIL, next);
        call.state.send(message);
    }

    #[cold]
    fn add_session(&mut self, session: SessionId) {
        self.sessions.resize(session.slot() + 1, NIL);
    }

    /// The call, which holds a credit, could not be given to its session.
    pub(crate) fn not_sent(&mut self, slot: u32) {
        let call = &mut self.slots[slot as usize];
        call.in_no_list();
        self.peers[call.peer].lanes[call.class.index()].account.put();
    }

    /// Ends a call: out of its list, its timer off, its credit back. `None` if it has ended before.
    #[inline(always)]
    pub(crate) fn end(&mut self, slot: u32) -> Option<Held> {
        let call = &mut self.slots[slot as usize];
        let held = call.state.end()?;
        let Slot { peer, class, session, previous, next, due, .. } = *call;
        match held {
            Held::Nothing => {
                cold_path();
                let lane = &self.peers[peer].lanes[class.index()];
                self.wheel.cancel(slot);
                // A call that could not be sent is in no line any more.
                if previous != NIL || lane.head == slot {
                    self.leave_line(slot);
                }
            }
            Held::Credit { .. } => {
                if previous == NIL {
                    self.sessions[session.slot()] = next;
                } else {
                    self.slots[previous as usize].next = next;
                }
                if next != NIL {
                    self.slots[next as usize].previous = previous;
                }
                let lane = &mut self.peers[peer].lanes[class.index()];
                lane.account.put();
                lane.moved = lane.moved.wrapping_add(1);
            }
        }
        self.peers[peer].calls -= 1;
        if due != Time::NEVER {
            self.wheel.cancel(slot);
        }
        Some(held)
    }

    /// Gives an ended call's slot back.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].state.free();
        self.live -= 1;
        self.free.push(slot);
    }

    /// The slot of a call that was sent in a session and has not ended.
    #[inline(always)]
    pub(crate) fn sent_in(&self, session: SessionId, id: CallId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize)?;
        let sent = matches!(slot.state, State::Sent { .. });
        (slot.generation == id.generation && slot.session == session && sent).then_some(id.slot)
    }

    /// The slot of a call, if it is that call's still.
    #[inline]
    pub(crate) fn find(&self, id: CallId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize)?;
        (slot.generation == id.generation && slot.state != State::Free).then_some(id.slot)
    }

    pub(crate) fn id(&self, slot: u32) -> CallId {
        CallId { slot, generation: self.slots[slot as usize].generation }
    }

    /// Some call sent in the session of this slot.
    pub(crate) fn in_session(&self, session: usize) -> Option<u32> {
        self.sessions.get(session).copied().filter(|&slot| slot != NIL)
    }

    /// Every slot in use.
    pub(crate) fn all(&self) -> Vec<u32> {
        (0..self.slots.len() as u32).filter(|&slot| self.slots[slot as usize].state != State::Free).collect()
    }

    #[inline]
    pub(crate) fn call(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn call_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// What was heard of a call's start.
    pub(crate) fn start_of(&self, id: CallId) -> Option<Start> {
        self.cold.get(id.slot as usize)?.start.filter(|(of, _)| *of == id).map(|(_, start)| start)
    }

    pub(crate) fn cold_mut(&mut self, slot: u32) -> &mut Cold {
        &mut self.cold[slot as usize]
    }

    fn leave_line(&mut self, slot: u32) {
        let Slot { peer, class, previous, next, .. } = self.slots[slot as usize];
        let lane = &mut self.peers[peer].lanes[class.index()];
        lane.waiting -= 1;
        if previous == NIL {
            lane.head = next;
        }
        if next == NIL {
            lane.tail = previous;
        }
        if previous != NIL {
            self.slots[previous as usize].next = next;
        }
        if next != NIL {
            self.slots[next as usize].previous = previous;
        }
        let call = &mut self.slots[slot as usize];
        (call.previous, call.next) = (NIL, NIL);
    }
}

#[cfg(test)]
mod tests;
