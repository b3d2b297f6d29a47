//! Worker threads: each takes the most urgent entry, runs its handler, and tells the poller. With nothing to do it spins for a
//! moment, because a parked thread takes tens of microseconds to wake, and then parks.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Clock;
use tautline_net::sync::claim::Ticket;

use super::runqueue::{Note, RunQueue};
use crate::guarded::guarded;
use crate::request::Request;
use crate::service::{HandlerResult, WorkerHandler};
use crate::status::{Code, Status};

/// The threads; joined when dropped.
#[derive(Debug)]
pub(crate) struct Workers {
    queue: Arc<RunQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(queue: Arc<RunQueue>, count: usize, clock: &Clock, spin: Duration) -> io::Result<Workers> {
        let mut workers = Workers { queue, threads: Vec::with_capacity(count) };
        for index in 0..count {
            let (queue, clock) = (workers.queue.clone(), clock.clone());
            let thread = Builder::new().name(format!("tautline-worker-{index}"));
            workers.threads.push(thread.spawn(move || run(&queue, index, &clock, spin))?);
        }
        Ok(workers)
    }

    /// Tells the threads to end, each after the handler that it runs.
    pub(crate) fn stop(&self) {
        self.queue.crew.stop();
    }

    /// Waits for them.
    pub(crate) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // Handlers' panics are caught; a worker that failed otherwise has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

thread_local! {
    /// The queue that this thread works for.
    static EMPLOYER: RefCell<Option<(Arc<RunQueue>, Clock)>> = const { RefCell::new(None) };
}

/// Serves what is more urgent than `class`, if this thread is a worker. What is served here may come back for what is more urgent still,
/// so the nesting ends with the classes.
pub(crate) fn serve_above(class: Class) {
    let Some((queue, clock)) = EMPLOYER.with(|employer| employer.borrow().clone()) else { return };
    while let Some(ticket) = queue.search_above(class) {
        serve(&queue, ticket, &clock);
    }
}

fn run(queue: &Arc<RunQueue>, index: usize, clock: &Clock, spin: Duration) {
    EMPLOYER.with(|employer| *employer.borrow_mut() = Some((queue.clone(), clock.clone())));
    queue.crew.attach(index);
    queue.crew.begin_search();
    while !queue.crew.is_stopping() {
        match find(queue, clock, spin) {
            Some(ticket) => {
                queue.found();
                serve(queue, ticket, clock);
                queue.crew.begin_search();
            }
            None => queue.sleep(index),
        }
    }
}

/// Looks for a ticket for a while.
fn find(queue: &RunQueue, clock: &Clock, spin: Duration) -> Option<Ticket> {
    if let Some(ticket) = queue.search() {
        return Some(ticket);
    }
    let until = clock.now() + spin;
    while clock.now() < until && !queue.crew.is_stopping() {
        for _ in 0..16 {
            if let Some(ticket) = queue.search() {
                return Some(ticket);
            }
            std::hint::spin_loop();
        }
    }
    None
}

fn serve(queue: &RunQueue, ticket: Ticket, clock: &Clock) {
    // Cancelled, or an old ticket: somebody else's business.
    let Some(job) = queue.claims.start(ticket) else { return };
    let started = clock.now();
    queue.observe(job.request.class, job.arrived, started);
    if job.request.deadline <= started {
        return queue.mail.note(Note::Expired { ticket });
    }
    if job.announce {
        queue.mail.note(Note::Started { ticket, at: started });
    }
    let (answer, panicked) = match job.work {
        Some(work) => call(&work, job.request),
        None => (Err(Status::new(Code::Internal, "queued for a worker without a handler")), false),
    };
    queue.mail.note(Note::Finished { ticket, answer, panicked, started, ended: clock.now() });
}

/// Runs a handler; a panic is an answer too.
pub(crate) fn call(work: &WorkerHandler, request: Request) -> (HandlerResult, bool) {
    match guarded(|| work(request)) {
        Some(answer) => (answer, false),
        None => (Err(panicked()), true),
    }
}

/// The answer of a handler that panicked. What it said is in the log, not in the reply: it may hold what is not the caller's to know.
pub(crate) fn panicked() -> Status {
    Status::new(Code::Internal, "the handler panicked")
}
