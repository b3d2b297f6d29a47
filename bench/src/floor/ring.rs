//! The floor of shared memory: a pair of single-producer rings of 64-byte messages between two threads.
//!
//! Each slot carries its sequence word on the payload's first line, so that a message costs the two line transfers that its bytes
//! need and no index is exchanged per message. It spins without a pause instruction, which on some processors costs more than the
//! whole trip. Written with atomics alone, for it is a yardstick and not a part of the product.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tautline_net::clock::Clock;

use super::{Floor, PAYLOAD, PingPong, spin_for};
use crate::duo::{Serve, Stage};
use crate::error::BenchError;

const WORDS: usize = PAYLOAD / 8;
const SLOTS: u64 = 64;

/// One message and the number it was sent under.
#[repr(align(128))]
#[derive(Default)]
struct Slot {
    sequence: AtomicU64,
    payload: [AtomicU64; WORDS],
}

#[repr(align(128))]
#[derive(Default)]
struct Consumed(AtomicU64);

struct Ring {
    slots: [Slot; SLOTS as usize],
    consumed: Consumed,
}

struct Sender {
    ring: Arc<Ring>,
    next: u64,
    /// What the receiver is known to have consumed: looked up again only when the ring seems full.
    consumed: u64,
}

struct Receiver {
    ring: Arc<Ring>,
    next: u64,
}

fn ring() -> (Sender, Receiver) {
    let ring = Arc::new(Ring { slots: std::array::from_fn(|_| Slot::default()), consumed: Consumed::default() });
    (Sender { ring: Arc::clone(&ring), next: 0, consumed: 0 }, Receiver { ring, next: 0 })
}

impl Sender {
    #[inline]
    fn try_send(&mut self, message: &[u64; WORDS]) -> bool {
        if self.next - self.consumed == SLOTS {
            self.consumed = self.ring.consumed.0.load(Ordering::Acquire);
            if self.next - self.consumed == SLOTS {
                return false;
            }
        }
        let slot = &self.ring.slots[(self.next % SLOTS) as usize];
        // Backwards, so that the line the receiver polls is written last and all at once.
        for (word, value) in slot.payload.iter().zip(message).rev() {
            word.store(*value, Ordering::Relaxed);
        }
        self.next += 1;
        slot.sequence.store(self.next, Ordering::Release);
        true
    }
}

impl Receiver {
    #[inline]
    fn try_receive(&mut self) -> Option<[u64; WORDS]> {
        let slot = &self.ring.slots[(self.next % SLOTS) as usize];
        if slot.sequence.load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        let message = std::array::from_fn(|n| slot.payload[n].load(Ordering::Relaxed));
        self.next += 1;
        self.ring.consumed.0.store(self.next, Ordering::Release);
        Some(message)
    }
}

/// The client's end.
pub struct RingClient {
    pings: Sender,
    pongs: Receiver,
    clock: Clock,
    number: u64,
}

/// The server's end: sends back what it receives.
pub struct RingEcho {
    pings: Receiver,
    pongs: Sender,
}

/// A client and its echo.
pub fn pair(clock: Clock) -> (RingClient, RingEcho) {
    let ((ping_in, ping_out), (pong_in, pong_out)) = (ring(), ring());
    (RingClient { pings: ping_in, pongs: pong_out, clock, number: 0 }, RingEcho { pings: ping_out, pongs: pong_in })
}

/// Both ends on one core: what moving the messages alone costs where nothing crosses cores.
pub struct RingLoop {
    client: RingClient,
    echo: RingEcho,
}

impl RingLoop {
    /// Two rings in a loop.
    pub fn new(clock: Clock) -> RingLoop {
        let (client, echo) = pair(clock);
        RingLoop { client, echo }
    }

    /// Sends `window` messages (at most as many as the ring has slots), returns them, and receives them: how many that was.
    #[inline]
    pub fn turn(&mut self, window: usize) -> usize {
        for _ in 0..window {
            self.client.number += 1;
            if !self.client.pings.try_send(&[self.client.number; WORDS]) {
                break;
            }
        }
        while let Some(ping) = self.echo.pings.try_receive() {
            self.echo.pongs.try_send(&ping);
        }
        let mut back = 0;
        while self.client.pongs.try_receive().is_some() {
            back += 1;
        }
        back
    }
}

impl PingPong for RingClient {
    fn ping(&mut self) -> Result<(), BenchError> {
        self.number += 1;
        let ping = [self.number; WORDS];
        if !self.pings.try_send(&ping) {
            return Err(BenchError::PartnerEnded { what: "ring floor's echo", why: "its ring is full".to_owned() });
        }
        spin_for("the ring floor", &self.clock, || Ok((self.pongs.try_receive() == Some(ping)).then_some(())))
    }
}

impl Floor for RingClient {
    fn look(&mut self) -> Result<(), BenchError> {
        self.pongs.try_receive();
        Ok(())
    }
}

impl Serve for RingEcho {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        while !stage.over() {
            if let Some(ping) = self.pings.try_receive() {
                self.pongs.try_send(&ping);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::Duo;
    use crate::floor::sample;

    #[test]
    fn every_ping_comes_back_and_the_ring_wraps() {
        let clock = Clock::tsc();
        let (mut client, echo) = pair(clock.clone());
        let core = crate::pin::allowed().unwrap()[0];
        let (mut duo, ()) = Duo::start(core, || Ok((vec![Box::new(echo) as Box<dyn Serve>], ()))).unwrap();
        let samples = duo.during(0, || sample(&clock, 1, 3 * SLOTS as usize, &mut client)).unwrap();
        assert_eq!(samples.count(), 3 * SLOTS as usize);
    }

    #[test]
    fn a_loop_returns_a_window_and_never_more_than_the_ring_holds() {
        let mut both = RingLoop::new(Clock::tsc());
        assert_eq!([both.turn(1), both.turn(64), both.turn(1_000)], [1, 64, SLOTS as usize]);
    }

    #[test]
    fn a_full_ring_refuses_and_takes_again_after_one_is_consumed() {
        let (mut sender, mut receiver) = ring();
        for n in 0..SLOTS {
            assert!(sender.try_send(&[n; WORDS]));
        }
        assert!(!sender.try_send(&[99; WORDS]));
        assert_eq!(receiver.try_receive(), Some([0; WORDS]));
        assert!(sender.try_send(&[99; WORDS]));
        assert!(!sender.try_send(&[100; WORDS]));
    }
}
