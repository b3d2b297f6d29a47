//! The command line: what each command takes, and how a mistake in it is said.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tautline_bench::pin::Cores;

/// Measures Tautline beside the floors of its paths.
///
/// Each command runs floor and product in turns on the same two cores and prints the machine, the placement of the cores, the
/// samples' p50, p99 and p99.9, and the ratio of the medians. Both cores are kept spinning: run it on an idle machine, or the figures
/// are those of the scheduler (echo and cancel say so when other processes had the cores). Exit code: 0; 1 where --check found a bound missed, or soak a leak; 2 where nothing
/// could be measured.
#[derive(Debug, Parser)]
#[command(name = "tautline-bench", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The floors alone: raw UDP and raw ring ping-pong of 64 bytes, and the placement of the cores.
    Floor(Floor),
    /// A 64-byte call between two spinning nodes, a core each, beside the raw path's floor.
    Echo(Echo),
    /// From one replica's start of a tied request to the flip of the queued copy on the other, whose workers are all busy.
    Cancel(Cancel),
    /// The tail of three servers with background interference: no copies, hedged at the p95, tied.
    Tail(Tail),
    /// Small calls a second with a window of them outstanding: over mem on one core, over udp on two.
    Rate(RateArgs),
    /// Large messages one way, beside a stream of raw UDP.
    Bulk(Bulk),
    /// Small calls beside large ones on the same session: head-of-line blocking.
    Hol(Hol),
    /// Many clients to one server at once, and datacenters' mixes of message sizes, on a simulated shallow switch.
    Incast(Incast),
    /// Messages through many open sessions, beside few: the rate, and the memory a session takes.
    Sessions(Sessions),
    /// An honest peer's small messages beside a flood from a thousand hostile ones: its p99, and the server's memory.
    Abuse(AbuseArgs),
    /// Instructions a small call, both sides together, counted by valgrind and compared with the stored figure.
    Instructions(Instructions),
    /// Mixed traffic between processes that are killed and restarted, for as long as asked: prints leaks.
    Soak(Soak),
    /// Every command but `soak`, one after the other, and one HTML page with the figures and plots of all.
    All(All),
    /// The program that `instructions` runs under valgrind.
    #[command(hide = true)]
    InstructionsLoad(InstructionsLoad),
    /// One of the processes of `soak`; started by it.
    #[command(hide = true)]
    SoakPart(SoakPart),
    /// The other process of `cancel --port udp`; started by it.
    #[command(hide = true)]
    CancelLoser(OnCore),
    /// Spins, so that the core does not halt; started by `tail` in the scheduler's idle class.
    #[command(hide = true)]
    KeepAwake(OnCore),
}

/// What every command takes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Common {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print each bounded figure and its bound last, and exit with 1 where one is missed.
    #[arg(long)]
    pub(crate) check: bool,
    /// Measure briefly: for a look, not for a figure.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The client's core and the server's [default: the first two].
    #[arg(long, value_name = "A,B")]
    pub(crate) cores: Option<Cores>,
}

