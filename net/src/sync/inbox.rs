//! The way into a poller from other threads: a bounded queue, and a slot that wakes it if it sleeps.

use super::queue::Queue;
use super::wake::{Wake, WakeSlot};

/// What other threads send to one poller. Shared by an `Arc`; the poller pops.
#[derive(Debug)]
pub struct Inbox<T> {
    queue: Queue<T>,
    slot: WakeSlot,
}

impl<T> Inbox<T> {
    /// An inbox of at least `capacity` messages. Its poller may not sleep before [`Inbox::attach`] says how to wake it.
    pub fn new(capacity: usize) -> Inbox<T> {
        Inbox { queue: Queue::new(capacity), slot: WakeSlot::new() }
    }

    /// Sets how the poller is woken. `false` if that was set before; then nothing changes.
    pub fn attach(&self, action: impl Wake + 'static) -> bool {
        self.slot.attach(action)
    }

    /// Sends `message` and wakes the poller if it sleeps, or gives the message back if the inbox is full.
    #[inline]
    pub fn push(&self, message: T) -> Result<(), T> {
        self.push_quiet(message)?;
        self.wake();
        Ok(())
    }

    /// Sends `message` without waking anybody: for bursts, which end with one [`Inbox::wake`].
    #[inline]
    pub fn push_quiet(&self, message: T) -> Result<(), T> {
        self.queue.push(message)
    }

    /// Wakes the poller if it sleeps.
    #[inline]
    pub fn wake(&self) {
        self.slot.wake();
    }

    /// Poller: takes the oldest message.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// How many messages wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Does none wait?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many messages the inbox can hold.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Poller: announces that it is going to sleep. `false` if there are messages: then it is still awake and must not. After
    /// `true` it may sleep, and calls [`Inbox::finish_wait`] when it is awake again.
    pub fn prepare_wait(&self) -> bool {
        self.slot.prepare();
        let empty = self.is_empty();
        if !empty {
            self.slot.finish();
        }
        empty
    }

    /// Poller: is awake again.
    #[inline]
    pub fn finish_wait(&self) {
        self.slot.finish();
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_full_inbox_gives_the_message_back() {
        let inbox = Inbox::new(2);
        assert_eq!((inbox.push(1), inbox.push(2), inbox.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((inbox.pop(), inbox.pop(), inbox.pop()), (Some(1), Some(2), None));
    }

    #[test]
    fn a_poller_with_messages_is_told_not_to_sleep() {
        let inbox = Inbox::new(2);
        assert!(inbox.attach(std::thread::current()));
        assert!(!inbox.attach(std::thread::current()));
        assert!(inbox.prepare_wait());
        inbox.finish_wait();
        inbox.push(1).unwrap();
        assert!(!inbox.prepare_wait());
    }

    #[test]
    fn a_sleeping_poller_gets_every_message_of_many_senders() {
        const SENDERS: u64 = 3;
        const MESSAGES: u64 = if cfg!(debug_assertions) { 5_000 } else { 100_000 };
        let inbox = Arc::new(Inbox::new(64));
        inbox.attach(std::thread::current());
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let inbox = inbox.clone();
                std::thread::spawn(move || {
                    for number in 0..MESSAGES {
                        while inbox.push((sender, number)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut expected = [0; SENDERS as usize];
        while expected.iter().sum::<u64>() < SENDERS * MESSAGES {
            if let Some((sender, number)) = inbox.pop() {
                assert_eq!(number, expected[sender as usize]);
                expected[sender as usize] += 1;
            } else if inbox.prepare_wait() {
                std::thread::park();
                inbox.finish_wait();
            }
        }
        for sender in senders {
            sender.join().unwrap();
        }
    }
}
