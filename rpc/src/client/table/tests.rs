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
                let Some(slot) = self.table.vacant() else {
                    assert_eq!(self.table.live(), CALLS);
                    return;
                };
                let (id, turn) = self.table.open(slot, call, LINE);
                self.made.push(id);
                match turn {
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
