//! The pieces under a call, each alone and on one core: what one operation takes when nothing else has the caches.
//!
//!     cargo bench -p tautline-bench                  all
//!     cargo bench -p tautline-bench -- session       those whose name has `session` in it
//!
//! Where an operation leaves something behind (a full ring, a claimed entry), what is timed is the pair that leaves nothing.

mod calls;
mod session;
mod sync;
mod tied;
mod wire;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(50)
}

criterion_group! {
    name = pieces;
    config = short();
    targets = wire::bench, session::bench, calls::bench, sync::bench, tied::bench
}
criterion_main!(pieces);
