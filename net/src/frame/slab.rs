//! The memory of a pool's frames: one allocation.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use crate::sync::primitive::{alloc_zeroed, dealloc};

/// Zeroed memory for frames, each on cache lines of its own, the first at the start of a page.
pub(super) struct Slab {
    memory: NonNull<u8>,
    layout: Layout,
    first: NonNull<u8>,
    stride: usize,
    frames: usize,
}

const LINE: usize = 64;
const PAGE: usize = 4096;

impl Slab {
    pub(super) fn new(frames: usize, frame_size: usize) -> Slab {
        let stride = frame_size.max(1).checked_next_multiple_of(LINE);
        let size = stride.and_then(|stride| stride.checked_mul(frames)).and_then(|size| size.checked_add(PAGE));
        let layout = size.and_then(|size| Layout::from_size_align(size, align_of::<usize>()).ok());
        let (Some(stride), Some(layout)) = (stride, layout) else {
            panic!("{frames} frames of {frame_size} bytes do not fit into the address space");
        };
        // Aligned by hand: with the allocator's own alignment zeroed memory is written at once, without it only on use.
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: the offset is less than a page, which was added to the size.
        let first = unsafe { memory.add(memory.align_offset(PAGE)) };
        Slab { memory, layout, first, stride, frames }
    }

    /// Bytes from one frame to the next.
    #[inline]
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// The first byte of frame `index`, which is below the count that the slab was made for.
    #[inline]
    pub(super) fn buffer(&self, index: u32) -> NonNull<u8> {
        debug_assert!((index as usize) < self.frames);
        // SAFETY: the frame lies within the slab.
        unsafe { self.first.add(index as usize * self.stride) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
