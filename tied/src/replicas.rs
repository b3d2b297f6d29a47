//! A set of servers that can each answer the same call, and what is learnt about them.

mod builder;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::payload::Payload;
use tautline_net::port::Address;
use tautline_rpc::{CallError, CallOptions, Codec, CodecError, Local, Method, Peer, Presence, Rpc, ToAddress};

pub use self::builder::{ReplicasBuilder, ReplicasError};
use crate::bucket::Bucket;
use crate::call::ReplicaCall;
use crate::choice::Standings;
use crate::estimator::{Estimator, EstimatorConfig};
use crate::header::{MAX_COPIES, Mode};
use crate::ids::TieIds;
use crate::metrics::ReplicasMetrics;
use crate::policy::{Config, Delay, Percentile, Policy, Settings, Stagger};
use crate::race::{Plan, Shape};
use crate::remote::ReplicasHandle;
use crate::stagger::Notices;
use crate::typed::TypedReplicaCall;

/// Replicas to call, under a policy. It belongs to its node's thread; clones share what they learn. Other threads call them by a
/// [handle](Replicas::handle).
#[derive(Clone, Debug)]
pub struct Replicas {
    pub(crate) shared: Rc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) local: Local,
    name: String,
    pub(crate) peers: Vec<Peer>,
    pub(crate) config: Config,
    pub(crate) bucket: Bucket,
    pub(crate) standings: RefCell<Standings>,
    pub(crate) metrics: RefCell<ReplicasMetrics>,
    learnt: RefCell<[Learnt; Class::COUNT]>,
    notices: RefCell<Notices>,
    /// When the replicas' silence was last looked at.
    listened: Cell<Time>,
    ids: RefCell<TieIds>,
    calls: Cell<usize>,
}

/// What a class' delays are learnt from.
#[derive(Debug)]
struct Learnt {
    /// From the sending of a copy to its answer.
    sent: Option<(Percentile, Estimator)>,
    /// From the start of a copy to its answer.
    started: Option<(Percentile, Estimator)>,
}

/// What a copy's end says about latency.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sample {
    Answered,
    /// Unanswered when it was given up.
    Censored,
}

/// Options of one call to a set of replicas. The default: class `Normal`, no deadline, the class's settings, any replica first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TiedOptions {
    /// The service class: `Normal` unless said otherwise.
    pub class: Option<Class>,
    /// How long the call may take, all its copies together.
    pub deadline: Option<Duration>,
    /// The moment after which the call is of no use, on this node's clock; the earlier of this and `deadline` counts.
    pub expires: Option<Time>,
    /// Settings for this call instead of its class's.
    pub settings: Option<Settings>,
    /// The replica for the first copy, by its place in the set.
    pub first: Option<usize>,
}

impl TiedOptions {
    /// The default options.
    pub fn new() -> TiedOptions {
        TiedOptions::default()
    }

    /// Sets the class.
    pub fn class(mut self, class: Class) -> TiedOptions {
        self.class = Some(class);
        self
    }

    /// Sets how long the call may take.
    pub fn deadline(mut self, deadline: Duration) -> TiedOptions {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the policy, with two copies and failover.
    pub fn policy(mut self, policy: Policy) -> TiedOptions {
        self.settings = Some(Settings::new(policy));
        self
    }

    /// Sets the replica for the first copy.
    pub fn first(mut self, replica: usize) -> TiedOptions {
        self.first = Some(replica);
        self
    }
}

impl From<&CallOptions> for TiedOptions {
    /// Class and deadline, as in [`Request::child_options`](tautline_rpc::Request::child_options).
    fn from(options: &CallOptions) -> TiedOptions {
        TiedOptions { class: Some(options.class), deadline: options.deadline, expires: options.expires, ..TiedOptions::default() }
    }
}

impl Replicas {
    /// Begins a set.
    pub fn builder() -> ReplicasBuilder {
        ReplicasBuilder::default()
    }

    /// A set with the same policy for every class.
    pub fn over<R: ToAddress>(
        local: &Local,
        replicas: impl IntoIterator<Item = R>,
        policy: Policy,
    ) -> Result<Replicas, ReplicasError> {
        Replicas::builder().replicas(replicas).policy(policy).build(local)
    }

    /// Calls a method at one of the replicas, or several. The first copy is on its way when the future is first polled; dropping the
    /// future cancels all copies.
    pub fn call(&self, method: Method, payload: impl Into<Payload>, options: &TiedOptions) -> ReplicaCall {
        ReplicaCall::new(self.shared.clone(), method, payload.into().into_bytes(), options)
    }

    /// [`Replicas::call`] with the types of `M`.
    pub fn call_typed<M: Rpc>(&self, request: M::Request, options: &TiedOptions) -> TypedReplicaCall<M> {
        TypedReplicaCall::new(match <M::Codec as Codec<M::Request>>::encode(request) {
            Ok(payload) => Ok(self.call(M::METHOD, payload, options)),
            Err(CodecError(reason)) => Err(CallError::Encode(reason)),
        })
    }

