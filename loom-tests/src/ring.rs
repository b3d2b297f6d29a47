//! The ring for one producer and one consumer.

use loom::sync::Arc;
use loom::thread;
use tautline_net::sync::ring::spsc;

use crate::model;

/// Preemptions: 3. Four items through two slots: each slot is filled, freed and filled again.
#[test]
fn items_arrive_once_and_in_order_over_the_wrap() {
    model(3, &["full", "empty"], |seen| {
        let (mut producer, mut consumer) = spsc(2);
        let sender = {
            let seen = seen.clone();
            thread::spawn(move || {
                for item in 0..4 {
                    while producer.push(item).is_err() {
                        seen.note("full");
                        thread::yield_now();
                    }
                }
            })
        };
        for expected in 0..4 {
            let item = loop {
                match consumer.pop() {
                    Some(item) => break item,
                    None => {
                        seen.note("empty");
                        thread::yield_now();
                    }
                }
            };
            assert_eq!(item, expected);
        }
        sender.join().unwrap();
        assert_eq!(consumer.pop(), None);
    });
}

/// Preemptions: 5. The same by bursts.
#[test]
fn bursts_arrive_once_and_in_order_over_the_wrap() {
    model(5, &["full", "partly", "empty", "one", "two"], |seen| {
        let (mut producer, mut consumer) = spsc(2);
        let sender = {
            let seen = seen.clone();
            thread::spawn(move || {
                let mut items = 0..5;
                while !items.is_empty() {
                    match producer.push_burst(&mut items) {
                        0 => {
                            seen.note("full");
                            thread::yield_now();
                        }
                        1 => seen.note("partly"),
                        _ => {}
                    }
                }
            })
        };
        let mut items = Vec::new();
        while items.len() < 5 {
            match consumer.pop_burst(&mut items, 2) {
                0 => {
                    seen.note("empty");
                    thread::yield_now();
                }
                count => seen.note(["one", "two"][count - 1]),
            }
        }
        assert_eq!(items, [0, 1, 2, 3, 4]);
        sender.join().unwrap();
    });
}

/// Preemptions: 5. Whichever end goes first, each item is dropped once: loom reports an `Arc` that is leaked.
#[test]
fn what_is_in_the_ring_is_dropped_with_it() {
    model(5, &["popped none", "popped one"], |seen| {
        let witness = Arc::new(());
        let (mut producer, mut consumer) = spsc(2);
        let item = witness.clone();
        let sender = thread::spawn(move || {
            producer.push(item.clone()).unwrap();
            producer.push(item).unwrap();
        });
        seen.note(if consumer.pop().is_some() { "popped one" } else { "popped none" });
        drop(consumer);
        sender.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}
