//! A bounded queue for many producers and many consumers.
//!
//! Dmitry Vyukov's: each slot carries a sequence number that says whose turn it is. For the ticket at position `p`, `p` means
//! free for the push, `p + 1` full for the pop, and `p + capacity` free for the push of the next lap.

use std::mem::MaybeUninit;

use super::primitive::{AtomicUsize, CachePadded, Ordering, UnsafeCell, ord};

/// A bounded first-in-first-out queue that any thread may push to and pop from.
///
/// No operation waits for another thread. A pop or push that another thread has begun and not ended can make the queue seem
/// empty or full for that moment.
pub struct Queue<T> {
    slots: Box<[Slot<T>]>,
    mask: usize,
    /// The position of the next pop.
    head: CachePadded<AtomicUsize>,
    /// The position of the next push.
    tail: CachePadded<AtomicUsize>,
}

struct Slot<T> {
    sequence: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a slot's item is written by the one push that owns its position and read by the one pop that does; the sequence number
// hands it over with release and acquire. Items cross threads, hence `T: Send`; no reference to one is ever shared.
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T> Queue<T> {
    /// A queue of at least `capacity` items: a power of two, and two at least.
    ///
    /// # Panics
    ///
    /// If `capacity` is more than half the address space.
    pub fn new(capacity: usize) -> Queue<T> {
        // With one slot, "full at p" and "free for p + 1" would be the same number.
        let capacity = capacity.max(2).checked_next_power_of_two().expect("a queue's capacity fits into memory");
        let slot = |position| Slot { sequence: AtomicUsize::new(position), item: UnsafeCell::new(MaybeUninit::uninit()) };
        Queue {
            slots: (0..capacity).map(slot).collect(),
            mask: capacity - 1,
            head: CachePadded::new(AtomicUsize::new(0)),
            tail: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    /// Appends `item`, or gives it back if the queue is full.
    #[inline]
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut position = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[position & self.mask];
            // Acquires the previous lap's read of the slot, so that it is over before we write there.
            let sequence = slot.sequence.load(ord!(Acquire, "queue-push-observe"));
            match sequence.wrapping_sub(position).cast_signed() {
                0 => match self.advance(&self.tail, position) {
                    Ok(()) => {
                        // SAFETY: the position is ours alone, and its slot free.
                        slot.item.with_mut(|place| unsafe { (*place).write(item) });
                        slot.sequence.store(position.wrapping_add(1), ord!(Release, "queue-push-publish"));
                        return Ok(());
                    }
                    Err(moved) => position = moved,
                },
                behind if behind < 0 => return Err(item),
                _ => position = self.tail.load(Ordering::Relaxed),
            }
        }
    }

    /// Takes the oldest item.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        let mut position = self.head.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[position & self.mask];
            // Acquires the push's write of the item.
            let sequence = slot.sequence.load(ord!(Acquire, "queue-pop-observe"));
            match sequence.wrapping_sub(position.wrapping_add(1)).cast_signed() {
                0 => match self.advance(&self.head, position) {
                    Ok(()) => {
                        // SAFETY: the position is ours alone, and its slot full.
                        let item = slot.item.with(|place| unsafe { (*place).assume_init_read() });
                        let next_lap = position.wrapping_add(self.mask + 1);
                        slot.sequence.store(next_lap, ord!(Release, "queue-pop-release"));
                        return Some(item);
                    }
                    Err(moved) => position = moved,
                },
                behind if behind < 0 => return None,
                _ => position = self.head.load(Ordering::Relaxed),
            }
        }
    }

    /// How many items are in the queue; of several threads' work in progress, some moment's truth.
    #[inline]
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        // Seen from outside, the head can be ahead of the tail.
        tail.wrapping_sub(head).cast_signed().max(0).cast_unsigned().min(self.mask + 1)
    }

    /// Is the queue empty? As exact as [`Queue::len`]; of work in progress it may say that it is not.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Relaxed)
    }

    /// How many items the queue can hold.
    pub fn capacity(&self) -> usize {
        self.mask + 1
    }

    /// Takes `position` from the others. It orders nothing: a slot's sequence number does.
    #[inline]
    fn advance(&self, index: &AtomicUsize, position: usize) -> Result<(), usize> {
        let next = position.wrapping_add(1);
        index.compare_exchange_weak(position, next, Ordering::Relaxed, Ordering::Relaxed).map(drop)
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<T> std::fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("capacity", &self.capacity()).field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_queue_is_bounded_and_first_in_first_out() {
        let queue = Queue::new(4);
        for lap in 0..5 {
            for item in 0..4 {
                queue.push(lap * 10 + item).unwrap();
            }
            assert_eq!((queue.push(99), queue.len()), (Err(99), 4));
            for item in 0..4 {
                assert_eq!(queue.pop(), Some(lap * 10 + item));
            }
            assert_eq!((queue.pop(), queue.len()), (None, 0));
        }
    }

    #[test]
    fn the_smallest_queue_holds_two() {
        let queue = Queue::new(0);
        assert_eq!(queue.capacity(), 2);
        assert_eq!((queue.push(1), queue.push(2), queue.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), None));
    }

    #[test]
    fn a_dropped_queue_drops_what_is_in_it() {
        let witness = Arc::new(());
        let queue = Queue::new(8);
        for _ in 0..5 {
            queue.push(witness.clone()).unwrap();
        }
        drop(queue.pop());
        drop(queue);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn many_threads_pass_every_item_once() {
        const ITEMS: u64 = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };
        const THREADS: u64 = 3;
        let queue = Queue::new(8);
        let (taken, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let queue = &queue;
                scope.spawn(move || {
                    for item in 0..ITEMS {
                        while queue.push(thread * ITEMS + item).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
                let (taken, sum) = (&taken, &sum);
                scope.spawn(move || {
                    let mut last = [None; THREADS as usize];
                    while taken.load(Ordering::Relaxed) < THREADS * ITEMS {
                        let Some(item) = queue.pop() else {
                            std::thread::yield_now();
                            continue;
                        };
                        let producer = (item / ITEMS) as usize;
                        assert!(last[producer] < Some(item), "one producer's items stay in order");
                        last[producer] = Some(item);
                        taken.fetch_add(1, Ordering::Relaxed);
                        sum.fetch_add(item, Ordering::Relaxed);
                    }
                });
            }
        });
        let all = THREADS * ITEMS;
        assert_eq!((taken.into_inner(), sum.into_inner()), (all, all * (all - 1) / 2));
    }
}
