//! The poller's own executor: futures of one thread, woken from any.
//!
//! A task that is ready has its runnable in a bounded lock-free queue. Each live task has at most one there, so a queue with room for every
//! task never overflows, and the number of tasks is bounded too.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::SpawnError;
use crate::guarded::guarded;
use crate::mail::Mail;

/// The tasks of a node.
#[derive(Debug)]
pub(crate) struct Executor {
    mail: Arc<Mail>,
    tasks: Rc<RefCell<Registry>>,
}

/// A waker of every live task, to end them all when the node goes.
#[derive(Debug)]
struct Registry {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
    limit: usize,
    closed: bool,
}

/// A task that is dropped, and its future with it, when this is.
pub(crate) type Abort = async_task::FallibleTask<()>;

impl Executor {
    /// `limit` tasks at most; the mail's queue of runnables has room for as many.
    pub(crate) fn new(mail: Arc<Mail>, limit: usize) -> Executor {
        let registry = Registry { wakers: Vec::new(), free: Vec::new(), limit, closed: false };
        Executor { mail, tasks: Rc::new(RefCell::new(registry)) }
    }

    pub(crate) fn spawn<F>(&self, future: F) -> Result<async_task::FallibleTask<F::Output>, SpawnError>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let place = {
            let mut tasks = self.tasks.borrow_mut();
            if tasks.closed {
                return Err(SpawnError::Stopped);
            }
            match tasks.free.pop() {
                Some(place) => place,
                None if tasks.wakers.len() < tasks.limit => {
                    tasks.wakers.push(None);
                    tasks.wakers.len() - 1
                }
                None => return Err(SpawnError::Full { limit: tasks.limit }),
            }
        };
        let registered = Registered { tasks: self.tasks.clone(), place };
        let future = async move {
            // Dropped with the future, however that ends.
            let _registered = registered;
            future.await
        };
        let mail = self.mail.clone();
        let (runnable, task) = async_task::spawn_local(future, move |runnable| mail.schedule(runnable));
        self.tasks.borrow_mut().wakers[place] = Some(runnable.waker());
        runnable.schedule();
        Ok(task.fallible())
    }

    /// Runs the tasks that are ready now, each once; what becomes ready meanwhile waits for the next turn. Says how many ran
    /// and how many of those panicked.
    pub(crate) fn run(&self) -> (usize, u64) {
        let (mut ran, mut panicked) = (0, 0);
        for _ in 0..self.mail.ready() {
            let Some(runnable) = self.mail.next_runnable() else { break };
            ran += 1;
            if guarded(|| runnable.run()).is_none() {
                panicked += 1;
                tracing::error!("a task panicked; the node goes on");
            }
        }
        (ran, panicked)
    }

    /// Whether another task can be spawned.
    pub(crate) fn has_room(&self) -> bool {
        let tasks = self.tasks.borrow();
        !tasks.free.is_empty() || tasks.wakers.len() < tasks.limit
    }

    /// How many tasks live.
    pub(crate) fn len(&self) -> usize {
        let tasks = self.tasks.borrow();
        tasks.wakers.len() - tasks.free.len()
    }

    /// Drops every task and its future. Nothing can be spawned after that.
    pub(crate) fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut tasks = self.tasks.borrow_mut();
            tasks.closed = true;
            tasks.wakers.iter_mut().filter_map(Option::take).collect()
        };
        // A woken task's runnable is in the queue; dropping it there drops the future.
        for waker in wakers {
            waker.wake();
        }
        // Another thread may be in the middle of waking a task: it has taken the wake-up upon itself, and the runnable comes in a
        // moment. (A task that drops its own node can't be dropped here: hence the bound.)
        let mut patience = 10_000;
        loop {
            match self.mail.next_runnable() {
                Some(runnable) => drop(runnable),
                None if self.len() == 0 => break,
                None if patience == 0 => {
                    tracing::warn!(tasks = self.len(), "tasks outlive their node");
                    break;
                }
                None => {
                    patience -= 1;
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// A task's place in the registry.
#[derive(Debug)]
struct Registered {
    tasks: Rc<RefCell<Registry>>,
    place: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let waker = {
            let mut tasks = self.tasks.borrow_mut();
            tasks.free.push(self.place);
            tasks.wakers[self.place].take()
        };
        drop(waker);
    }
}

/// A task spawned with [`Local::spawn`](crate::Local::spawn). Dropping this lets it run on.
#[derive(Debug)]
pub struct Task<T>(Option<async_task::FallibleTask<T>>);

impl<T> Task<T> {
    pub(crate) fn new(task: async_task::FallibleTask<T>) -> Task<T> {
        Task(Some(task))
    }

    /// Drops the task's future at the next turn.
    pub fn cancel(mut self) {
        drop(self.0.take());
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(|task| task.is_finished())
    }
}

impl<T> Future for Task<T> {
    /// The future's output; `None` if it panicked or the node is gone.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut self.0 {
            Some(task) => Pin::new(task).poll(cx),
            None => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// A future whose panics are results.
pub(crate) struct CatchPanic<T>(pub(crate) Pin<Box<dyn Future<Output = T>>>);

impl<T> Future for CatchPanic<T> {
    type Output = Result<T, ()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A future that panicked is never polled again.
        match guarded(|| self.0.as_mut().poll(cx)) {
            Some(poll) => poll.map(Ok),
            None => Poll::Ready(Err(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn closing_drops_tasks_that_another_thread_is_just_waking() {
        const ROUNDS: usize = 5_000;
        for _ in 0..ROUNDS {
            let mail = Mail::new(1, 1, 4);
            let executor = Executor::new(mail, 4);
            let (sender, wakers) = std::sync::mpsc::channel();
            for _ in 0..4 {
                let sender = sender.clone();
                let future = poll_fn(move |cx| {
                    let _ = sender.send(cx.waker().clone());
                    Poll::<()>::Pending
                });
                executor.spawn(future).unwrap().detach();
            }
            executor.run();
            let begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let begun = &begun;
                scope.spawn(move || {
                    begun.store(true, Ordering::Release);
                    wakers.try_iter().for_each(Waker::wake);
                });
                while !begun.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                executor.close();
                assert_eq!(executor.len(), 0);
            });
        }
    }
}
