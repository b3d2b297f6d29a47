//! A server and a client on one page. In two terminals:
//!
//!     cargo run --release -p tautline-examples --bin echo -- serve udp://127.0.0.1:7000
//!     cargo run --release -p tautline-examples --bin echo -- call udp://127.0.0.1:7000 hello
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::io::IsTerminal;
use std::rc::Rc;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tautline_net::port::PortUrl;
use tautline_rpc::{Address, CallError, CallOptions, Fate, Handle, Method, Node, Service};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

const ECHO: Method = Method::named("example.Echo/Echo");
const USAGE: &str = "\
echo serve URL         returns what it is sent, until it is stopped (Ctrl-C), and then says how much that was
echo call URL TEXT     sends the text twice, and prints what comes back and how long it took

URL is like udp://127.0.0.1:7000 or udp://[::1]:7000. To serve at, it may be udp://0.0.0.0:7000 (every IPv4 address of this machine; a caller
names one of them), have port 0 (a free one is picked, and printed), and have options: udp://127.0.0.1:7000?trace=1 prints every packet.
RUST_LOG filters what is printed (the default: warn,tautline::port=trace).
Exit code: 0, also of a server that was told to stop (SIGINT or SIGTERM); 1 where something failed, also at a URL
that can't work; 2 where the command line is not understood.";

fn main() {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let done = log().and_then(|()| match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", url] => serve(url),
        ["call", url, text] => call(url, text),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("echo: {}", wrong(&arguments));
            std::process::exit(2);
        }
    });
    if let Err(error) = done {
        eprintln!("echo: {error}");
        std::process::exit(1);
    }
}

/// What is wrong with the command line, in a sentence.
fn wrong(arguments: &[String]) -> String {
    let what = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => "the command is missing".to_owned(),
        ["serve"] | ["call"] => "the URL is missing".to_owned(),
        ["call", _] => "the text is missing".to_owned(),
        ["serve", _, ..] => "`serve` takes a URL and nothing else".to_owned(),
        ["call", ..] => "`call` takes a URL and one text: put quotes around the text".to_owned(),
        [other, ..] => format!("there is no command `{other}`"),
    };
    format!("{what}: say `echo serve URL` or `echo call URL TEXT`, with a URL like udp://127.0.0.1:7000 (or `echo --help`)")
}

/// The library tells `tracing` what happens, which drops it unless somebody listens. The packets (`tautline::port`) are told of only where
/// a URL asks for that, so they need no second switch here.
fn log() -> Result<(), Box<dyn Error>> {
    let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn,tautline::port=trace".to_owned());
    let wanted: Targets = wanted.parse().map_err(|error| format!("RUST_LOG={wanted}: {error}"))?;
    let printed = tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(printed).with(wanted).init();
    Ok(())
}

/// Returns what it is sent, until it is stopped.
fn serve(url: &str) -> Result<(), Box<dyn Error>> {
    // The URL again, with the port that the system chose if it says 0.
    let mut at: PortUrl = url.parse()?;
    let Address::Inet(asked) = at.address else { return Err(in_one_process(url)) };
    let mut node = Node::builder(url).build()?;
    let counted = Rc::new(Cell::new((0_u64, 0_u64)));
    let counter = Rc::clone(&counted);
    // The payload lies in the packet that it came in; nothing is copied on the way back out of the handler.
    let echo = Service::inline(move |request| {
        let (calls, bytes) = counter.get();
        counter.set((calls + 1, bytes + request.payload().len() as u64));
        Ok(request.take_payload().into())
    });
    node.serve(ECHO, echo)?;
    stop_at_signals(node.handle())?;
    at.address = node.address();
    match at.address {
        Address::Inet(bound) if asked.ip().is_unspecified() => {
            let local = if asked.is_ipv6() { "[::1]" } else { "127.0.0.1" };
            eprintln!("listening at {at}, on every address of this machine: call one of them, like udp://{local}:{}", bound.port());
        }
        _ => eprintln!("listening at {at}"),
    }
    node.run();
    let (calls, bytes) = counted.get();
    eprintln!("stopped: {calls} calls were answered, {bytes} bytes in all");
    Ok(())
}

/// Ends the node's run in order on Ctrl-C or a service manager's SIGTERM; a second one ends the program at once.
fn stop_at_signals(node: Handle) -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            // What comes at once is the same wish: `timeout` signals its child, and then the group that the child is in.
            if first.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(500) {
                // As a shell says it of a program that a signal ended.
                std::process::exit(128 + signal);
            }
            node.stop();
        }
    });
    Ok(())
}

fn in_one_process(url: &str) -> Box<dyn Error> {
    format!("{url} exists in one process only, and a server and its caller are two: use a URL like udp://127.0.0.1:7000").into()
}

/// Sends `text`, and prints what comes back and how long it took.
fn call(url: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let server: PortUrl = url.parse()?;
    // A socket has the family of the addresses that it sends to.
    let any = match server.address {
        Address::Inet(address) if address.ip().is_unspecified() => {
            let local = if address.is_ipv6() { "[::1]" } else { "127.0.0.1" };
            return Err(format!(
                "{url} is where a server listens at every address, and none to call: call one of its addresses, on this machine \
                 udp://{local}:{}",
                address.port()
            )
            .into());
        }
        Address::Inet(address) if address.port() == 0 => {
            return Err(format!("{url} has no port to call: write the one that the server printed").into());
        }
        Address::Inet(address) if address.is_ipv6() => "udp://[::]:0",
        Address::Inet(_) => "udp://0.0.0.0:0",
        Address::Local(_) => return Err(in_one_process(url)),
    };
    let mut node = Node::builder(any).build()?;
    let local = node.local();
    let peer = local.peer(server)?;
    for attempt in ["the first call, with the handshake", "the second"] {
        let sent = Instant::now();
        let options = CallOptions::new().deadline(Duration::from_secs(2));
        let reply = node.block_on(local.call(peer, ECHO, text.to_owned(), options)).map_err(|error| match error {
            // No session was opened in that time: the request is still here.
            CallError::DeadlineExceeded { fate: Fate::NotSent } => format!("no answer from {url} in 2 s: is the server running?"),
            CallError::Connect(_) => format!("{error}: no answer from {url}: is the server running?"),
            other => other.to_string(),
        })?;
        println!("{} ({attempt}: {:?})", String::from_utf8_lossy(&reply), sent.elapsed());
    }
    Ok(())
}
