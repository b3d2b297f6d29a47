//! Calls into foreign code, whose panics end there.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `work` returns; `None` if it panicked. The panic's payload is foreign too, and may panic once more as it is dropped.
pub(crate) fn guarded<R>(work: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(payload) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's own");
        }
    }

    #[test]
    fn a_panic_and_that_of_its_payload_end_here() {
        assert_eq!(guarded(|| 7), Some(7));
        assert_eq!(guarded(|| std::panic::panic_any(Bomb)), None::<()>);
    }
}
