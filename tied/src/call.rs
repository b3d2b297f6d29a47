//! One logical call under way: drives its [`Race`] with the node's calls and clock, and settles what was borrowed and learnt when it
//! ends.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::payload::Payload;
use tautline_rpc::{Call, CallError, CallOptions, Code, Extension, Fate, Limit, Method, Sleep};

use crate::answer::{Answer, TiedError};
use crate::header::{MAX_COPIES, TAG, TieHeader};
use crate::policy::{Policy, Settings};
use crate::race::{Failure, Purpose, Race, Silence, State, Step};
use crate::replicas::{Sample, Shared, TiedOptions, mode};

/// A logical call in flight. Awaiting it gives the first successful answer of any copy, or the one error when there is none; dropping
/// it cancels every copy.
#[derive(Debug)]
#[must_use = "a call does nothing unless it is awaited"]
pub struct ReplicaCall {
    shared: Rc<Shared>,
    method: Method,
    payload: Bytes,
    class: Class,
    due: Time,
    deadline: Option<Duration>,
    settings: Settings,
    first: Option<usize>,
    begun: Option<Begun>,
    over: bool,
}

#[derive(Debug)]
struct Begun {
    at: Time,
    race: Race,
    /// The replicas of the tie, or the first replica alone.
    chosen: SmallVec<[usize; MAX_COPIES]>,
    tie: Option<TieHeader>,
    /// In the order of the race's.
    copies: SmallVec<[CopyCall; MAX_COPIES]>,
    timer: Option<Sleep>,
    /// When to look whether the servers of the copies under way are silent.
    listen: Time,
    /// Tokens taken for tied copies that are not known to have been dropped unexecuted.
    borrowed: u8,
}

#[derive(Debug)]
struct CopyCall {
    call: Option<Call>,
    replica: usize,
    error: Option<CallError>,
}

impl ReplicaCall {
    pub(crate) fn new(shared: Rc<Shared>, method: Method, payload: Bytes, options: &TiedOptions) -> ReplicaCall {
        let class = options.class.unwrap_or(Class::Normal);
        let settings = options.settings.unwrap_or(shared.config.classes[class.index()]);
        ReplicaCall {
            shared,
            method,
            payload,
            class,
            due: options.expires.unwrap_or(Time::NEVER),
            deadline: options.deadline,
            settings,
            first: options.first,
            begun: None,
            over: false,
        }
    }

    /// How many copies were sent so far.
    pub fn copies(&self) -> usize {
        self.begun.as_ref().map_or(0, |begun| begun.copies.len())
    }

    /// Chooses replicas; the clock starts.
    fn begin(&mut self) -> Begun {
        let now = self.shared.local.now();
        if let Some(deadline) = self.deadline {
            self.due = self.due.min(now + deadline);
        }
        self.shared.begin(self.class);
        let chosen = self.shared.choose(&self.settings, self.first, now);
        let plan = self.shared.plan(self.method, self.class, &self.settings, &chosen);
        let tie = mode(&self.settings.policy).filter(|_| chosen.len() > 1).map(|mode| TieHeader {
            id: self.shared.tie_id(),
            mode,
            rank: 0,
            copies: chosen.iter().map(|replica| self.shared.peers[*replica].address()).collect(),
        });
        let listen = now + self.shared.config.silence;
        Begun { at: now, race: Race::new(plan), chosen, tie, copies: SmallVec::new(), timer: None, listen, borrowed: 0 }
    }

    /// Looks whether the servers of the copies under way are silent, if it is time to.
    fn listen(&self, begun: &mut Begun, now: Time) {
        if now < begun.listen {
            return;
        }
        // A call that takes long is looked at less often.
        let mut next = now + (now.since(begun.at) / 8).max(self.shared.config.silence);
        for (index, copy) in begun.copies.iter().enumerate().filter(|(_, copy)| copy.call.is_some()) {
            let (silent, sent) = self.shared.silence(copy.replica);
            let patience = self.shared.patience(copy.replica);
            let silence = if sent { Silence::Sent } else { Silence::Unsent };
            begun.race.silent(index, (silent >= patience).then_some(silence));
            if !silent.is_zero() && silent < patience {
                next = next.min(now + (patience - silent));
            }
        }
        begun.listen = next;
    }

