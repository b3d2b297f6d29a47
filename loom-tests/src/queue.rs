//! The queue for many producers and consumers.

use loom::sync::Arc;
use loom::thread;
use tautline_net::sync::queue::Queue;

use crate::{UNBOUNDED, model};

fn pop_one<T>(queue: &Queue<T>) -> T {
    loop {
        match queue.pop() {
            Some(item) => return item,
            None => thread::yield_now(),
        }
    }
}

fn push_one<T>(queue: &Queue<T>, mut item: T) {
    while let Err(back) = queue.push(item) {
        item = back;
        thread::yield_now();
    }
}

/// Preemptions: unbounded. Three items through two slots: the third waits for a slot that another thread frees.
#[test]
fn items_arrive_once_and_in_order_over_the_wrap() {
    model(UNBOUNDED, || {
        let queue = Arc::new(Queue::new(2));
        let sender = {
            let queue = queue.clone();
            thread::spawn(move || (0..3).for_each(|item| push_one(&queue, item)))
        };
        let items: Vec<_> = (0..3).map(|_| pop_one(&queue)).collect();
        assert_eq!(items, [0, 1, 2]);
        sender.join().unwrap();
        assert_eq!((queue.pop(), queue.len()), (None, 0));
    });
}

/// Preemptions: 4. Two producers race for a position.
#[test]
fn two_producers_lose_nothing() {
    model(4, || {
        let queue = Arc::new(Queue::new(2));
        let senders: Vec<_> = (0..2)
            .map(|item| {
                let queue = queue.clone();
                thread::spawn(move || queue.push(item).unwrap())
            })
            .collect();
        let mut items = [pop_one(&queue), pop_one(&queue)];
        items.sort();
        assert_eq!(items, [0, 1]);
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(queue.pop(), None);
    });
}

/// Preemptions: unbounded. Two consumers and the main thread, which refills what they free.
#[test]
fn two_consumers_share_without_doubling() {
    model(UNBOUNDED, || {
        let queue = Arc::new(Queue::new(2));
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.pop())
            })
            .collect();
        let refilled = queue.push(4).is_ok();
        let mut sum: u32 = takers.into_iter().filter_map(|taker| taker.join().unwrap()).sum();
        while let Some(item) = queue.pop() {
            sum += item;
        }
        assert_eq!(sum, if refilled { 7 } else { 3 });
    });
}

/// Preemptions: unbounded. Items left in a queue go with it: loom reports an `Arc` that is leaked.
#[test]
fn what_is_in_the_queue_is_dropped_with_it() {
    model(UNBOUNDED, || {
        let witness = Arc::new(());
        let queue = Arc::new(Queue::new(2));
        let other = {
            let (queue, item) = (queue.clone(), witness.clone());
            thread::spawn(move || drop((queue.push(item), queue)))
        };
        drop(queue.pop());
        drop(queue);
        other.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}
