//! What the hardware and the kernel allow without any protocol: the floors that the product is compared with.
//!
//! A floor is the fastest ping-pong of 64 bytes that one can write over the same path: two spinning threads, no header, no
//! acknowledgement, no check.

pub mod ring;
pub mod segmented;
pub mod udp;

use std::time::Duration;

use tautline_net::clock::Clock;

use crate::error::BenchError;
use crate::samples::Samples;

/// Bytes of a ping.
pub const PAYLOAD: usize = 64;

/// How long one round trip may take before a run is given up.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A ping-pong's client.
pub trait PingPong {
    /// One round trip.
    fn ping(&mut self) -> Result<(), BenchError>;
}

/// A floor's client, which can wait between its pings as one does that polls.
pub trait Floor: PingPong {
    /// One look for what nobody has sent.
    fn look(&mut self) -> Result<(), BenchError>;
}

/// Times `count` round trips after `warmup` untimed ones, back to back: one reading of the clock ends a trip and starts the next.
pub fn sample(clock: &Clock, warmup: usize, count: usize, client: &mut dyn PingPong) -> Result<Samples, BenchError> {
    for _ in 0..warmup {
        client.ping()?;
    }
    let mut samples = Samples::with_capacity(count);
    let mut before = clock.now();
    for _ in 0..count {
        client.ping()?;
        let after = clock.now();
        samples.record(after.nanos_since(before));
        before = after;
    }
    Ok(samples)
}

/// The same at a pace: a trip begins every `period` nanoseconds, and until then the client looks and looks, as its partner does.
pub fn sample_paced(
    clock: &Clock,
    warmup: usize,
    count: usize,
    period: u64,
    client: &mut dyn Floor,
) -> Result<Samples, BenchError> {
    let mut samples = Samples::with_capacity(count);
    for trip in 0..warmup + count {
        let before = clock.now();
        client.ping()?;
        let after = clock.now();
        if trip >= warmup {
            samples.record(after.nanos_since(before));
        }
        while clock.now().nanos_since(before) < period {
            client.look()?;
        }
    }
    Ok(samples)
}

/// Spins until `done` gives something, and gives up after [`PATIENCE`]. The clock is read every few thousand turns only, so
/// that it costs the wait nothing.
#[inline]
pub fn spin_for<T>(
    what: &'static str,
    clock: &Clock,
    mut done: impl FnMut() -> Result<Option<T>, BenchError>,
) -> Result<T, BenchError> {
    let mut deadline = None;
    loop {
        for _ in 0..4096 {
            if let Some(result) = done()? {
                return Ok(result);
            }
        }
        let now = clock.now();
        if now >= *deadline.get_or_insert(now + PATIENCE) {
            return Err(BenchError::Silent { what, seconds: PATIENCE.as_secs() });
        }
    }
}
