//! One facade over `std` and loom, and the named orderings that mutation tests weaken.
//!
//! The [`UnsafeCell`] is loom's: access goes through a closure, so that the model checker sees when it starts and ends. On `std`
//! it compiles to nothing.

/// An atomic ordering with a name. It is the ordering, except under loom with `TAUTLINE_MUTANT` set to the name: then it is the
/// next weaker one, and a model must fail.
#[cfg(not(tautline_loom))]
macro_rules! ord {
    ($order:ident, $name:literal) => {
        std::sync::atomic::Ordering::$order
    };
}

#[cfg(tautline_loom)]
macro_rules! ord {
    ($order:ident, $name:literal) => {
        $crate::sync::primitive::weakened(std::sync::atomic::Ordering::$order, $name)
    };
}

pub(crate) use ord;
pub use platform::*;
pub use std::sync::atomic::Ordering;

#[cfg(not(tautline_loom))]
mod platform {
    use std::cell::Cell;
    use std::num::NonZeroU64;

    pub use std::alloc::{alloc_zeroed, dealloc};
    pub use std::hint::spin_loop;
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
    pub use std::thread;

    /// `std::cell::UnsafeCell` with loom's way in.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell with this value.
        #[inline(always)]
        pub const fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Gives `f` the value to read. The pointer must not be kept, and is dereferenced under the caller's own promise.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Gives `f` the value to write. The pointer must not be kept, and is dereferenced under the caller's own promise.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// An acquire fence, after `atomic` was read without acquiring.
    #[cfg(not(tautline_tsan))]
    #[inline(always)]
    pub fn acquire_read(_: &AtomicUsize, order: super::Ordering) {
        fence(order);
    }

    /// ThreadSanitizer learns no order from a fence, and would call what follows a race. One more read is as good: it finds what was
    /// read before, or what came after that in the same sequence of updates. (`Arc` of the standard library does the same.)
    #[cfg(tautline_tsan)]
    pub fn acquire_read(atomic: &AtomicUsize, order: super::Ordering) {
        atomic.load(order);
    }

    /// The value of an atomic that nobody else can reach any more.
    #[inline(always)]
    pub fn exclusive(atomic: &mut AtomicU32) -> u32 {
        *atomic.get_mut()
    }

    thread_local! {
        // Constant and without a destructor: reading it is one load, at any moment of the thread's life.
        static TOKEN: Cell<u64> = const { Cell::new(0) };
    }

    /// The calling thread's token, zero if nobody has asked for one by [`thread_token`].
    #[inline(always)]
    pub fn known_thread_token() -> u64 {
        TOKEN.get()
    }

    /// A number that only the calling thread has, and that no later thread of this process will have.
    pub fn thread_token() -> NonZeroU64 {
        if let Some(token) = NonZeroU64::new(TOKEN.get()) {
            return token;
        }
        let token = super::fresh_token();
        TOKEN.set(token.get());
        token
    }
}

#[cfg(tautline_loom)]
mod platform {
    use std::cell::Cell;
    use std::num::NonZeroU64;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    pub use loom::alloc::{alloc_zeroed, dealloc};
    pub use loom::cell::UnsafeCell;
    pub use loom::hint::spin_loop;
    pub use loom::sync::Arc;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
    pub use loom::thread;

    /// `std::sync::atomic::fence`, but a relaxed one, which only a mutant asks for, is none.
    pub fn fence(order: Ordering) {
        if order != Ordering::Relaxed {
            loom::sync::atomic::fence(order);
        }
    }

    /// An acquire fence, after `atomic` was read without acquiring.
    pub fn acquire_read(_: &AtomicUsize, order: Ordering) {
        fence(order);
    }

    /// The value of an atomic that nobody else can reach any more.
    pub fn exclusive(atomic: &mut AtomicU32) -> u32 {
        atomic.with_mut(|value| *value)
    }

    loom::thread_local! {
        static TOKEN: Cell<u64> = Cell::new(0);
    }

    /// The calling thread's token, zero if nobody has asked for one by [`thread_token`].
    pub fn known_thread_token() -> u64 {
        TOKEN.with(Cell::get)
    }

    /// A number that only the calling thread has.
    pub fn thread_token() -> NonZeroU64 {
        TOKEN.with(|token| {
            NonZeroU64::new(token.get()).unwrap_or_else(|| {
                let fresh = super::fresh_token();
                token.set(fresh.get());
                fresh
            })
        })
    }

    /// The ordering named `name`: weakened if it is the mutant of this run.
    pub fn weakened(order: Ordering, name: &'static str) -> Ordering {
        static MUTANT: OnceLock<Option<String>> = OnceLock::new();
        let mutant = MUTANT.get_or_init(|| std::env::var("TAUTLINE_MUTANT").ok());
        match order {
            order if mutant.as_deref() != Some(name) => order,
            Ordering::SeqCst => Ordering::AcqRel,
            _ => Ordering::Relaxed,
        }
    }
}

fn fresh_token() -> std::num::NonZeroU64 {
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    std::num::NonZeroU64::new(token).expect("2^64 threads were never started")
}

/// A value on cache lines of its own, so that writing it does not take its neighbours away from other cores. 128 bytes: x86
/// fetches lines in pairs, and some ARM cores have lines of that size.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// `value`, padded.
    pub const fn new(value: T) -> CachePadded<T> {
        CachePadded(value)
    }
}

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for CachePadded<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_token_and_keeps_it() {
        let mine = thread_token();
        assert_eq!(mine.get(), known_thread_token());
        assert_eq!(mine, thread_token());
        let other = thread::spawn(|| (known_thread_token(), thread_token())).join().unwrap();
        assert_eq!(other.0, 0);
        assert_ne!(mine, other.1);
    }

    #[test]
    fn padded_values_share_no_cache_line() {
        let pair = [CachePadded::new(0u8), CachePadded::new(0u8)];
        let distance = (&raw const *pair[1]).addr() - (&raw const *pair[0]).addr();
        assert!(distance >= 128);
    }
}
