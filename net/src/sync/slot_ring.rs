//! A bounded ring of byte slots between two threads: datagrams are copied in at one end and out at the other.
//!
//! Each slot begins with a sequence word, and the length and the first bytes lie in the same cache line, so a small datagram crosses
//! between cores in one line transfer (FastForward, Giacomoni et al., PPoPP 2008, has the idea of flow control within the slot).
//! The sequence word says "full for this lap" only; that a slot is free again is told by the consumer's position, which it
//! publishes once a burst and the producer reads once a lap. Writing "empty" into each slot would drag its line back and forth.
//!
//! The first line is written last: while a reader polls it, a write that has to wait for another line in the middle loses it again.
//! A reader that finds nothing asks for the second line too each time it looks, since the headers of a packet and a small message need both: once
//! written, they cross at the same time, and not the second when the first has come.
//!
//! Bytes past the [`SLOT_INLINE`]th go to a slab beside the slots, so that small datagrams stay dense in cache and address translation,
//! and the slab's pages are not touched before a large datagram is.

use std::sync::atomic::compiler_fence;

use super::prefetch;
use super::primitive::{Arc, AtomicU32, CachePadded, Ordering, UnsafeCell, ord};

/// How many bytes of a datagram lie beside its slot's sequence word.
pub const SLOT_INLINE: usize = 248;

/// Bytes of a cache line.
const LINE: usize = 64;

/// How many bytes of a datagram lie in the same cache line as the sequence word.
const FIRST: usize = LINE - 8;

/// How many slots before it is written a slot is asked for. Half and double as many help less.
const AHEAD: u32 = 8;

/// Makes a ring of at least `slots` slots (rounded up to a power of two) for datagrams of up to `slot_bytes` bytes.
pub fn slot_ring(slots: usize, slot_bytes: usize) -> (SlotProducer, SlotConsumer) {
    let capacity = slots.clamp(1, 1 << 30).next_power_of_two();
    let spill_stride = slot_bytes.saturating_sub(SLOT_INLINE).next_multiple_of(64);
    let shared = Arc::new(Shared {
        slots: (0..capacity).map(|_| Slot::empty()).collect(),
        spill: Spill::new(capacity, spill_stride),
        mask: capacity as u32 - 1,
        slot_bytes,
        taken: CachePadded::new(AtomicU32::new(0)),
        producer_gone: AtomicU32::new(0),
        consumer_gone: AtomicU32::new(0),
    });
    (SlotProducer { shared: Arc::clone(&shared), next: 0, taken: 0 }, SlotConsumer { shared, next: 0 })
}

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPushError {
    /// Every slot is in use.
    Full,
    /// Longer than a slot.
    TooLong,
}

/// The sending end.
#[derive(Debug)]
pub struct SlotProducer {
    shared: Arc<Shared>,
    /// Position of the next slot to fill.
    next: u32,
    /// The consumer's position as last read.
    taken: u32,
}

impl SlotProducer {
    /// Copies `bytes` into the next slot.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SlotPushError> {
        let shared = &*self.shared;
        if bytes.len() > shared.slot_bytes {
            return Err(SlotPushError::TooLong);
        }
        if self.next.wrapping_sub(self.taken) > shared.mask {
            // Acquire: the consumer's reads of the slot end before its position moves past it, and our writes begin after.
            self.taken = shared.taken.load(ord!(Acquire, "slots-reuse"));
            if self.next.wrapping_sub(self.taken) > shared.mask {
                return Err(SlotPushError::Full);
            }
        }
        self.ask_ahead();
        let index = (self.next & shared.mask) as usize;
        let slot = &shared.slots[index];
        let (inline, rest) = bytes.split_at(bytes.len().min(SLOT_INLINE));
        let (first, middle) = inline.split_at(inline.len().min(FIRST));
        slot.body.with_mut(|body| {
            // SAFETY: the slot is free (its position was taken by the consumer a lap ago, or never used), the consumer reads it only
            // after the store of `sequence` below, and there is one producer: `self` is borrowed mutably.
            let body = unsafe { &mut *body };
            // The first line last, together with the sequence: a reader that polls would take it away in between, if we had
            // to wait for another line after we began to write it.
            if !rest.is_empty() {
                // SAFETY: as for the slot: slot `index`'s part of the slab follows the slot's ownership. `rest` fits, because
                // `bytes` was checked against `slot_bytes`, which the part's size was made for.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), shared.spill.part(index), rest.len()) };
            }
            if !middle.is_empty() {
                body.bytes[FIRST..inline.len()].copy_from_slice(middle);
            }
            compiler_fence(Ordering::Release);
            body.len = bytes.len() as u32;
            body.bytes[..first.len()].copy_from_slice(first);
        });
        self.next = self.next.wrapping_add(1);
        // Release: whoever sees the sequence sees the body.
        slot.sequence.store(self.next, ord!(Release, "slots-publish"));
        Ok(())
    }

    /// Asks for the lines of a slot that is written some pushes later: the consumer's core has them since it read them a lap ago, and to take them
    /// back costs as much as the whole push.
    #[inline(always)]
    fn ask_ahead(&self) {
        let ahead = self.next.wrapping_add(AHEAD);
        // Not those that the consumer may still have to read.
        if ahead.wrapping_sub(self.taken) <= self.shared.mask {
            let slot = std::ptr::from_ref(&self.shared.slots[(ahead & self.shared.mask) as usize]).cast::<u8>();
            prefetch::line_to_write(slot);
            prefetch::line_to_write(slot.wrapping_add(LINE));
        }
    }

    /// How far the consumer has said it got. It wraps; two equal answers mean no progress.
    pub fn consumer_position(&self) -> u32 {
        self.shared.taken.load(Ordering::Relaxed)
    }

    /// Has the consumer been dropped? What is pushed from then on is lost.
    pub fn is_orphaned(&self) -> bool {
        self.shared.consumer_gone.load(Ordering::Relaxed) != 0
    }
}

