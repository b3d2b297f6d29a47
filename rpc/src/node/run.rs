//! Running handlers on the poller: at once, from the run queue, or as futures.

use std::rc::Rc;
use std::time::Duration;

use tautline_net::clock::Time;
use tautline_net::sync::claim::Ticket;

use super::Node;
use crate::cancel::{CancelReason, CancelToken};
use crate::core::Core;
use crate::executor::CatchPanic;
use crate::guarded::guarded;
use crate::local::Shared;
use crate::request::Request;
use crate::server::Kind;
use crate::server::entries::Asked;
use crate::server::orders::NIL;
use crate::server::runqueue::Job;
use crate::server::workers::{call, panicked};
use crate::service::{FutureHandler, HandlerResult, InlineHandler, WorkerHandler};
use crate::status::{Code, Status};

/// A handler, on the poller's side.
pub(crate) enum Runner {
    Inline(InlineHandler),
    Workers(WorkerHandler),
    Future(FutureHandler),
}

/// An entry that the poller has claimed.
pub(crate) struct Started {
    pub(crate) ticket: Ticket,
    pub(crate) job: Job,
    pub(crate) at: Time,
    pub(crate) service: u32,
}

impl Node {
    /// Runs an inline handler where its request was received, and answers.
    #[inline]
    pub(super) fn run_direct(&mut self, asked: &Asked) {
        let from = if asked.sampled { Some(self.core().sample_begins(asked)) } else { None };
        let answer = match &mut self.runners[asked.service as usize] {
            Runner::Inline(handler) => {
                let request = &mut self.direct;
                guarded(|| handler(request))
            }
            _ => not_inline(),
        };
        // Its frame goes back before the reply needs one.
        self.direct.clear();
        let mut core = self.shared.core.borrow_mut();
        if let Some(from) = from {
            core.sample_ends(asked, from);
        }
        match answer {
            Some(Ok(reply)) => core.send_ok(asked, reply.into_payload(), Duration::ZERO),
            Some(Err(status)) => core.send_failure(asked, &status, Duration::ZERO),
            None => core.send_panicked(asked),
        }
    }

    /// Runs an entry that the poller has claimed.
    pub(super) fn run_entry(&mut self, ticket: Ticket, job: Job, at: Time, service: u32) {
        let (answer, panicked) = match &mut self.runners[service as usize] {
            Runner::Inline(handler) => {
                let mut request = job.request;
                call_inline(handler, &mut request)
            }
            Runner::Workers(handler) => call(handler, job.request),
            Runner::Future(handler) => {
                let handler = handler.clone();
                return self.spawn_handler(&handler, ticket, job, at);
            }
        };
        let mut core = self.core();
        let ended = core.read_clock();
        core.finish_entry(ticket, answer, panicked, at, ended);
    }

    fn spawn_handler(&mut self, handler: &FutureHandler, ticket: Ticket, job: Job, at: Time) {
        self.core().server.own.future_begins();
        let token = job.request.cancellation().clone();
        let mut guard = Guard { shared: self.shared.clone(), ticket, at, token, open: true };
        let future = match guarded(|| handler(job.request)) {
            Some(future) => future,
            None => return guard.finish(Err(panicked()), true),
        };
        let task = self.shared.executor.spawn(async move {
            match CatchPanic(future).await {
                Ok(answer) => guard.finish(answer, false),
                Err(()) => guard.finish(Err(panicked()), true),
            }
        });
        // Where there is no room for the task, its guard has answered.
        let Ok(task) = task else { return };
        let mut core = self.core();
        let abort = core
            .server
            .entry(ticket)
            .is_some_and(|entry| matches!(core.server.services[entry.service as usize].kind, Kind::Future { abort: true }));
        match core.server.entry_mut(ticket) {
            Some(entry) if abort => entry.task = Some(task),
            _ => task.detach(),
        }
    }
}

impl Core {
    /// A handler that is timed is about to run where its request was received.
    #[cold]
    fn sample_begins(&mut self, asked: &Asked) -> Time {
        let from = self.read_clock();
        // It waited for those before it in its burst.
        self.server.pools[asked.class.index()].observe(from.nanos_since(asked.arrived), 1);
        from
    }

    /// It has run.
    #[cold]
    fn sample_ends(&mut self, asked: &Asked, from: Time) {
        let nanos = self.read_clock().nanos_since(from);
        self.metrics.serving(asked.service, asked.class).service_time.record(nanos);
    }

    /// It has panicked.
    #[cold]
    fn send_panicked(&mut self, asked: &Asked) {
        self.metrics.serving(asked.service, asked.class).panics += 1;
        self.send_failure(asked, &panicked(), Duration::ZERO);
    }