    /// Takes copies back that have not left, before the call is sent elsewhere in their place.
    fn take_back(&self, begun: &mut Begun) {
        for (index, copy) in begun.copies.iter_mut().enumerate() {
            let state = begun.race.copies()[index];
            if (state.state, state.silence) == (State::Live, Some(Silence::Unsent)) {
                copy.call = None;
                copy.error = Some(CallError::Cancelled { fate: Fate::NotSent });
                self.shared.standings.borrow_mut().ended(copy.replica);
                begun.race.failed(index, Failure::Lost);
            }
        }
    }

    fn send(&self, begun: &mut Begun, purpose: Purpose, now: Time) {
        if begun.race.stands_in() {
            // The last look may be long ago: what had not left then may be at work by now, and must not be taken back.
            begun.listen = now;
            self.listen(begun, now);
            if begun.race.step(now) != Step::Send(purpose) {
                return;
            }
        }
        let Some(replica) = self.replica_for(begun, purpose, now) else {
            self.with_metrics(|metrics| metrics.suppressed_by_replicas += 1);
            return begun.race.not_sent(purpose);
        };
        // The one without its tie is no extra copy: it stands for those that were refused. Nor is one for those that nobody works on.
        let extra = !matches!(purpose, Purpose::First | Purpose::Untied) && !begun.race.stands_in();
        if extra && !self.shared.bucket.take() {
            self.with_metrics(|metrics| metrics.suppressed_by_budget += 1);
            return begun.race.not_sent(purpose);
        }
        if purpose == Purpose::Failover {
            self.take_back(begun);
        }
        begun.borrowed += u8::from(extra && purpose == Purpose::Tied);
        let rank = begun.copies.len() as u8;
        let tie = begun.tie.as_ref().filter(|_| matches!(purpose, Purpose::First | Purpose::Tied));
        let extension = tie.and_then(|tie| {
            let bytes = TieHeader { rank, ..tie.clone() }.emit();
            Extension::new(TAG, Bytes::copy_from_slice(&bytes))
        });
        let options = CallOptions {
            class: self.class,
            expires: (self.due != Time::NEVER).then_some(self.due),
            notify_start: matches!(self.settings.policy, Policy::Tied { .. }),
            extension,
            ..CallOptions::default()
        };
        let call = self.shared.local.call(self.shared.peers[replica], self.method, self.payload.clone(), options);
        begun.race.sent(purpose, now);
        begun.copies.push(CopyCall { call: Some(call), replica, error: None });
        self.shared.standings.borrow_mut().sent(replica);
        self.with_metrics(|metrics| metrics.sent[purpose as usize] += 1);
    }

