//! The inbox: messages into a poller that sleeps when it has none.

use loom::sync::Arc;
use loom::thread;
use tautline_net::sync::inbox::Inbox;

use crate::{Seen, model};

fn inbox() -> Arc<Inbox<u32>> {
    let inbox = Arc::new(Inbox::new(2));
    inbox.attach(thread::current());
    inbox
}

/// The poller's loop as a node has it. loom reports a sleep that nobody ends as a deadlock.
fn receive(inbox: &Inbox<u32>, seen: &Seen) -> u32 {
    loop {
        if let Some(message) = inbox.pop() {
            return message;
        }
        if inbox.prepare_wait() {
            thread::park();
            seen.note("slept");
            inbox.finish_wait();
        } else {
            seen.note("told not to");
            thread::yield_now();
        }
    }
}

/// Preemptions: 5.
#[test]
fn a_sleeping_poller_gets_the_message() {
    model(5, &["slept", "told not to"], |seen| {
        let inbox = inbox();
        let sender = {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push(7).unwrap())
        };
        assert_eq!(receive(&inbox, seen), 7);
        sender.join().unwrap();
    });
}

/// Preemptions: 3.
#[test]
fn two_senders_wake_a_poller_that_sleeps_in_between() {
    model(3, &["slept", "told not to"], |seen| {
        let inbox = inbox();
        let senders = [1, 2].map(|message| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push(message).unwrap())
        });
        assert_eq!(receive(&inbox, seen) + receive(&inbox, seen), 3);
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(inbox.pop(), None);
    });
}

/// Preemptions: 5. A burst, woken for once at its end.
#[test]
fn a_quiet_burst_needs_one_wake_up() {
    model(5, &["slept", "told not to"], |seen| {
        let inbox = inbox();
        let sender = {
            let inbox = inbox.clone();
            thread::spawn(move || {
                inbox.push_quiet(1).unwrap();
                inbox.push_quiet(2).unwrap();
                inbox.wake();
            })
        };
        assert_eq!([receive(&inbox, seen), receive(&inbox, seen)], [1, 2]);
        sender.join().unwrap();
    });
}
