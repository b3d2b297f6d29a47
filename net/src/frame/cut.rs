//! Frames cut into pieces: several messages that came in one packet stay where they are, and whoever drops the last piece gives the buffer
//! back.
//!
//! The pieces are counted at the frame's home, in a word of the frame's own. While the frame is being cut the word holds more than there
//! can ever be, so that cutting costs no atomic step; the end of it takes back what was too much.

use std::fmt;
use std::mem::ManuallyDrop;

use super::Frame;
use crate::sync::primitive::{Ordering, acquire_read, ord};

/// More pieces than a frame can have: each message has a header, and a datagram 64 KiB at most.
const MORE_THAN_EVER: usize = 1 << 16;

/// A frame that is being cut into pieces.
pub struct Cutter {
    frame: ManuallyDrop<Frame>,
    /// Pieces that may still be cut, and the one that the cutter itself stands for; 0 if the frame stays whole.
    left: usize,
}

/// A part of a frame, to read. Other parts belong to others.
pub struct Piece(ManuallyDrop<Frame>);

impl Cutter {
    /// Begins to cut a frame, if that is wanted.
    #[inline]
    pub fn new(frame: Frame, wanted: bool) -> Cutter {
        let mut left = 0;
        if let Some(pieces) = frame.pieces().filter(|_| wanted) {
            // Nobody else has the frame; whoever gets a piece gets this too.
            pieces.store(MORE_THAN_EVER, Ordering::Relaxed);
            left = MORE_THAN_EVER;
        }
        Cutter { frame: ManuallyDrop::new(frame), left }
    }

    /// The frame's range.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.frame.data()
    }

    /// The piece of `len` bytes at `offset` in the frame's range. `None` where that is not inside, and from a frame that stays whole: it is not
    /// wanted, or the frame's home does not count pieces.
    #[inline]
    pub fn cut(&mut self, offset: usize, len: usize) -> Option<Piece> {
        let (parts, first) = (self.frame.parts, self.frame.offset);
        let inside = offset <= self.frame.len() && len <= self.frame.len() - offset;
        if self.left <= 1 || !inside {
            return None;
        }
        self.left -= 1;
        // The parts are released when every piece and this cutter are gone, and until then all of them only read. What lies inside fits.
        Some(Piece(ManuallyDrop::new(Frame { parts, offset: first + offset as u32, len: len as u32 })))
    }
}

impl fmt::Debug for Cutter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cutter").field(&*self.frame).finish()
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes)", self.data().len())
    }
}

impl Drop for Cutter {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            // SAFETY: we have that many, and the frame is not used after this.
            unsafe { let_go(&mut self.frame, self.left) };
        } else {
            // SAFETY: no piece was cut, and the frame is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.frame) };
        }
    }
}

impl Piece {
    /// A frame's range as its only piece.
    #[inline]
    pub(crate) fn whole(frame: Frame) -> Piece {
        if let Some(pieces) = frame.pieces() {
            pieces.store(1, Ordering::Relaxed);
        }
        Piece(ManuallyDrop::new(frame))
    }

    /// The piece's bytes.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.0.data()
    }

    /// Takes `count` bytes off the front.
    ///
    /// # Panics
    ///
    /// If the piece is shorter than that.
    #[inline]
    pub fn trim_front(&mut self, count: usize) {
        self.0.trim_front(count);
    }
}

impl Drop for Piece {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the frame is not used after this.
        unsafe { let_go(&mut self.0, 1) };
    }
}

/// Takes `count` pieces off, and gives the frame back if they were the last.
///
/// # Safety
///
/// The caller had as many pieces, and uses the frame no more.
#[inline]
unsafe fn let_go(frame: &mut ManuallyDrop<Frame>, count: usize) {
    if let Some(pieces) = frame.pieces() {
        let alone = pieces.load(Ordering::Relaxed) == count;
        // Release: our reads of the frame are over before anybody writes to it again.
        if !alone && pieces.fetch_sub(count, ord!(Release, "frame-piece-drop")) != count {
            return;
        }
        // Acquire: where no other piece is left, the reads of those who had them are over too.
        acquire_read(pieces, ord!(Acquire, "frame-last-piece"));
    }
    // SAFETY: no other piece is left, and the caller gives this one up.
    unsafe { ManuallyDrop::drop(frame) };
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;
    use crate::frame::{Pool, PoolConfig};

    fn filled(pool: &Pool) -> Frame {
        let mut frame = pool.take().unwrap();
        frame.set_range(2, 20);
        for (n, byte) in frame.data_mut().iter_mut().enumerate() {
            *byte = n as u8;
        }
        frame
    }

    #[test]
    fn a_frame_is_back_when_its_last_piece_is_dropped_wherever_that_is() {
        let pool = Pool::new(PoolConfig { frames: 1, frame_size: 64 });
        let mut cutter = Cutter::new(filled(&pool), true);
        let (mut one, two) = (cutter.cut(0, 5).unwrap(), cutter.cut(10, 10).unwrap());
        drop(cutter);
        one.trim_front(2);
        assert_eq!((one.data(), two.data()), (&[2, 3, 4][..], &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19][..]));
        drop(one);
        assert_eq!(pool.available(), 0);
        std::thread::spawn(move || drop(two)).join().unwrap();
        assert_eq!(pool.available(), 1);
        drop(Cutter::new(filled(&pool), true));
        drop(Piece::whole(filled(&pool)));
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn no_piece_reaches_beyond_its_frame_s_range_and_a_frame_that_is_not_cut_has_none() {
        let pool = Pool::new(PoolConfig { frames: 1, frame_size: 64 });
        let mut cutter = Cutter::new(filled(&pool), true);
        for (offset, len) in [(0, 21), (21, 0), (20, 1), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(cutter.cut(offset, len).is_none(), "{len} at {offset}");
        }
        assert_eq!(cutter.cut(20, 0).unwrap().data(), []);
        drop(cutter);
        assert!(Cutter::new(filled(&pool), false).cut(0, 1).is_none());
        assert!(Cutter::new(Frame::detached(64), true).cut(0, 0).is_none(), "the heap does not count pieces");
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn pieces_dropped_by_many_threads_give_each_frame_back_once() {
        let pool = Pool::new(PoolConfig { frames: 4, frame_size: 64 });
        for round in 0..if cfg!(debug_assertions) { 300 } else { 3_000 } {
            let mut cutter = Cutter::new(filled(&pool), true);
            let pieces: Vec<Piece> = (0..4).map(|n| cutter.cut(n, 1).unwrap()).collect();
            let threads: Vec<_> =
                pieces.into_iter().map(|piece| std::thread::spawn(move || assert_eq!(piece.data().len(), 1))).collect();
            drop(cutter);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(pool.available(), 4, "round {round}");
        }
    }
}
