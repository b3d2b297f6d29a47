//! `instructions`: what a small call costs in instructions, both sides together, counted by callgrind and compared with the figure
//! that the repository keeps.
//!
//! The program runs itself under valgrind, on one thread and in virtual time, once with few calls and once with many; the difference is that
//! of the calls alone. Nothing in it depends on what else the machine does, so that it can be guarded to a few percent.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tautline_bench::callgrind;
use tautline_bench::error::BenchError;
use tautline_bench::pipeline::{SMALL, Solo};
use tautline_bench::report::Report;
use tautline_rpc::{Clock, EndpointConfig, NodeConfig, Time};

use crate::cli::{Instructions, InstructionsLoad};

/// How much more than the stored figure is too much: changes of less come with the compiler.
const SLACK: f64 = 1.03;

/// The calls outstanding in the pipelined load.
const WINDOW: usize = 32;

/// Calls of the two runs. Both are past everything that happens at the start.
const CALLS: [u64; 2] = [8_000, 40_000];
const CALLS_QUICK: [u64; 2] = [4_000, 12_000];

/// The hidden command that runs under valgrind.
const LOAD: &str = "instructions-load";

/// The figures that the repository keeps, in instructions a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// A window of calls outstanding.
    pipelined: f64,
    /// One call outstanding.
    one_at_a_time: f64,
    /// What the pipelined figure may be at most. It follows the figure down to the goal, and never goes up.
    bound: f64,
    /// What it is to be at most, ...
    goal: f64,
    /// ... and what would be good.
    aim: f64,
}

/// Where they are kept.
const STORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json");

impl Stored {
    fn built_in() -> Result<Stored, BenchError> {
        serde_json::from_str(include_str!("../../instructions.json"))
            .map_err(BenchError::product("reading bench/instructions.json"))
    }

    /// Takes over new figures.
    fn take(&mut self, pipelined: f64, alone: f64) {
        self.pipelined = pipelined.round();
        self.one_at_a_time = alone.round();
        self.bound = self.bound.min((self.pipelined * SLACK).ceil().max(self.goal));
    }

    fn write(&self) -> Result<(), BenchError> {
        let text = serde_json::to_string_pretty(self).map_err(BenchError::product("writing the figures as JSON"))?;
        std::fs::write(STORED, text + "\n").map_err(BenchError::system("writing bench/instructions.json"))
    }
}

pub(crate) fn run(args: &Instructions) -> Result<Report, BenchError> {
    let version = callgrind::version()?;
    let mut stored = Stored::built_in()?;
    let calls = if args.common.quick { CALLS_QUICK } else { CALLS };
    let pipelined = per_call(WINDOW, calls, args.profile.as_deref())?;
    let alone = per_call(1, calls, None)?;

    let mut report = Report::new(
        "instructions",
        format!("instructions a {SMALL}-byte call over mem, client and server together on one thread ({version})"),
    );
    let rows = [("pipelined", pipelined, stored.pipelined), ("one at a time", alone, stored.one_at_a_time)];
    for (name, figure, kept) in rows {
        report.figure(format!("{name}, now"), figure, "instructions", Some(figure / kept));
        report.figure(format!("{name}, stored"), kept, "instructions", None);
        report.bound(format!("{name} / stored"), figure / kept, SLACK);
    }
    report.bound("pipelined (instructions a call)", pipelined, stored.bound);
    report
        .note(format!("Pipelined: {WINDOW} calls outstanding. The ratio is that to the stored figure (bench/instructions.json)."));
    let verdict = |limit| if pipelined <= limit { "reached" } else { "not reached" };
    let (goal, aim) = (stored.goal, stored.aim);
    report.note(format!("Pipelined, at most {goal}: {}. Aim {aim}: {}.", verdict(goal), verdict(aim)));
    if args.store {
        stored.take(pipelined, alone);
        stored.write()?;
        report.note("Stored both figures in bench/instructions.json.");
    }
    Ok(report)
}

/// Instructions a call: the difference of two runs over the difference of their calls.
fn per_call(window: usize, [few, many]: [u64; 2], profile: Option<&Path>) -> Result<f64, BenchError> {
    let count = |calls: u64, profile| {
        let args = [LOAD, "--window", &window.to_string(), "--calls", &calls.to_string()].map(str::to_owned);
        callgrind::count(&args, profile)
    };
    let (few_count, many_count) = (count(few, None)?, count(many, profile)?);
    Ok(many_count.saturating_sub(few_count) as f64 / (many - few) as f64)
}

/// What runs under valgrind.
pub(crate) fn run_load(args: &InstructionsLoad) -> Result<(), BenchError> {
    load(args.window as usize, args.calls).map(drop)
}

/// Makes the calls and says how many turns it took.
fn load(window: usize, calls: u64) -> Result<u64, BenchError> {
    let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
    // Identifiers that differ from run to run would fall into other places of a hash table.
    let endpoint = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
    let config = NodeConfig { endpoint, ..NodeConfig::default() };
    let mut solo = Solo::open(["mem://instructions-client", "mem://instructions-server"], &clock, &config, window, SMALL)?;
    let (mut done, mut turns) = (0, 0);
    while done < calls {
        let completed = solo.turn()? as u64;
        done += completed;
        turns += 1;
        // About as fast as the calls would be in earnest, so that timers fire as often for each of them.
        clock.advance_to(clock.now().plus_nanos(200 + 300 * completed));
        if turns > 1_000 + 10 * calls {
            return Err(BenchError::Product { action: "making the calls", why: format!("only {done} of {calls} were answered") });
        }
    }
    solo.drain()?;
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_repeats_to_the_turn_and_a_window_shares_them() {
        let pipelined = load(WINDOW, 640).unwrap();
        assert_eq!(load(WINDOW, 640).unwrap(), pipelined);
        assert!(load(1, 640).unwrap() > 10 * pipelined);
    }

    #[test]
    fn the_bound_follows_the_figure_down_to_the_goal_and_never_up() {
        let mut stored = Stored { pipelined: 5_000.0, one_at_a_time: 7_000.0, bound: 5_000.0, goal: 1_500.0, aim: 600.0 };
        for (figure, bound) in [(4_000.4, 4_120.0), (4_100.0, 4_120.0), (900.0, 1_500.0)] {
            stored.take(figure, 7_000.0);
            assert_eq!((stored.pipelined, stored.bound), (figure.round(), bound));
        }
    }

    #[test]
    fn the_stored_figures_can_be_read() {
        let stored = Stored::built_in().unwrap();
        assert!(stored.aim <= stored.goal && stored.goal <= stored.bound && stored.pipelined <= stored.bound, "{stored:?}");
    }
}
