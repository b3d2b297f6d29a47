//! A server's side of ties: which copies it holds, whom to tell when one starts, and what a cancel does. No network and no run queue in
//! here: the hook in [`TieServer`](crate::TieServer) puts it beside a node, the tests put it into a queueing simulator.
//!
//! A copy is known by its tie id *and* its client's address, and a cancel names both. So a client can cancel only its own copies,
//! even if it makes up ids or repeats another's. A cancel counts only if it comes from a replica that this server was told of, and
//! that the copy itself names as the one it speaks for; a server sends cancels to such replicas only, so no request can aim it at a
//! stranger.
//!
//! Where the run queue can do by itself what was said beforehand, [`Table::prepare`] says it: the table learns of starts and drops when they have been
//! told and done. Else each server looks a copy up once, between its start and the drop of the other one, by what names it there: by its entry where it
//! started, by its tie and client where it waits. Peers choose those names, so the hash is seeded anew for each map: nobody outside can
//! tell which ones collide. (foldhash, because SipHash over an id and an address takes longer than all the rest of a cancel.)

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::RandomState;
use tautline_net::clock::Time;
use tautline_net::port::Address;

use crate::header::{Control, Mode, Outcome, TieHeader, TieId, canonical};
use crate::tombstones::Tombstones;

/// Bounds of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The replicas that ties may name: the only ones that cancels are sent to and taken from. At the addresses that clients use.
    pub allowed: Vec<Address>,
    /// Most copies known at a time; those past it run untied.
    pub copies: usize,
    /// Most cancels kept for copies that have not arrived.
    pub tombstones: usize,
    /// How long such a cancel is kept.
    pub tombstone_life: Duration,
    /// Whether the client that a cancel names must have the port that this server sees, too: not where an address translator gives a
    /// client another port towards each server.
    pub match_client_port: bool,
}

impl Default for TableConfig {
    fn default() -> TableConfig {
        TableConfig {
            allowed: Vec::new(),
            copies: 65_536,
            tombstones: 16_384,
            tombstone_life: Duration::from_secs(1),
            match_client_port: true,
        }
    }
}

/// The run queue that the copies wait in, as the table needs it.
pub trait Queue<E> {
    /// Takes a copy out if it has not started.
    fn drop_queued(&mut self, entry: E) -> Removal;
    /// Puts a copy behind everything else, and has nobody told when it starts, if it has not started; `false` if it has, or is gone.
    fn demote(&mut self, entry: E) -> bool;
    /// Fires the cancellation token of a copy that has started.
    fn stop(&mut self, entry: E);
}

/// What [`Queue::drop_queued`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was queued, and is out.
    Dropped,
    /// It has started.
    Started,
    /// It is over.
    Gone,
}

/// What to do with a copy that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Queue it.
    Run,
    /// Another copy has started already: don't.
    Drop,
    /// Another copy has started already: queue it in the background.
    Demote,
}

/// What a table counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableCounters {
    /// Copies that came with a tie.
    pub admitted: u64,
    /// Copies that ran untied: the table was full.
    pub untied_full: u64,
    /// Copies that ran untied: this client has a copy of that id here already.
    pub untied_duplicate: u64,
    /// Ties that could not be read.
    pub malformed: u64,
    /// Copies dropped on arrival, by a cancel that came first.
    pub dropped_on_arrival: u64,
    /// Cancels sent.
    pub cancels_sent: u64,
    /// Cancels not sent, for they named a stranger.
    pub strangers: u64,
    /// Cancels and outcomes refused, for the sender is not the replica that it would have to be.
    pub refused: u64,
    /// Cancels taken, by what they did.
    pub cancels_taken: Outcomes,
    /// What became of the cancels sent, as the others report it.
    pub outcomes: Outcomes,
    /// Time that stopped copies had run for.
    pub wasted: Duration,
}

/// A count for each [`Outcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes([u64; Outcome::ALL.len()]);

impl Outcomes {
    /// How many there were of `outcome`.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize - 1]
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize - 1] += 1;
    }
}

/// The tied copies at one server. `E` names a copy in its run queue.
#[derive(Debug)]
pub struct Table<E> {
    /// Without its list of the allowed.
    config: TableConfig,
    /// The allowed replicas as a copy or a message may name them, and as they are to be reached.
    places: Vec<(Address, Address)>,
    copies: HashMap<E, Copy, RandomState>,
    entries: HashMap<Key, E, RandomState>,
    tombstones: Tombstones<Key, Tombstone>,
    counters: TableCounters,
}

/// A message to another server.
pub type Message = (Address, Control);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    id: TieId,
    /// A client has one copy of a tie at a server; without this, its ids would be everyone's.
    client: Address,
}

#[derive(Debug)]
struct Copy {
    /// Its addresses in canonical form.
    header: TieHeader,
    /// As the session has it: what a cancel to the others names.
    client: Address,
    key: Key,
    state: State,
    /// Bit n: somebody else sees to it that the server of rank n is told of the start.
    told: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Demoted,
    Started { at: Time },
    Stopped { started: Time },
}

