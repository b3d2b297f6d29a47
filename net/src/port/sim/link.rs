//! One direction of a simulated link: what it does to a packet, decided by its own seeded generator.
//!
//! Each link draws from a generator of its own, seeded by the network's seed and the two names, so that traffic on one link
//! does not change the fate of packets on another.

use std::time::Duration;

use crate::clock::Time;

/// What a link does to packets. The default is a perfect wire: no delay, no loss, no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Time on the wire.
    pub delay: Duration,
    /// Further time on the wire, uniform from zero to this. Packets stay in order.
    pub jitter: Duration,
    /// Chance that a packet is lost.
    pub loss: f64,
    /// Chance that a packet arrives twice, the second time up to four delays later.
    pub duplicate: f64,
    /// Chance that a packet is held back by up to four delays (at least 10 us), so that later ones overtake it.
    pub reorder: f64,
    /// Chance that one to eight bits of a packet are flipped.
    pub corrupt: f64,
    /// Chance that a packet is cut short.
    pub truncate: f64,
    /// Chance that a packet is followed by a copy of one that passed earlier: one of the last 64, so it may be long done with.
    pub replay: f64,
    /// Bits per second; zero for no limit.
    pub bandwidth: u64,
    /// Bytes that may wait for the wire where bandwidth is limited. A packet that does not fit is dropped.
    pub queue: usize,
}

impl LinkConfig {
    /// A perfect wire.
    pub const PERFECT: LinkConfig = LinkConfig {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        corrupt: 0.0,
        truncate: 0.0,
        replay: 0.0,
        bandwidth: 0,
        queue: 1 << 20,
    };

    /// A perfect wire of this delay.
    pub const fn with_delay(delay: Duration) -> LinkConfig {
        LinkConfig { delay, ..LinkConfig::PERFECT }
    }
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig::PERFECT
    }
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets given to it, injected ones included.
    pub sent: u64,
    /// Bytes given to it.
    pub bytes: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped by a partition.
    pub partitioned: u64,
    /// Dropped by a full queue, of the link or of either end's access to the network.
    pub queue_dropped: u64,
    /// Delivered a second time.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Cut short.
    pub truncated: u64,
    /// Old packets sent again.
    pub replayed: u64,
    /// Put before the receiving port.
    pub delivered: u64,
    /// Arrived where no port of the name was open, or its inbox was full.
    pub undeliverable: u64,
}

/// A wire of limited bandwidth with a finite drop-tail queue before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaper {
    bandwidth: u64,
    queue: usize,
    busy_until: Time,
}

impl Shaper {
    pub(super) const fn new(bandwidth: u64, queue: usize) -> Shaper {
        Shaper { bandwidth, queue, busy_until: Time::ZERO }
    }

    /// When the last bit of a packet of `len` bytes that comes at `now` has left; `None` if the queue has no room for it.
    pub(super) fn pass(&mut self, now: Time, len: usize) -> Option<Time> {
        if self.bandwidth == 0 {
            return Some(now);
        }
        let per_bytes = |bytes: u64| (u128::from(bytes) * 8_000_000_000 / u128::from(self.bandwidth)) as u64;
        let waiting = u128::from(self.busy_until.nanos_since(now)) * u128::from(self.bandwidth) / 8_000_000_000;
        if waiting + len as u128 > self.queue.max(len) as u128 {
            return None;
        }
        self.busy_until = self.busy_until.max(now).plus_nanos(per_bytes(len as u64).max(1));
        Some(self.busy_until)
    }
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Link {
    config: LinkConfig,
    shaper: Shaper,
    rng: fastrand::Rng,
    last_arrival: Time,
    /// The last packets that passed, for replays.
    history: Vec<Vec<u8>>,
    history_next: usize,
    pub(super) partitioned: bool,
    pub(super) counters: LinkCounters,
}

/// How many packets a link remembers.
const HISTORY: usize = 64;

impl Link {
    pub(super) fn new(config: LinkConfig, seed: u64) -> Link {
        Link {
            config,
            shaper: Shaper::new(config.bandwidth, config.queue),
            rng: fastrand::Rng::with_seed(seed),
            last_arrival: Time::ZERO,
            history: Vec::new(),
            history_next: 0,
            partitioned: false,
            counters: LinkCounters::default(),
        }
    }

    /// Changes what the link does to packets from now on.
    pub(super) fn configure(&mut self, config: LinkConfig) {
        self.config = config;
        let busy_until = self.shaper.busy_until;
        self.shaper = Shaper { busy_until, ..Shaper::new(config.bandwidth, config.queue) };
    }

