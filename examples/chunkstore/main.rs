//! A replicated read service: three servers each hold a copy of the same files, and a client reads random 64 KiB chunks at a set rate
//! with no copies, hedged or tied. `scripts/demo` runs it all; by hand:
//!
//!     chunkstore make  --dir data
//!     chunkstore serve --dir data --replica 0 --replicas udp://127.0.0.1:7000,udp://127.0.0.1:7001,udp://127.0.0.1:7002
//!     ... likewise replicas 1 and 2 ...
//!     chunkstore read  --dir data --replicas ... --policy tied
//!
//! Interference comes in two kinds. `serve --sort` has each replica sort a file of its own through its own workers, as a store compacts: the
//! replicas are slow at different moments, as machines are. `read --sort` runs the system's `sort` on the disk and processors that all of
//! them share: they are slow at the same moments, and no other replica is better to ask.
#![forbid(unsafe_code)]

mod client;
mod external;
mod files;
mod json;
mod server;
mod sort;
mod table;
mod upkeep;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tautline_net::port::{Address, PortUrl};

/// Any of the ways this program fails, already a sentence.
type Failure = Box<dyn std::error::Error>;

/// A replicated chunk store, read with one copy, hedged or tied: `make` the files, `serve` each replica in a process of its own, `read`.
#[derive(Debug, Parser)]
#[command(name = "chunkstore", version, max_term_width = 100, arg_required_else_help = false, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
For example (`scripts/demo` runs it all):
  chunkstore make --dir data
  chunkstore serve --dir data --replica 0 --replicas udp://127.0.0.1:7000,udp://127.0.0.1:7001,udp://127.0.0.1:7002
  ... likewise replicas 1 and 2 ...
  chunkstore read --dir data --replicas udp://127.0.0.1:7000,udp://127.0.0.1:7001,udp://127.0.0.1:7002

Exit code: 0, also of a replica that was told to stop; 1 where something failed, also where the options do not fit
each other; 2 where the command line is not understood.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the files: a copy for each replica, and the index of checksums.
    Make(Make),
    /// Serve one replica until stopped (Ctrl-C).
    Serve(Serve),
    /// Read random chunks at a set rate, verify each, and report the latency.
    Read(Read),
    /// Print results that `read --json` wrote, as a table.
    Table {
        /// The result files.
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Make {
    /// Where the store goes: a directory on a real disk; made where there is none.
    #[arg(long)]
    dir: PathBuf,
    /// How many copies, 1 to 16.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    replicas: u8,
    /// Size of one copy in bytes, or like 64K, 256M or 2G; whole chunks of 64K of it are written.
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Seed of the content.
    #[arg(long, default_value_t = 1, value_parser = seed)]
    seed: u64,
    /// Replace a store that is there.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct Serve {
    /// The store, as `make` wrote it.
    #[arg(long)]
    dir: PathBuf,
    /// Which of the replicas this is, counted from 0: it serves at that one of the URLs.
    #[arg(long, value_parser = replica)]
    replica: usize,
    /// Every replica's URL, in order, separated by commas: ties are exchanged with these and with nobody else.
    #[arg(long, value_delimiter = ',', required = true)]
    replicas: Vec<PortUrl>,
    /// Threads that read, 1 to 64: as many reads are at the disk at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Sort a file of the replica's own beside the reads, through its workers, for PERCENT of one worker's time, 1 to 90; without a
    /// value 6. (`read --sort` is another thing: COUNT programs on the disk of all replicas.)
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "6",
          value_parser = clap::value_parser!(u8).range(1..=90))]
    sort: Option<u8>,
    /// Say nothing but errors.
    #[arg(long)]
    quiet: bool,
    /// An empty file to write once the replica answers, for scripts that wait for it.
    #[arg(long, value_name = "FILE")]
    ready: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Read {
    /// The store: its index says how many chunks there are, and what each must contain.
    #[arg(long)]
    dir: PathBuf,
    /// Every replica's URL, separated by commas, as `serve` was given them.
    #[arg(long, value_delimiter = ',', required = true)]
    replicas: Vec<PortUrl>,
    /// Whether and how a read gets a second copy.
    #[arg(long, value_enum, default_value_t = PolicyName::Tied)]
    policy: PolicyName,
    /// Reads a second, on average (arrivals are random), 1 to 1000000.
    #[arg(long, default_value_t = 400.0, value_parser = rate)]
    rate: f64,
    /// Seconds to read for, after one of warm-up, 1 to 86400.
    #[arg(long, default_value_t = 20, value_parser = seconds)]
    seconds: u64,
    /// Run the system's `sort` beside the reads, COUNT (0 to 255) at a time, on the disk that all replicas share; without a value 2. (`serve
    /// --sort` is another thing: PERCENT of a replica's time.)
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true, default_missing_value = "2", num_args = 0..=1,
          value_parser = clap::value_parser!(u8).range(0..=255))]
    sort: u8,
    /// Seed of the arrivals and of the chunks that are read.
    #[arg(long, default_value_t = 1, value_parser = seed)]
    seed: u64,
    /// Write the result to this file, as JSON, and print no table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// One copy.
    None,
    /// A second copy when there is no answer after the p95.
    Hedged,
    /// A second copy almost at once; the server that starts first has the other's dropped.
    Tied,
    /// The same, and a hedge if a read that was started takes longer than the p99 of those: it helps against a stalled disk, and reads
    /// one chunk in a hundred twice.
    TiedHedged,
}

