//! A port that loses, duplicates, reorders and damages datagrams, by a seeded generator.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::frame::{Frame, Pool, PoolConfig};
use crate::port::{Address, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, Purpose};

/// What to do to datagrams, each way: probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Seed of the generator.
    pub seed: u64,
    /// A datagram vanishes.
    pub loss: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// It is held back until up to eight others have passed.
    pub reorder: f64,
    /// One of its bits is flipped.
    pub corrupt: f64,
}

impl FaultConfig {
    /// Does it do anything?
    pub(super) fn is_active(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0 || self.corrupt > 0.0
    }
}

/// What was done, both ways together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Datagrams made to vanish.
    pub lost: u64,
    /// Datagrams doubled.
    pub duplicated: u64,
    /// Datagrams held back.
    pub reordered: u64,
    /// Datagrams damaged.
    pub corrupted: u64,
}

/// Injects faults into any port, each way. With `corrupt` set, the port no longer vouches for integrity.
#[derive(Debug)]
pub struct Fault<P> {
    inner: P,
    config: FaultConfig,
    rng: fastrand::Rng,
    /// For doubled datagrams: not the port's own pools, which the port's user counts on.
    copies: Pool,
    received: Held,
    outgoing: Held,
    /// What was received, and has met its fate.
    ready: VecDeque<Datagram>,
    /// What has met its fate, and the device had no room for.
    sending: Vec<Datagram>,
    scratch: Vec<Datagram>,
    counters: FaultCounters,
}

/// Datagrams held back in one direction.
#[derive(Debug, Default)]
struct Held {
    /// Each with how many others are to pass it.
    waiting: Vec<(u32, Datagram)>,
    /// Calls in a row that moved nothing.
    idle: u32,
}

/// After how many calls that move nothing all is let go, so that the last datagram before silence is not held for ever.
const PATIENCE: u32 = 64;

/// How many datagrams are held back or doubled at a time.
const MOST: usize = 64;

impl<P: Port> Fault<P> {
    /// Injects faults into `inner`.
    pub fn new(inner: P, config: FaultConfig) -> Fault<P> {
        let frame_size = inner.capabilities().mtu;
        Fault {
            inner,
            config,
            rng: fastrand::Rng::with_seed(config.seed),
            copies: Pool::new(PoolConfig { frames: MOST, frame_size }),
            received: Held::default(),
            outgoing: Held::default(),
            ready: VecDeque::new(),
            sending: Vec::new(),
            scratch: Vec::new(),
            counters: FaultCounters::default(),
        }
    }

    /// What was done so far.
    pub fn faults(&self) -> FaultCounters {
        self.counters
    }

    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    /// Decides one datagram's fate; what goes on is given to `pass`.
    fn decide(&mut self, mut datagram: Datagram, held: fn(&mut Self) -> &mut Held, pass: &mut impl FnMut(Datagram)) {
        if self.happens(self.config.loss) {
            self.counters.lost += 1;
            return;
        }
        if !datagram.frame.is_empty() && self.happens(self.config.corrupt) {
            self.counters.corrupted += 1;
            let bit = self.rng.usize(..datagram.frame.len() * 8);
            datagram.frame.data_mut()[bit / 8] ^= 1 << (bit % 8);
        }
        if self.happens(self.config.duplicate)
            && let Some(mut frame) = self.copies.take()
            && frame.try_set_range(0, datagram.frame.len()).is_ok()
        {
            self.counters.duplicated += 1;
            frame.data_mut().copy_from_slice(&datagram.frame);
            pass(Datagram { frame, peer: datagram.peer });
        }
        if held(self).waiting.len() < MOST && self.happens(self.config.reorder) {
            self.counters.reordered += 1;
            let others = self.rng.u32(1..=8);
            held(self).waiting.push((others, datagram));
        } else {
            pass(datagram);
            held(self).passed(pass);
        }
    }

    /// Sends what waits for the device. `true` if everything went.
    fn drain(&mut self) -> Result<bool, PortError> {
        if !self.sending.is_empty() {
            self.inner.transmit(&mut self.sending)?;
        }
        Ok(self.sending.is_empty())
    }
}

impl Held {
    /// Another has passed: gives those whose time has come to `pass`.
    fn passed(&mut self, pass: &mut impl FnMut(Datagram)) {
        self.idle = 0;
        for (others, _) in &mut self.waiting {
            *others -= 1;
        }
        let due = self.waiting.extract_if(.., |(others, _)| *others == 0);
        due.for_each(|(_, datagram)| pass(datagram));
    }

    /// Nothing moved.
    fn nothing_passed(&mut self, pass: &mut impl FnMut(Datagram)) {
        self.idle += 1;
        if self.idle >= PATIENCE {
            self.idle = 0;
            self.waiting.drain(..).for_each(|(_, datagram)| pass(datagram));
        }
    }
}

