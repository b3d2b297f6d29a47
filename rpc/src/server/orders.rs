//! Standing orders: what a hook has said beforehand is to be done about a waiting request, so that nobody has to be asked when it comes to
//! that. Some name a peer that is sent a word the moment the request starts; others a peer whose word takes it out of the queue.
//!
//! A word is a control message that is known but for eight bytes, the time of the start. Those to be sent are kept ready, with the session
//! that they go through; those waited for are found by their first bytes. Peers choose what these are, so the hash is drawn anew in every process:
//! nobody can tell which of them collide.

use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::SessionId;
use tautline_net::port::Address;
use tautline_net::sync::claim::{Outcome, Ticket};
use zerocopy::IntoBytes;

use super::runqueue::Job;
use super::{Server, folded};
use crate::core::{Core, SessionState};
use crate::header::{HookHead, VERSION, kind};
use crate::hook::{Entry, Word};

/// Longest word, in bytes, and the leading ones that tell those waited for from each other.
pub(crate) const MAX_WORD: usize = 92;
pub(crate) const WORD_KEY: usize = 24;
/// Orders that a request can have.
pub(crate) const MAX_ORDERS: usize = 8;

const HEAD: usize = size_of::<HookHead>();
const TIME: usize = size_of::<u64>();
/// No order; others are named by their place plus one.
pub(crate) const NIL: u32 = 0;

/// All standing orders of a node: a few for each request that a hook watches.
#[derive(Debug)]
pub(crate) struct Orders {
    list: Vec<Order>,
    free: Vec<u32>,
    /// Orders to heed a word, by hash: the first of each chain. A power of two of them, once there is one.
    buckets: Box<[u32]>,
    heeding: usize,
    /// What the hash is drawn by.
    secret: [u64; 2],
}

#[derive(Debug)]
struct Order {
    ticket: Ticket,
    /// The next of the same request.
    next: u32,
    role: Role,
    peer: Address,
    len: u8,
    /// Where in `bytes` the time is.
    time_at: u8,
    /// The control message, with its head.
    bytes: [u8; HEAD + MAX_WORD],
}

#[derive(Clone, Copy, Debug)]
enum Role {
    /// To be sent when the request starts, through this session if it is still there.
    Tell(Option<SessionId>),
    /// It could not be sent.
    Untold,
    /// When it comes from the peer, the request is taken out. The next order in the same bucket.
    Heed { hash: u64, chained: u32 },
    /// Carried out, or withdrawn.
    Void,
}

/// A request that a word has taken out of the queue, while nothing of that is in the books yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withdrawn {
    pub(crate) ticket: Ticket,
    pub(crate) at: Time,
}

impl Order {
    fn message(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn is_word(&self, message: &[u8]) -> bool {
        let (time_at, len) = (usize::from(self.time_at), usize::from(self.len));
        message.len() == len
            && message[..time_at] == self.bytes[..time_at]
            && message[time_at + TIME..] == self.bytes[time_at + TIME..len]
    }
}

impl Orders {
    pub(crate) fn new() -> Orders {
        let secret = [fastrand::u64(..), fastrand::u64(..) | 1];
        Orders { list: Vec::new(), free: Vec::new(), buckets: Box::default(), heeding: 0, secret }
    }

