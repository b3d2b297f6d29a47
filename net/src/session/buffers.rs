//! Memory for messages of several packets, used again: a fresh mebibyte costs more in page faults and zeroing than its packets do in
//! copying, and stops the poll loop for as long.
//!
//! A buffer goes to the application with its message, as [`Bytes`], and comes back from whichever thread drops the last of those. The one that
//! came back last serves the next message: most of it is still in the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::sync::queue::Queue;

/// Buffers are powers of two from this many bytes on.
const SMALLEST: usize = 4096;
/// Longer ones are not kept.
const CLASSES: usize = 13;
/// Buffers of one size at hand at most, and as many that have just come back.
const KEPT_EACH: usize = 64;
/// Bytes that are kept at most.
const KEPT: usize = 32 << 20;

/// The buffers of one endpoint.
#[derive(Debug)]
pub(crate) struct Buffers {
    store: Arc<Store>,
    /// Those that came back, the latest last.
    at_hand: [Vec<Vec<u8>>; CLASSES],
}

/// Where buffers come back to.
#[derive(Debug)]
struct Store {
    back: [Queue<Vec<u8>>; CLASSES],
    /// Bytes of those that came back, and of those at hand.
    kept: AtomicUsize,
}

/// The memory of one message.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    total: usize,
    home: Arc<Store>,
}

impl Buffers {
    pub(crate) fn new() -> Buffers {
        let store = Store { back: std::array::from_fn(|_| Queue::new(KEPT_EACH)), kept: AtomicUsize::new(0) };
        Buffers { store: Arc::new(store), at_hand: Default::default() }
    }

    /// A buffer of `total` bytes. What earlier messages left is still in it: each byte is to be written before it is shown.
    pub(crate) fn take(&mut self, total: usize) -> Buffer {
        let (class, size) = class_of(total);
        let kept = self.at_hand.get_mut(class).and_then(|at_hand| {
            while at_hand.len() < KEPT_EACH
                && let Some(bytes) = self.store.back[class].pop()
            {
                at_hand.push(bytes);
            }
            at_hand.pop()
        });
        if let Some(bytes) = &kept {
            self.store.kept.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        Buffer { bytes: kept.unwrap_or_else(|| vec![0; size]), total, home: Arc::clone(&self.store) }
    }

    /// Bytes of the buffers that are kept for messages to come.
    pub(crate) fn kept(&self) -> usize {
        self.store.kept.load(Ordering::Relaxed)
    }
}

impl Store {
    /// Keeps a buffer for the next message, if there is room.
    fn put(&self, bytes: Vec<u8>) {
        let len = bytes.len();
        let Some(queue) = self.back.get(class_of(len).0) else { return };
        if self.kept.fetch_add(len, Ordering::Relaxed) + len > KEPT || queue.push(bytes).is_err() {
            self.kept.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

/// Which buffers hold `total` bytes, and how long they are. Beyond what is kept they are as long as asked for.
fn class_of(total: usize) -> (usize, usize) {
    let size = total.next_power_of_two().max(SMALLEST);
    let class = (size / SMALLEST).trailing_zeros() as usize;
    (class, if class < CLASSES { size } else { total })
}

impl Buffer {
    pub(crate) fn len(&self) -> usize {
        self.total
    }

    /// Writes `bytes` at `offset`, which is inside.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The message, all of which was written.
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.total]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_from_another_thread_and_serves_the_next_message_of_its_size() {
        let mut buffers = Buffers::new();
        let mut buffer = buffers.take(5000);
        buffer.write(0, &[7; 5000]);
        let bytes = buffer.into_bytes();
        let place = bytes.as_ptr();
        assert_eq!(bytes, [7; 5000][..]);
        std::thread::spawn(move || drop(bytes.slice(10..20))).join().unwrap();
        let again = buffers.take(8000);
        assert_eq!((again.as_ref().as_ptr(), again.len()), (place, 8000));
        assert_ne!(buffers.take(4096).as_ref().as_ptr(), place);
    }

    #[test]
    fn the_buffer_that_came_back_last_goes_first() {
        let mut buffers = Buffers::new();
        let mut out: Vec<Buffer> = (0..5).map(|_| buffers.take(5000)).collect();
        let places: Vec<_> = out.iter().map(|buffer| buffer.bytes.as_ptr()).collect();
        out.truncate(3);
        drop(out.remove(1));
        let again = [(); 3].map(|()| buffers.take(5000));
        assert_eq!(again.each_ref().map(|buffer| buffer.bytes.as_ptr()), [places[1], places[4], places[3]]);
    }

    #[test]
    fn no_more_is_kept_than_the_limit_and_nothing_very_long() {
        let mut buffers = Buffers::new();
        let many: Vec<Buffer> = (0..100).map(|_| buffers.take(1 << 20)).collect();
        drop(many);
        drop(buffers.take(64 << 20));
        assert_eq!(buffers.kept(), KEPT);
        let out: Vec<Buffer> = (0..100).map(|_| buffers.take(1 << 20)).collect();
        assert_eq!(buffers.kept(), 0);
        assert_eq!(out.len(), 100);
    }
}