    /// The set for other threads.
    pub fn handle(&self) -> ReplicasHandle {
        ReplicasHandle::new(&self.shared)
    }

    /// The replicas' addresses, in the order they were named.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.shared.peers.iter().map(|peer| peer.address())
    }

    /// How many replicas there are.
    pub fn len(&self) -> usize {
        self.shared.peers.len()
    }

    /// Never: a set without replicas can't be made.
    pub fn is_empty(&self) -> bool {
        self.shared.peers.is_empty()
    }

    /// What was counted so far.
    pub fn metrics(&self) -> ReplicasMetrics {
        self.shared.metrics.borrow().clone()
    }

    /// After how long a call of this class is hedged now: from the sending of a copy or, under a tie, from its start.
    pub fn hedge_delay(&self, class: Class) -> Option<Duration> {
        match self.shared.config.classes[class.index()].policy {
            Policy::None => None,
            Policy::Hedged { delay } => Some(self.shared.delay(class, delay, false)),
            Policy::Tied { then_hedge, .. } => then_hedge.map(|delay| self.shared.delay(class, delay, true)),
        }
    }

    /// Logical calls that have not ended.
    pub fn outstanding(&self) -> usize {
        self.shared.calls.get()
    }

    /// Copies that have not ended, at the replica of this place.
    pub fn outstanding_at(&self, replica: usize) -> u32 {
        self.shared.standings.borrow().outstanding(replica)
    }

    /// Extra copies that the budget would allow now.
    pub fn budget_left(&self) -> u64 {
        self.shared.bucket.available()
    }
}

impl Shared {
    pub(crate) fn begin(&self, class: Class) {
        self.calls.set(self.calls.get() + 1);
        self.bucket.deposit();
        self.metrics.borrow_mut().class_mut(class).calls += 1;
    }

    pub(crate) fn end(&self) {
        self.calls.set(self.calls.get() - 1);
    }

    pub(crate) fn tie_id(&self) -> crate::header::TieId {
        self.ids.borrow_mut().draw()
    }

    /// The call's policy in numbers; `tie` are the replicas chosen for it.
    pub(crate) fn plan(&self, method: Method, class: Class, settings: &Settings, tie: &[usize]) -> Plan {
        let shape = match settings.policy {
            Policy::None => Shape::Single,
            Policy::Hedged { delay } => Shape::Hedged { delay: self.delay(class, delay, false) },
            Policy::Tied { stagger, then_hedge, .. } => Shape::Tied {
                stagger: match stagger {
                    Stagger::Fixed(stagger) => stagger,
                    Stagger::Auto => self.stagger(tie),
                },
                then_hedge: then_hedge.map(|delay| self.delay(class, delay, true)),
            },
        };
        let copies = match settings.policy {
            Policy::Tied { .. } => tie.len() as u8,
            _ => settings.copies(),
        };
        let (failovers, replacements) = if settings.failover { (FAILOVERS, REPLACEMENTS) } else { (0, 0) };
        Plan { shape, copies, failovers, replacements, repeatable: method.is_idempotent() }
    }

    /// For how long a replica may be silent.
    pub(crate) fn patience(&self, replica: usize) -> Duration {
        let delay = self.local.one_way_delay(self.peers[replica]).unwrap_or_default();
        self.config.silence.max(delay.saturating_mul(2 * ROUND_TRIPS))
    }

    /// How long a replica has been silent, and whether copies can have been sent to it.
    pub(crate) fn silence(&self, replica: usize) -> (Duration, bool) {
        match self.local.presence(self.peers[replica]) {
            Presence::Unknown => (Duration::ZERO, true),
            Presence::Opening { since } => (since, false),
            Presence::Open { silent } => (silent, true),
        }
    }

    /// Notes which replicas are silent, if the last look was not just now: sets may be large, and calls many.
    pub(crate) fn listen(&self, now: Time) {
        if now.since(self.listened.get()) < LEAST_SILENCE {
            return;
        }
        self.listened.set(now);
        let mut standings = self.standings.borrow_mut();
        for replica in 0..self.peers.len() {
            match self.local.presence(self.peers[replica]) {
                Presence::Unknown => standings.untried(replica),
                // One attempt to reach a lost replica is enough: who comes after goes elsewhere until it is answered.
                Presence::Opening { since } if standings.is_lost(replica) || since >= self.patience(replica) => {
                    standings.silent(replica)
                }
                // The round trip is of no interest while it is heard.
                Presence::Open { silent } if silent >= self.config.silence && silent >= self.patience(replica) => {
                    standings.silent(replica);
                }
                Presence::Opening { .. } => {}
                Presence::Open { .. } => standings.heard(replica),
            }
        }
    }

