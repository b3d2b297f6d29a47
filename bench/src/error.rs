//! Why a measurement could not be made: one sentence each, with what to do where something can be done.

use std::io;
use std::path::PathBuf;

/// What stopped a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Fewer cores than the two that a client and a server need.
    #[error("this benchmark needs two cores, and this process may use {available}: run it on a machine (or in a cpuset) with two")]
    TooFewCores {
        /// How many cores the process may use.
        available: usize,
    },
    /// `--cores` can't be used.
    #[error("`{given}` is not a pair of cores: write two different core numbers that this process may use, like 0,1")]
    Cores {
        /// What was given.
        given: String,
    },
    /// The operating system refused.
    #[error("{action} failed: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The other end stopped answering.
    #[error("{what} did not answer for {seconds} s: is the machine overloaded, or loopback filtered?")]
    Silent {
        /// Which measurement.
        what: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The other thread or process ended.
    #[error("the {what} ended early: {why}")]
    PartnerEnded {
        /// Which one.
        what: &'static str,
        /// What it said.
        why: String,
    },
    /// No two probes agreed.
    #[error(
        "the host moved the two cores during {discarded} of {attempts} rounds, too many to compare anything: run it again when the \
         machine is quieter"
    )]
    Unsettled {
        /// Rounds discarded.
        discarded: usize,
        /// Rounds run.
        attempts: usize,
    },
    /// A program that is needed is not there, or does not work.
    #[error("{why}: {remedy}")]
    Tool {
        /// What is missing.
        why: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The page of all figures can't be written.
    #[error("{}: the page can't be written there: {source}", .page.display())]
    Page {
        /// Where it was to go.
        page: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// None of several commands could measure anything.
    #[error("none of the {count} could be measured, and no page was written; of {command} it was said: {why}")]
    Nothing {
        /// How many.
        count: usize,
        /// The first of them.
        command: String,
        /// What it said.
        why: String,
    },
    /// A soak found what must not be.
    #[error("{count} leaks or faults, said above: run it again with --seed {seed}")]
    Leaks {
        /// How many.
        count: usize,
        /// What seeded the run.
        seed: u64,
    },
    /// A soak was told to end early, and had found nothing until then.
    #[error("interrupted after {ran} of {asked} s of traffic: nothing leaked until then")]
    Interrupted {
        /// Seconds of traffic.
        ran: u64,
        /// Seconds that were asked for.
        asked: u64,
        /// The signal's number.
        signal: u8,
    },
    /// The product failed.
    #[error("{action}: {why}")]
    Product {
        /// What was being done.
        action: &'static str,
        /// What the product answered.
        why: String,
    },
}

impl BenchError {
    /// A call was answered with something else than what it sent.
    pub(crate) fn wrong_reply() -> BenchError {
        BenchError::Product { action: "a call", why: "it was answered with another call's reply".to_owned() }
    }

    /// For `map_err` on a system call.
    pub fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> BenchError {
        move |source| BenchError::System { action, source: source.into() }
    }

    /// For `map_err` on a call of the product.
    pub fn product<E: std::fmt::Display>(action: &'static str) -> impl FnOnce(E) -> BenchError {
        move |error| BenchError::Product { action, why: error.to_string() }
    }
}
