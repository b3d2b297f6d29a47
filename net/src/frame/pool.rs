//! A bounded pool of frames in one slab of memory, owned by one thread, its frames dropped by any.
//!
//! Frames dropped on the owner's thread are marked as free. Other threads push theirs onto a lock-free stack (Treiber's),
//! which the owner takes whole when its own run out: it is never popped, so it has no ABA problem. A pool that is dropped
//! closes that stack and hands its memory over to the frames that are still out: each counts itself off, and the last one frees.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::Frame;
use super::free::Free;
use super::home::{Home, NO_OWNER, Parts, Pieces};
use super::run::Run;
use super::slab::Slab;
use crate::sync::primitive::{
    AtomicU32, AtomicUsize, CachePadded, Ordering, UnsafeCell, acquire_read, exclusive, ord, thread_token,
};

/// How many frames a pool has, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Frames in the pool: all that there ever are.
    pub frames: usize,
    /// Usable bytes in each.
    pub frame_size: usize,
}

/// The owner's handle of a pool. Stays on its thread; the frames may go anywhere.
///
/// Dropping it while frames are out is fine: the memory stays until the last of them is dropped.
pub struct Pool {
    shared: NonNull<Shared>,
    _on_this_thread: PhantomData<*const ()>,
}

// `home` comes first: a pointer to it is a pointer to the whole.
#[repr(C)]
pub(super) struct Shared {
    home: Home,
    slab: Slab,
    frame_size: u32,
    count: u32,
    /// Touched by the owner's thread only.
    local: CachePadded<UnsafeCell<Local>>,
    /// The last frame that another thread returned, [`EMPTY`], or [`CLOSED`].
    returned: CachePadded<AtomicU32>,
    /// For each frame on that stack, the one below it. Written by the thread that returns the frame, before it pushes it.
    below: Box<[UnsafeCell<u32>]>,
    /// For each frame, how many pieces it is in, while it is cut.
    _pieces: Box<[AtomicUsize]>,
    /// Once closed: frames out, less those that counted themselves off. Wraps below zero until the owner has added its part.
    out: AtomicUsize,
}

const EMPTY: u32 = u32::MAX;
const CLOSED: u32 = u32::MAX - 1;
/// Frame numbers lie below the two marks.
const MOST_FRAMES: usize = CLOSED as usize;

struct Local {
    free: Free,
    /// Whether frames may be put back here: until the pool is closed.
    open: bool,
}

impl Pool {
    /// A pool of zeroed frames, owned by the calling thread. Memory is touched when frames are first used.
    ///
    /// # Panics
    ///
    /// If it does not fit into the address space, or a size not into 32 bits.
    pub fn new(config: PoolConfig) -> Pool {
        let PoolConfig { frames, frame_size } = config;
        assert!(frames < MOST_FRAMES, "{frames} frames are too many for a pool");
        let pieces: Box<[AtomicUsize]> = (0..frames).map(|_| AtomicUsize::new(0)).collect();
        let shared = Box::new(Shared {
            home: Home { owner: thread_token().get(), release: release_anywhere, pieces: Pieces(pieces.as_ptr()) },
            slab: Slab::new(frames, frame_size),
            frame_size: u32::try_from(frame_size).expect("a frame's size fits into 32 bits"),
            count: frames as u32,
            local: CachePadded::new(UnsafeCell::new(Local { free: Free::all(frames), open: true })),
            returned: CachePadded::new(AtomicU32::new(EMPTY)),
            below: (0..frames).map(|_| UnsafeCell::new(EMPTY)).collect(),
            _pieces: pieces,
            out: AtomicUsize::new(0),
        });
        debug_assert_ne!(shared.home.owner, NO_OWNER);
        Pool { shared: NonNull::from(Box::leak(shared)), _on_this_thread: PhantomData }
    }

    /// A frame, the one with the lowest number if there is a choice, with an empty range at the front. `None` if all are out.
    #[inline]
    pub fn take(&self) -> Option<Frame> {
        let shared = self.shared();
        let index = match shared.pop_local() {
            Some(index) => index,
            None if shared.collect() => shared.pop_local()?,
            None => return None,
        };
        // SAFETY: the frame was free, and nobody else has it now.
        Some(unsafe { frame(self.shared, index) })
    }