impl PolicyName {
    fn name(self) -> &'static str {
        match self {
            PolicyName::None => "none",
            PolicyName::Hedged => "hedged",
            PolicyName::Tied => "tied",
            PolicyName::TiedHedged => "tied, then hedged",
        }
    }
}

impl Cli {
    /// What is taken: `--rate -1` is a rate that is too low, and not an option called `-1`.
    fn grammar() -> clap::Command {
        let with_negative = |arg: Arg| {
            let value = arg.get_action().takes_values() && !arg.is_positional();
            arg.allow_negative_numbers(value)
        };
        Cli::command().mut_subcommands(|command| command.mut_args(with_negative))
    }
}

fn main() -> ExitCode {
    let cli = match Cli::grammar().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            // Nothing is left to do if the terminal is gone.
            let _ = error.print();
            return code;
        }
    };
    // What the library warns of, to standard error.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    let done = match cli.command {
        Command::Make(args) => make(&args),
        Command::Serve(args) => server::run(&args),
        Command::Read(args) => client::run(&args),
        Command::Table { results } => print_table(&results),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chunkstore: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(args: &Make) -> Result<(), Failure> {
    let chunks = u32::try_from(args.size / files::CHUNK as u64).map_err(|_| "the size is above 256 TiB")?;
    if chunks == 0 {
        return Err("the size is less than one chunk of 64 KiB".into());
    }
    if files::exists(&args.dir) {
        if !args.force {
            let dir = args.dir.display();
            return Err(format!("there is a chunk store in {dir}: use it, choose another --dir, or replace it with --force").into());
        }
        files::discard(&args.dir)?;
        eprintln!("replacing the store in {}", args.dir.display());
    }
    let (started, mut progress) = (Instant::now(), Progress::new());
    files::make(&args.dir, args.replicas.into(), chunks, args.seed, |done| {
        progress.show(|| {
            format!("making {} copies of {chunks} chunks: {} %", args.replicas, u64::from(done) * 100 / u64::from(chunks))
        });
    })?;
    progress.end(&format!(
        "made {} copies of {chunks} chunks of 64 KiB in {} in {:.1} s",
        args.replicas,
        args.dir.display(),
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn print_table(results: &[PathBuf]) -> Result<(), Failure> {
    let read = |path: &Path| -> Result<table::Outcome, Failure> {
        if path.is_dir() {
            let dir = path.display();
            return Err(format!("{dir} is a directory: give the files that `read --json FILE` wrote, like {dir}/*.json").into());
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("reading {} failed: {error}", path.display()))?;
        Ok(serde_json::from_str(&text).map_err(|error| format!("{} is not a result of `read --json`: {error}", path.display()))?)
    };
    let outcomes = results.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    print!("{}", table::table(&outcomes));
    Ok(())
}

/// Refuses URLs that processes can't call each other by.
fn check_replicas(replicas: &[PortUrl]) -> Result<(), Failure> {
    for (number, url) in replicas.iter().enumerate() {
        let Address::Inet(address) = url.address else {
            return Err(
                format!("{url} can't be reached from another process: give each replica a URL like udp://127.0.0.1:7000").into()
            );
        };
        if address.ip().is_unspecified() {
            return Err(format!("{url} is no address to call a replica at: give the one that its packets come from").into());
        }
        if address.port() == 0 {
            return Err(format!("{url} leaves the port open: the other replicas and the clients have to know its number").into());
        }
        if replicas[..number].iter().any(|other| other.address == url.address) {
            return Err(format!("{address} is in --replicas twice: give each replica an address of its own").into());
        }
    }
    Ok(())
}

/// The URL of a free port that reaches all of `peers`: a socket of family IPv6, bound to every address, reaches IPv4 too.
fn any_port(peers: &[Address]) -> &'static str {
    let ipv6 = |peer: &Address| matches!(peer, Address::Inet(address) if address.is_ipv6());
    if peers.iter().any(ipv6) { "udp://[::]:0" } else { "udp://0.0.0.0:0" }
}

/// Between lines of progress in a log.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// A line on the terminal that is rewritten in place; in a log, a line now and then.
struct Progress {
    terminal: bool,
    next: Instant,
    /// Whether a line stands on the terminal that is not yet ended.
    shown: bool,
}

impl Progress {
    fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        // What is over soon needs no line in a log but its last.
        let next = Instant::now() + if terminal { Duration::ZERO } else { LOG_INTERVAL };
        Progress { terminal, next, shown: false }
    }

    /// Shows a line if it is time for one.
    fn show(&mut self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + if self.terminal { Duration::from_millis(250) } else { LOG_INTERVAL };
        if self.terminal {
            eprint!("\r\x1b[K{}", line());
            let _ = std::io::stderr().flush();
            self.shown = true;
        } else {
            eprintln!("{}", line());
        }
    }

    /// Replaces the line by a last one.
    fn end(&mut self, line: &str) {
        self.clear();
        eprintln!("{line}");
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

/// What was given up leaves no half line before its error.
impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "write a size like 256M or 2G".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "the size is too large".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("write a whole number between 0 and {}", u64::MAX))
}

fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds) if (1..=86_400).contains(&seconds) => Ok(seconds),
        _ => Err("write whole seconds between 1 and 86400".to_owned()),
    }
}

