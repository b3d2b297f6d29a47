//! Model checking of Tautline's lock-free code, as shipped.
//!
//! Under `--cfg tautline_loom` the crate `tautline-net` is built on loom, which runs each model here under every interleaving
//! (up to the model's bound on preemptions) and every value that the memory model lets a load return. `scripts/loom` runs them,
//! and runs them again with one ordering of the code weakened at a time: a model must fail for each.
//!
//! What loom finds: data races on any `UnsafeCell`, deadlocks (a wake-up lost), leaked allocations, and failed assertions. What
//! it can't find: what only shows with more preemptions or threads than a model has, and anything that hangs on the order of
//! two sequentially consistent *accesses*, which it treats as weaker (so the code uses fences there).

#[cfg(all(test, tautline_loom))]
mod claim;
#[cfg(all(test, tautline_loom))]
mod frame;
#[cfg(all(test, tautline_loom))]
mod inbox;
#[cfg(all(test, tautline_loom))]
mod queue;
#[cfg(all(test, tautline_loom))]
mod ring;
#[cfg(all(test, tautline_loom))]
mod wake;

/// For models that are small enough to be checked without a bound.
#[cfg(all(test, tautline_loom))]
const UNBOUNDED: usize = usize::MAX;

/// Checks `body` under every interleaving with at most `preemptions` involuntary switches of threads.
#[cfg(all(test, tautline_loom))]
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` in the environment goes first: deeper, or quicker.
    if builder.preemption_bound.is_none() && preemptions != UNBOUNDED {
        builder.preemption_bound = Some(preemptions);
    }
    builder.check(body);
}
