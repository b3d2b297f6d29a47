//! One turn of the poll loop. The order is that of urgency: what workers have started is told to hooks first, because another server waits
//! for that word; then packets, then timers, one queued job, tasks, and last everything that this made ready to send.

use std::hint::cold_path;

use tautline_net::endpoint::{Batch, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::sync::claim::Ticket;
use zerocopy::FromBytes;

use super::Node;
use super::run::Started;
use crate::client::call::Sink;
use crate::client::peers::Peer;
use crate::core::{Core, HookNote};
use crate::guarded::guarded;
use crate::handle::Command;
use crate::header::{CallNotice, HookHead, kind};
use crate::hook::{Entry, HookContext};
use crate::request::Origin;
use crate::server::dispatch::Dispatch;

/// Messages after which the rest waits for the next turn: what workers started, and what else arrived, is looked at in between.
const MESSAGES: usize = 64;

/// Commands taken from other threads in one turn.
const COMMANDS: usize = 64;

impl Node {
    pub(super) fn turn(&mut self) -> usize {
        let mut done = 0;
        if self.shared.mail.has_notes() {
            done += self.notes_first();
        }
        let (packets, has_work) = {
            let mut core = self.core();
            core.metrics.node.turns += 1;
            // What was submitted since the last turn leaves before the port is asked, which may take a system call; what of it is in packets
            // already, with the time of that, before the clock is.
            if core.fresh {
                let submitted = core.now;
                core.endpoint.transmit(submitted);
            }
            let now = core.read_clock();
            core.endpoint.flush(now);
            let packets = core.poll(now);
            if packets > 0 && !core.owed_cancels.is_empty() {
                // What the packets acknowledged makes room for them.
                core.endpoint.flush(now);
                core.send_owed_cancels();
            }
            let has_work = core.has_work() || self.shared.mail.has_jobs();
            core.fresh = has_work;
            (packets, has_work)
        };
        if has_work {
            done += self.work(packets > 0);
        }
        done + packets
    }

    /// Takes what workers say before anything else is done.
    #[inline(never)]
    fn notes_first(&mut self) -> usize {
        let mut core = self.core();
        core.read_clock();
        core.fresh = true;
        drop(core);
        self.take_notes()
    }

    /// The rest of a turn that has something to do.
    #[inline(never)]
    fn work(&mut self, flush: bool) -> usize {
        let mut done = self.take_events(flush);
        let (mut core, has_jobs) = (self.core(), self.shared.mail.has_jobs());
        if has_jobs || core.has_jobs() {
            drop(core);
            done += self.work_on_jobs();
            core = self.core();
        }
        let now = core.now;
        core.server.adjust_credits(now);
        if core.client.completions.is_empty() {
            core.endpoint.flush(now);
        } else {
            // The caller takes them, and may have something to send that is worth more than what can follow it.
            core.endpoint.flush_answers(now);
        }
        core.fresh = false;
        done
    }

    /// What is to be done beside what came of packets.
    #[inline(never)]
    fn work_on_jobs(&mut self) -> usize {
        self.core().expire_timers();
        self.settle();
        let mut done = usize::from(self.run_queued());
        done += self.run_tasks();
        done + self.take_commands()
    }

    /// What workers say. Hooks hear of a start before its reply can leave.
    fn take_notes(&mut self) -> usize {
        let mut taken = 0;
        while let Some(note) = self.shared.mail.next_note() {
            self.core().on_note(note);
            self.settle();
            taken += 1;
        }
        taken
    }

    /// What came of the packets, up to [`MESSAGES`] or some more. `flush`: what it caused leaves now. Says how many messages there were.
    #[inline]
    fn take_events(&mut self, flush: bool) -> usize {
        let mut taken = 0;
        loop {
            let mut core = self.shared.core.borrow_mut();
            let next = if taken < MESSAGES { core.endpoint.next_batch() } else { None };
            let Some(batch) = next else {
                if core.has_withdrawn() {
                    drop(core);
                    self.end_withdrawn();
                    core = self.shared.core.borrow_mut();
                }
                if flush {
                    let now = core.now;
                    core.endpoint.flush_answers(now);
                }
                return taken;
            };
            drop(core);
            match batch {
                Batch::Messages(mut messages) => {
                    while messages.next_into(&mut self.direct.payload) {
                        taken += 1;
                        self.on_message(messages.session());
                    }
                }
                Batch::Event(Event::Message { session, payload, .. }) => {
                    taken += 1;
                    self.direct.payload.replace_nothing(payload);
                    self.on_message(session);
                }
                Batch::Event(event) => self.on_event(event),
            }
        }
    }

    /// Takes the message whose payload lies in the direct request: payloads are large to move, and there a handler may want it.
    #[inline(never)]
    fn on_message(&mut self, session: SessionId) {
        let mut core = self.shared.core.borrow_mut();
        match self.direct.payload.first() {
            Some(&kind::REPLY) => {
                core.on_reply(session, &mut self.direct.payload);
                if core.is_settled() && !self.direct.payload.is_something() {
                    return;
                }
                drop(core);
            }
            Some(&kind::REQUEST) => {
                let dispatch = core.on_request(session, &mut self.direct);
                drop(core);
                match dispatch {
                    Dispatch::Direct(asked) => {
                        // It put nothing off: what a handler does on the node settles by itself.
                        return self.run_direct(&asked);
                    }
                    Dispatch::Done => {}
                    Dispatch::Ask { tag, ticket, extension, origin } => self.ask(tag, ticket, &extension, origin),
                }
            }
            _ => {
                cold_path();
                core.metrics.node.malformed += 1;
                drop(core);
            }
        }
        self.after_message();
    }

    /// The end of a message that left something to do.
    #[inline(never)]
    fn after_message(&mut self) {
        // What nobody wanted.
        if self.direct.payload.is_something() {
            self.direct.payload = Payload::empty();
        }
        self.settle();
    }

    /// What is not a message.
    #[inline(never)]
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Control { session, mut payload } => {
                let for_hook = self.core().on_control(session, &mut payload);
                if let Some((tag, origin)) = for_hook {
                    self.with_hook(tag, |hook, cx| hook.control(origin, &payload, cx));
                }
            }
            event => self.core().on_session_event(event),
        }
        self.settle();
    }

    /// Asks a hook what to do about a request.
    fn ask(&mut self, tag: u8, ticket: Ticket, extension: &[u8], origin: Origin) {
        if let Some(admit) = self.with_hook(tag, |hook, cx| hook.admit(Entry(ticket), extension, origin, cx)) {
            self.core().on_admitted(ticket, admit);
        }
    }

    /// Wakers, tokens and hooks that were put off. Hooks may cause more of each.
    #[inline]
    pub(super) fn settle(&mut self) {
        let settled = self.core().is_settled();
        if !settled {
            self.settle_all();
        }
    }

    /// Ends the requests that words took out, see [`Core::end_withdrawn`].
    #[cold]
    fn end_withdrawn(&mut self) {
        self.core().end_withdrawn();
        self.settle();
    }

    #[cold]
    fn settle_all(&mut self) {
        loop {
            // Hooks first: another server may be about to waste work, and a callback may take a while.
            let note = self.core().hook_notes.pop_front();
            match note {
                Some(HookNote::Started { tag, ticket, at, notify }) => {
                    self.with_hook(tag, |hook, cx| hook.started(Entry(ticket), at, cx));
                    let mut core = self.core();
                    let now = core.now;
                    core.endpoint.flush(now);
                    if let Some(notify) = notify {
                        core.send_started(notify);
                    }
                }
                Some(HookNote::Finished { tag, ticket, at }) => {
                    self.with_hook(tag, |hook, cx| hook.finished(Entry(ticket), at, cx));
                }
                None => {
                    self.shared.settle();
                    if self.core().hook_notes.is_empty() {
                        break;
                    }
                }
            }
        }
    }

    fn with_hook<R>(&mut self, tag: u8, act: impl FnOnce(&mut dyn crate::hook::Hook, &mut HookContext<'_>) -> R) -> Option<R> {
        let (_, hook) = self.hooks.iter_mut().find(|(known, _)| *known == tag)?;
        Some(act(hook.as_mut(), &mut HookContext { shared: &self.shared, tag }))
    }

    /// Runs the most urgent entry that is the poller's own: one a turn, so that cancels get in between.
    fn run_queued(&mut self) -> bool {
        let started = {
            let room = self.shared.executor.has_room();
            match self.core().start_next(room) {
                None => return false,
                Some(started) => started,
            }
        };
        // Hooks hear of the start before the handler runs, and what they send leaves before it.
        self.settle();
        if let Some(Started { ticket, job, at, service }) = started {
            let mut core = self.core();
            let now = core.now;
            core.endpoint.flush(now);
            drop(core);
            self.run_entry(ticket, job, at, service);
            self.settle();
        }
        true
    }

    fn run_tasks(&mut self) -> usize {
        if self.shared.mail.ready() == 0 {
            return 0;
        }
        let (ran, panicked) = self.shared.executor.run();
        self.core().metrics.node.task_panics += panicked;
        self.settle();
        ran
    }

    fn take_commands(&mut self) -> usize {
        let mut taken = 0;
        while taken < COMMANDS
            && let Some(command) = self.shared.mail.next_command()
        {
            taken += 1;
            self.core().metrics.node.commands += 1;
            self.obey(command);
        }
        taken
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Call { peer, method, payload, options, slot } => {
                let made = self
                    .shared
                    .with(|core| core.begin(&Peer::unresolved(peer), method, payload, &options, || Sink::Remote(slot.clone())));
                match made {
                    Ok(id) => slot.call.store(id.as_u64(), std::sync::atomic::Ordering::Relaxed),
                    Err(error) => slot.complete(Err(error)),
                }
            }
            Command::Cancel { slot } => {
                // Written by this thread: a cancel comes after its call.
                let id = slot.call.load(std::sync::atomic::Ordering::Relaxed);
                self.shared.with(|core| core.cancel_call(crate::client::call::CallId::from_u64(id)));
            }
            Command::Execute(work) => {
                let local = self.local();
                if guarded(|| work(&local)).is_none() {
                    tracing::error!("work sent to the node panicked; the node goes on");
                    self.core().metrics.node.task_panics += 1;
                }
            }
        }
        self.settle();
    }
}

