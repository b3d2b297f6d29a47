//! `all`: every command but `soak`, one after the other, each in a process of its own, and one page with all of it.

use std::process::{Command, Stdio};

use tautline_bench::error::BenchError;
use tautline_bench::page::{Outcome, html};
use tautline_bench::report::{Report, Sense};

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
    known(&args.only)?;
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
                for bound in &one.bounds {
                    let what = format!("{command}: {}", bound.what);
                    match bound.sense {
                        Sense::AtMost => report.bound(what, bound.figure, bound.bound),
                        Sense::AtLeast => report.at_least(what, bound.figure, bound.bound),
                    }
                }
            }
            Err(why) => {
                report.note(format!("{command} could not be measured: {why}"));
                report.at_least(format!("{command}: measured"), 0.0, 1.0);
            }
        }
        outcomes.push((command.to_owned(), outcome));
    }
    std::fs::write(&args.out, html(&outcomes)?).map_err(BenchError::system("writing the page"))?;
    report.note(format!("Wrote {}.", args.out.display()));
    Ok(report)
}

/// A command's name, without its options.
fn name(command: &str) -> &str {
    command.split(' ').next().unwrap_or(command)
}

/// Refuses names that no command has.
fn known(only: &[String]) -> Result<(), BenchError> {
    let mut names = COMMANDS.map(|(command, _)| name(command)).to_vec();
    names.dedup();
    match only.iter().find(|only| !names.contains(&only.as_str())) {
        None => Ok(()),
        Some(unknown) => Err(BenchError::Product {
            action: "choosing what to run",
            why: format!("no command is called `{unknown}`: --only takes {}", names.join(", ")),
        }),
    }
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
    use super::*;

    #[test]
    fn only_takes_the_names_that_its_complaint_lists() {
        let error = known(&["echo".to_owned(), "nope".to_owned()]).unwrap_err().to_string();
        let (complaint, listed) = error.split_once("--only takes ").unwrap();
        assert!(complaint.contains("`nope`"), "{error}");
        let listed: Vec<String> = listed.split(", ").map(str::to_owned).collect();
        assert!(listed.len() > 5 && listed.iter().all(|name| !name.contains(' ')), "{error}");
        known(&listed).unwrap();
        let only = |name: &String| COMMANDS.iter().any(|(command, _)| super::name(command) == name);
        assert!(listed.iter().all(only));
    }
}