#[derive(Clone, Copy, Debug)]
struct Tombstone {
    mode: Mode,
    /// Who sent the cancel (in canonical form), and for which ranks: checked against the copy when it comes.
    sender: Address,
    from: u8,
    to: u8,
}

impl<E: std::marker::Copy + Eq + Hash> Table<E> {
    /// An empty table.
    pub fn new(mut config: TableConfig) -> Table<E> {
        let allowed = std::mem::take(&mut config.allowed);
        Table {
            tombstones: Tombstones::new(config.tombstones, config.tombstone_life),
            places: allowed.into_iter().map(|allowed| (canonical(&allowed), allowed)).collect(),
            config,
            copies: HashMap::default(),
            entries: HashMap::default(),
            counters: TableCounters::default(),
        }
    }

    /// Allows a replica.
    pub fn allow(&mut self, replica: Address) {
        if self.allowed(&replica).is_none() {
            self.places.push((canonical(&replica), replica));
        }
    }

    /// Forgets a replica: copies that name it are not cancelled there, nor by it.
    pub fn disallow(&mut self, replica: &Address) {
        let replica = canonical(replica);
        self.places.retain(|(place, _)| *place != replica);
    }

    /// A request came whose tie could not be read. It runs untied.
    pub fn malformed(&mut self) {
        self.counters.malformed += 1;
    }

    /// A copy came from `client`.
    pub fn admit(&mut self, entry: E, mut header: TieHeader, client: Address, now: Time) -> Admission {
        self.counters.admitted += 1;
        // Here, where the copy is about to wait, and not when another server waits for a word.
        header.copies.iter_mut().for_each(|address| *address = canonical(address));
        let key = self.key(header.id, client);
        let stone = self.tombstones.take(&key, now).filter(|stone| speaks_for(&header, stone.from, stone.to, &stone.sender));
        if let Some(Tombstone { mode: Mode::Cancel, .. }) = stone {
            self.counters.dropped_on_arrival += 1;
            return Admission::Drop;
        }
        let (state, admission) = match stone {
            Some(_) => (State::Demoted, Admission::Demote),
            None => (State::Queued, Admission::Run),
        };
        if self.entries.contains_key(&key) {
            self.counters.untied_duplicate += 1;
        } else if self.copies.len() >= self.config.copies {
            self.counters.untied_full += 1;
        } else {
            self.entries.insert(key, entry);
            self.copies.insert(entry, Copy { header, client, key, state, told: 0 });
        }
        admission
    }

    /// What will be said if a copy that waits starts, and what if one of the others does: for each other server that is allowed, its address,
    /// the cancel to it, and the cancel from it that would drop this copy, both with a time of 0. `true` from `leave` says that the first one is
    /// sent when this copy starts: then [`Table::started`] does not give it again.
    pub fn prepare(&mut self, entry: E, mut leave: impl FnMut(Address, &Control, Option<&Control>) -> bool) {
        let Some(copy) = self.copies.get_mut(&entry).filter(|copy| copy.state == State::Queued) else { return };
        let (id, mode, own, client, sent_at) = (copy.header.id, copy.header.mode, copy.header.rank, copy.client, 0);
        for (rank, address) in (0..).zip(&copy.header.copies) {
            let Some(address) = allowed(&self.places, address).filter(|_| rank != own) else { continue };
            let said = Control::Cancel { id, mode, from: own, to: rank, client, sent_at };
            let heard = Control::Cancel { id, mode, from: rank, to: own, client, sent_at };
            if leave(address, &said, (mode == Mode::Cancel).then_some(&heard)) {
                copy.told |= 1 << rank;
            }
        }
    }

    /// A copy has started at `at`: tells, by `tell`, the servers of the others. A demoted copy tells nobody: it runs because there was
    /// time, and whoever started first is not to be stopped for it.
    pub fn started(&mut self, entry: E, at: Time, mut tell: impl FnMut(Address, Control)) {
        let Some(copy) = self.copies.get_mut(&entry) else { return };
        let was = copy.state;
        copy.state = match was {
            State::Queued | State::Demoted => State::Started { at },
            // Stopped before the word of its start came.
            State::Stopped { .. } => State::Stopped { started: at },
            State::Started { .. } => was,
        };
        if was != State::Queued {
            return;
        }
        let (header, client, sent_at) = (&copy.header, copy.client, at.as_nanos());
        for (rank, address) in header.copies.iter().enumerate() {
            let to = rank as u8;
            if to == header.rank {
                continue;
            }
            if copy.told & 1 << to != 0 {
                self.counters.cancels_sent += 1;
                continue;
            }
            // The allowed entry and not the copy's: it may have a scope, which does not travel.
            let Some(address) = allowed(&self.places, address) else {
                self.counters.strangers += 1;
                continue;
            };
            let cancel = Control::Cancel { id: header.id, mode: header.mode, from: header.rank, to, client, sent_at };
            self.counters.cancels_sent += 1;
            tell(address, cancel);
        }
    }

