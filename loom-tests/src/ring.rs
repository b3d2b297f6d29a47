//! The ring for one producer and one consumer.

use loom::sync::Arc;
use loom::thread;
use tautline_net::sync::ring::{Consumer, spsc};

use crate::{UNBOUNDED, model};

/// Pops until `count` items are there, giving way while there is none.
fn pop_all<T>(consumer: &mut Consumer<T>, count: usize) -> Vec<T> {
    let mut items = Vec::new();
    while items.len() < count {
        match consumer.pop() {
            Some(item) => items.push(item),
            None => thread::yield_now(),
        }
    }
    items
}

/// Preemptions: 4. Four items through two slots: each slot is filled, freed and filled again.
#[test]
fn items_arrive_once_and_in_order_over_the_wrap() {
    model(4, || {
        let (mut producer, mut consumer) = spsc(2);
        let sender = thread::spawn(move || {
            for item in 0..4 {
                while producer.push(item).is_err() {
                    thread::yield_now();
                }
            }
        });
        assert_eq!(pop_all(&mut consumer, 4), [0, 1, 2, 3]);
        sender.join().unwrap();
        assert_eq!(consumer.pop(), None);
    });
}

/// Preemptions: unbounded. The same by bursts.
#[test]
fn bursts_arrive_once_and_in_order_over_the_wrap() {
    model(UNBOUNDED, || {
        let (mut producer, mut consumer) = spsc(2);
        let sender = thread::spawn(move || {
            let mut items = 0..5;
            while !items.is_empty() {
                if producer.push_burst(&mut items) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut items = Vec::new();
        while items.len() < 5 {
            if consumer.pop_burst(&mut items, 2) == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(items, [0, 1, 2, 3, 4]);
        sender.join().unwrap();
    });
}

/// Preemptions: unbounded. Whichever end goes first, each item is dropped once: loom reports an `Arc` that is leaked.
#[test]
fn what_is_in_the_ring_is_dropped_with_it() {
    model(UNBOUNDED, || {
        let witness = Arc::new(());
        let (mut producer, mut consumer) = spsc(2);
        let item = witness.clone();
        let sender = thread::spawn(move || {
            producer.push(item.clone()).unwrap();
            producer.push(item).unwrap();
        });
        drop(consumer.pop());
        drop(consumer);
        sender.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}
