//! What two threads share, as one thread sees it: rings, queues, claims; and the timers and frames of one thread.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use tautline_net::clock::Time;
use tautline_net::frame::{Pool, PoolConfig};
use tautline_net::sync::claim::ClaimTable;
use tautline_net::sync::inbox::Inbox;
use tautline_net::sync::queue::Queue;
use tautline_net::sync::ring::spsc;
use tautline_net::sync::slot_ring::slot_ring;
use tautline_net::timer::Wheel;

const BURST: u64 = 32;

pub(crate) fn bench(criterion: &mut Criterion) {
    rings(criterion);
    claims(criterion);
    timers_and_frames(criterion);
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(1));
    let (mut producer, mut consumer) = spsc::<u64>(256);
    group.bench_function("spsc push and pop", |bencher| {
        bencher.iter(|| {
            producer.push(black_box(7)).expect("it is empty");
            black_box(consumer.pop())
        });
    });
    let queue = Queue::<u64>::new(256);
    group.bench_function("mpmc push and pop", |bencher| {
        bencher.iter(|| {
            queue.push(black_box(7)).expect("it is empty");
            black_box(queue.pop())
        });
    });
    let inbox = Inbox::<u64>::new(256);
    group.bench_function("inbox push and pop, owner awake", |bencher| {
        bencher.iter(|| {
            inbox.push(black_box(7)).expect("it is empty");
            black_box(inbox.pop())
        });
    });
    group.throughput(Throughput::Elements(BURST));
    let mut taken = Vec::with_capacity(BURST as usize);
    group.bench_function("spsc push and pop of 32", |bencher| {
        bencher.iter(|| {
            producer.push_burst(&mut (0..BURST));
            taken.clear();
            consumer.pop_burst(black_box(&mut taken), BURST as usize)
        });
    });
    for len in [64usize, 1344] {
        let (mut producer, mut consumer) = slot_ring(256, 4096);
        let (message, mut into) = (vec![7u8; len], vec![0u8; len]);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("byte slots, {len} B in and out"), |bencher| {
            bencher.iter(|| {
                producer.push(black_box(&message)).expect("it is empty");
                consumer.pop(|inline, rest| {
                    into[..inline.len()].copy_from_slice(inline);
                    into[inline.len()..].copy_from_slice(rest);
                });
                consumer.release();
                black_box(&into);
            });
        });
    }
    group.finish();
}

fn claims(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("claim");
    let table = ClaimTable::<u64>::new(1024);
    group.bench_function("insert, start, finish", |bencher| {
        bencher.iter(|| {
            let ticket = table.insert(black_box(7)).expect("it is empty");
            black_box(table.start(ticket));
            table.finish(ticket)
        });
    });
    group.bench_function("insert, cancel", |bencher| {
        bencher.iter(|| {
            let ticket = table.insert(black_box(7)).expect("it is empty");
            black_box(table.cancel(ticket))
        });
    });
    let stale = table.insert(7).expect("it is empty");
    table.cancel(stale);
    group.bench_function("cancel of what is gone", |bencher| bencher.iter(|| black_box(table.cancel(black_box(stale)))));
    // A run queue: tickets in line, the entries in the table.
    let line = Queue::new(1024);
    group.bench_function("through a run queue", |bencher| {
        bencher.iter(|| {
            let ticket = table.insert(black_box(7)).expect("it is empty");
            line.push(ticket).expect("it is empty");
            let ticket = line.pop().expect("it was pushed");
            black_box(table.start(ticket));
            table.finish(ticket)
        });
    });
    group.finish();
}

fn timers_and_frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("poller");
    let mut wheel = Wheel::new();
    (0..1024).for_each(|index| wheel.insert(index, Time::from_nanos(1_000_000 + u64::from(index) * 1_000)));
    let mut due = 0;
    group.bench_function("arm and disarm a timer among 1,024", |bencher| {
        bencher.iter(|| {
            due = (due + 7_919) % 1_000_000;
            wheel.insert(2_000, Time::from_nanos(1_000_000 + due));
            wheel.cancel(2_000);
        });
    });
    let pool = Pool::new(PoolConfig { frames: 256, frame_size: 2048 });
    group.bench_function("take a frame and give it back", |bencher| bencher.iter(|| drop(black_box(pool.take()))));
    group.finish();
}
