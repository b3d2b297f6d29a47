//! Runs a simulation under many seeds, on every core.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `TAUTLINE_SEEDS` | 1,000 | how many seeds each simulation runs |
//! | `TAUTLINE_FIRST_SEED` | 0 | the first of them |
//! | `TAUTLINE_SEED` | none | this seed alone, to repeat a failure |
//!
//! `scripts/seeds` sets them.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that each simulation runs unless told otherwise.
pub const DEFAULT: u64 = 1_000;
/// More threads than this gain nothing that is worth their memory.
const MOST_THREADS: usize = 16;

/// Runs `simulation` with each seed; what it returns is dropped. The seeds share nothing: each call makes its own network, which belongs to its thread.
///
/// # Panics
///
/// With the panic of a seed that failed, after saying which it was and how to repeat it.
pub fn each<T>(simulation: impl Fn(u64) -> T + Sync) {
    let seeds = chosen(|name| std::env::var(name).ok());
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS) {
            scope.spawn(|| work(&next, seeds.end, &failed, &simulation));
        }
    });
    let failed: Option<Box<dyn Any + Send>> = failed.into_inner().expect("no thread panics while it holds this");
    match failed {
        Some(panic) => resume_unwind(panic),
        None => println!("seeds {} to {} hold", seeds.start, seeds.end.saturating_sub(1)),
    }
}

fn work<T>(next: &AtomicU64, end: u64, failed: &Mutex<Option<Box<dyn Any + Send>>>, simulation: &(impl Fn(u64) -> T + Sync)) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(simulation(seed)))) {
            eprintln!("seed {seed} failed: TAUTLINE_SEED={seed} repeats it alone");
            // The others end after the seed that they are at.
            next.fetch_max(end, Ordering::Relaxed);
            failed.lock().expect("no thread panics while it holds this").get_or_insert(panic);
            return;
        }
    }
}

/// The seeds that the variables ask for.
fn chosen(variable: impl Fn(&str) -> Option<String>) -> Range<u64> {
    let number =
        |name: &str| variable(name).map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}: not a whole number")));
    if let Some(seed) = number("TAUTLINE_SEED") {
        return seed..seed + 1;
    }
    let first = number("TAUTLINE_FIRST_SEED").unwrap_or(0);
    first..first + number("TAUTLINE_SEEDS").unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_seed_asked_for_runs_once() {
        let ran = Mutex::new(Vec::new());
        let (next, failed) = (AtomicU64::new(5), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| work(&next, 300, &failed, &|seed| ran.lock().unwrap().push(seed)));
            }
        });
        let ran = ran.into_inner().unwrap();
        assert_eq!((ran.len(), ran.into_iter().collect::<BTreeSet<u64>>()), (295, (5..300).collect()));
    }

    #[test]
    fn a_failing_seed_stops_the_others_and_its_panic_comes_out() {
        let (next, failed, ran) = (AtomicU64::new(0), Mutex::new(None), AtomicU64::new(0));
        let simulation = |seed| {
            ran.fetch_add(1, Ordering::Relaxed);
            assert!(seed != 3, "as it should");
        };
        work(&next, 1_000_000, &failed, &simulation);
        let panic = failed.into_inner().unwrap().expect("it failed");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"as it should"));
        assert_eq!(ran.into_inner(), 4);
    }

    #[test]
    fn the_variables_choose_the_seeds() {
        let with = |set: &[(&str, &str)]| {
            chosen(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(with(&[]), 0..DEFAULT);
        assert_eq!(with(&[("TAUTLINE_SEEDS", "70"), ("TAUTLINE_FIRST_SEED", "30")]), 30..100);
        assert_eq!(with(&[("TAUTLINE_SEEDS", "70"), ("TAUTLINE_SEED", "12")]), 12..13);
    }

    #[test]
    #[should_panic = "TAUTLINE_SEEDS=many: not a whole number"]
    fn what_is_no_number_is_said_so() {
        chosen(|name| (name == "TAUTLINE_SEEDS").then(|| "many".to_owned()));
    }
}
