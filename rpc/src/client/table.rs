//! The calls of a node, the lists that they are in, and the credits that they hold. It knows no network: what it decides is
//! carried out in [`submit`](super::submit), and its properties are tested here alone.

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

    /// Makes a call, in the state `Waiting`. `None` if there are as many as may be.
    #[inline]
    pub(crate) fn open(&mut self, call: NewCall) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => {
                let place = &mut self.slots[slot as usize];
                let generation = place.generation.wrapping_add(1);
                *place = Table::slot(generation, call);
                slot
            }
            None => {
                if self.slots.len() >= self.limit {
                    return None;
                }
                self.slots.push(Table::slot(1, call));
                self.cold.push(Cold::default());
                self.slots.len() as u32 - 1
            }
        };
        self.live += 1;
        let Slot { peer, due, .. } = self.slots[slot as usize];
        self.peers[peer].calls += 1;
        if due != Time::NEVER {
            self.wheel.insert(slot, due);
        }
        Some(slot)
    }

    /// Takes a credit for a new call, or puts it at the end of its peer's line, which holds `limit` calls.
    #[inline]
    pub(crate) fn admit(&mut self, slot: u32, limit: usize) -> Turn {
        let Slot { peer, class, .. } = self.slots[slot as usize];
        let lane = &mut self.peers[peer].lanes[class.index()];
        // Who came earlier goes first, even if a credit is free at this moment.
        if lane.waiting == 0 && lane.account.take() {
            return Turn::Send;
        }
        if lane.waiting as usize >= limit {
            return Turn::Full;
        }
        let last = std::mem::replace(&mut lane.tail, slot);
        if last == NIL {
            lane.head = slot;
        }
        lane.waiting += 1;
        if last != NIL {
            self.slots[last as usize].next = slot;
        }
        self.slots[slot as usize].previous = last;
        Turn::Wait
    }

    /// The next call in line, with a credit taken for it; `None` if nobody waits or no credit is free.
    #[inline]
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
    #[inline]
    pub(crate) fn sent(&mut self, slot: u32, session: SessionId, message: MessageId) {
        if self.sessions.len() <= session.slot() {
            self.sessions.resize(session.slot() + 1, NIL);
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

    /// The call, which holds a credit, could not be given to its session.
    pub(crate) fn not_sent(&mut self, slot: u32) {
        let Slot { peer, class, .. } = self.slots[slot as usize];
        self.peers[peer].lanes[class.index()].account.put();
    }

    /// Ends a call: out of its list, its timer off, its credit back. `None` if it has ended before.
    #[inline]
    pub(crate) fn end(&mut self, slot: u32) -> Option<Held> {
        let call = &mut self.slots[slot as usize];
        let held = call.state.end()?;
        let Slot { peer, class, session, previous, next, due, .. } = *call;
        match held {
            Held::Nothing => {
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

    fn slot(generation: u32, call: NewCall) -> Slot {
        Slot {
            generation,
            state: State::Waiting,
            class: call.class,
            notify_start: call.notify_start,
            peer: call.peer,
            session: SessionId::from_u64(u64::MAX),
            previous: NIL,
            next: NIL,
            series: call.series,
            method: call.method,
            begun: call.begun,
            due: call.due,
            sink: call.sink,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use tautline_net::port::{Address, LocalName};

    use super::*;

    const PEERS: u32 = 2;
    const LINE: usize = 3;
    const CALLS: usize = 12;

    #[derive(Clone, Debug)]
    enum Step {
        /// A new call; `fails`: its session does not take it.
        Open {
            peer: u32,
            class: u8,
            fails: bool,
        },
        /// The server starts, answers or pushes back, with this credit; or the caller cancels; or a deadline passes: all end it.
        End {
            call: usize,
            credit: u16,
        },
        Start {
            call: usize,
        },
        Keep {
            call: usize,
        },
        /// The session of a peer ends, and all its calls with it.
        Close {
            peer: u32,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..PEERS, 0u8..2, prop::bool::weighted(0.1)).prop_map(|(peer, class, fails)| Step::Open { peer, class, fails }),
            4 => (0usize..40, 0u16..5).prop_map(|(call, credit)| Step::End { call, credit }),
            1 => (0usize..40).prop_map(|call| Step::Start { call }),
            1 => (0usize..40).prop_map(|call| Step::Keep { call }),
            1 => (0..PEERS).prop_map(|peer| Step::Close { peer }),
        ]
    }

    /// The table, and what a caller would see of it.
    struct Model {
        table: Table,
        /// Every call ever made that began, and how often it ended.
        ended: HashMap<CallId, u32>,
        made: Vec<CallId>,
        messages: u64,
    }

    impl Model {
        fn new() -> Model {
            let mut peers = Peers::new(PEERS as usize, 2);
            for peer in 0..PEERS {
                let name = LocalName::new(&format!("p{peer}")).unwrap();
                assert_eq!(peers.handle(Address::Local(name)).index, peer);
            }
            Model { table: Table::new(CALLS, peers), ended: HashMap::new(), made: Vec::new(), messages: 0 }
        }

        fn send(&mut self, slot: u32, fails: bool) {
            if fails {
                self.table.not_sent(slot);
                self.end(self.table.id(slot));
                return;
            }
            self.messages += 1;
            let session = SessionId::from_u64(u64::from(self.table.call(slot).peer));
            self.table.sent(slot, session, MessageId::from_u64(self.messages));
        }

        fn end(&mut self, id: CallId) {
            let Some(slot) = self.table.find(id) else { return };
            if self.table.end(slot).is_some() {
                *self.ended.entry(id).or_insert(0) += 1;
                self.table.release(slot);
            }
        }

        fn pump(&mut self, peer: u32, class: Class) {
            while let Some(slot) = self.table.next_waiting(peer, class) {
                self.send(slot, false);
            }
        }

        fn apply(&mut self, step: Step) {
            match step {
                Step::Open { peer, class, fails } => {
                    let class = Class::from_index(class).unwrap();
                    let call = NewCall {
                        peer,
                        class,
                        method: Method::from_id(1),
                        series: 0,
                        notify_start: false,
                        begun: Time::ZERO,
                        due: Time::from_nanos(1 << 30),
                        sink: Sink::Tag(0),
                    };
                    let Some(slot) = self.table.open(call) else {
                        assert_eq!(self.table.live(), CALLS);
                        return;
                    };
                    self.made.push(self.table.id(slot));
                    match self.table.admit(slot, LINE) {
                        Turn::Send => self.send(slot, fails),
                        Turn::Wait => {}
                        Turn::Full => self.end(self.table.id(slot)),
                    }
                }
                Step::End { call, credit } => {
                    let Some(&id) = self.made.get(call) else { return };
                    let Some(slot) = self.table.find(id) else { return };
                    let (peer, class) = (self.table.call(slot).peer, self.table.call(slot).class);
                    self.end(id);
                    self.end(id);
                    self.table.peers[peer].lanes[class.index()].account.set_limit(credit);
                    self.pump(peer, class);
                }
                Step::Start { call } => {
                    if let Some(slot) = self.made.get(call).and_then(|&id| self.table.find(id)) {
                        self.table.call_mut(slot).state.start();
                    }
                }
                Step::Keep { call } => {
                    if let Some(slot) = self.made.get(call).and_then(|&id| self.table.find(id)) {
                        self.table.call_mut(slot).state.keep();
                    }
                }
                Step::Close { peer } => {
                    while let Some(slot) = self.table.in_session(peer as usize) {
                        self.end(self.table.id(slot));
                    }
                    for class in Class::ALL {
                        while self.table.peers[peer].lanes[class.index()].waiting > 0 {
                            self.end(self.table.id(self.table.peers[peer].lanes[class.index()].head));
                        }
                    }
                }
            }
        }

        fn check(&self) {
            let mut held = [[0; Class::COUNT]; PEERS as usize];
            let mut waiting = [[0; Class::COUNT]; PEERS as usize];
            for slot in self.table.all() {
                let call = self.table.call(slot);
                match call.state {
                    State::Sent { .. } => held[call.peer as usize][call.class.index()] += 1,
                    State::Waiting => waiting[call.peer as usize][call.class.index()] += 1,
                    State::Free | State::Ended => {}
                }
            }
            for peer in 0..PEERS {
                for class in Class::ALL {
                    let lane = &self.table.peers[peer].lanes[class.index()];
                    let (held, waiting) = (held[peer as usize][class.index()], waiting[peer as usize][class.index()]);
                    assert_eq!(lane.account.held(), held, "credits are held by calls that were sent, and by nothing else");
                    assert_eq!(lane.waiting, waiting);
                    assert!(waiting == 0 || held > 0, "a call waits although nothing that it could wait for is under way");
                }
                let lanes = &self.table.peers[peer].lanes;
                assert_eq!(self.table.peers[peer].calls, lanes.iter().map(|lane| lane.account.held() + lane.waiting).sum::<u32>());
            }
            assert_eq!(self.table.wheel.len(), self.table.live(), "a timer for each call that lives");
            assert!(self.ended.values().all(|&times| times == 1), "a call ended twice");
            assert_eq!(self.ended.len() + self.table.live(), self.made.len(), "each call ends or lives");
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_in_whatever_order_a_call_ends_once_and_its_credit_comes_back_once(steps in prop::collection::vec(step(), 1..80)) {
            let mut model = Model::new();
            for step in steps {
                model.apply(step);
                model.check();
            }
            for peer in 0..PEERS {
                model.apply(Step::Close { peer });
            }
            model.check();
            prop_assert_eq!(model.table.live(), 0);
            prop_assert_eq!(model.ended.len(), model.made.len());
        }
    }

    #[test]
    fn who_waits_longest_is_sent_first() {
        let mut model = Model::new();
        for _ in 0..5 {
            model.apply(Step::Open { peer: 0, class: 0, fails: false });
        }
        let ids = model.made.clone();
        model.apply(Step::End { call: 0, credit: 2 });
        let sent: Vec<_> = ids[1..].iter().map(|&id| matches!(model.table.call(id.slot).state, State::Sent { .. })).collect();
        assert_eq!(sent, [true, true, false, false]);
    }

    #[test]
    fn a_reply_to_an_earlier_call_in_the_same_slot_finds_nothing() {
        let mut model = Model::new();
        model.apply(Step::Open { peer: 0, class: 0, fails: false });
        model.apply(Step::End { call: 0, credit: 2 });
        model.apply(Step::Open { peer: 0, class: 0, fails: false });
        let (old, new) = (model.made[0], model.made[1]);
        assert_eq!(old.slot, new.slot);
        assert_eq!((model.table.find(old), model.table.find(new)), (None, Some(new.slot)));
    }
}
