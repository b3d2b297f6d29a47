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
mod tests;
