//! Waiting for packets, time and other threads. Blocking is by `epoll`, through mio; a timer descriptor brings deadlines in, because
//! `epoll`'s own time-out counts whole milliseconds.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::unix::SourceFd;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use tautline_net::clock::Time;
use tautline_net::endpoint::Endpoint;

use super::Node;
use super::config::Wait;
use crate::error::BuildError;
use crate::mail::Mail;

const WAKER: mio::Token = mio::Token(0);
const TIMER: mio::Token = mio::Token(1);
const PORT: mio::Token = mio::Token(2);

/// How a node waits.
#[derive(Debug)]
pub(crate) enum Waiting {
    Spin,
    Block(Box<Blocker>),
}

/// What blocking needs.
#[derive(Debug)]
pub(crate) struct Blocker {
    poll: mio::Poll,
    events: mio::Events,
    timer: OwnedFd,
    /// When the timer goes off; armed again only if that changes.
    armed: Option<Time>,
    /// How long to look again before blocking.
    spin: Duration,
    idle_since: Option<Time>,
}

impl Waiting {
    pub(crate) fn new(wait: Wait, spin: Duration, endpoint: &mut Endpoint, mail: &Arc<Mail>) -> Result<Waiting, BuildError> {
        let spin = match wait {
            Wait::Spin => return Ok(Waiting::Spin),
            Wait::Adaptive => spin,
            Wait::Park => Duration::ZERO,
        };
        let system = |action| move |source| BuildError::System { action, source };
        let poll = mio::Poll::new().map_err(system("opening an event queue (epoll)"))?;
        let waker = mio::Waker::new(poll.registry(), WAKER).map_err(system("opening an event descriptor (eventfd)"))?;
        let waker = Arc::new(waker);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(io::Error::from)
            .map_err(system("opening a timer descriptor (timerfd)"))?;
        poll.registry()
            .register(&mut SourceFd(&timer.as_raw_fd()), TIMER, mio::Interest::READABLE)
            .map_err(system("watching the timer descriptor"))?;
        endpoint.attach_wait(poll.registry(), PORT, &waker).map_err(system("watching the port"))?;
        mail.attach(waker);
        let events = mio::Events::with_capacity(16);
        Ok(Waiting::Block(Box::new(Blocker { poll, events, timer, armed: None, spin, idle_since: None })))
    }
}

impl Blocker {
    /// Whether the node has been idle for long enough to block.
    fn is_patient(&mut self, done: usize, now: Time) -> bool {
        if done > 0 {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        now.since(since) >= self.spin
    }

    /// Blocks until something is ready or `due` has come.
    fn block(&mut self, due: Option<Time>, now: Time) -> io::Result<()> {
        if due != self.armed {
            self.arm(due, now)?;
        }
        match self.poll.poll(&mut self.events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        if self.events.iter().any(|event| event.token() == TIMER) {
            // A timer goes off once.
            self.armed = None;
        }
        self.idle_since = None;
        Ok(())
    }

    fn arm(&mut self, due: Option<Time>, now: Time) -> io::Result<()> {
        // Zero would mean: off.
        let nanos = due.map_or(0, |due| due.nanos_since(now).max(1));
        let value = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(self.timer.as_fd(), TimerfdTimerFlags::empty(), &Itimerspec { it_interval: never, it_value: value })?;
        self.armed = due;
        Ok(())
    }
}

impl Node {
    /// After a turn in which `done` things were done: goes on, or waits.
    #[inline]
    pub(super) fn idle(&mut self, done: usize) {
        match &mut self.waiting {
            Waiting::Spin => {
                if done == 0 {
                    std::hint::spin_loop();
                }
            }
            Waiting::Block(blocker) => {
                let now = self.shared.core.borrow().now;
                if blocker.is_patient(done, now) {
                    self.block();
                } else if done == 0 {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Blocks, unless there is something to do. Each source of work is looked at after it was told that the node sleeps, so
    /// that none is missed.
    fn block(&mut self) {
        let Waiting::Block(blocker) = &mut self.waiting else { return };
        let mail = &self.shared.mail;
        let mut core = self.shared.core.borrow_mut();
        if core.server.own.has_runnable() || !core.hook_notes.is_empty() {
            return;
        }
        mail.prepare_wait();
        let now = core.read_clock();
        if !mail.is_empty() || self.root.woken.load(Ordering::Acquire) || !core.endpoint.before_wait(now) {
            mail.finish_wait();
            core.endpoint.after_wait();
            return;
        }
        let due = core.next_timeout();
        if due.is_none_or(|due| due > now) {
            core.metrics.node.waits += 1;
            drop(core);
            let blocked = blocker.block(due, now);
            core = self.shared.core.borrow_mut();
            if let Err(error) = blocked {
                // Without the event queue the node can still serve, at the price of a core.
                tracing::error!(%error, "waiting for events failed; this node spins from now on");
                self.waiting = Waiting::Spin;
            }
        }
        mail.finish_wait();
        core.endpoint.after_wait();
        core.fresh = false;
    }
}
