//! The queue for many producers and many consumers.

use loom::sync::Arc;
use loom::thread;
use tautline_net::sync::queue::Queue;

use crate::{Seen, model};

fn pop_one<T>(queue: &Queue<T>, seen: &Seen) -> T {
    loop {
        match queue.pop() {
            Some(item) => return item,
            None => {
                seen.note("empty");
                thread::yield_now();
            }
        }
    }
}

fn push_one<T>(queue: &Queue<T>, mut item: T, seen: &Seen) {
    while let Err(back) = queue.push(item) {
        seen.note("full");
        item = back;
        thread::yield_now();
    }
}

/// Preemptions: 5. Four items through two slots: each slot is filled, freed and filled again.
#[test]
fn items_arrive_once_and_in_order_over_the_wrap() {
    model(5, &["full", "empty"], |seen| {
        let queue = Arc::new(Queue::new(2));
        let sender = {
            let (queue, seen) = (queue.clone(), seen.clone());
            thread::spawn(move || (0..4).for_each(|item| push_one(&queue, item, &seen)))
        };
        let items: Vec<_> = (0..4).map(|_| pop_one(&queue, seen)).collect();
        assert_eq!(items, [0, 1, 2, 3]);
        sender.join().unwrap();
        assert_eq!((queue.pop(), queue.len()), (None, 0));
    });
}

/// Preemptions: 3. Two producers race for a position.
#[test]
fn two_producers_lose_nothing() {
    model(3, &["empty", "first", "second"], |seen| {
        let queue = Arc::new(Queue::new(2));
        let senders: Vec<_> = (0..2)
            .map(|item| {
                let queue = queue.clone();
                thread::spawn(move || queue.push(item).unwrap())
            })
            .collect();
        let items = [pop_one(&queue, seen), pop_one(&queue, seen)];
        assert_eq!(items[0] + items[1], 1);
        seen.note(["first", "second"][items[0]]);
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(queue.pop(), None);
    });
}

/// Preemptions: 3. Two consumers race for a position, and the main thread refills what they free.
#[test]
fn two_consumers_share_without_doubling() {
    model(3, &["full", "first", "second"], |seen| {
        let queue = Arc::new(Queue::new(2));
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.pop().expect("there is an item for each"))
            })
            .collect();
        push_one(&queue, 4, seen);
        let taken: Vec<_> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
        seen.note(if taken[0] < taken[1] { "first" } else { "second" });
        let rest: u32 = std::iter::from_fn(|| queue.pop()).sum();
        assert_eq!(taken[0] + taken[1] + rest, 7);
    });
}

/// Preemptions: 5. Items left in a queue go with it: loom reports an `Arc` that is leaked.
#[test]
fn what_is_in_the_queue_is_dropped_with_it() {
    model(5, &["popped none", "popped one"], |seen| {
        let witness = Arc::new(());
        let queue = Arc::new(Queue::new(2));
        let other = {
            let (queue, item) = (queue.clone(), witness.clone());
            thread::spawn(move || {
                queue.push(item.clone()).unwrap();
                queue.push(item).unwrap();
            })
        };
        let popped = queue.pop().or_else(|| {
            seen.note("popped none");
            thread::yield_now();
            queue.pop()
        });
        if popped.is_some() {
            seen.note("popped one");
        }
        drop((popped, queue));
        other.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}
