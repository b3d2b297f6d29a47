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
mod crew;
#[cfg(all(test, tautline_loom))]
mod frame;
#[cfg(all(test, tautline_loom))]
mod inbox;
#[cfg(all(test, tautline_loom))]
mod queue;
#[cfg(all(test, tautline_loom))]
mod ring;
#[cfg(all(test, tautline_loom))]
mod slots;
#[cfg(all(test, tautline_loom))]
mod wake;

/// Checks `body` under the interleavings with at most `preemptions` involuntary switches of threads, and then that it met each
/// of `outcomes`: a model that explores less than it seems to proves less than it seems to. (loom keeps one last access an
/// object, so it misses some interleavings that only differ in who loaded first; a model must be written so that it gets there.)
#[cfg(all(test, tautline_loom))]
fn model(preemptions: usize, outcomes: &[&'static str], body: impl Fn(&Seen) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` in the environment goes first: deeper, or quicker.
    builder.preemption_bound.get_or_insert(preemptions);
    let seen = Seen::default();
    builder.check({
        let seen = seen.clone();
        move || body(&seen)
    });
    let seen = seen.0.lock().unwrap();
    for outcome in outcomes {
        assert!(seen.contains(outcome), "the model never met {outcome:?}, only {seen:?}");
    }
}

/// The outcomes that a model met.
#[cfg(all(test, tautline_loom))]
#[derive(Clone, Default)]
struct Seen(std::sync::Arc<std::sync::Mutex<std::collections::BTreeSet<&'static str>>>);

#[cfg(all(test, tautline_loom))]
impl Seen {
    fn note(&self, outcome: &'static str) {
        self.0.lock().unwrap().insert(outcome);
    }
}
