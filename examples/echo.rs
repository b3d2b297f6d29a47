//! A server and a client on one page. In two terminals:
//!
//!     cargo run --release -p tautline-examples --bin echo -- serve udp://127.0.0.1:7000
//!     cargo run --release -p tautline-examples --bin echo -- call udp://127.0.0.1:7000 hello
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tautline_net::port::PortUrl;
use tautline_rpc::{Address, CallError, CallOptions, Fate, Method, Node, Service};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

const ECHO: Method = Method::named("example.Echo/Echo");
const USAGE: &str = "\
echo serve URL         returns what it is sent, until it is stopped
echo call URL TEXT     sends the text, and prints what comes back

URL is like udp://127.0.0.1:7000 or udp://[::1]:7000; to serve at, it may have options: udp://127.0.0.1:7000?trace=1 prints every packet.
RUST_LOG filters what is printed (the default: warn,tautline::port=trace).";

fn main() {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let done = log().and_then(|()| match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", url] => serve(url),
        ["call", url, text] => call(url, text),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err("say `echo serve URL` or `echo call URL TEXT`, with a URL like udp://127.0.0.1:7000 (or `echo --help`)".into()),
    });
    if let Err(error) = done {
        eprintln!("echo: {error}");
        std::process::exit(1);
    }
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
    let mut node = Node::builder(url).build()?;
    // The payload lies in the packet that it came in; nothing is copied on the way back out of the handler.
    node.serve(ECHO, Service::inline(|request| Ok(request.take_payload().into())))?;
    // The URL again, with the port that the system chose if it says 0.
    let mut at: PortUrl = url.parse()?;
    at.address = node.address();
    eprintln!("listening at {at}");
    node.run();
    Ok(())
}

/// Sends `text`, and prints what comes back and how long it took.
fn call(url: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let server: PortUrl = url.parse()?;
    // A socket has the family of the addresses that it sends to.
    let any = match server.address {
        Address::Inet(address) if address.is_ipv6() => "udp://[::]:0",
        Address::Inet(_) => "udp://0.0.0.0:0",
        Address::Local(_) => return Err(format!("{url} exists in one process only: call a URL like udp://127.0.0.1:7000").into()),
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
