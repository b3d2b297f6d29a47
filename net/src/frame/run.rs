//! Frames of a pool that lie together: one piece of memory to a device that writes them, and no list to whoever has them.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::Frame;
use super::free::RUN;
use super::pool::{Shared, frame};

/// Frames of a pool that lie together in memory, each [`Run::stride`] bytes behind the last. Stays on the pool's thread; the frames taken off it may
/// go anywhere.
pub struct Run {
    /// Alive while we have a frame of it.
    pool: NonNull<Shared>,
    /// The numbers of the frames that are ours.
    left: Range<u32>,
    stride: usize,
}

impl Run {
    /// The longest run there is, in frames.
    pub const MOST: usize = RUN;

    /// The frames `left` of a pool.
    ///
    /// # Safety
    ///
    /// The pool is the calling thread's and has these frames, which are neither free nor anybody else's.
    pub(super) unsafe fn new(pool: NonNull<Shared>, left: Range<u32>, stride: usize) -> Run {
        Run { pool, left, stride }
    }

    /// How many frames are left.
    #[inline]
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// Whether none is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Bytes from the beginning of one frame to that of the next.
    #[inline]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The whole buffer of the `n`th of the frames that are left, counted from zero. What earlier packets left there is still in it.
    #[inline]
    pub fn buffer_mut(&mut self, n: usize) -> Option<&mut [u8]> {
        let index = self.left.clone().nth(n)?;
        // SAFETY: frames that are out, as ours are, keep the pool alive. This one's buffer is initialised, ours as long as we are borrowed uniquely.
        Some(unsafe { &mut *self.pool.as_ref().buffer(index).as_ptr() })
    }

    /// Takes the first frame off.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        let index = self.left.next()?;
        // SAFETY: the frame was ours and is not any more; until it is back the pool is alive.
        Some(unsafe { frame(self.pool, index) })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} frames)", self.len())
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;
    use crate::frame::{Pool, PoolConfig};

    #[test]
    fn its_frames_lie_together_and_each_is_had_once() {
        let pool = Pool::new(PoolConfig { frames: 8, frame_size: 100 });
        let first = pool.take().unwrap();
        let mut run = pool.take_run(5).unwrap();
        assert_eq!((run.len(), run.stride(), pool.available()), (5, 128, 2));
        for n in 0..5 {
            run.buffer_mut(n).unwrap().fill(n as u8);
        }
        assert!(run.buffer_mut(5).is_none());
        let mut frames: Vec<Frame> = (0..3).map(|_| run.pop().unwrap()).collect();
        for (n, frame) in frames.iter_mut().enumerate() {
            assert_eq!(frame.index() as usize, first.index() as usize + 1 + n);
            assert!(frame.buffer_mut().iter().all(|byte| *byte == n as u8));
        }
        assert_eq!(run.buffer_mut(0).unwrap()[0], 3);
        drop(run);
        assert_eq!(pool.available(), 4);
        frames.remove(1);
        assert!(pool.take_run(5).is_none(), "no five lie together");
        assert!(pool.take_run(0).is_none() && pool.take_run(Run::MOST + 1).is_none());
        std::thread::spawn(move || drop(frames)).join().unwrap();
        assert_eq!(pool.take_run(7).map(|run| run.len()), Some(7));
    }

    #[test]
    fn it_may_outlive_its_pool() {
        let pool = Pool::new(PoolConfig { frames: 4, frame_size: 64 });
        let mut run = pool.take_run(3).unwrap();
        drop(pool);
        let mut frame = run.pop().unwrap();
        run.buffer_mut(1).unwrap().fill(1);
        drop(run);
        frame.buffer_mut().fill(2);
    }
}
