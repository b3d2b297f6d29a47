//! A server and a client on one page. In two terminals:
//!
//!     cargo run --release -p tautline-examples --bin echo -- serve udp://127.0.0.1:7000
//!     cargo run --release -p tautline-examples --bin echo -- call udp://127.0.0.1:7000 hello
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use tautline_net::port::PortUrl;
use tautline_rpc::{CallOptions, Method, Node, Service};

const ECHO: Method = Method::named("example.Echo/Echo");

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", url] => serve(url),
        ["call", url, text] => call(url, text),
        _ => Err("say `echo serve URL` or `echo call URL TEXT`, with a URL like udp://127.0.0.1:7000".into()),
    };
    if let Err(error) = done {
        eprintln!("echo: {error}");
        std::process::exit(1);
    }
}

/// Returns what it is sent, until it is stopped.
fn serve(url: &str) -> Result<(), Box<dyn std::error::Error>> {
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
fn call(url: &str, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut node = Node::builder("udp://0.0.0.0:0").build()?;
    let local = node.local();
    let peer = local.peer(url)?;
    for attempt in ["the first call, with the handshake", "the second"] {
        let sent = Instant::now();
        let options = CallOptions::new().deadline(Duration::from_secs(2));
        let reply = node.block_on(local.call(peer, ECHO, text.to_owned(), options))?;
        println!("{} ({attempt}: {:?})", String::from_utf8_lossy(&reply), sent.elapsed());
    }
    Ok(())
}
