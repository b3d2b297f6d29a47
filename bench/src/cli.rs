//! The command line: what each command takes, and how a mistake in it is said.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tautline_bench::pin::Cores;

use crate::command::all;

/// Measures Tautline beside the floors of its paths.
///
/// Each command runs floor and product in turns on the same two cores and prints the machine, the placement of the cores, the
/// samples' p50, p99 and p99.9, and the ratio of the medians. Most keep both cores spinning: run them on an idle machine, or the figures
/// are those of the scheduler (echo and cancel say so when other processes had the cores). incast, instructions and soak do not depend on that.
///
/// What each figure counts, and where its bound comes from, is in bench/README.md.
#[derive(Debug, Parser)]
#[command(name = "tautline-bench", version, max_term_width = 100, arg_required_else_help = false, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit code: 0; 1 where --check found a bound missed, or soak a leak; 2 where nothing could be measured, or the command line is wrong; 130 (or 143) \
where soak was interrupted (or terminated) and nothing leaked until then.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The floors alone: raw UDP and raw ring ping-pong of 64 bytes, and the placement of the cores.
    Floor(Floor),
    /// A 64-byte call between two spinning nodes, a core each, beside the raw path's floor.
    Echo(Echo),
    /// From one replica's start of a tied request to the flip of the queued copy on the other, whose workers are all busy.
    Cancel(Cancel),
    /// The tail of three servers with background interference: one copy, hedged at the p95, tied (six minutes; --quick: half of one).
    Tail(Tail),
    /// Small calls a second with a window of them outstanding: over mem on one core, over udp on two.
    Rate(RateArgs),
    /// Large messages one way, beside a stream of raw UDP.
    Bulk(Bulk),
    /// Small calls beside large ones on the same session: head-of-line blocking.
    Hol(Hol),
    /// Many clients to one server at once, and datacenters' mixes of message sizes, on a simulated shallow switch.
    ///
    /// It is simulated in virtual time: what else runs here does not change its figures.
    Incast(Incast),
    /// Messages through many open sessions, beside few: the rate, and the memory a session takes.
    Sessions(Sessions),
    /// An honest peer's small messages beside a flood from a thousand hostile ones: its p99, and the server's memory.
    Abuse(AbuseArgs),
    /// Instructions that a small call costs, both sides together, counted by valgrind (which must be installed) and compared with the stored figure.
    ///
    /// Instructions are counted and not timed: what else runs here does not change the figures.
    Instructions(Instructions),
    /// Mixed traffic between processes that are killed and restarted, for as long as asked (ten minutes): prints what leaks.
    ///
    /// Ctrl-C ends the traffic; what ran so far is then looked at and summed up, and a second one ends it at once. Exit code: 0 where nothing leaks, 1 with
    /// a sentence for each leak, 2 where it could not be run, 130 where it was interrupted (143: terminated) and nothing leaked until then.
    Soak(Soak),
    /// Every command but `soak`, one after the other, and one HTML page with the figures and plots of all (some minutes, most of them of tail; --quick: one or two).
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
    /// Measure briefly: for a look, not for a figure. Tails are then those of few samples.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The client's core and the server's, like 0,1 [default: the first two that this process may use].
    #[arg(long, value_name = "A,B", allow_hyphen_values = true)]
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
    #[arg(long, default_value_t = 1, value_parser = whole::<0, { u64::MAX }>)]
    pub(crate) seed: u64,
    /// Service time of one request in microseconds, 100 to 100000; the worker sleeps, as it would for a device.
    #[arg(long, value_name = "US", default_value_t = 4000, value_parser = whole::<100, 100_000>)]
    pub(crate) service: u64,
    /// Share of a server's worker that the requests take, 0.01 to 0.95; interference comes on top.
    #[arg(long, default_value_t = 0.2, value_parser = share)]
    pub(crate) load: f64,
    /// Seconds of arrivals for each of the three policies, over all rounds, 1 to 3600 [default: 105, or 8 with --quick].
    #[arg(long, value_parser = whole::<1, 3600>)]
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
    /// Calls outstanding at once, 1 to 64.
    // No more than the slots of the ring that is the floor.
    #[arg(long, value_name = "CALLS", default_value_t = 64, value_parser = count::<1, 64>)]
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
#[command(mut_arg("cores", off_cores))]
pub(crate) struct Incast {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Seeds the network, the sizes and the arrivals.
    #[arg(long, default_value_t = 1, value_parser = whole::<0, { u64::MAX }>)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Sessions {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// Open sessions, 100 to 60000; the same is measured with 16 beside it.
    #[arg(long, default_value_t = 20_000, value_parser = count::<100, 60_000>)]
    pub(crate) sessions: usize,
    /// The path.
    #[arg(long, value_enum, default_value_t = PortKind::Mem)]
    pub(crate) port: PortKind,
}