    /// Takes up to `count` frames, the lowest first, appends them to `into`, and says how many.
    pub fn take_burst(&self, into: &mut Vec<Frame>, count: usize) -> usize {
        // Nobody gets more than there are, whatever they ask for.
        let count = count.min(self.capacity());
        into.reserve(count);
        // Written in place: a push would build each frame on the stack first, and the copy would wait for those writes.
        let places = into.spare_capacity_mut().iter_mut().take(count);
        let mut taken = 0;
        for place in places {
            let Some(frame) = self.take() else { break };
            place.write(frame);
            taken += 1;
        }
        // SAFETY: `taken` frames were written right behind the old ones.
        unsafe { into.set_len(into.len() + taken) };
        taken
    }

    /// Takes `count` frames that lie together, the lowest that do. `None` if no so many do, or `count` is not 1 to [`Run::MOST`].
    pub fn take_run(&self, count: usize) -> Option<Run> {
        if !(1..=Run::MOST).contains(&count) {
            return None;
        }
        let shared = self.shared();
        let first = match shared.pop_run(count) {
            Some(first) => first,
            None if shared.collect() => shared.pop_run(count)?,
            None => return None,
        };
        // SAFETY: these frames were free, and nobody else has them now.
        Some(unsafe { Run::new(self.shared, first..first + count as u32, shared.slab.stride()) })
    }

    /// How many frames can be taken now.
    pub fn available(&self) -> usize {
        let shared = self.shared();
        shared.collect();
        // SAFETY: we are on the owner's thread, and nothing else borrows the local part meanwhile.
        shared.local.with(|local| unsafe { (*local).free.len() })
    }

    /// Whether fewer than `count` can be taken now.
    #[inline]
    pub(crate) fn has_less_than(&self, count: usize) -> bool {
        // SAFETY: as in `available`.
        let here = self.shared().local.with(|local| unsafe { (*local).free.len() });
        // What other threads returned need not be looked at where there is enough without.
        here < count && self.available() < count
    }

    /// How many frames the pool has.
    pub fn capacity(&self) -> usize {
        self.shared().count as usize
    }

    /// Usable bytes in each frame.
    pub fn frame_size(&self) -> usize {
        self.shared().frame_size as usize
    }

    fn shared(&self) -> &Shared {
        // SAFETY: freed only after this handle is dropped.
        unsafe { self.shared.as_ref() }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let shared = self.shared();
        // Closed to other threads first. What they returned so far is home; what they return later is counted off in `out`.
        shared.take_returned(CLOSED);
        let home = shared.local.with_mut(|local| {
            // SAFETY: we are on the owner's thread, and nothing else borrows the local part meanwhile.
            let local = unsafe { &mut *local };
            // From now on frames dropped on this thread go the way of other threads' frames.
            local.open = false;
            local.free.len()
        });
        let out = shared.count as usize - home;
        // Release: our use of the pool is over before another thread frees it.
        let counted_off = shared.out.fetch_add(out, ord!(Release, "frame-close-release"));
        if counted_off.wrapping_add(out) == 0 {
            // Acquire: the other threads' use of it is over.
            acquire_read(&shared.out, ord!(Acquire, "frame-close-acquire"));
            // SAFETY: every frame is home or counted off, and this handle is going.
            unsafe { free(self.shared) };
        }
    }
}

/// Frame `index` of a pool.
///
/// # Safety
///
/// The pool is alive, and the frame neither free nor anybody else's.
#[inline]
pub(super) unsafe fn frame(pool: NonNull<Shared>, index: u32) -> Frame {
    // SAFETY: the caller says so.
    let shared = unsafe { pool.as_ref() };
    let parts = Parts { buffer: shared.slab.buffer(index), home: pool.cast(), capacity: shared.frame_size, index };
    // SAFETY: nobody else uses its buffer; the slab is initialised, and stays until the frame is back.
    unsafe { Frame::from_parts(parts) }
}

/// The short way back. `false` if the pool is closed: nothing happened.
///
/// # Safety
///
/// The frame is of a pool whose owner is the calling thread, and the caller gives it up if the answer is `true`.
#[inline]
pub(super) unsafe fn release_here(home: NonNull<Home>, index: u32) -> bool {
    // SAFETY: the home of a pool's frame is the head of its `Shared`, alive as long as the frame is.
    let shared = unsafe { home.cast::<Shared>().as_ref() };
    shared.push_local(index)
}