    /// The hash of a control message's first bytes, which it must have.
    #[inline]
    fn hash(&self, message: &[u8]) -> u64 {
        let (words, _) = message[HEAD..HEAD + WORD_KEY].as_chunks::<8>();
        let [a, b, c] = [0, 1, 2].map(|n| u64::from_le_bytes(words[n]));
        let [one, two] = self.secret;
        folded(folded(a ^ one, b ^ two) ^ c, two)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// Puts an order before those of the same request that start at `first`, and gives its name.
    fn add(&mut self, first: u32, tag: u8, ticket: Ticket, peer: Address, role: Role, word: &Word<'_>) -> u32 {
        let mut bytes = [0; HEAD + MAX_WORD];
        bytes[..HEAD].copy_from_slice(HookHead { kind: kind::HOOK, version: VERSION, tag, reserved: 0 }.as_bytes());
        bytes[HEAD..HEAD + word.bytes.len()].copy_from_slice(word.bytes);
        let (len, time_at) = ((HEAD + word.bytes.len()) as u8, (HEAD + word.time_at) as u8);
        let order = Order { ticket, next: first, role, peer, len, time_at, bytes };
        match self.free.pop() {
            Some(place) => {
                self.list[place as usize] = order;
                place + 1
            }
            None => {
                self.list.push(order);
                self.list.len() as u32
            }
        }
    }

    fn order(&mut self, name: u32) -> &mut Order {
        &mut self.list[name as usize - 1]
    }

    /// The orders of one request, from `first` on.
    fn of(&self, first: u32) -> impl Iterator<Item = &Order> {
        let named = |name: u32| self.list.get((name as usize).checked_sub(1)?);
        std::iter::successors(named(first), move |order| named(order.next))
    }

    /// Lets an order be found by its word. `most`: as many as there will ever be requests.
    fn chain(&mut self, name: u32, most: usize) {
        if self.buckets.is_empty() {
            self.buckets = vec![NIL; most.next_power_of_two()].into();
        }
        let hash = self.hash(self.list[name as usize - 1].message());
        let chained = std::mem::replace(&mut self.buckets[hash as usize & (self.buckets.len() - 1)], name);
        self.order(name).role = Role::Heed { hash, chained };
        self.heeding += 1;
    }

    fn unchain(&mut self, name: u32) {
        let Role::Heed { hash, chained } = self.order(name).role else { return };
        let bucket = hash as usize & (self.buckets.len() - 1);
        self.heeding -= 1;
        if self.buckets[bucket] == name {
            self.buckets[bucket] = chained;
            return;
        }
        let mut before = self.buckets[bucket];
        while before != NIL {
            let Role::Heed { chained: next, .. } = &mut self.order(before).role else { return };
            if *next == name {
                *next = chained;
                return;
            }
            before = *next;
        }
    }

    /// The request that waits for this message, and who must have sent it.
    #[inline]
    fn find(&self, message: &[u8]) -> Option<&Order> {
        if self.heeding == 0 || message.len() < HEAD + WORD_KEY {
            return None;
        }
        let hash = self.hash(message);
        let mut name = self.buckets[hash as usize & (self.buckets.len() - 1)];
        while name != NIL {
            let order = &self.list[name as usize - 1];
            let Role::Heed { hash: own, chained } = order.role else { return None };
            if own == hash && order.is_word(message) {
                return Some(order);
            }
            name = chained;
        }
        None
    }

    /// The request has ended: its orders, from `first` on, go.
    pub(crate) fn forget(&mut self, mut first: u32) {
        while first != NIL {
            self.unchain(first);
            self.free.push(first - 1);
            let order = self.order(first);
            order.role = Role::Void;
            first = order.next;
        }
    }
}

impl Server {
    /// A control message came, and nothing else has been done about it. If it is the word that a queued request waits for, that is taken out
    /// now; what follows from it is done when its event comes, or soon after.
    #[inline]
    pub(crate) fn heed(&mut self, session: SessionId, message: &[u8], sessions: &[Option<SessionState>], clock: &Clock) {
        let Some(order) = self.orders.find(message) else { return };
        let from = sessions.get(session.slot()).and_then(Option::as_ref).filter(|state| state.id == session);
        if from.is_none_or(|from| from.address != order.peer) {
            return;
        }
        let ticket = order.ticket;
        if let Outcome::Cancelled(()) = self.queue.claims.withdraw(ticket) {
            self.withdrawn.push(Withdrawn { ticket, at: clock.now() });
        }
    }

    /// Takes an entry out of the queue, and says since when it is out if a word has done so before.
    pub(crate) fn take_out(&mut self, ticket: Ticket) -> (Outcome<Job>, Option<Time>) {
        let Some(place) = self.withdrawn.iter().position(|withdrawn| withdrawn.ticket == ticket) else {
            return (self.queue.claims.cancel(ticket), None);
        };
        let at = self.withdrawn.swap_remove(place).at;
        (self.queue.claims.vacate(ticket).map_or(Outcome::Gone, Outcome::Cancelled), Some(at))
    }
}

impl Core {
    /// Takes a burst from the port. Words that requests wait for are heeded before all else.
    #[inline]
    pub(crate) fn poll(&mut self, now: Time) -> usize {
        let Core { endpoint, server, sessions, clock, .. } = self;
        endpoint.poll_watching(now, &mut |session, message| server.heed(session, message, sessions, clock))
    }

    /// Whether words took requests out that have not ended yet.
    #[inline]
    pub(crate) fn has_withdrawn(&self) -> bool {
        !self.server.withdrawn.is_empty()
    }