    /// The replicas of a call under its policy, the first of them for the first copy.
    pub(crate) fn choose(&self, settings: &Settings, first: Option<usize>, now: Time) -> SmallVec<[usize; MAX_COPIES]> {
        self.listen(now);
        let mut standings = self.standings.borrow_mut();
        let tied = matches!(settings.policy, Policy::Tied { .. });
        let first = first.filter(|replica| *replica < self.peers.len());
        let first = first.or_else(|| if tied { standings.tied(now) } else { None }).or_else(|| standings.original(now));
        let mut chosen = SmallVec::from_iter(first);
        if tied && chosen.iter().all(|replica| standings.takes_ties(*replica, now)) {
            while chosen.len() < usize::from(settings.copies()) {
                let Some(next) = standings.tied_to(&chosen, now) else { break };
                chosen.push(next);
            }
        }
        chosen
    }

    /// A copy's end tells something of the class's latency.
    pub(crate) fn learn(&self, class: Class, replica: usize, since_sent: Duration, since_start: Option<Duration>, sample: Sample) {
        let now = self.local.now();
        let mut standings = self.standings.borrow_mut();
        match sample {
            Sample::Answered => standings.answered(replica, since_sent, now),
            Sample::Censored => {
                standings.given_up(replica, since_sent, now);
                if standings.is_silent(replica) {
                    return;
                }
            }
        }
        let learnt = &mut self.learnt.borrow_mut()[class.index()];
        let record = |estimator: &mut Option<(Percentile, Estimator)>, latency| {
            if let Some((_, estimator)) = estimator {
                match sample {
                    Sample::Answered => estimator.answered(latency),
                    Sample::Censored => estimator.censored(latency),
                }
            }
        };
        record(&mut learnt.sent, since_sent);
        if let Some(since_start) = since_start {
            record(&mut learnt.started, since_start);
        }
    }

    fn delay(&self, class: Class, delay: Delay, after_start: bool) -> Duration {
        match delay {
            Delay::Fixed(delay) => delay,
            Delay::Percentile(percentile) => {
                let mut learnt = self.learnt.borrow_mut();
                let learnt = &mut learnt[class.index()];
                let place = if after_start { &mut learnt.started } else { &mut learnt.sent };
                match place {
                    Some((known, estimator)) if known.quantile == percentile.quantile => percentile.clamp(estimator.estimate()),
                    // A call's own settings ask for another quantile than its class's.
                    Some((_, estimator)) => percentile.clamp(estimator.at(percentile.quantile)),
                    None => {
                        *place = Some(Learnt::place(percentile, self.config.estimator));
                        percentile.clamp(None)
                    }
                }
            }
        }
    }

    /// A first copy was heard to have started so long after it was sent, of which it had waited so long at its server.
    pub(crate) fn heard_of_start(&self, delay: Duration, waited: Duration) {
        self.notices.borrow_mut().record(delay, waited);
    }

    /// Two mean one-way delays, and not less than what an empty server takes to start and say so.
    fn stagger(&self, tie: &[usize]) -> Duration {
        let delays = tie.iter().filter_map(|replica| self.local.one_way_delay(self.peers[*replica]));
        let (count, sum) = delays.fold((0, Duration::ZERO), |(count, sum), delay| (count + 1, sum + delay));
        let learnt = self.notices.borrow().stagger().unwrap_or_default();
        if count == 0 { UNMEASURED_STAGGER } else { (2 * sum / count).max(learnt).min(LONGEST_STAGGER) }
    }
}

/// How often a call is sent again when servers that are there have refused or failed all its copies.
const FAILOVERS: u8 = 2;
/// How often it is sent to another replica in the place of copies that nobody works on.
const REPLACEMENTS: u8 = 8;
/// Less is in nobody's power to judge, and calls look at it this often.
const LEAST_SILENCE: Duration = Duration::from_millis(1);
/// A replica is not silent while this many round trips may still bring something: the loss of a packet, and that of the probe after it.
const ROUND_TRIPS: u32 = 6;
/// The stagger before any delay was measured; the first copy is behind a handshake then.
const UNMEASURED_STAGGER: Duration = Duration::from_millis(1);
/// A measured delay beyond half of this is a network in trouble, where a tie had better not wait for it.
const LONGEST_STAGGER: Duration = Duration::from_millis(100);

impl Learnt {
    fn for_policy(policy: Policy, config: EstimatorConfig) -> Learnt {
        let place = |delay: Option<Delay>| match delay {
            Some(Delay::Percentile(percentile)) => Some(Learnt::place(percentile, config)),
            _ => None,
        };
        match policy {
            Policy::None => Learnt { sent: None, started: None },
            Policy::Hedged { delay } => Learnt { sent: place(Some(delay)), started: None },
            Policy::Tied { then_hedge, .. } => Learnt { sent: None, started: place(then_hedge) },
        }
    }

    fn place(percentile: Percentile, config: EstimatorConfig) -> (Percentile, Estimator) {
        (percentile, Estimator::new(EstimatorConfig { quantile: percentile.quantile, ..config }))
    }
}

/// The mode of a tie policy.
pub(crate) fn mode(policy: &Policy) -> Option<Mode> {
    match policy {
        Policy::Tied { mode, .. } => Some(*mode),
        _ => None,
    }
}
