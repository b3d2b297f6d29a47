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
//! - a copy whose server is gone, or from which nothing is heard at all, is no reason to wait: another one takes its place, and that is not one
//!   more than the call is entitled to;
//! - what may have been executed is executed again only if that does no harm;
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
    /// How often the call may be sent again when no copy is left under way, for servers that are there refused or failed it.
    pub failovers: u8,
    /// How often another copy may take the place of those that were never sent, or whose servers are gone or silent.
    pub replacements: u8,
    /// Whether a call that may have been executed may be executed again.
    pub repeatable: bool,
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
    /// Nobody works on it: it was never sent, or its server is gone. Another copy may take its place.
    Lost,
    /// Another replica may answer: this one refused.
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
    /// What its server's silence means for it, if that is silent.
    pub silence: Option<Silence>,
    /// How it stands.
    pub state: State,
}

/// What it means for a copy that nothing is heard from its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It has not left: it can be taken back.
    Unsent,
    /// Nobody knows what becomes of it.
    Sent,
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
    /// The tie's next copy could not be sent in the place of silent ones either.
    no_spare: bool,
    /// It was sent without its tie, or can't be.
    untied: bool,
    failovers: u8,
    replaced: u8,
    hedged: u8,
    /// When a copy is known to have started.
    started: Option<Time>,
    /// The error that came last.
    failure: Option<Failure>,
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
            no_spare: false,
            untied: false,
            failovers: 0,
            replaced: 0,
            hedged: 0,
            started: None,
            failure: None,
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
        if !self.is_under_way() {
            return self.nothing_under_way();
        }
        if let Some(purpose) = self.stand_in() {
            return Step::Send(purpose);
        }
        match self.next_copy() {
            Some((due, purpose)) if due <= now => Step::Send(purpose),
            next => Step::Wait(next.map(|(due, _)| due)),
        }
    }

    /// The copy that the last [`Step::Send`] asked for is on its way. Gives its index.
    pub fn sent(&mut self, purpose: Purpose, now: Time) -> usize {
        let stands_in = self.stands_in();
        match purpose {
            Purpose::Hedge => self.hedged += 1,
            Purpose::Failover => {
                *if stands_in { &mut self.replaced } else { &mut self.failovers } += 1;
                // What started before is over.
                self.started = None;
            }
            Purpose::Untied => {
                self.untied = true;
                self.started = None;
            }
            Purpose::First | Purpose::Tied => {}
        }
        self.copies.push(Copy { purpose, sent: now, started: None, silence: None, state: State::Live });
        self.copies.len() - 1
    }

    /// The copy that the last [`Step::Send`] asked for will not be sent. (The first one always is: its error is a copy's error.)
    pub fn not_sent(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Tied => {
                self.no_spare |= self.is_silent();
                self.no_tie = true;
            }
            Purpose::Hedge => self.no_hedge = true,
            // There may be a place for it later: it is asked for again when they are heard of as silent again.
            Purpose::Failover if self.is_silent() => self.copies.iter_mut().for_each(|copy| copy.silence = None),
            Purpose::First | Purpose::Failover => self.no_failover = true,
            Purpose::Untied => self.untied = true,
        }
    }

    /// A copy's server is silent, or (with `None`) is not any more.
    pub fn silent(&mut self, copy: usize, silence: Option<Silence>) {
        self.copies[copy].silence = silence;
    }

    /// Whether the copy that [`Step::Send`] asks for takes the place of copies that nobody works on, so that it is none more than the call is
    /// entitled to.
    pub fn stands_in(&self) -> bool {
        self.is_silent() || (!self.is_under_way() && self.failure == Some(Failure::Lost))
    }

    fn is_under_way(&self) -> bool {
        self.copies.iter().any(|copy| copy.state == State::Live)
    }

    /// Whether copies are under way, and all of them at silent servers.
    fn is_silent(&self) -> bool {
        let mut live = self.copies.iter().filter(|copy| copy.state == State::Live).peekable();
        live.peek().is_some() && live.all(|copy| copy.silence.is_some())
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
        if self.copies[copy].state == State::Live {
            self.failure = Some(failure);
        }
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
            Shape::Tied { .. } if self.started.is_some() && !self.no_tie && !self.is_sent_again() => {
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
        // What a tie took away is given back when the copy it was taken for fails, unless that has been executed and may not be again.
        let given_back = self.plan.repeatable && self.copies.iter().any(|copy| copy.state == State::Dropped);
        let elsewhere = self.copies.iter().all(|copy| match copy.state {
            State::Failed(failure) => failure < Failure::Here,
            State::Dropped => copy.started.is_none() || self.plan.repeatable,
            State::Live | State::Answered => false,
        });
        if elsewhere && !self.untied && self.copies.iter().any(|copy| copy.state == State::Failed(Failure::Untied)) {
            return Step::Send(Purpose::Untied);
        }
        let left = if self.stands_in() { self.replaced < self.plan.replacements } else { self.failovers < self.plan.failovers };
        if (elsewhere || given_back) && !self.no_failover && left {
            return Step::Send(Purpose::Failover);
        }
        // The last error is the one of the copy that got furthest.
        match self.copies.iter().rposition(|copy| matches!(copy.state, State::Failed(_))) {
            Some(copy) => Step::Lost(copy),
            None => Step::AllDropped,
        }
    }

    /// The copy to send now because nothing is heard from the servers of those under way.
    fn stand_in(&self) -> Option<Purpose> {
        if !self.is_silent() {
            return None;
        }
        if self.tie_has_room() && !self.no_spare {
            return Some(Purpose::Tied);
        }
        let mut live = self.copies.iter().filter(|copy| copy.state == State::Live);
        let free = self.plan.repeatable || live.all(|copy| copy.silence == Some(Silence::Unsent));
        (free && self.replaced < self.plan.replacements).then_some(Purpose::Failover)
    }

    /// A copy that replaced another is not one of the tie, and there are no more of that.
    fn is_sent_again(&self) -> bool {
        self.failovers > 0 || self.replaced > 0 || self.untied
    }

    /// Whether the tie has a copy that was not sent, and may be.
    fn tie_has_room(&self) -> bool {
        let tied = matches!(self.plan.shape, Shape::Tied { .. }) && (self.copies.len() as u8) < self.plan.copies;
        tied && self.started.is_none() && !self.is_sent_again()
    }

    /// The next copy that the policy has in mind, and when.
    fn next_copy(&self) -> Option<(Time, Purpose)> {
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
            Shape::Tied { stagger, .. } => (self.tie_has_room() && !self.no_tie).then_some((last + stagger, Purpose::Tied)),
        }
    }
}

#[cfg(test)]
mod tests;
