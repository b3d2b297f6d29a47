//! A bounded ring for one producer and one consumer.
//!
//! Lamport's ring with the two habits of FastForward and MCRingBuffer: each side keeps its own index in a register-like local
//! and a copy of the other's, and looks at the shared one only when the copy says full or empty. In steady state a burst costs
//! one cache-line transfer each way and not one an item.

use std::mem::MaybeUninit;

use super::primitive::{Arc, AtomicUsize, CachePadded, Ordering, UnsafeCell, ord};

/// A ring of at least `capacity` items (rounded up to a power of two), as its two ends.
///
/// # Panics
///
/// If `capacity` is more than half the address space.
pub fn spsc<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1).checked_next_power_of_two().expect("a ring's capacity fits into memory");
    let ring = Arc::new(Ring {
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        mask: capacity - 1,
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
    });
    (Producer { ring: ring.clone(), tail: 0, head: 0 }, Consumer { ring, head: 0, tail: 0 })
}

/// The end that pushes.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    // The consumer's index when last looked at; it may be further by now.
    head: usize,
}

/// The end that pops.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    head: usize,
    // The producer's index when last looked at; it may be further by now.
    tail: usize,
}

// Indices count items since the start and wrap with the integer; a slot is an index modulo the capacity.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    mask: usize,
    /// The next item to pop; written by the consumer only.
    head: CachePadded<AtomicUsize>,
    /// The next slot to fill; written by the producer only.
    tail: CachePadded<AtomicUsize>,
}