    /// A copy is over: it ran to its end, was dropped, or its client gave it up.
    pub fn finished(&mut self, entry: E, at: Time) {
        if let Some(copy) = self.copies.remove(&entry) {
            self.entries.remove(&copy.key);
            if let State::Stopped { started } = copy.state {
                self.counters.wasted += at.since(started);
            }
        }
    }

    /// Another server's copy has started. Gives what to answer it.
    pub fn cancel(&mut self, control: &Control, sender: Address, now: Time, queue: &mut impl Queue<E>) -> Option<Message> {
        let Control::Cancel { id, mode, from, to, client, sent_at } = *control else { return None };
        let sender = canonical(&sender);
        let Some(reply_to) = allowed(&self.places, &sender) else {
            self.counters.refused += 1;
            return None;
        };
        let key = self.key(id, client);
        let outcome = match self.entries.get(&key).copied() {
            None => {
                self.tombstones.insert(key, Tombstone { mode, sender, from, to }, now);
                Outcome::Unknown
            }
            Some(entry) => {
                let copy = self.copies.get_mut(&entry).expect("entries and copies are changed together");
                if !speaks_for(&copy.header, from, to, &sender) {
                    self.counters.refused += 1;
                    return None;
                }
                let (outcome, over) = cancel_copy(copy, entry, mode, from, to, now, queue);
                if over {
                    self.finished(entry, now);
                }
                outcome
            }
        };
        self.counters.cancels_taken.add(outcome);
        Some((reply_to, Control::Outcome { id, from: to, to: from, outcome, sent_at }))
    }

    /// What became of a cancel that this server sent. Gives the time from the start of its copy to the arrival of this report: a round
    /// trip, so the cancel took about half of it.
    pub fn outcome(&mut self, control: &Control, sender: Address, now: Time) -> Option<(Outcome, Duration)> {
        let Control::Outcome { outcome, sent_at, .. } = *control else { return None };
        let sent_at = Time::from_nanos(sent_at);
        if self.allowed(&sender).is_none() || sent_at > now {
            self.counters.refused += 1;
            return None;
        }
        self.counters.outcomes.add(outcome);
        Some((outcome, now.since(sent_at)))
    }

    /// What was counted.
    pub fn counters(&self) -> &TableCounters {
        &self.counters
    }

    /// Copies known.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Are no copies known?
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Tombstones kept, and how many were dropped early for want of room.
    pub fn tombstones(&self) -> (usize, u64) {
        (self.tombstones.len(), self.tombstones.evicted())
    }

    fn allowed(&self, address: &Address) -> Option<Address> {
        allowed(&self.places, &canonical(address))
    }

    fn key(&self, id: TieId, client: Address) -> Key {
        let mut client = canonical(&client);
        if let (Address::Inet(address), false) = (&mut client, self.config.match_client_port) {
            address.set_port(0);
        }
        Key { id, client }
    }
}

/// The allowed replica that a canonical `address` names, as it is to be reached.
fn allowed(places: &[(Address, Address)], address: &Address) -> Option<Address> {
    places.iter().find(|(place, _)| place == address).map(|(_, allowed)| *allowed)
}

/// What a cancel does to a copy that is here, and whether the copy is over with that.
fn cancel_copy<E: std::marker::Copy>(
    copy: &mut Copy,
    entry: E,
    mode: Mode,
    from: u8,
    to: u8,
    now: Time,
    queue: &mut impl Queue<E>,
) -> (Outcome, bool) {
    if copy.state == State::Queued || copy.state == State::Demoted {
        match mode {
            Mode::Demote if queue.demote(entry) => {
                (copy.state, copy.told) = (State::Demoted, 0);
                return (Outcome::Demoted, false);
            }
            Mode::Demote => {}
            Mode::Cancel => match queue.drop_queued(entry) {
                Removal::Dropped => return (Outcome::Dropped, true),
                Removal::Gone => return (Outcome::Unknown, true),
                Removal::Started => {}
            },
        }
    }
    // Both have started (this one perhaps a moment ago, and its word is still on the way here).
    if to < from {
        return (Outcome::Kept, false);
    }
    let started = match copy.state {
        State::Started { at } => at,
        State::Stopped { .. } => return (Outcome::Stopped, false),
        State::Queued | State::Demoted => now,
    };
    copy.state = State::Stopped { started };
    queue.stop(entry);
    (Outcome::Stopped, false)
}

/// Whether `sender`, in canonical form, is the server of the copy of rank `from`, and `to` the rank of this one, as the copy itself has it.
fn speaks_for(header: &TieHeader, from: u8, to: u8, sender: &Address) -> bool {
    header.rank == to && from != to && header.copies.get(usize::from(from)).is_some_and(|address| address == sender)
}

#[cfg(test)]
mod tests;
