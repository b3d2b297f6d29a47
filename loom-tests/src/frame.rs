//! Frames on their way home. loom sees the pool's bookkeeping, each frame's link, and whether the memory is freed once.

use loom::thread;
use tautline_net::frame::{Frame, Pool, PoolConfig};

use crate::{UNBOUNDED, model};

fn pool(frames: usize) -> Pool {
    Pool::new(PoolConfig { frames, frame_size: 64 })
}

fn take(pool: &Pool) -> Frame {
    loop {
        match pool.take() {
            Some(frame) => return frame,
            None => thread::yield_now(),
        }
    }
}

/// Preemptions: unbounded.
#[test]
fn a_frame_dropped_elsewhere_comes_back() {
    model(UNBOUNDED, || {
        let pool = pool(1);
        let frame = pool.take().unwrap();
        assert!(pool.take().is_none());
        let other = thread::spawn(move || drop(frame));
        let again = take(&pool);
        other.join().unwrap();
        drop(again);
        assert_eq!(pool.available(), 1);
    });
}

/// Preemptions: unbounded. The owner collects while two others push.
#[test]
fn frames_dropped_by_two_threads_come_back() {
    model(UNBOUNDED, || {
        let pool = pool(2);
        let others: Vec<_> =
            [pool.take().unwrap(), pool.take().unwrap()].into_iter().map(|frame| thread::spawn(move || drop(frame))).collect();
        let (one, two) = (take(&pool), take(&pool));
        assert_ne!(one.index(), two.index());
        for other in others {
            other.join().unwrap();
        }
    });
}

/// Preemptions: unbounded. A frame goes round twice: its link is written, read and written again.
#[test]
fn a_frame_goes_round_twice() {
    model(UNBOUNDED, || {
        let pool = pool(1);
        for _ in 0..2 {
            let frame = take(&pool);
            // Not joined: the pool's own order must do.
            thread::spawn(move || drop(frame));
        }
        drop(take(&pool));
        assert_eq!(pool.available(), 1);
    });
}

/// Preemptions: unbounded. Hand-over: whoever is last frees the memory, and nobody before. loom reports it if nobody does.
#[test]
fn a_pool_goes_while_its_frames_come_back() {
    model(UNBOUNDED, || {
        let pool = pool(2);
        let others: Vec<_> =
            [pool.take().unwrap(), pool.take().unwrap()].into_iter().map(|frame| thread::spawn(move || drop(frame))).collect();
        drop(pool);
        for other in others {
            other.join().unwrap();
        }
    });
}

/// Preemptions: unbounded. The owner's thread drops a frame after its pool, and races for being last too.
#[test]
fn the_owner_s_own_frames_outlive_the_pool() {
    model(UNBOUNDED, || {
        let pool = pool(3);
        let (mine, theirs) = (pool.take().unwrap(), pool.take().unwrap());
        let other = thread::spawn(move || drop(theirs));
        drop(pool);
        drop(mine);
        other.join().unwrap();
    });
}

/// Preemptions: unbounded. The owner ends; its frames are all with others.
#[test]
fn a_pool_s_thread_ends_before_its_frames() {
    model(UNBOUNDED, || {
        let owner = thread::spawn(|| {
            let pool = pool(2);
            [pool.take().unwrap(), pool.take().unwrap()]
        });
        let [one, two] = owner.join().unwrap();
        let other = thread::spawn(move || drop(one));
        drop(two);
        other.join().unwrap();
    });
}
