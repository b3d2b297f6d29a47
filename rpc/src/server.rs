//! The serving side: from a request's arrival to its reply.
//!
//! [`dispatch`] reads a request and decides, [`runqueue`] is what poller and workers share, [`workers`] run handlers elsewhere,
//! [`own`] is what the poller runs itself, [`orders`] what hooks have said beforehand of those that wait, [`entries`]
//! is the poller's own record of what waits and runs, and [`reply`] ends it.

pub(crate) mod dispatch;
pub(crate) mod entries;
pub(crate) mod orders;
pub(crate) mod own;
pub(crate) mod reply;
pub(crate) mod runqueue;
pub(crate) mod workers;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::SessionId;
use tautline_net::timer::Wheel;

use self::entries::EntryState;
use self::orders::{Orders, Withdrawn};
use self::own::Own;
use self::runqueue::RunQueue;
use crate::credit::{CreditConfig, Pool};
use crate::method::{Method, MethodTable};
use crate::node::config::NodeConfig;
use crate::service::WorkerHandler;

/// How the requests of a method are run.
#[derive(Clone)]
pub(crate) enum Kind {
    Inline,
    Workers(WorkerHandler),
    Future { abort: bool },
}

/// What the core knows of a service; the handlers that are not `Send` are the node's.
pub(crate) struct ServiceState {
    pub(crate) method: Method,
    pub(crate) kind: Kind,
    pub(crate) limit: usize,
    /// Its entries that wait or run.
    pub(crate) outstanding: usize,
}

/// What the serving side keeps for a session.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// The session that this is about; a slot's next session starts afresh.
    pub(crate) id: Option<SessionId>,
    /// Its newest entry, plus one; zero if it has none.
    pub(crate) newest: u32,
    /// For each class, the interval in which it was last counted as a caller.
    pub(crate) seen: [u32; Class::COUNT],
    /// Cancels that came before their requests.
    pub(crate) tombstones: Option<Box<Tombstones>>,
}

/// The last few cancels of a session that found nothing to cancel: control messages overtake requests. Call numbers are not
/// used twice, so an old one does no harm.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    calls: [u64; Tombstones::COUNT],
    used: usize,
    next: usize,
}

impl Tombstones {
    const COUNT: usize = 32;

    pub(crate) fn add(&mut self, call: u64) {
        self.calls[self.next] = call;
        self.next = (self.next + 1) % Tombstones::COUNT;
        self.used = (self.used + 1).min(Tombstones::COUNT);
    }

    pub(crate) fn contains(&self, call: u64) -> bool {
        self.calls[..self.used].contains(&call)
    }
}

/// The serving side's state.
pub(crate) struct Server {
    pub(crate) methods: MethodTable,
    pub(crate) services: Vec<ServiceState>,
    pub(crate) queue: Arc<RunQueue>,
    pub(crate) has_workers: bool,
    pub(crate) own: Own,
    pub(crate) entries: Vec<EntryState>,
    pub(crate) clients: Vec<Client>,
    /// Entries by session slot and call number.
    pub(crate) by_call: HashMap<(u32, u64), u32, BuildHasherDefault<Mix>>,
    /// Entries of each class that wait or run.
    pub(crate) outstanding: [usize; Class::COUNT],
    pub(crate) limits: [usize; Class::COUNT],
    pub(crate) pools: [Pool; Class::COUNT],
    pub(crate) credit: CreditConfig,
    /// Deadlines, by entry slot.
    pub(crate) wheel: Wheel,
    /// Requests run where they were received, for sampling.
    pub(crate) direct: u64,
    /// The tags of the installed hooks.
    pub(crate) hooks: Vec<u8>,
    pub(crate) orders: Orders,
    /// What words have taken out of the queue since the events before were taken.
    pub(crate) withdrawn: Vec<Withdrawn>,
}

impl Server {
    pub(crate) fn new(queue: Arc<RunQueue>, has_workers: bool, config: &NodeConfig, now: Time) -> Server {
        let credit = config.credit;
        let capacity = queue.claims.capacity();
        let mut wheel = Wheel::new();
        wheel.expire(now, &mut Vec::new());
        Server {
            methods: MethodTable::new(),
            services: Vec::new(),
            has_workers,
            own: Own::new(config.concurrency),
            entries: (0..capacity).map(|_| EntryState::default()).collect(),
            clients: Vec::new(),
            by_call: HashMap::default(),
            outstanding: [0; Class::COUNT],
            limits: config.queue_limits,
            pools: std::array::from_fn(|_| Pool::new(&credit, now)),
            credit,
            wheel,
            direct: 0,
            hooks: Vec::new(),
            orders: Orders::new(),
            withdrawn: Vec::new(),
            queue,
        }
    }

    /// When an entry expires, if nothing else happens. Credits are adjusted while there is traffic, which needs no timer.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.wheel.next()
    }

    /// Whether the credits' interval is over.
    #[inline]
    pub(crate) fn credits_due(&self, now: Time) -> bool {
        // All pools have the same interval.
        self.pools[0].is_due(now)
    }

    /// Ends the credits' interval, when it is over.
    #[inline]
    pub(crate) fn adjust_credits(&mut self, now: Time) {
        if self.credits_due(now) {
            self.end_credit_interval(now);
        }
    }

    #[cold]
    fn end_credit_interval(&mut self, now: Time) {
        for ((pool, &outstanding), class) in self.pools.iter_mut().zip(&self.outstanding).zip(Class::ALL) {
            let (delay, samples) = self.queue.take_observed(class);
            pool.observe(delay, samples);
            pool.adjust(&self.credit, outstanding > 0, now);
        }
    }

    #[inline]
    pub(crate) fn client(&mut self, session: SessionId) -> &mut Client {
        client_of(&mut self.clients, session)
    }
}

/// What is kept for a session, made if there is nothing.
#[inline(always)]
pub(crate) fn client_of(clients: &mut Vec<Client>, session: SessionId) -> &mut Client {
    let slot = session.slot();
    if clients.get(slot).is_none_or(|client| client.id != Some(session)) {
        add_client(clients, session);
    }
    &mut clients[slot]
}

#[cold]
fn add_client(clients: &mut Vec<Client>, session: SessionId) {
    if clients.len() <= session.slot() {
        clients.resize_with(session.slot() + 1, Client::default);
    }
    clients[session.slot()] = Client { id: Some(session), ..Client::default() };
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("services", &self.services.len()).field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A hash of session slot and call number. A peer chooses its call numbers, so the multiplier is drawn anew in every process:
/// nobody can tell which numbers collide.
pub(crate) struct Mix(u64);

/// Folded multiplication: both halves of the product, so that every input bit reaches every output bit.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

fn multiplier() -> u64 {
    use std::sync::OnceLock;
    static MULTIPLIER: OnceLock<u64> = OnceLock::new();
    *MULTIPLIER.get_or_init(|| fastrand::u64(..) | 1)
}

impl Default for Mix {
    fn default() -> Mix {
        Mix(multiplier())
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = folded(self.0 ^ value, multiplier() ^ 0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_hold_the_newest_and_are_bounded() {
        let mut tombstones = Tombstones::default();
        assert!(!tombstones.contains(0));
        for call in 0..100 {
            tombstones.add(call);
        }
        assert!(tombstones.contains(99) && tombstones.contains(68) && !tombstones.contains(67));
    }
}
