//! The commands: each measures one thing and gives a report.

mod floor;

use tautline_bench::error::BenchError;
use tautline_bench::report::Report;

use crate::cli::{Command, Common};

/// Runs one command; the common options come back for the printing.
pub(crate) fn run(command: Command) -> (Common, Result<Report, BenchError>) {
    match command {
        Command::Floor(args) => (args.common.clone(), floor::run(&args)),
        _ => unimplemented!(),
    }
}