/// The way back from any thread.
///
/// # Safety
///
/// The frame is of a pool, and the caller gives it up.
unsafe fn release_anywhere(home: NonNull<Home>, _: NonNull<u8>, _: u32, index: u32) {
    let pointer = home.cast::<Shared>();
    // SAFETY: the home of a pool's frame is the head of its `Shared`, alive as long as the frame is.
    let shared = unsafe { pointer.as_ref() };
    let mut top = shared.returned.load(Ordering::Relaxed);
    while top != CLOSED {
        // SAFETY: the frame is ours until it is pushed, and with it its link.
        shared.below[index as usize].with_mut(|below| unsafe { *below = top });
        // Release: the link, and our use of the frame's memory.
        let pushed = shared.returned.compare_exchange_weak(top, index, ord!(Release, "frame-return-push"), Ordering::Relaxed);
        match pushed {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
    // The owner is gone. Release: our use of the pool is over before another thread frees it.
    if shared.out.fetch_sub(1, ord!(Release, "frame-count-off")) == 1 {
        // Acquire: everybody else's use of it is over.
        acquire_read(&shared.out, ord!(Acquire, "frame-last-acquire"));
        // SAFETY: the count says that the handle is gone, and this was the last frame.
        unsafe { free(pointer) };
    }
}

/// # Safety
///
/// Nobody uses the pool or any frame of it any more, and all that was done before happened before.
unsafe fn free(shared: NonNull<Shared>) {
    // SAFETY: `Pool::new` leaked it from a box, and the caller is the last to know of it.
    let mut shared = unsafe { Box::from_raw(shared.as_ptr()) };
    debug_assert_eq!(exclusive(&mut shared.returned), CLOSED);
    // SAFETY: nobody else is left.
    shared.local.with_mut(|local| debug_assert!(!unsafe { (*local).open }));
}

impl Shared {
    /// The whole buffer of frame `index`.
    #[inline]
    pub(super) fn buffer(&self, index: u32) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.slab.buffer(index), self.frame_size as usize)
    }

    #[inline]
    fn pop_local(&self) -> Option<u32> {
        self.local.with_mut(|local| {
            // SAFETY: only the owner's thread comes here, and nothing is called meanwhile that could come here again.
            let local = unsafe { &mut *local };
            local.free.take()
        })
    }

    fn pop_run(&self, count: usize) -> Option<u32> {
        self.local.with_mut(|local| {
            // SAFETY: as in `pop_local`.
            let local = unsafe { &mut *local };
            local.free.take_run(count)
        })
    }

    #[inline]
    fn push_local(&self, index: u32) -> bool {
        self.local.with_mut(|local| {
            // SAFETY: as in `pop_local`.
            let local = unsafe { &mut *local };
            if local.open {
                local.free.put(index);
            }
            local.open
        })
    }

    /// Marks what other threads returned as free. `false` if that was nothing.
    #[cold]
    fn collect(&self) -> bool {
        self.returned.load(Ordering::Relaxed) != EMPTY && self.take_returned(EMPTY) > 0
    }

    /// Takes the whole stack of returned frames, leaves `mark` in its place, and says how many they were.
    fn take_returned(&self, mark: u32) -> usize {
        // Acquire: the links, and the other threads' use of the frames' memory.
        let mut top = self.returned.swap(mark, ord!(Acquire, "frame-return-collect"));
        let mut count = 0;
        while top != EMPTY {
            self.push_local(top);
            // SAFETY: the frame came off the stack: the link is ours to read.
            top = self.below[top as usize].with(|below| unsafe { *below });
            count += 1;
        }
        count
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("frames", &self.capacity()).field("frame_size", &self.frame_size()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc;

    use super::*;

    fn pool(frames: usize, frame_size: usize) -> Pool {
        Pool::new(PoolConfig { frames, frame_size })
    }

    #[test]
    fn a_pool_is_bounded_and_its_frames_are_apart() {
        let pool = pool(5, 100);
        assert_eq!((pool.capacity(), pool.frame_size(), pool.available()), (5, 100, 5));
        let mut frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((frames.len(), pool.available()), (5, 0));
        for (index, frame) in frames.iter_mut().enumerate() {
            assert_eq!((frame.buffer_mut().as_ptr().addr() % 64, frame.capacity(), frame.len()), (0, 100, 0));
            assert!(frame.buffer_mut().iter().all(|&byte| byte == 0));
            frame.buffer_mut().fill(index as u8 + 1);
        }
        for (index, frame) in frames.iter_mut().enumerate() {
            assert!(frame.buffer_mut().iter().all(|&byte| byte == index as u8 + 1));
        }
        assert_eq!(frames.iter().map(Frame::index).collect::<HashSet<_>>(), (0..5).collect());
        drop(frames);
        assert_eq!(pool.available(), 5);
    }

    #[test]
    fn a_burst_takes_what_there_is_and_keeps_what_was_there() {
        let pool = pool(5, 64);
        let mut frames = vec![Frame::detached(1)];
        assert_eq!((pool.take_burst(&mut frames, 3), frames.len()), (3, 4));
        assert_eq!((pool.take_burst(&mut frames, 3), frames.len()), (2, 6));
        assert_eq!((pool.take_burst(&mut frames, 3), pool.take_burst(&mut frames, 0)), (0, 0));
        assert_eq!(frames[0].capacity(), 1);
        assert_eq!(frames[1..].iter().map(Frame::index).collect::<HashSet<_>>(), (0..5).collect());
        drop(frames);
        assert_eq!(pool.available(), 5);
    }

    #[test]
    fn frames_that_came_back_in_any_order_are_taken_as_one_piece_of_memory() {
        let pool = pool(64, 128);
        let mut frames = Vec::new();
        pool.take_burst(&mut frames, 64);
        let (mut later, mut now) = (frames.split_off(32), frames);
        fastrand::Rng::with_seed(1).shuffle(&mut now);
        now.clear();
        pool.take_burst(&mut now, 32);
        for pair in now.windows(2) {
            assert_eq!(pair[0].index() + 1, pair[1].index());
        }
        later.append(&mut now);
        for pair in later.chunks_exact_mut(2) {
            let [one, two] = pair else { unreachable!() };
            assert_eq!(one.buffer_mut().as_mut_ptr_range().end, two.buffer_mut().as_mut_ptr());
        }
    }

    #[test]
    fn frames_dropped_on_another_thread_come_back() {
        let pool = pool(8, 64);
        let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        std::thread::spawn(move || drop(frames)).join().unwrap();
        let again: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(again.iter().map(Frame::index).collect::<HashSet<_>>(), (0..8).collect());
    }

    #[test]
    fn a_pool_of_no_frames_has_none() {
        let pool = pool(0, 0);
        assert!(pool.take().is_none());
        assert_eq!(pool.available(), 0);
    }

    #[test]
    fn frames_outlive_their_pool_on_its_thread_and_on_others() {
        let pool = pool(4, 64);
        let mut here = pool.take().unwrap();
        let mut there = pool.take().unwrap();
        let returned = pool.take().unwrap();
        std::thread::spawn(move || drop(returned)).join().unwrap();
        drop(pool);
        here.buffer_mut().fill(1);
        let there = std::thread::spawn(move || {
            there.buffer_mut().fill(2);
            there
        });
        let there = there.join().unwrap();
        drop(here);
        let mut last = there;
        assert!(last.buffer_mut().iter().all(|&byte| byte == 2));
        drop(last);
    }

    #[test]
    fn a_pool_survives_the_end_of_other_pools_frames_and_threads() {
        // A later thread may get an earlier thread's memory, but not its token: it must not take the owner's way back.
        let orphan = std::thread::spawn(|| pool(2, 64).take().unwrap()).join().unwrap();
        std::thread::spawn(move || drop(orphan)).join().unwrap();
    }

    #[test]
    fn no_frame_is_lost_or_doubled_while_threads_drop_them() {
        const FRAMES: usize = 32;
        const ROUNDS: u64 = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };
        let pool = pool(FRAMES, 64);
        let (to_one, one) = mpsc::sync_channel::<(u64, Frame)>(FRAMES);
        let (to_two, two) = mpsc::sync_channel::<(u64, Frame)>(FRAMES);
        let drain = |frames: mpsc::Receiver<(u64, Frame)>| {
            move || {
                for (round, frame) in frames {
                    assert_eq!(frame[..], round.to_le_bytes(), "somebody else wrote to our frame");
                }
            }
        };
        let threads = [std::thread::spawn(drain(one)), std::thread::spawn(drain(two))];
        let mut kept = Vec::new();
        for round in 0..ROUNDS {
            let mut frame = loop {
                match pool.take() {
                    Some(frame) => break frame,
                    None => std::thread::yield_now(),
                }
            };
            frame.set_range(8, 8);
            frame.data_mut().copy_from_slice(&round.to_le_bytes());
            match round % 5 {
                0 => drop(frame),
                1 => kept.push(frame),
                2 => to_one.send((round, frame)).unwrap(),
                _ => to_two.send((round, frame)).unwrap(),
            }
            if kept.len() == FRAMES / 2 {
                kept.clear();
            }
        }
        drop((to_one, to_two, kept));
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(pool.available(), FRAMES);
    }

    #[test]
    fn a_pool_may_go_while_other_threads_drop_its_frames() {
        for _ in 0..if cfg!(debug_assertions) { 200 } else { 2_000 } {
            let pool = pool(4, 64);
            let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            let threads: Vec<_> = frames.into_iter().map(|frame| std::thread::spawn(move || drop(frame))).collect();
            drop(pool);
            for thread in threads {
                thread.join().unwrap();
            }
        }
    }
}
