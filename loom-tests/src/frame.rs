//! Frames on their way home. loom sees the pool's bookkeeping, each frame's link (which stands for its memory: both change hands
//! by the same operation), and whether the slab is freed exactly once.

use loom::thread;
use tautline_net::frame::{Cutter, Frame, Pool, PoolConfig};

use crate::{Seen, model};

fn pool(frames: usize) -> Pool {
    Pool::new(PoolConfig { frames, frame_size: 64 })
}

fn drop_elsewhere(frame: Frame) -> thread::JoinHandle<()> {
    thread::spawn(move || drop(frame))
}

fn take(pool: &Pool, seen: &Seen) -> Frame {
    loop {
        match pool.take() {
            Some(frame) => return frame,
            None => {
                seen.note("exhausted");
                thread::yield_now();
            }
        }
    }
}

/// Preemptions: 5. A frame goes round twice: its link is written, read and written again. Nobody joins the threads that drop it:
/// the pool's own order must do.
#[test]
fn a_frame_dropped_elsewhere_comes_back() {
    model(5, &["exhausted"], |seen| {
        let pool = pool(1);
        drop_elsewhere(take(&pool, seen));
        drop_elsewhere(take(&pool, seen));
        drop(take(&pool, seen));
        assert_eq!(pool.available(), 1);
    });
}

/// Preemptions: 4. The owner collects while two others push.
#[test]
fn frames_dropped_by_two_threads_come_back() {
    model(4, &["exhausted", "one by one", "together"], |seen| {
        let pool = pool(2);
        let others = [pool.take(), pool.take()].map(|frame| drop_elsewhere(frame.unwrap()));
        let one = take(&pool, seen);
        let two = pool.take();
        seen.note(if two.is_some() { "together" } else { "one by one" });
        let two = two.unwrap_or_else(|| take(&pool, seen));
        assert_ne!(one.index(), two.index());
        drop((one, two));
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(pool.available(), 2);
    });
}

/// Preemptions: 5. A frame in two pieces, dropped by two threads: it comes back once, and only when both are done with its memory,
/// which the cell stands for. Each of the two may be the last to go, and the other may see that at once or only when it counts itself off.
#[test]
fn a_frame_in_pieces_comes_back_when_the_last_is_dropped() {
    model(5, &["back at once", "waited for"], |seen| {
        let pool = pool(1);
        let memory = loom::sync::Arc::new(loom::cell::UnsafeCell::new(0));
        let mut cutter = Cutter::new(pool.take().unwrap(), true);
        let (mine, theirs) = (cutter.cut(0, 0).unwrap(), cutter.cut(0, 0).unwrap());
        drop(cutter);
        let shared = memory.clone();
        let other = thread::spawn(move || {
            shared.with(|_| ());
            drop(theirs);
        });
        memory.with(|_| ());
        drop(mine);
        let frame = match pool.take() {
            Some(frame) => {
                seen.note("back at once");
                frame
            }
            None => {
                seen.note("waited for");
                take(&pool, seen)
            }
        };
        memory.with_mut(|_| ());
        drop(frame);
        other.join().unwrap();
        assert_eq!(pool.available(), 1);
    });
}

/// Preemptions: 5. Hand-over: whoever is last frees the memory, and nobody before. loom reports it if nobody does.
#[test]
fn a_pool_goes_while_its_frames_come_back() {
    model(5, &[], |_| {
        let pool = pool(2);
        let others = [pool.take(), pool.take()].map(|frame| drop_elsewhere(frame.unwrap()));
        drop(pool);
        for other in others {
            other.join().unwrap();
        }
    });
}

/// Preemptions: 5. The owner's thread drops a frame after its pool, and races for being last too.
#[test]
fn the_owner_s_own_frames_outlive_the_pool() {
    model(5, &[], |_| {
        let pool = pool(3);
        let (mine, theirs) = (pool.take().unwrap(), pool.take().unwrap());
        let other = drop_elsewhere(theirs);
        drop(pool);
        drop(mine);
        other.join().unwrap();
    });
}

/// Preemptions: 5. The owner ends; its frames are all with others.
#[test]
fn a_pool_s_thread_ends_before_its_frames() {
    model(5, &[], |_| {
        let owner = thread::spawn(|| {
            let pool = pool(2);
            [pool.take().unwrap(), pool.take().unwrap()]
        });
        let [one, two] = owner.join().unwrap();
        let other = drop_elsewhere(one);
        drop(two);
        other.join().unwrap();
    });
}