#[derive(Debug, Args)]
pub(crate) struct Floor {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

#[derive(Debug, Args)]
pub(crate) struct Echo {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// The path.
    #[arg(long, value_enum, default_value_t = PortKind::Udp)]
    pub(crate) port: PortKind,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// The path: udp measures between two processes, mem between two threads.
    #[arg(long, value_enum, default_value_t = PortKind::Udp)]
    pub(crate) port: PortKind,
}

#[derive(Debug, Args)]
pub(crate) struct OnCore {
    /// The core to run on.
    #[arg(long)]
    pub(crate) core: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Seeds arrivals and interference; each policy meets the same ones.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Service time of one request in microseconds; the worker sleeps, as it would for a device.
    #[arg(long, value_name = "US", default_value_t = 4000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    pub(crate) service: u64,
    /// Load of a server's worker by requests.
    #[arg(long, default_value_t = 0.2, value_parser = share)]
    pub(crate) load: f64,
    /// Seconds of arrivals a policy, over all rounds [default: 105, or 8 with --quick].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// The path.
    #[arg(long, value_enum, default_value_t = PortKind::Udp)]
    pub(crate) port: PortKind,
    /// Calls outstanding.
    #[arg(long, value_name = "CALLS", default_value = "64", value_parser = window)]
    pub(crate) window: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Bulk {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// The path.
    #[arg(long, value_enum, default_value_t = PortKind::Udp)]
    pub(crate) port: PortKind,
    /// Measure 1 MiB messages only.
    #[arg(long)]
    pub(crate) only_largest: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Hol {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// The path.
    #[arg(long, value_enum, default_value_t = PortKind::Udp)]
    pub(crate) port: PortKind,
}

#[derive(Debug, Args)]
pub(crate) struct Incast {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Seeds the network, the sizes and the arrivals.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Sessions {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// How many are many.
    #[arg(long, default_value = "20000", value_parser = sessions)]
    pub(crate) sessions: usize,
    /// The path.
    #[arg(long, value_enum, default_value_t = PortKind::Mem)]
    pub(crate) port: PortKind,
}

#[derive(Debug, Args)]
pub(crate) struct All {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "tautline-bench.html")]
    pub(crate) out: PathBuf,
    /// Only these commands, separated by commas, like echo,hol: each over every port that it is measured on.
    #[arg(long, value_name = "COMMANDS", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

impl All {
    /// Whether the command of this name is to run.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

#[derive(Debug, Args)]
pub(crate) struct AbuseArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// Hostile peers, each at an address of its own on loopback.
    #[arg(long, default_value_t = 1000, value_parser = peers)]
    pub(crate) peers: usize,
    /// Packets a second, all hostile peers together.
    #[arg(long, value_name = "PACKETS", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000))]
    pub(crate) flood: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Instructions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write the figures to bench/instructions.json, to compare with from now on.
    #[arg(long)]
    pub(crate) store: bool,
    /// Keep callgrind's profile of the pipelined calls, for callgrind_annotate.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InstructionsLoad {
    /// Calls outstanding.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) window: u64,
    /// Calls made.
    #[arg(long)]
    pub(crate) calls: u64,
}

/// Exit code: 0 where nothing leaks, 1 with a sentence for each leak, 2 where it could not be run.
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Seconds of traffic; the rests come on top.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) seconds: u64,
    /// Seconds of traffic between two rests, where what is in use is looked at [default: a twentieth, 4 to 30].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: Option<u64>,
    /// Seeds the calls and what happens to the processes [default: drawn, and printed].
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct SoakPart {
    /// Where it is.
    #[arg(long)]
    pub(crate) port: u16,
    /// The servers' ports.
    #[arg(long, value_delimiter = ',')]
    pub(crate) replicas: Vec<u16>,
    /// A port where nobody is.
    #[arg(long)]
    pub(crate) nobody: u16,
    /// Seeds its choices.
    #[arg(long)]
    pub(crate) seed: u64,
    /// A client, and not a server.
    #[arg(long)]
    pub(crate) client: bool,
}

/// How long the interleaved measurements run.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Rounds {
    /// Rounds of floor and product in turns [default: 10, or 3 with --quick].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
}

impl Rounds {
    pub(crate) fn wanted(self, common: &Common) -> usize {
        self.rounds.map_or(if common.quick { 3 } else { 10 }, |rounds| rounds as usize)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortKind {
    /// Kernel UDP over loopback.
    Udp,
    /// Rings in shared memory.
    Mem,
}

impl PortKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            PortKind::Udp => "udp",
            PortKind::Mem => "mem",
        }
    }
}

fn window(text: &str) -> Result<usize, String> {
    match text.parse() {
        // No more than the slots of the ring that is the floor.
        Ok(window) if (1..=64).contains(&window) => Ok(window),
        _ => Err("write a number of calls between 1 and 64".to_owned()),
    }
}

fn sessions(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(sessions) if (100..=60_000).contains(&sessions) => Ok(sessions),
        _ => Err("write a number of sessions between 100 and 60000".to_owned()),
    }
}

fn peers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(peers) if (6..=20_000).contains(&peers) => Ok(peers),
        _ => Err("write a number of peers between 6 and 20000".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.01..=0.95).contains(&share) => Ok(share),
        _ => Err("write a share between 0.01 and 0.95".to_owned()),
    }
}

/// The first line of clap's complaint, with what it would accept, in one sentence.
pub(crate) fn one_sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut words = Vec::new();
    for line in text.lines().take_while(|line| !line.starts_with("Usage") && !line.starts_with("For more")) {
        words.extend(line.split_whitespace().map(str::to_owned));
    }
    let sentence = words.join(" ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    format!("{} (try --help)", sentence.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_mistake_is_one_sentence_that_says_what_would_do() {
        for (args, expected) in [
            (&["echo", "--port", "tcp"][..], "possible values: udp, mem"),
            (&["echo", "--rounds", "0"], "1..=1000"),
            (&["echo", "--cores", "1"], "like 0,1"),
            (&["rate", "--window", "65"], "between 1 and 64"),
            (&["tail", "--load", "1.5"], "between 0.01 and 0.95"),
            (&["tial"], "tial"),
        ] {
            let error = Cli::try_parse_from(std::iter::once(&"tautline-bench").chain(args)).unwrap_err();
            let sentence = one_sentence(&error);
            assert!(sentence.contains(expected) && !sentence.contains('\n'), "{args:?}: {sentence}");
        }
    }
}
