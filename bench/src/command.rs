//! The commands: each measures one thing and gives a report.

mod echo;
mod floor;

use tautline_bench::error::BenchError;
use tautline_bench::report::Report;

use crate::cli::{Command, Common};

/// Runs one command; the common options come back for the printing.
pub(crate) fn run(command: Command) -> (Common, Result<Report, BenchError>) {
    match command {
        Command::Floor(args) => (args.common.clone(), floor::run(&args)),
        Command::Echo(args) => (args.common.clone(), echo::run(&args)),
        Command::Cancel(args) => (args.common, Err(not_yet("cancel"))),
        Command::Tail(args) => (args.common, Err(not_yet("tail"))),
        Command::CancelLoser(_) => (Common::default(), Err(not_yet("cancel"))),
    }
}

/// The layers that it measures come next.
fn not_yet(action: &'static str) -> BenchError {
    BenchError::Product { action, why: "this build has no calls yet".to_owned() }
}
