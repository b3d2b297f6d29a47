//! One logical call as a race between its copies: what to send and when, who has won, and when all is lost. No sockets, no clock and
//! no replicas in here: events and time come in, steps go out, so the same code runs under the node and under the queueing
//! simulator that the tests compare with theory.
//!
//! Rules, each from somebody's outage:
//! - the first *successful* answer wins; an error never beats a copy that is still under way;
//! - an error that every replica would repeat ends the call at once;
//! - a copy that can't be sent, for want of budget or of a replica, changes nothing for those that were;
//! - when no copy is under way the call is sent again or ends, there and then;
//! - that a server takes no ties is no error of the call: it is sent once more, without a tie;
//! - the number of sends of a call is bounded.

use std::time::Duration;

use smallvec::SmallVec;
use tautline_net::clock::Time;

use crate::header::MAX_COPIES;

/// A call's policy, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// When more copies are due.
    pub shape: Shape,
    /// How many copies the shape sends at most, the first included.
    pub copies: u8,
    /// How often the call may be sent again when no copy is left under way.
    pub failovers: u8,
}

/// When more copies are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Never.
    Single,
    /// Each `delay` after the one before, until there is an answer.
    Hedged {
        /// The delay.
        delay: Duration,
    },
    /// Each `stagger` after the one before, until one has started.
    Tied {
        /// The stagger.
        stagger: Duration,
        /// One more copy if there is no answer this long after the start.
        then_hedge: Option<Duration>,
    },
}

/// Why a copy is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// It is the original.
    First,
    /// It is tied to the first.
    Tied,
    /// The others take long.
    Hedge,
    /// The others are gone.
    Failover,
    /// The others' servers took no ties: the call itself, without one.
    Untied,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Purpose; 5] = [Purpose::First, Purpose::Tied, Purpose::Hedge, Purpose::Failover, Purpose::Untied];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Purpose::First => "first",
            Purpose::Tied => "tied",
            Purpose::Hedge => "hedge",
            Purpose::Failover => "failover",
            Purpose::Untied => "untied",
        }
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send a copy, then say [`Race::sent`] or [`Race::not_sent`].
    Send(Purpose),
    /// Wait for a copy, and until this time if there is one.
    Wait(Option<Time>),
    /// The call is over: this copy's answer is the call's.
    Won(usize),
    /// The call is over: this copy's error is the call's.
    Lost(usize),
    /// The call is over, and the ties of its copies ended them all, without an answer.
    AllDropped,
}

/// What a copy's error means for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Another replica may answer: this one refused, or is gone.
    Elsewhere,
    /// Its server takes no ties, and has not executed it; it would take the call itself.
    Untied,
    /// Sending it again is no use or no right, though a copy under way may still answer.
    Here,
    /// Every replica would say the same.
    Everywhere,
}

/// A copy of the call.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Why it was sent.
    pub purpose: Purpose,
    /// When it was sent.
    pub sent: Time,
    /// When its server was known to have started it.
    pub started: Option<Time>,
    /// How it stands.
    pub state: State,
}

/// How a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Under way.
    Live,
    /// Answered.
    Answered,
    /// Ended by its tie.
    Dropped,
    /// Ended by an error.
    Failed(Failure),
}

/// A logical call under way.
#[derive(Debug)]
pub struct Race {
    plan: Plan,
    copies: SmallVec<[Copy; MAX_COPIES]>,
    /// A copy of this purpose could not be sent: it is not tried again.
    no_tie: bool,
    no_hedge: bool,
    no_failover: bool,
    /// It was sent without its tie, or can't be.
    untied: bool,
    failovers: u8,
    hedged: u8,
    /// When a copy is known to have started.
    started: Option<Time>,
}

impl Race {
    /// A call of which nothing has been sent.
    pub fn new(plan: Plan) -> Race {
        Race {
            plan,
            copies: SmallVec::new(),
            no_tie: false,
            no_hedge: false,
            no_failover: false,
            untied: false,
            failovers: 0,
            hedged: 0,
            started: None,
        }
    }

    /// What to do at `now`. To be asked again after each event, and at the time it says.
    pub fn step(&self, now: Time) -> Step {
        if let Some(winner) = self.copies.iter().position(|copy| copy.state == State::Answered) {
            return Step::Won(winner);
        }
        if let Some(verdict) = self.copies.iter().position(|copy| copy.state == State::Failed(Failure::Everywhere)) {
            return Step::Lost(verdict);
        }
        if self.copies.is_empty() {
            return Step::Send(Purpose::First);
        }
        if !self.copies.iter().any(|copy| copy.state == State::Live) {
            return self.nothing_under_way();
        }
        match self.next_copy() {
            Some((due, purpose)) if due <= now => Step::Send(purpose),
            next => Step::Wait(next.map(|(due, _)| due)),
        }
    }