impl Core {
    /// A session began, or ended.
    fn on_session_event(&mut self, event: Event) {
        match event {
            Event::Established { session, peer, .. } => self.on_established(session, peer),
            Event::Undelivered { session, token, transmitted } => self.on_undelivered(session, token, transmitted),
            Event::Closed { session, reason } => self.on_closed(session, reason),
            Event::Message { .. } | Event::Control { .. } => {}
        }
    }

    /// A control message: for a call, or for a hook, whose tag is given back then; what is left of the payload is the hook's.
    fn on_control(&mut self, session: SessionId, payload: &mut Payload) -> Option<(u8, Origin)> {
        match payload.first() {
            Some(&(kind::CANCEL | kind::STARTED)) => {
                if let Ok((notice, _)) = CallNotice::read_from_prefix(payload) {
                    match notice.kind {
                        kind::CANCEL => self.on_cancel(session, notice.call.get()),
                        _ => self.on_started(session, &notice),
                    }
                    return None;
                }
            }
            Some(&kind::HOOK) => {
                if let (Ok((head, _)), Some(state)) = (HookHead::read_from_prefix(payload), self.session(session))
                    && self.server.hooks.contains(&head.tag)
                {
                    let origin = Origin { session, address: state.address };
                    payload.trim_front(size_of::<HookHead>());
                    return Some((head.tag, origin));
                }
            }
            _ => {}
        }
        self.metrics.node.malformed += 1;
        None
    }
}
