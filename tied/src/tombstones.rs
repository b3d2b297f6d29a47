//! Cancels that arrived before the request they cancel.
//!
//! Two servers and a client are three paths: the winner's cancel can overtake the loser's request. It then leaves a tombstone, and
//! the request that finds one on arrival ends there. They are bounded in number and expire, so a lost request leaves nothing behind and
//! a flood only evicts: a tombstone lost costs one needless execution, never correctness.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::RandomState;
use tautline_net::clock::Time;

/// A bounded set of keys that expire, each with what to do when the request comes.
#[derive(Debug)]
pub struct Tombstones<K, V> {
    capacity: usize,
    life: Duration,
    stones: HashMap<K, Stone<V>, RandomState>,
    /// Oldest first. All live equally long, so this is the order of expiry too. A key taken early leaves its place here until
    /// then; the serial tells it from a later stone of the same key.
    order: VecDeque<(Time, u64, K)>,
    next_serial: u64,
    evicted: u64,
}

#[derive(Debug)]
struct Stone<V> {
    serial: u64,
    value: V,
}

impl<K: Copy + Eq + Hash, V> Tombstones<K, V> {
    /// Room for `capacity` tombstones that each live for `life`.
    pub fn new(capacity: usize, life: Duration) -> Tombstones<K, V> {
        Tombstones {
            capacity: capacity.max(1),
            life,
            stones: HashMap::default(),
            order: VecDeque::new(),
            next_serial: 0,
            evicted: 0,
        }
    }

    /// Leaves a tombstone. A second one for the same key changes nothing: the first cancel to arrive decides.
    pub fn insert(&mut self, key: K, value: V, now: Time) {
        self.expire(now);
        if self.stones.contains_key(&key) {
            return;
        }
        while self.order.len() >= self.capacity {
            self.evicted += u64::from(self.drop_oldest());
        }
        self.stones.insert(key, Stone { serial: self.next_serial, value });
        self.order.push_back((now + self.life, self.next_serial, key));
        self.next_serial += 1;
    }

    /// The request has come: takes its tombstone if there is one.
    pub fn take(&mut self, key: &K, now: Time) -> Option<V> {
        self.expire(now);
        if self.stones.is_empty() {
            return None;
        }
        self.stones.remove(key).map(|stone| stone.value)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.stones.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.stones.is_empty()
    }

    /// How many were dropped before their time to make room.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Drops those whose time is over.
    pub fn expire(&mut self, now: Time) {
        while self.order.front().is_some_and(|(due, _, _)| *due <= now) {
            self.drop_oldest();
        }
    }

    /// Drops the oldest place, and says whether its tombstone was still there.
    fn drop_oldest(&mut self) -> bool {
        let Some((_, serial, key)) = self.order.pop_front() else { return false };
        self.stones.get(&key).is_some_and(|stone| stone.serial == serial) && self.stones.remove(&key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_cancel_that_came_first_is_found_once() {
        let mut stones = Tombstones::new(8, Duration::from_millis(100));
        stones.insert(1, "cancel", at(0));
        assert_eq!(stones.take(&2, at(1)), None);
        assert_eq!(stones.take(&1, at(1)), Some("cancel"));
        assert_eq!(stones.take(&1, at(1)), None);
        assert!(stones.is_empty());
    }

    #[test]
    fn a_tombstone_expires() {
        let mut stones = Tombstones::new(8, Duration::from_millis(100));
        stones.insert(1, (), at(0));
        stones.insert(2, (), at(50));
        assert_eq!(stones.take(&1, at(100)), None);
        assert_eq!(stones.len(), 1);
        assert_eq!(stones.take(&2, at(149)), Some(()));
    }

    #[test]
    fn a_flood_evicts_the_oldest_and_never_grows() {
        let mut stones = Tombstones::new(64, Duration::from_secs(1));
        for key in 0..10_000u32 {
            stones.insert(key, (), at(0));
            assert!(stones.len() <= 64 && stones.order.len() <= 64);
        }
        assert_eq!(stones.evicted(), 10_000 - 64);
        assert_eq!(stones.take(&9_999, at(1)), Some(()));
        assert_eq!(stones.take(&1, at(1)), None);
    }

    #[test]
    fn a_key_taken_and_buried_again_keeps_its_own_time() {
        let mut stones = Tombstones::new(8, Duration::from_millis(100));
        stones.insert(1, "old", at(0));
        assert_eq!(stones.take(&1, at(10)), Some("old"));
        stones.insert(1, "new", at(60));
        assert_eq!(stones.take(&1, at(120)), Some("new"), "the old one's expiry took the new one");
    }

    #[test]
    fn the_first_cancel_decides() {
        let mut stones = Tombstones::new(8, Duration::from_millis(100));
        stones.insert(1, "first", at(0));
        stones.insert(1, "second", at(1));
        assert_eq!(stones.take(&1, at(2)), Some("first"));
    }
}
