//! Futures that wait for a time, on the node's own timing wheel.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tautline_net::clock::Time;
use tautline_net::timer::Wheel;

use crate::core::Deferred;
use crate::local::Shared;

/// The sleeping futures of a node.
#[derive(Debug, Default)]
pub(crate) struct Sleeps {
    wheel: Wheel,
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Sleeps {
    pub(crate) fn next(&self) -> Option<Time> {
        self.wheel.next()
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.wheel.is_due(now)
    }

    /// How many futures sleep.
    pub(crate) fn len(&self) -> usize {
        self.wakers.len() - self.free.len()
    }

    pub(crate) fn expire(&mut self, now: Time, expired: &mut Vec<u32>, deferred: &mut VecDeque<Deferred>) {
        self.wheel.expire(now, expired);
        for slot in expired.drain(..) {
            // The future keeps its slot until it is polled or dropped.
            deferred.extend(self.wakers[slot as usize].take().map(Deferred::Wake));
        }
    }

    pub(crate) fn wake_all(&mut self, deferred: &mut VecDeque<Deferred>) {
        deferred.extend(self.wakers.iter_mut().filter_map(Option::take).map(Deferred::Wake));
    }

    fn add(&mut self, due: Time, waker: Waker) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.wakers.push(None);
            self.wakers.len() as u32 - 1
        });
        self.wakers[slot as usize] = Some(waker);
        self.wheel.insert(slot, due);
        slot
    }

    fn remove(&mut self, slot: u32) -> Option<Waker> {
        self.wheel.cancel(slot);
        self.free.push(slot);
        self.wakers[slot as usize].take()
    }
}

/// The future of [`Local::sleep_until`](crate::Local::sleep_until).
#[derive(Debug)]
pub struct Sleep {
    shared: Rc<Shared>,
    due: Time,
    slot: Option<u32>,
}

impl Sleep {
    pub(crate) fn new(shared: Rc<Shared>, due: Time) -> Sleep {
        Sleep { shared, due, slot: None }
    }

    /// When it completes.
    pub fn due(&self) -> Time {
        self.due
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut stale = None;
        let poll = {
            let mut core = this.shared.core.borrow_mut();
            core.refresh();
            if core.now >= this.due || core.stopped {
                stale = this.slot.take().and_then(|slot| core.sleeps.remove(slot));
                Poll::Ready(())
            } else {
                match this.slot {
                    Some(slot) => stale = core.sleeps.wakers[slot as usize].replace(cx.waker().clone()),
                    None => this.slot = Some(core.sleeps.add(this.due, cx.waker().clone())),
                }
                Poll::Pending
            }
        };
        drop(stale);
        poll
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let waker = self.shared.core.borrow_mut().sleeps.remove(slot);
            drop(waker);
        }
    }
}

/// The future of [`Local::yield_now`](crate::Local::yield_now).
#[derive(Debug)]
pub struct YieldNow {
    pub(crate) yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
