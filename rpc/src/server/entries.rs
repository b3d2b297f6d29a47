//! The poller's record of what waits and runs: who asked, how it may be answered, and what to undo when it ends.

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::SessionId;
use tautline_net::sync::claim::{Outcome, State, Ticket};

use super::own::Lane;
use super::runqueue::Job;
use super::{Kind, Server};
use crate::cancel::{CancelReason, CancelToken};
use crate::core::{Core, Deferred, HookNote, Notify};
use crate::executor::Abort;
use crate::hook::{CancelOutcome, Entry, QueuedCancel};
use crate::request::Request;

/// One entry of the run queue. Whether it waits or runs is in its claim word; everything here is the poller's alone.
#[derive(Debug)]
pub(crate) struct EntryState {
    pub(crate) ticket: Ticket,
    pub(crate) live: bool,
    pub(crate) session: SessionId,
    pub(crate) call: u64,
    pub(crate) service: u32,
    /// The class that the caller asked for, and the one that it runs in.
    pub(crate) class: Class,
    pub(crate) run_class: Class,
    pub(crate) deadline: Time,
    pub(crate) arrived: Time,
    pub(crate) notify_start: bool,
    /// Where it waits if the poller runs it; `None` if a worker does.
    pub(crate) own: Option<Lane>,
    /// Nobody waits for the reply.
    pub(crate) mute: bool,
    /// It was cancelled, by other means than its own handler.
    pub(crate) cancelled: bool,
    /// The tag of the hook that watches it; zero if none does.
    pub(crate) hook: u8,
    /// Its first standing order; zero if it has none.
    pub(crate) orders: u32,
    pub(crate) token: Option<CancelToken>,
    /// The running future, if cancelling drops it.
    pub(crate) task: Option<Abort>,
    /// In its session's list; neighbours there, plus one.
    listed: bool,
    newer: u32,
    older: u32,
}

impl Default for EntryState {
    fn default() -> EntryState {
        EntryState {
            ticket: Ticket { slot: 0, generation: 0 },
            live: false,
            session: SessionId::from_u64(u64::MAX),
            call: 0,
            service: 0,
            class: Class::Normal,
            run_class: Class::Normal,
            deadline: Time::NEVER,
            arrived: Time::ZERO,
            notify_start: false,
            own: None,
            mute: false,
            cancelled: false,
            hook: 0,
            orders: 0,
            token: None,
            task: None,
            listed: false,
            newer: 0,
            older: 0,
        }
    }
}

/// Whom an entry was for, after it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) session: SessionId,
    pub(crate) call: u64,
    pub(crate) service: u32,
    pub(crate) class: Class,
    pub(crate) arrived: Time,
    pub(crate) mute: bool,
    pub(crate) cancelled: bool,
    /// Its handler, which runs where it was received, is timed.
    pub(crate) sampled: bool,
}

/// A request about to become an entry.
pub(crate) struct NewEntry {
    pub(crate) request: Request,
    pub(crate) call: u64,
    pub(crate) service: u32,
    pub(crate) notify_start: bool,
    pub(crate) hook: u8,
}

impl Server {
    pub(crate) fn entry(&self, ticket: Ticket) -> Option<&EntryState> {
        self.entries.get(ticket.slot as usize).filter(|entry| entry.live && entry.ticket == ticket)
    }

    pub(crate) fn entry_mut(&mut self, ticket: Ticket) -> Option<&mut EntryState> {
        self.entries.get_mut(ticket.slot as usize).filter(|entry| entry.live && entry.ticket == ticket)
    }

    pub(crate) fn class_of(&self, ticket: Ticket) -> Option<Class> {
        self.entry(ticket).map(|entry| entry.run_class)
    }

    /// The number of entries that wait or run.
    pub(crate) fn len(&self) -> usize {
        self.outstanding.iter().sum()
    }

    /// Makes an entry that is in no queue yet; `None` if there is no room for it.
    pub(crate) fn insert(&mut self, new: NewEntry, now: Time) -> Option<Ticket> {
        let NewEntry { request, call, service, notify_start, hook } = new;
        let (class, session, deadline) = (request.class, request.origin.session, request.deadline);
        let state = &self.services[service as usize];
        if self.outstanding[class.index()] >= self.limits[class.index()] || state.outstanding >= state.limit {
            return None;
        }
        let token = request.new_token();
        let _ = request.token.set(token.clone());
        let work = match &state.kind {
            Kind::Workers(work) if self.has_workers => Some(work.clone()),
            _ => None,
        };
        let own = match (&work, &state.kind) {
            (Some(_), _) => None,
            (None, Kind::Future { .. }) => Some(Lane::Future),
            (None, _) => Some(Lane::Short),
        };
        let job = Job { request, work, arrived: now, announce: notify_start || hook != 0 };
        let ticket = self.queue.claims.insert(job).ok()?;
        self.queue.set_class(ticket, class);
        self.outstanding[class.index()] += 1;
        self.services[service as usize].outstanding += 1;
        self.by_call.insert((session.slot() as u32, call), ticket.slot);
        if deadline != Time::NEVER {
            self.wheel.insert(ticket.slot, deadline);
        }
        let older = std::mem::replace(&mut self.client(session).newest, ticket.slot + 1);
        if older != 0 {
            self.entries[older as usize - 1].newer = ticket.slot + 1;
        }
        self.entries[ticket.slot as usize] = EntryState {
            ticket,
            live: true,
            session,
            call,
            service,
            class,
            run_class: class,
            deadline,
            arrived: now,
            notify_start,
            own,
            mute: false,
            cancelled: false,
            hook,
            orders: 0,
            token: Some(token),
            task: None,
            listed: true,
            newer: 0,
            older,
        };
        if let Some(lane) = own {
            self.own.arrived(lane);
        }
        Some(ticket)
    }