#[derive(Debug, Args)]
pub(crate) struct All {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The page to write; a file that is there is replaced.
    #[arg(long, value_name = "FILE", default_value = "tautline-bench.html")]
    pub(crate) out: PathBuf,
    /// Only these commands, separated by commas, like echo,hol: each over every port that it is measured on.
    #[arg(long, value_name = "COMMANDS", value_delimiter = ',', value_parser = PossibleValuesParser::new(all::names()))]
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
    /// Hostile peers, each at an address of its own on loopback, 6 to 20000.
    #[arg(long, default_value_t = 1000, value_parser = count::<6, 20_000>)]
    pub(crate) peers: usize,
    /// Packets a second, all hostile peers together, 1000 to 1000000.
    #[arg(long, value_name = "PACKETS", default_value_t = 50_000, value_parser = whole::<1000, 1_000_000>)]
    pub(crate) flood: u64,
}

#[derive(Debug, Args)]
#[command(mut_arg("cores", off_cores))]
pub(crate) struct Instructions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write the figures to bench/instructions.json of the source tree, to compare with from now on.
    #[arg(long)]
    pub(crate) store: bool,
    /// Keep callgrind's profile of the pipelined calls in this file, for callgrind_annotate.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InstructionsLoad {
    /// Calls outstanding.
    #[arg(long, value_parser = whole::<1, 1024>)]
    pub(crate) window: u64,
    /// Calls made.
    #[arg(long)]
    pub(crate) calls: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Seconds of traffic, 1 to 1000000; the rests come on top.
    #[arg(long, default_value_t = 600, value_parser = whole::<1, 1_000_000>)]
    pub(crate) seconds: u64,
    /// Seconds of traffic between two rests, where what is in use is looked at, 1 to 3600 [default: a twentieth of --seconds, but at least 4 and at most 30].
    #[arg(long, value_parser = whole::<1, 3600>)]
    pub(crate) interval: Option<u64>,
    /// Seeds the calls and what happens to the processes [default: drawn, and printed].
    #[arg(long, value_parser = whole::<0, { u64::MAX }>)]
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
    /// Rounds of floor and product in turns, 1 to 1000 [default: 10, or 3 with --quick].
    #[arg(long, value_parser = whole::<1, 1000>)]
    pub(crate) rounds: Option<u64>,
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

/// The same, of things in memory.
fn count<const LEAST: u64, const MOST: u64>(text: &str) -> Result<usize, String> {
    usize::try_from(whole::<LEAST, MOST>(text)?).map_err(|_| "write a smaller number".to_owned())
}

/// `--cores` of a command that is not measured on two of them.
fn off_cores(arg: Arg) -> Arg {
    arg.hide(true).value_parser(|_: &str| Err::<Cores, _>("this command is not measured on two cores: leave it out"))
}

/// A whole number between the two, both included.
fn whole<const LEAST: u64, const MOST: u64>(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("write a whole number between {LEAST} and {MOST}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.01..=0.95).contains(&share) => Ok(share),
        _ => Err("write a share between 0.01 and 0.95".to_owned()),
    }
}

impl Cli {
    /// The command line, read.
    pub(crate) fn read<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
        Cli::from_arg_matches(&Self::grammar().try_get_matches_from(words)?)
    }

    /// What is taken: `--window -1` is a window that is too small, and not an option called `-1`.
    fn grammar() -> clap::Command {
        fn with_negative(arg: Arg) -> Arg {
            let value = arg.get_action().takes_values();
            arg.allow_negative_numbers(value)
        }
        Cli::command().mut_subcommands(|command| command.mut_args(with_negative))
    }
}

/// What is said of a wrong command line: one sentence, or two lines where the command is missing.
pub(crate) fn complaint(error: &clap::Error) -> String {
    match error.kind() {
        ErrorKind::MissingSubcommand => {
            let grammar = Cli::grammar();
            let names: Vec<&str> =
                grammar.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
            format!(
                "the command is missing: write one of {} (try --help)\nUsage: tautline-bench COMMAND [--check] [--json] [--quick] [--cores A,B]",
                names.join(", ")
            )
        }
        _ => one_sentence(error),
    }
}