    fn replica_for(&self, begun: &Begun, purpose: Purpose, now: Time) -> Option<usize> {
        if purpose != Purpose::First {
            self.shared.listen(now);
        }
        let mut standings = self.shared.standings.borrow_mut();
        match purpose {
            Purpose::First => begun.chosen.first().copied(),
            // One that has pushed back since it was chosen asked not to be sent more.
            Purpose::Tied => {
                let next = begun.chosen.get(begun.copies.len()).copied();
                next.filter(|replica| !standings.rests(*replica, now) && standings.takes_ties(*replica, now))
            }
            Purpose::Untied => {
                let copies = || begun.copies.iter().zip(begun.race.copies());
                let refused = |state| state == State::Failed(Failure::Untied);
                let asked: SmallVec<[usize; 8]> = copies().map(|(copy, _)| copy.replica).collect();
                let other = if self.settings.failover { standings.extra(&asked, now) } else { None };
                other.or_else(|| {
                    // One that refused the tie, and so can be reached.
                    let failed = copies().filter(|(_, state)| !refused(state.state)).map(|(copy, _)| copy.replica);
                    let failed: SmallVec<[usize; 8]> = failed.collect();
                    let well = standings.extra(&failed, now).filter(|replica| asked.contains(replica));
                    well.or_else(|| copies().find(|(_, state)| refused(state.state)).map(|(copy, _)| copy.replica))
                })
            }
            Purpose::Hedge | Purpose::Failover => {
                let all: SmallVec<[usize; 8]> = begun.copies.iter().map(|copy| copy.replica).collect();
                standings.extra(&all, now).or_else(|| {
                    // Better one whose queue the call had to leave for another's than none.
                    let copies = begun.copies.iter().zip(begun.race.copies());
                    let not_dropped = copies.filter(|(_, state)| state.state != State::Dropped).map(|(copy, _)| copy.replica);
                    standings.extra(&not_dropped.collect::<SmallVec<[usize; 8]>>(), now)
                })
            }
        }
    }

    /// Takes notice of starts and ends of the copies under way.
    fn poll_copies(&self, begun: &mut Begun, cx: &mut Context<'_>) -> Option<Payload> {
        let mut answer = None;
        for (index, copy) in begun.copies.iter_mut().enumerate() {
            let Some(call) = &mut copy.call else { continue };
            let result = Pin::new(&mut *call).poll(cx);
            let now = self.shared.local.now();
            // Of a call that has just ended too: the notice may have come together with the reply.
            if let Some(start) = call.start() {
                let known = begun.race.copies()[index];
                if known.started.is_none() && known.purpose == Purpose::First {
                    self.shared.heard_of_start(start.heard.since(known.sent), start.waited);
                }
                begun.race.started(index, now);
            }
            let Poll::Ready(result) = result else { continue };
            copy.call = None;
            self.shared.standings.borrow_mut().ended(copy.replica);
            let state = begun.race.copies()[index];
            let since_start = state.started.map(|started| now.since(started));
            let since_sent = now.since(state.sent);
            match result {
                Ok(payload) => {
                    self.shared.learn(self.class, copy.replica, since_sent, since_start, Sample::Answered);
                    begun.race.answered(index);
                    answer = Some(payload);
                    // The others' results, if they came at the same moment, are not needed.
                    break;
                }
                Err(error) => {
                    let tied = begun.tie.is_some() && matches!(state.purpose, Purpose::First | Purpose::Tied);
                    // Cancelled by the server, that is: what a handler answers is no word of its tie.
                    if tied && let CallError::Cancelled { fate } = error {
                        let ran = fate > Fate::NotExecuted;
                        if ran {
                            // Its end may have overtaken the word of its start.
                            begun.race.started(index, now);
                        }
                        begun.race.dropped(index, now);
                        if !ran {
                            self.with_metrics(|metrics| metrics.cancelled_queued += 1);
                            if begun.borrowed > 0 {
                                begun.borrowed -= 1;
                                self.shared.bucket.refund();
                            }
                        } else {
                            self.with_metrics(|metrics| {
                                metrics.cancelled_running += 1;
                                metrics.wasted += since_start.unwrap_or_default();
                            });
                        }
                    } else {
                        // When a dead server is noticed says nothing of how long its answers take.
                        if matches!(error, CallError::DeadlineExceeded { .. }) {
                            self.shared.learn(self.class, copy.replica, since_sent, since_start, Sample::Censored);
                        }
                        let failure = self.judge(&error, tied, copy.replica, now);
                        begun.race.failed(index, failure);
                        copy.error = Some(error);
                    }
                }
            }
        }
        answer
    }

