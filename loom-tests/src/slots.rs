//! The ring of byte slots between two `mem` ports.

use loom::thread;
use tautline_net::sync::slot_ring::{SlotConsumer, SlotProducer, slot_ring};

use crate::{Seen, model};

fn push(producer: &mut SlotProducer, datagram: u8, seen: &Seen) {
    while producer.push(&[datagram; 2]).is_err() {
        seen.note("full");
        thread::yield_now();
    }
}

fn pop(consumer: &mut SlotConsumer) -> Option<u8> {
    consumer.pop(|inline, rest| {
        assert_eq!((inline.len(), inline[0], rest.len()), (2, inline[1], 0));
        inline[0]
    })
}

/// Preemptions: 3. Four datagrams through two slots: each slot is filled, freed and filled again.
#[test]
fn datagrams_arrive_once_and_in_order_over_the_wrap() {
    model(3, &["full", "empty"], |seen| {
        let (mut producer, mut consumer) = slot_ring(2, 2);
        let sender = {
            let seen = seen.clone();
            thread::spawn(move || (0..4).for_each(|datagram| push(&mut producer, datagram, &seen)))
        };
        let mut expected = 0;
        while expected < 4 {
            match pop(&mut consumer) {
                Some(datagram) => {
                    assert_eq!(datagram, expected);
                    expected += 1;
                    consumer.release();
                }
                None => {
                    seen.note("empty");
                    thread::yield_now();
                }
            }
        }
        sender.join().unwrap();
        assert!(consumer.is_finished());
    });
}

/// Preemptions: 3. Slots go back to the producer by the burst.
#[test]
fn a_burst_is_released_at_once() {
    model(3, &["full", "one", "two"], |seen| {
        let (mut producer, mut consumer) = slot_ring(2, 2);
        let sender = {
            let seen = seen.clone();
            thread::spawn(move || (0..4).for_each(|datagram| push(&mut producer, datagram, &seen)))
        };
        let mut datagrams = Vec::new();
        while datagrams.len() < 4 {
            let before = datagrams.len();
            datagrams.extend(std::iter::from_fn(|| pop(&mut consumer)));
            match datagrams.len() - before {
                0 => thread::yield_now(),
                1 => seen.note("one"),
                _ => seen.note("two"),
            }
            consumer.release();
        }
        assert_eq!(datagrams, [0, 1, 2, 3]);
        sender.join().unwrap();
    });
}

/// Preemptions: 5. A producer that has gone leaves nothing behind unseen.
#[test]
fn a_ring_is_finished_after_its_last_datagram_and_not_before() {
    model(5, &["not yet"], |seen| {
        let (mut producer, mut consumer) = slot_ring(2, 2);
        thread::spawn(move || {
            producer.push(&[7; 2]).unwrap();
            producer.push(&[8; 2]).unwrap();
        });
        let mut datagrams = Vec::new();
        loop {
            datagrams.extend(std::iter::from_fn(|| pop(&mut consumer)));
            if consumer.is_finished() {
                break;
            }
            seen.note("not yet");
            thread::yield_now();
        }
        assert_eq!(datagrams, [7, 8]);
    });
}