// SAFETY: a slot is accessed by the producer while free and by the consumer while full, and changes hands by the indices'
// release stores and acquire loads. Items cross threads, hence `T: Send`; no reference to one is ever shared.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Producer<T> {
    /// Appends `item`, or gives it back if the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(item);
        }
        self.write(self.tail, item);
        self.publish(self.tail.wrapping_add(1));
        Ok(())
    }

    /// Appends from `items` until they end or the ring is full, and says how many. The consumer sees all of them at once. An
    /// item is taken from `items` only when there is room for it.
    pub fn push_burst(&mut self, items: &mut impl Iterator<Item = T>) -> usize {
        let mut next = self.tail;
        // What panics in `items` leaves the unpublished items behind: leaked, never dropped twice.
        loop {
            let used = next.wrapping_sub(self.head);
            if used > self.ring.mask && next.wrapping_sub(self.refresh()) > self.ring.mask {
                break;
            }
            let Some(item) = items.next() else { break };
            self.write(next, item);
            next = next.wrapping_add(1);
        }
        let pushed = next.wrapping_sub(self.tail);
        if pushed > 0 {
            self.publish(next);
        }
        pushed
    }

    /// How many items there is room for, at least: the consumer may be making more.
    #[inline]
    pub fn free(&mut self) -> usize {
        let used = self.tail.wrapping_sub(self.head);
        if used <= self.ring.mask {
            return self.ring.mask + 1 - used;
        }
        self.ring.mask + 1 - self.tail.wrapping_sub(self.refresh())
    }

    /// How many items the ring can hold.
    pub fn capacity(&self) -> usize {
        self.ring.mask + 1
    }

    /// Is the consumer gone? Then nobody will pop what is pushed.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.ring) == 1
    }

    /// Looks where the consumer is. Acquires its reads of the slots that it freed, so that they are over before we write there.
    #[inline]
    fn refresh(&mut self) -> usize {
        self.head = self.ring.head.load(ord!(Acquire, "ring-push-observe"));
        self.head
    }

    #[inline]
    fn write(&mut self, index: usize, item: T) {
        self.ring.slots[index & self.ring.mask].with_mut(|slot| {
            // SAFETY: the slot lies in [tail, head + capacity): it is free, and only this producer fills slots.
            unsafe { (*slot).write(item) };
        });
    }

    #[inline]
    fn publish(&mut self, tail: usize) {
        self.tail = tail;
        self.ring.tail.store(tail, ord!(Release, "ring-push-publish"));
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.ready() == 0 {
            return None;
        }
        let item = self.read(self.head);
        self.release(self.head.wrapping_add(1));
        Some(item)
    }

    /// Takes up to `max` items in order, appends them to `into`, and says how many. The producer gets the room back at once.
    pub fn pop_burst(&mut self, into: &mut Vec<T>, max: usize) -> usize {
        let count = self.ready().min(max);
        if count == 0 {
            return 0;
        }
        into.reserve(count);
        for offset in 0..count {
            into.push(self.read(self.head.wrapping_add(offset)));
        }
        self.release(self.head.wrapping_add(count));
        count
    }

    /// How many items are ready, at least: the producer may be adding more.
    #[inline]
    pub fn ready(&mut self) -> usize {
        if self.tail == self.head {
            // Acquires the producer's writes of the items up to there.
            self.tail = self.ring.tail.load(ord!(Acquire, "ring-pop-observe"));
        }
        self.tail.wrapping_sub(self.head)
    }

    /// How many items the ring can hold.
    pub fn capacity(&self) -> usize {
        self.ring.mask + 1
    }

    /// Is the producer gone? Then what is in the ring is the last.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.ring) == 1
    }

    #[inline]
    fn read(&mut self, index: usize) -> T {
        // SAFETY: the slot lies in [head, tail): it holds an item, each is read once before `head` passes it, and only this
        // consumer reads.
        self.ring.slots[index & self.ring.mask].with(|slot| unsafe { (*slot).assume_init_read() })
    }

    #[inline]
    fn release(&mut self, head: usize) {
        self.head = head;
        self.ring.head.store(head, ord!(Release, "ring-pop-release"));
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // Both ends are gone, and their last use happened before.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: slots in [head, tail) hold items, and nobody else can reach them.
            self.slots[head & self.mask].with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.capacity()).field("pushed", &self.tail).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("capacity", &self.capacity()).field("popped", &self.head).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_in_order_over_many_laps() {
        let (mut producer, mut consumer) = spsc(3);
        assert_eq!(producer.capacity(), 4);
        for lap in 0..10 {
            for item in 0..4 {
                producer.push(lap * 4 + item).unwrap();
            }
            assert_eq!(producer.push(99), Err(99));
            for item in 0..4 {
                assert_eq!(consumer.pop(), Some(lap * 4 + item));
            }
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn bursts_stop_at_the_ring_s_end_and_lose_nothing() {
        let (mut producer, mut consumer) = spsc(8);
        let mut items = 0..11;
        assert_eq!(producer.push_burst(&mut items), 8);
        assert_eq!(items.start, 8, "what had no room is still there");
        let mut out = Vec::new();
        assert_eq!(consumer.pop_burst(&mut out, 5), 5);
        assert_eq!(producer.push_burst(&mut items), 3);
        assert_eq!(producer.push_burst(&mut items), 0);
        while consumer.pop_burst(&mut out, 2) > 0 {}
        assert_eq!(out, (0..11).collect::<Vec<_>>());
    }

    #[test]
    fn a_dropped_ring_drops_what_is_in_it() {
        let witness = Arc::new(());
        let (mut producer, mut consumer) = spsc(4);
        for _ in 0..4 {
            producer.push(witness.clone()).unwrap();
        }
        drop(consumer.pop());
        assert_eq!(Arc::strong_count(&witness), 4);
        assert!(!consumer.is_abandoned());
        drop(producer);
        assert!(consumer.is_abandoned());
        drop(consumer);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn two_threads_pass_every_item_once_and_in_order() {
        const ITEMS: u64 = if cfg!(debug_assertions) { 200_000 } else { 5_000_000 };
        let (mut producer, mut consumer) = spsc(16);
        let sender = std::thread::spawn(move || {
            let mut items = 0..ITEMS;
            while items.start < ITEMS {
                let pushed = if items.start % 3 == 0 {
                    producer.push_burst(&mut items.by_ref().take(7))
                } else {
                    producer.push(items.start).map_or(0, |()| items.by_ref().take(1).count())
                };
                if pushed == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < ITEMS {
            match consumer.pop() {
                Some(item) => {
                    assert_eq!(item, expected);
                    expected += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.pop(), None);
    }
}