    /// What a copy's error means for the others, and for its replica.
    fn judge(&self, error: &CallError, tied: bool, replica: usize, now: Time) -> Failure {
        let mut standings = self.shared.standings.borrow_mut();
        let unexecuted = error.fate() <= Fate::NotExecuted;
        let repeatable = unexecuted || self.method.is_idempotent();
        let or_here = |failure| if repeatable { failure } else { Failure::Here };
        match error {
            CallError::Overloaded { retry_after } => {
                standings.pushed_back(replica, *retry_after, now);
                Failure::Elsewhere
            }
            CallError::Disconnected { .. } | CallError::Connect(_) => {
                standings.unreachable(replica, now);
                or_here(Failure::Lost)
            }
            // The server stopped before it came to this call.
            CallError::Cancelled { .. } if unexecuted => Failure::Lost,
            CallError::Full(Limit::Calls | Limit::Inbox) => Failure::Here,
            CallError::Full(_) | CallError::Unsupported { .. } => Failure::Elsewhere,
            CallError::UnknownMethod(_) | CallError::Stopped { .. } => Failure::Everywhere,
            // This replica takes no ties; the others may (while a service is being upgraded, say).
            CallError::Refused(status) if tied && status.code == Code::Unimplemented => {
                if standings.refused_tie(replica, now) {
                    let replica = self.shared.peers[replica].address();
                    tracing::warn!(%replica, "a replica takes no ties, so calls are sent there untied: install `TieServer` at its node");
                }
                Failure::Untied
            }
            error if error.is_deterministic() => Failure::Everywhere,
            CallError::Status(status) | CallError::Refused(status) => {
                if let Some(after) = status.retry_after {
                    standings.pushed_back(replica, Some(after), now);
                }
                match status.code {
                    Code::Unavailable | Code::ResourceExhausted | Code::DataLoss => or_here(Failure::Elsewhere),
                    _ if unexecuted => Failure::Elsewhere,
                    // Whatever broke this handler may break the next one.
                    _ => Failure::Here,
                }
            }
            _ => Failure::Here,
        }
    }

    /// Ends the call: gives back and counts what is left. `winner` is the copy whose answer it is.
    fn settle(&mut self, mut begun: Begun, end: End) {
        self.over = true;
        self.shared.end();
        let now = self.shared.local.now();
        let starts = begun.race.starts();
        let mut unknown = 0;
        for (copy, state) in begun.copies.iter_mut().zip(begun.race.copies()) {
            // Dropping the call cancels it at its server.
            if copy.call.take().is_none() {
                continue;
            }
            self.shared.standings.borrow_mut().ended(copy.replica);
            let since_start = state.started.map(|started| now.since(started));
            self.shared.learn(self.class, copy.replica, now.since(state.sent), since_start, Sample::Censored);
            self.with_metrics(|metrics| match since_start {
                Some(ran) => {
                    metrics.cancelled_running += 1;
                    metrics.wasted += ran;
                }
                None => metrics.cancelled_unknown += 1,
            });
            let (silent, sent) = self.shared.silence(copy.replica);
            if !sent || silent >= self.shared.patience(copy.replica) {
                // It never left, or nobody is there.
                continue;
            }
            // Its word, that it was dropped or that it started, had time to come and did not.
            let trip = self.shared.local.one_way_delay(self.shared.peers[copy.replica]).map_or(Duration::ZERO, |delay| delay * 2);
            unknown += usize::from(since_start.is_none() && now.since(state.sent) > trip);
        }
        // A tied copy is paid for if it was executed beside another one, and if nobody can say that it was not.
        let executed = ((starts.saturating_sub(1) + unknown) as u8).min(begun.borrowed);
        for _ in executed..begun.borrowed {
            self.shared.bucket.refund();
        }
        self.with_metrics(|metrics| {
            metrics.suppressed_by_start += u64::from(begun.race.suppressed_by_start());
            metrics.double_starts += u64::from(starts > 1);
            match end {
                End::Won(winner) => {
                    metrics.answered += 1;
                    metrics.won[winner.min(metrics.won.len() - 1)] += 1;
                    metrics.latency.record(now.since(begun.at));
                }
                End::Failed => metrics.failed += 1,
                End::Abandoned => metrics.abandoned += 1,
            }
        });
    }