    /// Queues an entry in its class. `false` if there is no room.
    pub(crate) fn enqueue(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.entry(ticket) else { return true };
        let class = entry.run_class;
        let Some(lane) = entry.own else { return self.queue.push(ticket, class) };
        let entries = &self.entries;
        self.own.push(lane, class, ticket, |ticket| is_void(entries, ticket, class));
        true
    }

    /// The next entry that the poller may run itself: it is still to be claimed.
    pub(crate) fn next_own(&mut self) -> Option<Ticket> {
        while let Some((ticket, class)) = self.own.pop() {
            if !is_void(&self.entries, ticket, class) {
                return Some(ticket);
            }
        }
        None
    }

    pub(crate) fn left_line(&mut self, own: Option<Lane>) {
        if let Some(lane) = own {
            self.own.left(lane);
        }
    }

    /// Takes an entry out of its session's list: the session has ended, or the entry.
    fn unlist(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if !std::mem::replace(&mut entry.listed, false) {
            return;
        }
        let (session, call, newer, older) = (entry.session, entry.call, entry.newer, entry.older);
        self.by_call.remove(&(session.slot() as u32, call));
        if newer != 0 {
            self.entries[newer as usize - 1].older = older;
        } else {
            self.client(session).newest = older;
        }
        if older != 0 {
            self.entries[older as usize - 1].newer = newer;
        }
    }
}

/// Whether a ticket in a line of the poller's own is of no use: its entry has ended, or waits in a lower class now.
fn is_void(entries: &[EntryState], ticket: Ticket, class: Class) -> bool {
    let entry = &entries[ticket.slot as usize];
    !entry.live || entry.ticket != ticket || entry.run_class != class
}

impl Core {
    /// Forgets an entry that has ended; what it held goes back.
    pub(crate) fn remove_entry(&mut self, ticket: Ticket) -> Option<Asked> {
        self.server.entry(ticket)?;
        self.server.unlist(ticket.slot);
        let entry = &mut self.server.entries[ticket.slot as usize];
        entry.live = false;
        let asked = Asked {
            session: entry.session,
            call: entry.call,
            service: entry.service,
            class: entry.class,
            arrived: entry.arrived,
            mute: entry.mute,
            cancelled: entry.cancelled,
            sampled: false,
        };
        if entry.deadline != Time::NEVER {
            self.server.wheel.cancel(ticket.slot);
        }
        self.server.orders.forget(std::mem::take(&mut entry.orders));
        if entry.hook != 0 {
            self.hook_notes.push_back(HookNote::Finished { tag: entry.hook, ticket, at: self.now });
        }
        self.deferred.extend(entry.token.take().map(Deferred::Retire));
        self.deferred.extend(entry.task.take().map(Deferred::Abort));
        self.server.outstanding[asked.class.index()] -= 1;
        self.server.services[asked.service as usize].outstanding -= 1;
        Some(asked)
    }

    /// Cancels an entry: one that waits is gone with this, one that runs is told. `mute`: nobody waits for a reply.
    pub(crate) fn cancel_entry(&mut self, ticket: Ticket, reason: CancelReason, mute: bool) -> (CancelOutcome, Option<Asked>) {
        let Some(entry) = self.server.entry_mut(ticket) else { return (CancelOutcome::Gone, None) };
        entry.mute |= mute;
        let (own, service, class) = (entry.own, entry.service, entry.class);
        match self.server.take_out(ticket).0 {
            Outcome::Cancelled(job) => {
                // Its payload's frame goes back to the pool now.
                drop(job);
                self.server.left_line(own);
                (CancelOutcome::Dropped, self.remove_entry(ticket))
            }
            Outcome::AlreadyStarted => {
                let entry = &mut self.server.entries[ticket.slot as usize];
                entry.cancelled |= matches!(reason, CancelReason::Cancelled | CancelReason::Stopped);
                if let Some(token) = &entry.token {
                    self.deferred.push_back(Deferred::Fire(token.clone(), reason));
                }
                // After the callbacks, the future itself.
                self.deferred.extend(entry.task.take().map(Deferred::Abort));
                if reason == CancelReason::Cancelled {
                    self.metrics.serving(service, class).cancelled_running += 1;
                }
                (CancelOutcome::TokenFired, None)
            }
            Outcome::Gone => (CancelOutcome::Gone, None),
        }
    }

