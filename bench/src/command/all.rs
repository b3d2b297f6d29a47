//! `all`: every command but `soak`, one after the other, each in a process of its own, and one page with all of it.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use tautline_bench::error::BenchError;
use tautline_bench::page::{Outcome, html};
use tautline_bench::report::{Bound, Report};

use crate::cli::All;

/// What is run, with whether it takes `--cores`.
const COMMANDS: [(&str, bool); 17] = [
    ("floor", true),
    ("echo --port udp", true),
    ("echo --port mem", true),
    ("cancel --port udp", true),
    ("cancel --port mem", true),
    ("rate --port udp", true),
    ("rate --port mem", true),
    ("bulk --port udp", true),
    ("bulk --port mem", true),
    ("hol --port udp", true),
    ("hol --port mem", true),
    ("sessions --port mem", true),
    ("sessions --port udp", true),
    ("abuse", true),
    ("incast", false),
    ("instructions", false),
    ("tail", true),
];

pub(crate) fn run(args: &All) -> Result<Report, BenchError> {
    writable(&args.out)?;
    let mut report = Report::new("all", "every command but soak, and one page with their figures and plots");
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (command, on_cores) in COMMANDS.into_iter().filter(|(command, _)| args.wants(name(command))) {
        eprintln!("tautline-bench {command}");
        let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        words.push("--json".to_owned());
        if args.common.quick {
            words.push("--quick".to_owned());
        }
        if let (Some(cores), true) = (args.common.cores, on_cores) {
            words.extend(["--cores".to_owned(), cores.to_string()]);
        }
        let outcome = one(&words)?;
        match &outcome {
            Ok(one) => {
                let named = |bound: &Bound| Bound { what: format!("{command}: {}", bound.what), ..bound.clone() };
                report.bounds.extend(one.bounds.iter().map(named));
            }
            Err(why) => {
                // Said at once as well: the page comes minutes later.
                eprintln!("tautline-bench {command}: could not be measured: {why}");
                report.note(format!("{command} could not be measured: {why}"));
                report.at_least(format!("{command}: measured"), 0.0, 1.0);
            }
        }
        outcomes.push((command.to_owned(), outcome));
    }
    let count = outcomes.len();
    if let (Some((command, Err(why))), true) = (outcomes.first(), outcomes.iter().all(|(_, outcome)| outcome.is_err())) {
        return Err(BenchError::Nothing { count, command: command.clone(), why: why.clone() });
    }
    std::fs::write(&args.out, html(&outcomes)?).map_err(|source| unwritable(&args.out, source))?;
    report.note(format!("Wrote {}.", args.out.display()));
    Ok(report)
}

/// Refuses a page that can't be written, before anything is measured for it. Leaves what is there as it is, and no file where there was none.
fn writable(page: &Path) -> Result<(), BenchError> {
    let new = matches!(page.try_exists(), Ok(false));
    OpenOptions::new().write(true).create(true).truncate(false).open(page).map_err(|source| unwritable(page, source))?;
    if new {
        std::fs::remove_file(page).map_err(|source| unwritable(page, source))?;
    }
    Ok(())
}

fn unwritable(page: &Path, source: io::Error) -> BenchError {
    BenchError::Page { page: page.to_owned(), source }
}

/// The names of the commands, each once.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names = COMMANDS.map(|(command, _)| name(command)).to_vec();
    names.dedup();
    names
}

/// A command's name, without its options.
fn name(command: &'static str) -> &'static str {
    command.split(' ').next().unwrap_or(command)
}

/// One command's report, or what it said instead.
fn one(words: &[String]) -> Result<Result<Report, String>, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::system("asking for this program's path"))?;
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    let output = output.map_err(BenchError::system("running a command of this program"))?;
    if output.stdout.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().next_back().unwrap_or("it said nothing");
        return Ok(Err(last.strip_prefix("tautline-bench: ").unwrap_or(last).to_owned()));
    }
    Ok(serde_json::from_slice(&output.stdout).map_err(|error| format!("its report can't be read: {error}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_name_is_a_command_and_stands_once() {
        let mut names = names();
        assert!(names.iter().all(|name| !name.contains(' ') && Cli::try_parse_from(["tautline-bench", name]).is_ok()), "{names:?}");
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