    /// The call's error: that of copy `last`, or of one that got further.
    fn error(&self, begun: &mut Begun, last: usize) -> TiedError {
        let copies = begun.copies.len();
        let everywhere = begun.race.copies()[last].state == State::Failed(Failure::Everywhere);
        let furthest = || {
            let failed = (0..copies).filter(|copy| begun.copies[*copy].error.is_some());
            failed.max_by_key(|copy| begun.copies[*copy].error.as_ref().map(CallError::fate))
        };
        let copy = if everywhere { last } else { furthest().unwrap_or(last) };
        match begun.copies[copy].error.take() {
            Some(error) => {
                let mut asked: SmallVec<[usize; 8]> = begun.copies.iter().map(|copy| copy.replica).collect();
                asked.sort_unstable();
                asked.dedup();
                let lost = matches!(error, CallError::Disconnected { fate: Fate::MaybeExecuted, .. });
                let withheld = lost && self.settings.failover && !self.method.is_idempotent() && self.shared.peers.len() > 1;
                let replica = self.shared.peers[begun.copies[copy].replica].address();
                TiedError::Call { error, replica, copies, replicas: asked.len(), withheld }
            }
            None => TiedError::AllCancelled { copies },
        }
    }

    fn with_metrics(&self, change: impl FnOnce(&mut crate::metrics::ClassMetrics)) {
        change(self.shared.metrics.borrow_mut().class_mut(self.class));
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Won(usize),
    Failed,
    Abandoned,
}

impl Future for ReplicaCall {
    type Output = Result<Answer, TiedError>;

    /// # Panics
    ///
    /// If polled again after it completed.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.over, "a call was polled after it had completed");
        let mut begun = match this.begun.take() {
            Some(begun) => begun,
            None => this.begin(),
        };
        let mut answer = None;
        loop {
            // A copy just sent is polled too, so that it knows whom to wake.
            if answer.is_none() {
                answer = this.poll_copies(&mut begun, cx);
            }
            let now = this.shared.local.now();
            this.listen(&mut begun, now);
            match begun.race.step(now) {
                Step::Send(purpose) => this.send(&mut begun, purpose, now),
                Step::Wait(due) => {
                    if this.wait(&mut begun, due, cx) {
                        this.begun = Some(begun);
                        return Poll::Pending;
                    }
                }
                Step::Won(winner) => {
                    let payload = answer.take().expect("a copy is marked as answered where its answer is taken");
                    let (replica, copies) = (begun.copies[winner].replica, begun.copies.len());
                    this.settle(begun, End::Won(winner));
                    return Poll::Ready(Ok(Answer { payload, replica, copies }));
                }
                end @ (Step::Lost(_) | Step::AllDropped) => {
                    let error = match end {
                        Step::Lost(copy) => this.error(&mut begun, copy),
                        _ => TiedError::AllCancelled { copies: begun.copies.len() },
                    };
                    this.settle(begun, End::Failed);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl ReplicaCall {
    /// Arranges to be woken at `due`; `false` if that is now.
    fn wait(&self, begun: &mut Begun, due: Option<Time>, cx: &mut Context<'_>) -> bool {
        let due = due.map_or(begun.listen, |due| due.min(begun.listen));
        if due == Time::NEVER {
            begun.timer = None;
            return true;
        }
        if begun.timer.as_ref().is_none_or(|timer| timer.due() != due) {
            begun.timer = Some(self.shared.local.sleep_until(due));
        }
        let timer = begun.timer.as_mut().expect("set above");
        // A sleep also ends with its node, whose calls then end too.
        Pin::new(timer).poll(cx).is_pending() || self.shared.local.now() < due
    }
}

impl Drop for ReplicaCall {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.settle(begun, End::Abandoned);
        }
    }
}