    /// The caller does not want the reply any more.
    pub(crate) fn on_cancel(&mut self, session: SessionId, call: u64) {
        let known = self.server.by_call.get(&(session.slot() as u32, call)).copied();
        let entry = known.map(|slot| &self.server.entries[slot as usize]).filter(|entry| entry.session == session);
        let Some(ticket) = entry.map(|entry| entry.ticket) else {
            // Answered already, or the cancel overtook its request.
            self.metrics.node.late_cancels += 1;
            self.server.client(session).tombstones.get_or_insert_default().add(call);
            return;
        };
        if let (CancelOutcome::Dropped, Some(asked)) = self.cancel_entry(ticket, CancelReason::Cancelled, true) {
            self.metrics.serving(asked.service, asked.class).cancelled_queued += 1;
        }
    }

    /// A session has ended: what it asked for and waits is dropped, what runs is told, and nothing of it will be answered.
    pub(crate) fn orphan_session(&mut self, session: SessionId) {
        if self.server.clients.get(session.slot()).is_none_or(|client| client.id != Some(session)) {
            return;
        }
        let mut next = self.server.client(session).newest;
        while next != 0 {
            let slot = next - 1;
            next = self.server.entries[slot as usize].older;
            let ticket = self.server.entries[slot as usize].ticket;
            if let (CancelOutcome::Dropped, Some(asked)) = self.cancel_entry(ticket, CancelReason::PeerGone, true) {
                self.metrics.serving(asked.service, asked.class).orphaned += 1;
            }
            // The slot's next session may use the same call numbers.
            self.server.unlist(slot);
        }
        self.server.clients[session.slot()] = super::Client::default();
    }

    /// Cancels on behalf of a hook. The caller of what was queued is told.
    pub(crate) fn hook_cancel(&mut self, entry: Entry) -> CancelOutcome {
        let (outcome, asked) = self.cancel_entry(entry.0, CancelReason::Cancelled, false);
        if let Some(asked) = asked {
            self.metrics.serving(asked.service, asked.class).cancelled_queued += 1;
            self.reply_cancelled(&asked);
        }
        outcome
    }

    /// The same, where only what waits is meant.
    pub(crate) fn hook_cancel_queued(&mut self, entry: Entry) -> QueuedCancel {
        let ticket = entry.0;
        let Some(own) = self.server.entry(ticket).map(|entry| entry.own) else { return QueuedCancel::Gone };
        let (outcome, since) = self.server.take_out(ticket);
        match outcome {
            Outcome::Cancelled(job) => {
                let at = since.unwrap_or_else(|| self.read_clock());
                drop(job);
                self.server.left_line(own);
                if let Some(asked) = self.remove_entry(ticket) {
                    self.metrics.serving(asked.service, asked.class).cancelled_queued += 1;
                    self.reply_cancelled(&asked);
                }
                QueuedCancel::Dropped { at }
            }
            Outcome::AlreadyStarted => QueuedCancel::Started,
            Outcome::Gone => QueuedCancel::Gone,
        }
    }

    /// Moves a waiting entry to a lower class.
    pub(crate) fn demote(&mut self, ticket: Ticket, class: Class) -> bool {
        let waits = self.server.queue.claims.state(ticket) == State::Queued;
        let Some(entry) = self.server.entry_mut(ticket) else { return false };
        if !waits || entry.run_class >= class {
            return false;
        }
        let (before, own) = (std::mem::replace(&mut entry.run_class, class), entry.own);
        if self.server.enqueue(ticket) {
            if own.is_none() {
                self.server.queue.demoted(ticket, class);
            }
            return true;
        }
        self.server.entries[ticket.slot as usize].run_class = before;
        false
    }

    /// The deadline of an entry has passed.
    pub(crate) fn on_entry_deadline(&mut self, slot: u32) {
        let entry = &self.server.entries[slot as usize];
        if !entry.live {
            return;
        }
        let ticket = entry.ticket;
        if let (CancelOutcome::Dropped, Some(asked)) = self.cancel_entry(ticket, CancelReason::Deadline, false) {
            self.metrics.serving(asked.service, asked.class).expired += 1;
            self.reply_expired(&asked);
        }
    }

    /// An entry was started: whoever asked to know is told.
    pub(crate) fn on_entry_started(&mut self, ticket: Ticket, at: Time) {
        self.tell(ticket, at);
        let Some(entry) = self.server.entry(ticket) else { return };
        let (hook, waited) = (entry.hook, at.since(entry.arrived));
        let notify = (entry.notify_start && !entry.mute).then_some(Notify { session: entry.session, call: entry.call, waited });
        if hook != 0 {
            // The hook's word is for a server that is about to waste work; the caller's can wait for it.
            self.hook_notes.push_back(HookNote::Started { tag: hook, ticket, at, notify });
        } else if let Some(notify) = notify {
            self.send_started(notify);
        }
    }
}