    /// Ends the requests that words took out, where the hook did not ask about them when it got the word.
    pub(crate) fn end_withdrawn(&mut self) {
        while let Some(&Withdrawn { ticket, .. }) = self.server.withdrawn.last() {
            self.hook_cancel(Entry(ticket));
            // It is not there any more, unless the books had forgotten it: then this takes it out.
            self.server.take_out(ticket);
        }
    }

    /// Leaves an order with an entry; `false` if that can't be done.
    pub(crate) fn order(&mut self, ticket: Ticket, tag: u8, peer: Address, heed: bool, word: &Word<'_>) -> bool {
        let Some(first) = self.server.entry(ticket).map(|entry| entry.orders) else { return false };
        let fits = word.bytes.len() <= MAX_WORD && (WORD_KEY..=word.bytes.len().saturating_sub(TIME)).contains(&word.time_at);
        if !fits || self.server.orders.of(first).count() >= MAX_ORDERS {
            return false;
        }
        let role = if heed { Role::Void } else { Role::Tell(self.session_to(peer)) };
        let name = self.server.orders.add(first, tag, ticket, peer, role, word);
        if heed {
            self.server.orders.chain(name, self.server.entries.len());
        }
        self.server.entries[ticket.slot as usize].orders = name;
        true
    }

    /// Withdraws the orders to tell somebody of an entry's start.
    pub(crate) fn tell_nobody(&mut self, ticket: Ticket) {
        let mut name = self.server.entry(ticket).map_or(NIL, |entry| entry.orders);
        while name != NIL {
            let order = self.server.orders.order(name);
            if matches!(order.role, Role::Tell(_)) {
                order.role = Role::Void;
            }
            name = order.next;
        }
    }

    /// How many of an entry's words could not be sent.
    pub(crate) fn untold(&self, ticket: Ticket) -> usize {
        let first = self.server.entry(ticket).map_or(NIL, |entry| entry.orders);
        self.server.orders.of(first).filter(|order| matches!(order.role, Role::Untold)).count()
    }

    /// An entry started at `at`: whom a hook wanted told is told, before anything else is done about it.
    #[inline]
    pub(crate) fn tell(&mut self, ticket: Ticket, at: Time) {
        let mut name = self.server.entry(ticket).map_or(NIL, |entry| entry.orders);
        if name == NIL {
            return;
        }
        while name != NIL {
            let order = self.server.orders.order(name);
            let time_at = usize::from(order.time_at);
            order.bytes[time_at..time_at + TIME].copy_from_slice(&at.as_nanos().to_le_bytes());
            let this = std::mem::replace(&mut name, order.next);
            let Role::Tell(session) = order.role else { continue };
            order.role = Role::Void;
            if session.is_none_or(|session| self.endpoint.send_control_at_once(session, order.message(), self.now).is_err()) {
                self.tell_anyhow(this);
            }
        }
    }

    /// Claims an entry for the poller, and tells those whom a hook wanted told: their messages are written before the claim, so that they leave
    /// the moment that it is made. What could not be written is left to [`Core::tell`].
    pub(crate) fn claim_and_tell(&mut self, ticket: Ticket) -> Option<(Job, Time)> {
        let Core { endpoint, server, clock, now, .. } = self;
        let mut name = server.entry(ticket)?.orders;
        let mut drafts = endpoint.drafts(*now);
        while name != NIL {
            let order = server.orders.order(name);
            name = order.next;
            if let (Role::Tell(Some(session)), Some(drafts)) = (order.role, &mut drafts)
                && drafts.add(session, order.message(), usize::from(order.time_at))
            {
                // If the claim fails the entry is gone, and with it all its orders.
                order.role = Role::Void;
            }
        }
        let job = server.queue.claims.start(ticket)?;
        let at = clock.now().max(*now);
        if let Some(drafts) = drafts {
            drafts.send(at);
        }
        self.now = at;
        Some((job, at))
    }

    /// There is no session, or not any more.
    #[cold]
    fn tell_anyhow(&mut self, name: u32) {
        let order = self.server.orders.order(name);
        let (to, tag, len, bytes) = (order.peer, order.bytes[2], usize::from(order.len), order.bytes);
        if let Err(error) = self.send_hook(to, tag, &bytes[HEAD..len]) {
            tracing::debug!(%to, %error, "a start was not told");
            self.server.orders.order(name).role = Role::Untold;
        }
        self.endpoint.flush(self.now);
    }
}