/// The first line of clap's complaint, with what it would accept, in one sentence.
fn one_sentence(error: &clap::Error) -> String {
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
    use super::*;

    fn refused(args: &[&str]) -> String {
        complaint(&Cli::read(std::iter::once(&"tautline-bench").chain(args)).unwrap_err())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::grammar().debug_assert();
    }

    #[test]
    fn a_mistake_is_one_sentence_that_says_what_would_do() {
        for (args, expected) in [
            (&["echo", "--port", "tcp"][..], "possible values: udp, mem"),
            (&["echo", "--rounds", "0"], "between 1 and 1000"),
            (&["echo", "--rounds", "many"], "between 1 and 1000"),
            (&["echo", "--cores", "1"], "like 0,1"),
            (&["echo", "--cores", "-1,0"], "like 0,1"),
            (&["incast", "--cores", "0,1"], "leave it out"),
            (&["rate", "--window", "65"], "between 1 and 64"),
            (&["tail", "--load", "1.5"], "between 0.01 and 0.95"),
            (&["tail", "--load", "-0.5"], "between 0.01 and 0.95"),
            (&["all", "--only", "echo,soak"], "possible values: floor, echo, cancel"),
            (&["echo", "--bogus"], "--bogus"),
            (&["tial"], "tial"),
        ] {
            let sentence = refused(args);
            assert!(sentence.contains(expected) && !sentence.contains('\n'), "{args:?}: {sentence}");
        }
    }

    /// Whatever the option, also one that is added some day.
    #[test]
    fn a_number_below_zero_is_out_of_range_and_no_unknown_option() {
        let grammar = Cli::grammar();
        let mut tried = 0;
        for command in grammar.get_subcommands() {
            let required = command.get_arguments().any(Arg::is_required_set);
            for option in command.get_arguments().filter(|option| option.get_action().takes_values() && !required) {
                let long = format!("--{}", option.get_long().expect("every option has a long name"));
                // A file may be called that.
                if ["--out", "--profile"].contains(&long.as_str()) {
                    continue;
                }
                let sentence = refused(&[command.get_name(), &long, "-1"]);
                let says = ["between", "possible values", "like 0,1", "leave it out"].iter().any(|what| sentence.contains(what));
                assert!(says && sentence.contains("'-1'"), "{} {long}: {sentence}", command.get_name());
                tried += 1;
            }
        }
        assert!(tried > 25, "only {tried} options were tried");
    }

    #[test]
    fn a_missing_command_is_asked_for_by_name() {
        let said = refused(&[]);
        let (sentence, usage) = said.split_once('\n').expect("a line for the mistake, and one for the usage");
        assert!(sentence.starts_with("the command is missing: write one of floor, echo, cancel"), "{said}");
        assert!(sentence.contains("soak, all (try") && !sentence.contains("keep-awake"), "{said}");
        assert!(usage.starts_with("Usage: tautline-bench COMMAND"), "{said}");
    }

    #[test]
    fn the_help_of_all_lists_what_only_takes_and_that_of_soak_its_exit_codes() {
        let mut grammar = Cli::grammar();
        let soak = grammar.find_subcommand_mut("soak").expect("there is one").render_long_help().to_string();
        assert!(soak.contains("Ctrl-C ends the traffic") && soak.contains("Exit code"), "{soak}");
        let help = grammar.find_subcommand_mut("all").expect("there is one").render_help().to_string();
        for name in all::names() {
            assert!(help.contains(name), "{name}: {help}");
        }
        Cli::read(["tautline-bench", "all", "--only", &all::names().join(",")]).unwrap();
    }

    #[test]
    fn every_option_says_what_it_is_and_which_numbers_it_takes() {
        for command in Cli::grammar().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} {}", command.get_name(), option.get_id());
                let file = ["out", "profile"].contains(&option.get_id().as_str());
                if file || !option.get_action().takes_values() {
                    continue;
                }
                let long = format!("--{}", option.get_long().expect("every option has a long name"));
                let sentence = refused(&[command.get_name(), &long, "-1"]);
                if let Some((_, range)) = sentence.split_once("between ") {
                    let bounds: Vec<&str> = range.trim_end_matches(" (try --help)").split(" and ").collect();
                    let named = bounds[1] == u64::MAX.to_string() || bounds.iter().all(|bound| help.contains(bound));
                    assert!(named, "{} {long}: `{help}` does not say {range}", command.get_name());
                }
            }
        }
    }
}