    /// The copy that the last [`Step::Send`] asked for is on its way. Gives its index.
    pub fn sent(&mut self, purpose: Purpose, now: Time) -> usize {
        match purpose {
            Purpose::Hedge => self.hedged += 1,
            Purpose::Failover => {
                self.failovers += 1;
                // What started before is over.
                self.started = None;
            }
            Purpose::Untied => {
                self.untied = true;
                self.started = None;
            }
            Purpose::First | Purpose::Tied => {}
        }
        self.copies.push(Copy { purpose, sent: now, started: None, state: State::Live });
        self.copies.len() - 1
    }

    /// The copy that the last [`Step::Send`] asked for will not be sent. (The first one always is: its error is a copy's error.)
    pub fn not_sent(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Tied => self.no_tie = true,
            Purpose::Hedge => self.no_hedge = true,
            Purpose::First | Purpose::Failover => self.no_failover = true,
            Purpose::Untied => self.untied = true,
        }
    }

    /// A copy's server says that it has started it.
    pub fn started(&mut self, copy: usize, now: Time) {
        let copy = &mut self.copies[copy];
        copy.started.get_or_insert(now);
        self.started.get_or_insert(now);
    }

    /// A copy was answered.
    pub fn answered(&mut self, copy: usize) {
        self.end(copy, State::Answered);
    }

    /// A copy was ended by its tie: some other has started, even if no notice of that came.
    pub fn dropped(&mut self, copy: usize, now: Time) {
        self.end(copy, State::Dropped);
        self.started.get_or_insert(now);
    }

    /// A copy ended in an error.
    pub fn failed(&mut self, copy: usize, failure: Failure) {
        self.end(copy, State::Failed(failure));
    }

    /// The copies, in the order they were sent.
    pub fn copies(&self) -> &[Copy] {
        &self.copies
    }

    /// How many copies are known to have started.
    pub fn starts(&self) -> usize {
        self.copies.iter().filter(|copy| copy.started.is_some() || copy.state == State::Answered).count()
    }

    /// How many copies were not sent because another had started.
    pub fn suppressed_by_start(&self) -> u8 {
        let tied = self.copies.iter().filter(|copy| matches!(copy.purpose, Purpose::First | Purpose::Tied)).count() as u8;
        match self.plan.shape {
            Shape::Tied { .. } if self.started.is_some() && !self.no_tie && self.failovers == 0 && !self.untied => {
                self.plan.copies.saturating_sub(tied)
            }
            _ => 0,
        }
    }

    fn end(&mut self, copy: usize, state: State) {
        let copy = &mut self.copies[copy];
        if copy.state == State::Live {
            copy.state = state;
        }
    }

    fn nothing_under_way(&self) -> Step {
        // What a tie took away is given back when the copy it was taken for fails.
        let dropped = self.copies.iter().any(|copy| copy.state == State::Dropped);
        let harmless = |state| matches!(state, State::Failed(Failure::Elsewhere | Failure::Untied) | State::Dropped);
        let elsewhere = self.copies.iter().all(|copy| harmless(copy.state));
        if elsewhere && !self.untied && self.copies.iter().any(|copy| copy.state == State::Failed(Failure::Untied)) {
            return Step::Send(Purpose::Untied);
        }
        if (elsewhere || dropped) && !self.no_failover && self.failovers < self.plan.failovers {
            return Step::Send(Purpose::Failover);
        }
        // The last error is the one of the copy that got furthest.
        match self.copies.iter().rposition(|copy| matches!(copy.state, State::Failed(_))) {
            Some(copy) => Step::Lost(copy),
            None => Step::AllDropped,
        }
    }

    /// The next copy that the policy has in mind, and when.
    fn next_copy(&self) -> Option<(Time, Purpose)> {
        let sent = self.copies.len() as u8;
        let last = self.copies.last()?.sent;
        match self.plan.shape {
            Shape::Single => None,
            Shape::Hedged { delay } => {
                (self.hedged + 1 < self.plan.copies && !self.no_hedge).then_some((last + delay, Purpose::Hedge))
            }
            Shape::Tied { then_hedge, .. } if self.started.is_some() => {
                let due = self.started? + then_hedge?;
                (self.hedged == 0 && !self.no_hedge).then_some((due, Purpose::Hedge))
            }
            Shape::Tied { stagger, .. } => {
                // A copy that replaced another is not one of the tie.
                let more = sent < self.plan.copies && self.failovers == 0 && !self.untied && !self.no_tie;
                more.then_some((last + stagger, Purpose::Tied))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn race(shape: Shape) -> Race {
        let mut race = Race::new(Plan { shape, copies: 2, failovers: 1 });
        assert_eq!(race.step(at(0)), Step::Send(Purpose::First));
        race.sent(Purpose::First, at(0));
        race
    }

    #[test]
    fn a_hedge_is_due_after_its_delay_and_only_once() {
        let mut race = race(Shape::Hedged { delay: 10 * MS });
        assert_eq!(race.step(at(9)), Step::Wait(Some(at(10))));
        assert_eq!(race.step(at(10)), Step::Send(Purpose::Hedge));
        race.sent(Purpose::Hedge, at(10));
        assert_eq!(race.step(at(1000)), Step::Wait(None));
    }

    #[test]
    fn a_start_notice_keeps_the_second_copy_back() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
        assert_eq!(race.step(at(1)), Step::Wait(Some(at(2))));
        race.started(0, at(1));
        assert_eq!(race.step(at(5)), Step::Wait(None));
        assert_eq!(race.suppressed_by_start(), 1);
    }

    #[test]
    fn a_tie_that_stalls_after_its_start_is_hedged_once() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: Some(30 * MS) });
        race.sent(Purpose::Tied, at(2));
        race.started(1, at(5));
        race.dropped(0, at(6));
        assert_eq!(race.step(at(6)), Step::Wait(Some(at(35))));
        assert_eq!(race.step(at(35)), Step::Send(Purpose::Hedge));
        race.sent(Purpose::Hedge, at(35));
        assert_eq!(race.step(at(100)), Step::Wait(None));
    }

    #[test]
    fn a_lost_start_notice_is_made_up_for_by_the_losers_end() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: Some(30 * MS) });
        race.sent(Purpose::Tied, at(2));
        race.dropped(0, at(6));
        assert_eq!(race.step(at(6)), Step::Wait(Some(at(36))));
    }

    #[test]
    fn an_error_never_beats_a_copy_under_way() {
        let mut race = race(Shape::Hedged { delay: 10 * MS });
        race.sent(Purpose::Hedge, at(10));
        race.failed(1, Failure::Here);
        assert_eq!(race.step(at(11)), Step::Wait(None));
        race.answered(0);
        assert_eq!(race.step(at(12)), Step::Won(0));
    }

    #[test]
    fn an_error_that_all_would_repeat_ends_the_call() {
        let mut race = race(Shape::Hedged { delay: 10 * MS });
        race.sent(Purpose::Hedge, at(10));
        race.failed(1, Failure::Everywhere);
        assert_eq!(race.step(at(11)), Step::Lost(1));
    }

    #[test]
    fn a_hedge_that_can_not_be_sent_leaves_the_original_alone() {
        let mut race = race(Shape::Hedged { delay: 10 * MS });
        assert_eq!(race.step(at(10)), Step::Send(Purpose::Hedge));
        race.not_sent(Purpose::Hedge);
        assert_eq!(race.step(at(10)), Step::Wait(None));
        race.answered(0);
        assert_eq!(race.step(at(20)), Step::Won(0));
    }

    #[test]
    fn a_call_whose_only_copy_was_refused_goes_elsewhere_a_bounded_number_of_times() {
        let mut race = race(Shape::Single);
        race.failed(0, Failure::Elsewhere);
        assert_eq!(race.step(at(1)), Step::Send(Purpose::Failover));
        race.sent(Purpose::Failover, at(1));
        race.failed(1, Failure::Elsewhere);
        assert_eq!(race.step(at(2)), Step::Lost(1));
    }

    #[test]
    fn a_call_that_broke_one_replica_is_not_tried_on_more() {
        let mut race = race(Shape::Hedged { delay: 10 * MS });
        race.sent(Purpose::Hedge, at(10));
        race.failed(0, Failure::Here);
        race.failed(1, Failure::Elsewhere);
        assert!(matches!(race.step(at(11)), Step::Lost(_)));
    }

    #[test]
    fn a_call_sent_again_is_hedged_from_its_own_start_and_not_the_lost_ones() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: Some(30 * MS) });
        race.started(0, at(1));
        race.failed(0, Failure::Elsewhere);
        assert_eq!(race.step(at(90)), Step::Send(Purpose::Failover));
        race.sent(Purpose::Failover, at(90));
        assert_eq!(race.step(at(90)), Step::Wait(None), "tied to what is gone, or hedged by it");
        race.started(1, at(100));
        assert_eq!(race.step(at(100)), Step::Wait(Some(at(130))));
    }

    #[test]
    fn the_copy_that_a_tie_took_away_is_given_back_when_the_winner_fails() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
        race.sent(Purpose::Tied, at(2));
        race.started(0, at(3));
        race.dropped(1, at(4));
        race.failed(0, Failure::Here);
        assert_eq!(race.step(at(5)), Step::Send(Purpose::Failover));
        race.not_sent(Purpose::Failover);
        assert_eq!(race.step(at(5)), Step::Lost(0));
    }

    #[test]
    fn a_call_whose_ties_were_all_refused_is_sent_once_without_one() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
        race.sent(Purpose::Tied, at(2));
        race.failed(0, Failure::Untied);
        assert_eq!(race.step(at(3)), Step::Wait(None), "the other one may take ties");
        race.failed(1, Failure::Untied);
        assert_eq!(race.step(at(4)), Step::Send(Purpose::Untied));
        race.sent(Purpose::Untied, at(4));
        assert_eq!(race.step(at(100)), Step::Wait(None), "tied again");
        race.failed(2, Failure::Here);
        assert_eq!(race.step(at(101)), Step::Lost(2));
    }

    #[test]
    fn a_call_that_broke_one_replica_is_not_tried_without_its_tie() {
        let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
        race.sent(Purpose::Tied, at(2));
        race.failed(0, Failure::Untied);
        race.failed(1, Failure::Here);
        assert!(matches!(race.step(at(3)), Step::Lost(_)));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Advance(u64),
        Started(prop::sample::Index),
        Answered(prop::sample::Index),
        Dropped(prop::sample::Index),
        Failed(prop::sample::Index, Failure),
        Refuse,
    }

    fn event() -> impl Strategy<Value = Event> {
        let index = any::<prop::sample::Index>;
        let failure = prop_oneof![Just(Failure::Elsewhere), Just(Failure::Untied), Just(Failure::Here), Just(Failure::Everywhere)];
        prop_oneof![
            (0u64..20).prop_map(Event::Advance),
            index().prop_map(Event::Started),
            index().prop_map(Event::Answered),
            index().prop_map(Event::Dropped),
            (index(), failure).prop_map(|(copy, failure)| Event::Failed(copy, failure)),
            Just(Event::Refuse),
        ]
    }

    fn shape() -> impl Strategy<Value = Shape> {
        prop_oneof![
            Just(Shape::Single),
            (0u64..10).prop_map(|delay| Shape::Hedged { delay: delay as u32 * MS }),
            (0u64..10, prop::option::of(0u64..10)).prop_map(|(stagger, hedge)| Shape::Tied {
                stagger: stagger as u32 * MS,
                then_hedge: hedge.map(|hedge| hedge as u32 * MS),
            }),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_the_call_ends_once_no_copy_is_under_way_and_sends_are_bounded(
            shape in shape(), copies in 2u8..=4, failovers in 0u8..3, events in prop::collection::vec(event(), 0..60),
        ) {
            let mut race = Race::new(Plan { shape, copies, failovers });
            let mut now = at(0);
            let mut refuse = false;
            let mut over = None;
            for event in events.into_iter().map(Some).chain([None]) {
                let sent = race.copies().len();
                match event {
                    Some(Event::Advance(millis)) => now += millis as u32 * MS,
                    Some(Event::Refuse) => refuse = true,
                    Some(Event::Started(copy)) if sent > 0 => race.started(copy.index(sent), now),
                    Some(Event::Answered(copy)) if sent > 0 => race.answered(copy.index(sent)),
                    Some(Event::Dropped(copy)) if sent > 0 => race.dropped(copy.index(sent), now),
                    Some(Event::Failed(copy, failure)) if sent > 0 => race.failed(copy.index(sent), failure),
                    Some(_) => {}
                    // The end of all: no copy stays under way for ever.
                    None => (0..sent).for_each(|copy| race.failed(copy, Failure::Here)),
                }
                loop {
                    match race.step(now) {
                        Step::Send(purpose) if refuse && purpose != Purpose::First => race.not_sent(purpose),
                        Step::Send(purpose) => { race.sent(purpose, now); }
                        Step::Wait(due) => {
                            prop_assert!(due.is_none_or(|due| due > now));
                            prop_assert!(race.copies().iter().any(|copy| copy.state == State::Live), "waits for nothing");
                            break;
                        }
                        end => {
                            over.get_or_insert(end);
                            break;
                        }
                    }
                    // Each is under way at most once, and none is sent after the end.
                    prop_assert!(over.is_none(), "a copy sent after the end");
                }
                // One may be a hedge, and one is the call without its tie.
                prop_assert!(race.copies().len() <= usize::from(copies + failovers) + 2);
                if matches!(over, Some(Step::Won(_)) | Some(Step::Lost(_))) {
                    break;
                }
            }
            if over.is_none() {
                let live = race.copies().len();
                (0..live).for_each(|copy| race.failed(copy, Failure::Here));
                while let Step::Send(purpose) = race.step(now) {
                    race.not_sent(purpose);
                }
                prop_assert!(matches!(race.step(now), Step::Won(_) | Step::Lost(_) | Step::AllDropped));
            }
        }
    }
}
