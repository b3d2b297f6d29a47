//! The seam by which a frame finds its way back: whoever owns packet memory puts a [`Home`] in front of it.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use super::pool;
use crate::sync::primitive::{AtomicUsize, alloc_zeroed, dealloc, known_thread_token};

/// What a frame knows of the memory it is in. Without its owner's promise it is just numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// The first byte.
    pub(crate) buffer: NonNull<u8>,
    /// Where the buffer goes back to. Alive as long as a frame of it is.
    pub(crate) home: NonNull<Home>,
    /// Bytes in the buffer.
    pub(crate) capacity: u32,
    /// The buffer's number at home, if that numbers them.
    pub(crate) index: u32,
}

/// The head of whatever owns packet memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Home {
    /// The token of the thread that may take the short way back, [`NO_OWNER`] if none may. A home with an owner is a pool's.
    pub(crate) owner: u64,
    /// Takes a buffer back, on any thread.
    pub(crate) release: Release,
    /// Where the pieces of frames are counted.
    pub(crate) pieces: Pieces,
}

/// A word for each frame of a home, by its number; null where frames are never cut.
#[derive(Debug)]
pub(crate) struct Pieces(pub(crate) *const AtomicUsize);

// SAFETY: it points to words that any thread may use, and that live as long as the home.
unsafe impl Send for Pieces {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pieces {}

/// [`Parts`] as arguments: home, buffer, capacity, index. One by one, so that they travel in registers and no frame needs an
/// address for this call's sake; with one, each move of a frame would go through memory.
pub(crate) type Release = unsafe fn(NonNull<Home>, NonNull<u8>, u32, u32);

/// No thread has this token, and it is not zero either, which stands for threads that never asked for theirs.
pub(crate) const NO_OWNER: u64 = u64::MAX;

impl Parts {
    /// The word that counts the frame's pieces, if its home has such words.
    ///
    /// # Safety
    ///
    /// The home is alive for as long as the answer is used.
    #[inline]
    pub(crate) unsafe fn pieces<'a>(self) -> Option<&'a AtomicUsize> {
        // SAFETY: the home is alive, and has a word for each of its frames if it has any.
        unsafe {
            let words = (*self.home.as_ptr()).pieces.0;
            if words.is_null() { None } else { Some(&*words.add(self.index as usize)) }
        }
    }

    /// Gives the buffer back to its home.
    ///
    /// # Safety
    ///
    /// The caller owns the buffer and never touches it again.
    #[inline]
    pub(crate) unsafe fn release(self) {
        // SAFETY: the home outlives its frames, and these fields never change.
        let (owner, release) = unsafe { ((*self.home.as_ptr()).owner, (*self.home.as_ptr()).release) };
        // SAFETY: a home with an owner is a pool's, and we run on the owner's thread.
        if owner == known_thread_token() && unsafe { pool::release_here(self.home, self.index) } {
            return;
        }
        // SAFETY: the caller gives the buffer up.
        unsafe { release(self.home, self.buffer, self.capacity, self.index) };
    }
}

/// Detached buffers are on the heap, each on its own.
static DETACHED: Home = Home { owner: NO_OWNER, release: release_detached, pieces: Pieces(std::ptr::null()) };

/// A zeroed buffer of its own.
pub(super) fn detached(size: usize) -> Parts {
    let capacity = u32::try_from(size).expect("a frame's size fits into 32 bits");
    let layout = detached_layout(capacity);
    // SAFETY: the layout's size is not zero.
    let buffer = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    Parts { buffer, home: NonNull::from(&DETACHED), capacity, index: 0 }
}

unsafe fn release_detached(_: NonNull<Home>, buffer: NonNull<u8>, capacity: u32, _: u32) {
    // SAFETY: `detached` allocated it with this layout.
    unsafe { dealloc(buffer.as_ptr(), detached_layout(capacity)) };
}

fn detached_layout(capacity: u32) -> Layout {
    Layout::from_size_align(capacity.max(1) as usize, 64).expect("32 bits of size are a valid layout")
}
