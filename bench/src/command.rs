//! The commands: each measures one thing and gives a report.

mod abuse;
pub(crate) mod all;
mod bulk;
mod cancel;
mod echo;
mod floor;
mod hol;
mod incast;
mod instructions;
mod rate;
mod sessions;
mod soak;
mod tail;

use tautline_bench::awake;
use tautline_bench::error::BenchError;
use tautline_bench::report::Report;

use crate::cli::{Command, Common};

/// Runs one command; the common options come back for the printing. No report: the command has spoken for itself.
pub(crate) fn run(command: Command) -> (Common, Result<Option<Report>, BenchError>) {
    match command {
        Command::Floor(args) => (args.common.clone(), floor::run(&args).map(Some)),
        Command::Echo(args) => (args.common.clone(), echo::run(&args).map(Some)),
        Command::Cancel(args) => (args.common.clone(), cancel::run(&args).map(Some)),
        Command::Tail(args) => (args.common.clone(), tail::run(&args).map(Some)),
        Command::Rate(args) => (args.common.clone(), rate::run(&args).map(Some)),
        Command::Bulk(args) => (args.common.clone(), bulk::run(&args).map(Some)),
        Command::Hol(args) => (args.common.clone(), hol::run(&args).map(Some)),
        Command::Incast(args) => (args.common.clone(), incast::run(&args).map(Some)),
        Command::Sessions(args) => (args.common.clone(), sessions::run(&args).map(Some)),
        Command::Abuse(args) => (args.common.clone(), abuse::run(&args).map(Some)),
        Command::All(args) => (args.common.clone(), all::run(&args).map(Some)),
        Command::Instructions(args) => (args.common.clone(), instructions::run(&args).map(Some)),
        Command::InstructionsLoad(args) => (Common::default(), instructions::run_load(&args).map(|()| None)),
        Command::Soak(args) => (Common::default(), soak::run(&args).map(|()| None)),
        Command::SoakPart(args) => (Common::default(), soak::run_part(&args).map(|()| None)),
        Command::KeepAwake(args) => (Common::default(), awake::spin(args.core).map(|()| None)),
        Command::CancelLoser(args) => (Common::default(), cancel::run_loser(args.core).map(|()| None)),
    }
}
