//! Frames: packet buffers with an owner, and the pools they come from and return to.
//!
//! A [`Frame`] is owned memory for one packet. Where it goes when it is dropped is its home's affair: a [`Pool`] here, a device's
//! own buffer pool in a port that has one, the heap for a [`Frame::detached`] one. On a pool's own thread taking and returning a
//! frame are a few plain loads and stores; any other thread may drop it too.

use std::fmt;
use std::ops::{Deref, DerefMut};

mod cut;
mod free;
mod home;
mod pool;
mod run;
mod slab;

use crate::sync::primitive::AtomicUsize;
pub use cut::{Cutter, Piece};
use home::Parts;
pub use pool::{Pool, PoolConfig};
pub use run::Run;

/// A packet buffer, and the range of it that holds the packet.
///
/// It is as good as a `Box<[u8]>`: it may go to any thread and be dropped anywhere. It derefs to its range.
pub struct Frame {
    parts: Parts,
    offset: u32,
    len: u32,
}

// SAFETY: a frame is the only owner of its buffer, and homes take their frames back on any thread.
unsafe impl Send for Frame {}
// SAFETY: a shared frame only gives out shared slices.
unsafe impl Sync for Frame {}

/// The range asked for is not inside the frame's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a range of {len} bytes at {offset} is outside a frame of {capacity} bytes")]
pub struct RangeError {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub len: usize,
    /// The frame's whole size.
    pub capacity: usize,
}

impl Frame {
    /// A zeroed frame of `size` bytes on the heap, that belongs to no pool. Its range is empty, at the front.
    ///
    /// # Panics
    ///
    /// If `size` does not fit into 32 bits.
    pub fn detached(size: usize) -> Frame {
        // SAFETY: `home::detached` made the parts for us alone.
        unsafe { Frame::from_parts(home::detached(size)) }
    }

    /// The frame of these parts, with an empty range at the front.
    ///
    /// # Safety
    ///
    /// The buffer is initialised memory that nobody else accesses until the home gets the parts back.
    pub(crate) unsafe fn from_parts(parts: Parts) -> Frame {
        Frame { parts, offset: 0, len: 0 }
    }

    /// The size of the whole buffer in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.parts.capacity as usize
    }

    /// The length of the current range in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "the slice it derefs to has it")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Where the current range begins in the buffer.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Which of its pool's frames this is.
    #[inline]
    pub fn index(&self) -> u32 {
        self.parts.index
    }

    /// Where the frame's pieces are counted when it is cut, if its home does that.
    #[inline]
    fn pieces(&self) -> Option<&AtomicUsize> {
        // SAFETY: the home lives as long as we do.
        unsafe { self.parts.pieces() }
    }

    /// The bytes of the current range.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: offset + len <= capacity always holds, and we own the initialised buffer.
        unsafe { std::slice::from_raw_parts(self.parts.buffer.add(self.offset as usize).as_ptr(), self.len as usize) }
    }

    /// The bytes of the current range, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`, and we are borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.parts.buffer.add(self.offset as usize).as_ptr(), self.len as usize) }
    }

    /// The whole buffer, to write. What earlier packets left there is still in it.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: we own the whole initialised buffer, and are borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.parts.buffer.as_ptr(), self.parts.capacity as usize) }
    }

    /// Makes `len` bytes at `offset` the current range.
    ///
    /// # Panics
    ///
    /// If that is not inside the buffer.
    #[inline]
    #[track_caller]
    pub fn set_range(&mut self, offset: usize, len: usize) {
        if let Err(error) = self.try_set_range(offset, len) {
            panic!("{error}");
        }
    }

    /// [`Frame::set_range`] where somebody else gave the numbers.
    #[inline]
    pub fn try_set_range(&mut self, offset: usize, len: usize) -> Result<(), RangeError> {
        let capacity = self.capacity();
        if offset > capacity || len > capacity - offset {
            return Err(RangeError { offset, len, capacity });
        }
        // Both are at most the capacity, which fits.
        self.offset = offset as u32;
        self.len = len as u32;
        Ok(())
    }

    /// Shortens the range to its first `len` bytes; no effect if it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.len = len as u32;
        }
    }

    /// Takes `count` bytes off the range's front.
    ///
    /// # Panics
    ///
    /// If the range is shorter than that.
    #[inline]
    #[track_caller]
    pub fn trim_front(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} bytes off the front of {}", self.len());
        self.offset += count as u32;
        self.len -= count as u32;
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: we are the parts' only owner, and give them back once.
        unsafe { self.parts.release() };
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.data()
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Frame { offset, len, parts } = self;
        f.debug_struct("Frame").field("offset", offset).field("len", len).field("capacity", &parts.capacity).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_range_selects_bytes_of_the_buffer() {
        let mut frame = Frame::detached(64);
        assert_eq!((frame.capacity(), frame.len(), frame.offset()), (64, 0, 0));
        assert!(frame.buffer_mut().iter().all(|&byte| byte == 0));
        for (index, byte) in frame.buffer_mut().iter_mut().enumerate() {
            *byte = index as u8;
        }
        frame.set_range(10, 20);
        assert_eq!(frame[..3], [10, 11, 12]);
        frame.trim_front(2);
        frame.truncate(5);
        frame.truncate(9);
        assert_eq!(frame.data(), [12, 13, 14, 15, 16]);
        frame.data_mut()[0] = 99;
        assert_eq!(frame.buffer_mut()[12], 99);
    }

    #[test]
    fn a_range_outside_the_buffer_is_refused_and_changes_nothing() {
        let mut frame = Frame::detached(64);
        frame.set_range(4, 60);
        for (offset, len) in [(5, 60), (65, 0), (0, 65), (usize::MAX, 2), (2, usize::MAX)] {
            assert_eq!(frame.try_set_range(offset, len), Err(RangeError { offset, len, capacity: 64 }));
        }
        assert_eq!((frame.offset(), frame.len()), (4, 60));
        frame.set_range(64, 0);
        assert!(frame.is_empty());
    }

    #[test]
    #[should_panic(expected = "outside a frame of 64 bytes")]
    fn setting_a_bad_range_is_a_bug() {
        Frame::detached(64).set_range(60, 5);
    }

    #[test]
    fn a_detached_frame_may_be_dropped_anywhere_and_may_be_empty() {
        let frame = Frame::detached(9000);
        std::thread::spawn(move || drop(frame)).join().unwrap();
        assert!(Frame::detached(0).buffer_mut().is_empty());
    }

    #[test]
    fn a_frame_is_half_a_cache_line() {
        assert_eq!(size_of::<Frame>(), 32);
        assert_eq!(size_of::<Option<Frame>>(), 32);
    }
}