    /// Decides a packet's fate: `deliver` is called with each copy that arrives, and when.
    pub(super) fn carry(&mut self, mut bytes: Vec<u8>, now: Time, deliver: &mut impl FnMut(Time, Vec<u8>)) {
        self.counters.sent += 1;
        self.counters.bytes += bytes.len() as u64;
        if self.partitioned {
            self.counters.partitioned += 1;
            return;
        }
        let Some(left) = self.shaper.pass(now, bytes.len()) else {
            self.counters.queue_dropped += 1;
            return;
        };
        if self.config.replay > 0.0 {
            self.remember(&bytes);
        }
        if self.happens(self.config.loss) {
            self.counters.lost += 1;
            return;
        }
        if !bytes.is_empty() && self.happens(self.config.corrupt) {
            self.counters.corrupted += 1;
            for _ in 0..self.rng.u8(1..=8) {
                let bit = self.rng.usize(..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        if !bytes.is_empty() && self.happens(self.config.truncate) {
            self.counters.truncated += 1;
            bytes.truncate(self.rng.usize(..bytes.len()));
        }
        let mut arrival = left + self.config.delay + self.up_to(self.config.jitter);
        if self.happens(self.config.reorder) {
            self.counters.reordered += 1;
            arrival += self.up_to(self.held_back());
        } else {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        if self.happens(self.config.duplicate) {
            self.counters.duplicated += 1;
            let again = arrival + self.up_to(self.config.delay * 4);
            deliver(again, bytes.clone());
        }
        if self.happens(self.config.replay) {
            self.counters.replayed += 1;
            let old = self.history[self.rng.usize(..self.history.len())].clone();
            deliver(arrival + self.up_to(self.held_back()), old);
        }
        deliver(arrival, bytes);
    }

    fn remember(&mut self, bytes: &[u8]) {
        if self.history.len() < HISTORY {
            self.history.push(bytes.to_vec());
        } else {
            let oldest = &mut self.history[self.history_next];
            oldest.clear();
            oldest.extend_from_slice(bytes);
            self.history_next = (self.history_next + 1) % HISTORY;
        }
    }

    fn held_back(&self) -> Duration {
        (self.config.delay * 4).max(Duration::from_micros(10))
    }

    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        match u64::try_from(most.as_nanos()).unwrap_or(u64::MAX) {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.rng.u64(..=most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(link: &mut Link, count: usize, gap: u64) -> Vec<(Time, Vec<u8>)> {
        let mut arrivals = Vec::new();
        for n in 0..count {
            let bytes = (n as u32).to_le_bytes().repeat(16);
            link.carry(bytes, Time::from_nanos(n as u64 * gap), &mut |at, bytes| arrivals.push((at, bytes)));
        }
        arrivals
    }

    #[test]
    fn the_same_seed_gives_the_same_fates_and_another_seed_others() {
        let config = LinkConfig {
            delay: Duration::from_micros(5),
            jitter: Duration::from_micros(3),
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            corrupt: 0.1,
            truncate: 0.1,
            replay: 0.1,
            ..LinkConfig::PERFECT
        };
        let run = |seed| carried(&mut Link::new(config, seed), 500, 100);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn each_fault_happens_about_as_often_as_asked() {
        let config = LinkConfig {
            delay: Duration::from_micros(5),
            loss: 0.2,
            duplicate: 0.2,
            reorder: 0.2,
            corrupt: 0.2,
            truncate: 0.2,
            replay: 0.2,
            ..LinkConfig::PERFECT
        };
        let mut link = Link::new(config, 7);
        let arrived = carried(&mut link, 10_000, 100).len() as u64;
        let c = link.counters;
        assert!((1_800..2_200).contains(&c.lost), "{c:?}");
        for count in [c.duplicated, c.reordered, c.corrupted, c.truncated, c.replayed] {
            assert!((1_400..1_800).contains(&count), "a fifth of the 8,000 that were not lost: {c:?}");
        }
        assert_eq!(arrived, c.sent - c.lost + c.duplicated + c.replayed);
    }

    #[test]
    fn jitter_alone_keeps_packets_in_order() {
        let config = LinkConfig { jitter: Duration::from_micros(50), ..LinkConfig::PERFECT };
        let arrivals = carried(&mut Link::new(config, 3), 1_000, 100);
        assert!(arrivals.is_sorted_by_key(|(at, _)| *at));
    }

    #[test]
    fn bandwidth_spaces_packets_and_a_full_queue_drops_the_tail() {
        // 64-byte packets at 512 Mb/s take 1 us each; they come every 100 ns, and ten fit the queue.
        let config = LinkConfig { bandwidth: 512_000_000, queue: 640, ..LinkConfig::PERFECT };
        let mut link = Link::new(config, 3);
        let arrivals = carried(&mut link, 100, 100);
        for pair in arrivals.windows(2) {
            assert_eq!(pair[1].0.nanos_since(pair[0].0), 1_000);
        }
        assert_eq!(link.counters.queue_dropped + arrivals.len() as u64, 100);
        assert!((15..25).contains(&arrivals.len()), "ten pass while they come, ten wait: {}", arrivals.len());
    }
}