impl Drop for SlotProducer {
    fn drop(&mut self) {
        // Release: a consumer that sees this sees every push before it.
        self.shared.producer_gone.store(1, ord!(Release, "slots-last"));
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct SlotConsumer {
    shared: Arc<Shared>,
    /// Position of the next slot to read.
    next: u32,
}

impl SlotConsumer {
    /// Is nothing waiting?
    #[inline]
    pub fn is_empty(&self) -> bool {
        let slot = &self.shared.slots[(self.next & self.shared.mask) as usize];
        slot.sequence.load(Ordering::Relaxed) != self.next.wrapping_add(1)
    }

    /// Shows the next datagram to `read`, as two pieces of which the second is mostly empty, and moves past it. The slot stays
    /// taken until [`SlotConsumer::release`].
    #[inline]
    pub fn pop<R>(&mut self, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<R> {
        let shared = &*self.shared;
        let index = (self.next & shared.mask) as usize;
        let slot = &shared.slots[index];
        let next = self.next.wrapping_add(1);
        // Acquire: pairs with the producer's store after it wrote the body.
        if slot.sequence.load(ord!(Acquire, "slots-see")) != next {
            prefetch::line(std::ptr::from_ref(slot).cast::<u8>().wrapping_add(LINE));
            return None;
        }
        let result = slot.body.with(|body| {
            // SAFETY: the sequence says that the slot is full, so the producer does not write it until `taken` moves past it, which
            // only `release` does, after this borrow has ended.
            let body = unsafe { &*body };
            let len = (body.len as usize).min(shared.slot_bytes);
            let inline = len.min(SLOT_INLINE);
            let rest = match len - inline {
                0 => &[][..],
                // SAFETY: slot `index`'s part of the slab follows the slot's ownership, is initialised (zeroed when made), and
                // holds `slot_bytes - SLOT_INLINE` bytes at least, which `len` is clamped to.
                rest => unsafe { std::slice::from_raw_parts(shared.spill.part(index), rest) },
            };
            read(&body.bytes[..inline], rest)
        });
        self.next = next;
        Some(result)
    }

    /// Gives the slots of what was popped back to the producer. Once a burst is often enough.
    #[inline]
    pub fn release(&mut self) {
        // Release: our reads of the slots end before the producer writes them again.
        self.shared.taken.store(self.next, ord!(Release, "slots-release"));
    }

    /// Has the producer been dropped? What it pushed may still be waiting.
    pub fn is_abandoned(&self) -> bool {
        self.shared.producer_gone.load(Ordering::Relaxed) != 0
    }

    /// Has the producer been dropped, and everything that it pushed been popped?
    pub fn is_finished(&self) -> bool {
        // The flag first: seen set, every push is visible to the look at the slot.
        self.shared.producer_gone.load(ord!(Acquire, "slots-finish")) != 0 && self.is_empty()
    }
}

impl Drop for SlotConsumer {
    fn drop(&mut self) {
        self.shared.consumer_gone.store(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Shared {
    slots: Box<[Slot]>,
    spill: Spill,
    mask: u32,
    slot_bytes: usize,
    producer_gone: AtomicU32,
    consumer_gone: AtomicU32,
    /// The consumer's position: every earlier slot is free.
    taken: CachePadded<AtomicU32>,
}

// SAFETY: slots and slab are handed between the one producer and the one consumer by `sequence` and `taken`, as said at each use;
// both ends take `&mut self` for it.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    /// Position + 1 of the datagram in the slot, once it is whole.
    sequence: AtomicU32,
    body: UnsafeCell<Body>,
}

#[derive(Debug)]
#[repr(C)]
struct Body {
    len: u32,
    bytes: [u8; SLOT_INLINE],
}

impl Slot {
    fn empty() -> Slot {
        Slot { sequence: AtomicU32::new(0), body: UnsafeCell::new(Body { len: 0, bytes: [0; SLOT_INLINE] }) }
    }
}

/// The slab for bytes that do not fit beside the sequence words: one part a slot.
#[derive(Debug)]
struct Spill {
    base: *mut u8,
    stride: usize,
    slots: usize,
}

impl Spill {
    fn new(slots: usize, stride: usize) -> Spill {
        // Zeroed by the allocator, so that for a large slab the pages come as they are touched.
        let slab = vec![0u8; slots * stride].into_boxed_slice();
        Spill { base: Box::into_raw(slab).cast(), stride, slots }
    }

    fn part(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.slots);
        // SAFETY: `index` is a slot's, so the part lies within the slab (or at its end, where the stride is 0).
        unsafe { self.base.add(index * self.stride) }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let slab = std::ptr::slice_from_raw_parts_mut(self.base, self.slots * self.stride);
        // SAFETY: made by `Box::into_raw` of a slice of this length, and dropped once.
        drop(unsafe { Box::from_raw(slab) });
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;

    fn popped(consumer: &mut SlotConsumer) -> Option<Vec<u8>> {
        consumer.pop(|inline, rest| [inline, rest].concat())
    }

    #[test]
    fn a_slot_is_four_lines_and_starts_with_its_sequence() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (256, 64));
        assert_eq!(std::mem::offset_of!(Slot, sequence), 0);
    }

    #[test]
    fn datagrams_of_every_length_come_out_as_they_went_in() {
        let (mut producer, mut consumer) = slot_ring(4, 600);
        for len in 0..=600 {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
            producer.push(&bytes).unwrap();
            assert_eq!(popped(&mut consumer).unwrap(), bytes);
            consumer.release();
        }
        assert_eq!(producer.push(&[0; 601]), Err(SlotPushError::TooLong));
        assert!(consumer.is_empty());
    }

    #[test]
    fn a_full_ring_refuses_until_the_consumer_releases() {
        let (mut producer, mut consumer) = slot_ring(2, 8);
        producer.push(b"a").unwrap();
        producer.push(b"b").unwrap();
        assert_eq!(producer.push(b"c"), Err(SlotPushError::Full));
        let before = producer.consumer_position();
        assert_eq!(popped(&mut consumer).unwrap(), b"a");
        assert_eq!(producer.push(b"c"), Err(SlotPushError::Full), "a popped slot is the consumer's until it is released");
        consumer.release();
        assert_ne!(producer.consumer_position(), before);
        producer.push(b"c").unwrap();
        assert_eq!(popped(&mut consumer).unwrap(), b"b");
        assert_eq!(popped(&mut consumer).unwrap(), b"c");
        assert_eq!(popped(&mut consumer), None);
    }

    #[test]
    fn each_end_notices_that_the_other_has_gone() {
        let (mut producer, mut consumer) = slot_ring(2, 8);
        producer.push(b"last").unwrap();
        assert!(!consumer.is_finished());
        drop(producer);
        assert!(!consumer.is_finished(), "one datagram is still to be read");
        assert_eq!(popped(&mut consumer).unwrap(), b"last");
        assert!(consumer.is_finished());

        let (producer, consumer) = slot_ring(2, 8);
        assert!(!producer.is_orphaned());
        drop(consumer);
        assert!(producer.is_orphaned());
    }

    #[test]
    fn two_threads_pass_everything_in_order() {
        let (mut producer, mut consumer) = slot_ring(8, 400);
        let count = 20_000u32;
        let sender = std::thread::spawn(move || {
            for n in 0..count {
                let mut bytes = n.to_le_bytes().to_vec();
                bytes.resize(4 + (n as usize * 31) % 396, n as u8);
                while producer.push(&bytes).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0u32;
        while expected < count {
            match popped(&mut consumer) {
                Some(bytes) => {
                    assert_eq!(bytes[..4], expected.to_le_bytes());
                    assert_eq!(bytes.len(), 4 + (expected as usize * 31) % 396);
                    assert!(bytes[4..].iter().all(|&b| b == expected as u8));
                    expected += 1;
                    if expected.is_multiple_of(3) {
                        consumer.release();
                    }
                }
                None => {
                    consumer.release();
                    std::thread::yield_now();
                }
            }
        }
        sender.join().unwrap();
    }
}