fn replica(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "write a whole number, 0 for the first of --replicas".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err("write reads a second between 1 and 1000000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::grammar().debug_assert();
    }

    #[test]
    fn a_number_below_zero_is_out_of_range_and_no_unknown_option() {
        for (command, option, says) in [
            ("make", "--replicas", "1..=16"),
            ("make", "--size", "like 256M"),
            ("make", "--seed", "between 0 and"),
            ("serve", "--replica", "0 for the first"),
            ("serve", "--workers", "1..=64"),
            ("serve", "--sort", "1..=90"),
            ("read", "--rate", "between 1 and 1000000"),
            ("read", "--seconds", "between 1 and 86400"),
            ("read", "--sort", "0..=255"),
            ("read", "--seed", "between 0 and"),
        ] {
            let error = Cli::grammar().try_get_matches_from(["chunkstore", command, option, "-1"]).unwrap_err().to_string();
            assert!(error.contains("'-1'") && error.contains(says), "{command} {option}: {error}");
        }
    }

    #[test]
    fn a_missing_command_is_asked_for_by_name() {
        let error = Cli::grammar().try_get_matches_from(["chunkstore"]).unwrap_err();
        assert!(error.use_stderr());
        let error = error.to_string();
        assert!(
            error.contains("requires a subcommand") && error.contains("make, serve, read, table") && error.contains("Usage"),
            "{error}"
        );
    }

    #[test]
    fn replicas_have_addresses_that_others_can_call_and_each_its_own() {
        let check = |urls: &str| {
            let urls: Vec<PortUrl> = urls.split(',').map(|url| url.parse().unwrap()).collect();
            check_replicas(&urls).map_err(|error| error.to_string())
        };
        check("udp://127.0.0.1:1,udp://127.0.0.1:2,udp://[::1]:1").unwrap();
        for (urls, expected) in [
            ("udp://127.0.0.1:1,udp://0.0.0.0:2", "udp://0.0.0.0:2 is no address to call"),
            ("udp://[::]:2", "no address to call"),
            ("udp://127.0.0.1:1,udp://127.0.0.1:0", "leaves the port open"),
            ("udp://127.0.0.1:1,udp://127.0.0.1:2,udp://127.0.0.1:1?trace=1", "127.0.0.1:1 is in --replicas twice"),
            ("mem://a", "another process"),
        ] {
            let error = check(urls).unwrap_err();
            assert!(error.contains(expected), "{urls}: {error}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("64K"), size("256M"), size("2g"), size("7")), (Ok(65_536), Ok(256 << 20), Ok(2 << 30), Ok(7)));
        assert!(size("").is_err() && size("M").is_err() && size("1T").is_err() && size("99999999999999G").is_err());
    }
}