    /// Claims the next entry of the poller's own and starts it. `None`: there is none. Of one that has expired, or is a future where there is
    /// no room for one, nothing is left to run. `room`: for futures.
    pub(super) fn start_next(&mut self, room: bool) -> Option<Option<Started>> {
        loop {
            let ticket = self.server.next_own()?;
            let Some(entry) = self.server.entry(ticket) else { continue };
            let (own, orders) = (entry.own, entry.orders);
            if orders != NIL && self.may_start(ticket, room) {
                // Those who are to be told are told at once.
                let Some((job, at)) = self.claim_and_tell(ticket) else { continue };
                self.server.left_line(own);
                let (service, class, arrived) = (self.server.entry(ticket)?.service, job.request.class, job.arrived);
                self.server.pools[class.index()].observe(at.nanos_since(arrived), 1);
                self.on_entry_started(ticket, at);
                return Some(Some(Started { ticket, job, at, service }));
            }
            let Some(job) = self.server.queue.claims.start(ticket) else { continue };
            self.server.left_line(own);
            return Some(self.start_own(ticket, job, room));
        }
    }

    /// Whether an entry of the poller's own will run when it is claimed now.
    fn may_start(&mut self, ticket: Ticket, room: bool) -> bool {
        let now = self.read_clock();
        self.server.entry(ticket).is_some_and(|entry| {
            entry.deadline > now && (room || !matches!(self.server.services[entry.service as usize].kind, Kind::Future { .. }))
        })
    }

    /// Starts an entry of the poller's own; `None` if it has expired, or is a future and there is no room for one.
    fn start_own(&mut self, ticket: Ticket, job: Job, room: bool) -> Option<Started> {
        // The last handler may have taken long: the turn's time is too old to judge a deadline by, or to tell a hook.
        let at = if job.request.deadline == Time::NEVER && !job.announce { self.now } else { self.read_clock() };
        let (class, arrived) = (job.request.class, job.arrived);
        let started = self.start_checked(ticket, job, room, at);
        self.server.pools[class.index()].observe(at.nanos_since(arrived), 1);
        started
    }

    fn start_checked(&mut self, ticket: Ticket, job: Job, room: bool, at: Time) -> Option<Started> {
        if job.request.deadline <= at {
            drop(job);
            self.expire_started(ticket);
            return None;
        }
        let service = self.server.entry(ticket)?.service;
        if !room && matches!(self.server.services[service as usize].kind, Kind::Future { .. }) {
            drop(job);
            self.push_back_started(ticket);
            return None;
        }
        if job.announce {
            self.on_entry_started(ticket, at);
        }
        Some(Started { ticket, job, at, service })
    }

    /// The node stops: what waits is refused, what runs is told.
    pub(super) fn stop_entries(&mut self) {
        let tickets: Vec<Ticket> = self.server.entries.iter().filter(|entry| entry.live).map(|entry| entry.ticket).collect();
        for ticket in tickets {
            let (_, asked) = self.cancel_entry(ticket, CancelReason::Stopped, false);
            if let Some(asked) = asked.filter(|asked| !asked.mute) {
                let status = Status::new(Code::Unavailable, "the server is stopping");
                self.send_status(&asked, &status, crate::header::reply_flag::NOT_STARTED, Duration::ZERO);
            }
        }
    }
}

/// What is only run directly if it is inline is not: that can't be.
#[cold]
fn not_inline() -> Option<HandlerResult> {
    Some(Err(Status::new(Code::Internal, "the service is not inline")))
}

/// Ends a future's entry, however the future ends.
struct Guard {
    shared: Rc<Shared>,
    ticket: Ticket,
    at: Time,
    token: CancelToken,
    open: bool,
}

impl Guard {
    fn finish(&mut self, answer: HandlerResult, panicked: bool) {
        self.open = false;
        let (ticket, at) = (self.ticket, self.at);
        self.shared.with(|core| {
            let ended = core.read_clock();
            core.server.own.future_ends();
            core.finish_entry(ticket, answer, panicked, at, ended);
        });
    }
}

impl Drop for Guard {
    /// The future was dropped: cancelled, or the executor had no room.
    fn drop(&mut self) {
        if self.open {
            let status = match self.token.reason() {
                Some(CancelReason::Deadline) => Status::new(Code::DeadlineExceeded, "the deadline passed while the handler ran"),
                Some(CancelReason::Stopped) => Status::new(Code::Cancelled, "the server stopped while the handler ran"),
                Some(_) => Status::new(Code::Cancelled, "cancelled while the handler ran"),
                None => Status::new(Code::ResourceExhausted, "the server runs as many tasks as it may"),
            };
            self.finish(Err(status), false);
        }
    }
}

/// Runs an inline handler; a panic is an answer too.
#[inline]
fn call_inline(handler: &mut InlineHandler, request: &mut Request) -> (HandlerResult, bool) {
    match guarded(|| handler(request)) {
        Some(answer) => (answer, false),
        None => (Err(panicked()), true),
    }
}
