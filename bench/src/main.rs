//! `tautline-bench`: measures Tautline beside the floors of its paths, in one run and on the same two cores.
#![forbid(unsafe_code)]

mod cli;
mod command;

use std::process::ExitCode;

use tautline_bench::error::BenchError;

fn main() -> ExitCode {
    let cli = match cli::Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            eprintln!("tautline-bench: {}", cli::complaint(&error));
            return ExitCode::from(2);
        }
        Err(help) => {
            print!("{help}");
            return ExitCode::SUCCESS;
        }
    };
    let (common, result) = command::run(cli.command);
    match result {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
            if common.json {
                println!("{}", report.json());
            } else {
                print!("{}", report.text(common.check));
            }
            if common.check && !report.all_met() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("tautline-bench: {error}");
            match error {
                // What was looked for was found.
                BenchError::Leaks { .. } => ExitCode::FAILURE,
                // As a shell says it of a program that a signal ended: it did less than was asked.
                BenchError::Interrupted { signal, .. } => ExitCode::from(128 + signal),
                // Nothing could be.
                _ => ExitCode::from(2),
            }
        }
    }
}