impl<P: Port> Port for Fault<P> {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { integrity: inner.integrity && self.config.corrupt == 0.0, ..inner }
    }

    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        // What is held back for sending moves with every turn of its owner's loop.
        if !self.outgoing.waiting.is_empty() || !self.sending.is_empty() {
            self.transmit(&mut Vec::new())?;
        }
        if self.ready.is_empty() {
            let mut scratch = std::mem::take(&mut self.scratch);
            let mut ready = std::mem::take(&mut self.ready);
            let outcome = self.inner.receive(&mut scratch, max);
            if scratch.is_empty() && !self.received.waiting.is_empty() {
                self.received.nothing_passed(&mut |datagram| ready.push_back(datagram));
            }
            for datagram in scratch.drain(..) {
                self.decide(datagram, |fault| &mut fault.received, &mut |datagram| ready.push_back(datagram));
            }
            (self.scratch, self.ready) = (scratch, ready);
            outcome?;
        }
        let count = self.ready.len().min(max);
        into.extend(self.ready.drain(..count));
        Ok(count)
    }

    fn receive_frames_low(&self) -> bool {
        self.inner.receive_frames_low()
    }

    fn frames_out(&self) -> FramesOut {
        self.inner.frames_out()
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        self.inner.allocate(purpose, into, count)
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        // Each datagram meets its fate once, so what the device refused earlier goes before anything new is taken.
        if !self.drain()? {
            return Ok(0);
        }
        let mut sending = std::mem::take(&mut self.sending);
        let taken = burst.len();
        if taken == 0 && !self.outgoing.waiting.is_empty() {
            self.outgoing.nothing_passed(&mut |datagram| sending.push(datagram));
        }
        for datagram in burst.drain(..) {
            self.decide(datagram, |fault| &mut fault.outgoing, &mut |datagram| sending.push(datagram));
        }
        self.sending = sending;
        self.drain()?;
        Ok(taken)
    }

    fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()> {
        self.inner.attach_wait(registry, token, waker)
    }

    fn prepare_wait(&mut self) -> bool {
        // What is held back would wait for as long as the owner sleeps.
        let held = !self.received.waiting.is_empty() || !self.outgoing.waiting.is_empty();
        let idle = !held && self.ready.is_empty() && self.sending.is_empty();
        idle && self.inner.prepare_wait()
    }

    fn finish_wait(&mut self) {
        self.inner.finish_wait();
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::mem::MemPort;

    fn mem(name: &str) -> MemPort {
        MemPort::open(&format!("mem://{name}?frames=1024&slots=1024").parse().unwrap()).unwrap()
    }

    /// Sends `count` numbered datagrams from `a` to `b`, and gives what arrives.
    fn run(a: &mut impl Port, b: &mut impl Port, count: u32) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut arrived = Vec::new();
        for n in 0..count {
            a.allocate(Purpose::Transmit, &mut frames, 1);
            let mut frame = frames.pop().unwrap();
            frame.set_range(0, 16);
            frame.data_mut().copy_from_slice(&[n.to_le_bytes(); 4].concat());
            a.transmit(&mut Vec::from([Datagram { frame, peer: b.local_address() }])).unwrap();
            receive(b, &mut arrived);
        }
        for _ in 0..3 * PATIENCE {
            a.transmit(&mut Vec::new()).unwrap();
            receive(b, &mut arrived);
        }
        arrived
    }

    fn receive(port: &mut impl Port, arrived: &mut Vec<Vec<u8>>) {
        let mut burst = Vec::new();
        port.receive(&mut burst, 32).unwrap();
        arrived.extend(burst.iter().map(|datagram| datagram.frame.to_vec()));
    }

    #[test]
    fn faults_happen_as_often_as_asked_and_repeat_from_the_seed() {
        let config = FaultConfig { seed: 4, loss: 0.2, duplicate: 0.1, reorder: 0.1, corrupt: 0.1 };
        let run = |name: &str, seed| {
            let mut a = Fault::new(mem(&format!("{name}-a")), FaultConfig { seed, ..config });
            let mut b = mem(&format!("{name}-b"));
            (run(&mut a, &mut b, 2_000), a.faults())
        };
        let (first, faults) = run("fault1", 4);
        assert!((300..500).contains(&faults.lost), "{faults:?}");
        for count in [faults.duplicated, faults.reordered, faults.corrupted] {
            assert!((100..220).contains(&count), "{faults:?}");
        }
        assert_eq!(first.len() as u64, 2_000 - faults.lost + faults.duplicated, "what was held back arrived too");
        assert_eq!(run("fault2", 4), (first.clone(), faults));
        assert_ne!(run("fault3", 5).0, first);
    }

    #[test]
    fn a_held_back_datagram_comes_although_nothing_follows_it() {
        let mut a = Fault::new(mem("fault-held-a"), FaultConfig { reorder: 1.0, ..FaultConfig::default() });
        let mut b = Fault::new(mem("fault-held-b"), FaultConfig { reorder: 1.0, ..FaultConfig::default() });
        assert_eq!(run(&mut a, &mut b, 1), [vec![0; 16]]);
    }

    #[test]
    fn a_port_that_damages_packets_does_not_vouch_for_them() {
        let config = FaultConfig { corrupt: 0.1, ..FaultConfig::default() };
        assert!(!Fault::new(mem("fault-cap-a"), config).capabilities().integrity);
        assert!(Fault::new(mem("fault-cap-b"), FaultConfig { loss: 0.1, ..config.without_corruption() }).capabilities().integrity);
    }

    impl FaultConfig {
        fn without_corruption(self) -> FaultConfig {
            FaultConfig { corrupt: 0.0, ..self }
        }
    }
}
