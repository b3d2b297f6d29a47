//! Everything that crosses threads, at once, checked as it goes: nodes on threads of their own that call each other, their workers, and
//! callers on other threads; over shared memory and over UDP; untied and tied; with calls given up, and payloads that outlive their node.
//!
//! It has no test harness, so that a sanitizer sees this program's threads and no others: `scripts/sanitize thread` runs it with more
//! calls. `TAUTLINE_CALLS` says how many each caller makes.

mod mesh;
mod ties;

use std::sync::mpsc;
use std::thread::JoinHandle;

use tautline_rpc::{Handle, Method, Node, Wait};

/// Calls of each caller, unless the environment says another number.
const CALLS: u64 = 150;

/// Answers with what it was sent, on the node's thread.
const ECHO: Method = Method::named("stress/Echo");
/// Answers with its bytes turned round, on a worker.
const REVERSE: Method = Method::named("stress/Reverse");
/// Answers with what another node's workers answer.
const RELAY: Method = Method::named("stress/Relay");
/// Answers when it is cancelled.
const NEVER: Method = Method::named("stress/Never");

fn main() {
    let calls = match std::env::var("TAUTLINE_CALLS") {
        Ok(text) => text.parse().expect("TAUTLINE_CALLS is a number"),
        Err(_) => CALLS,
    };
    let mut passed = 0;
    for (name, url) in [("mem", Some("mem://stress")), ("udp", None)] {
        let url = |role: &str, number: usize| match url {
            Some(url) => format!("{url}-{role}-{number}"),
            None => "udp://127.0.0.1:0".to_owned(),
        };
        mesh::run(&|number| url("mesh", number), calls);
        println!("{name}: two nodes, their workers, and callers ... ok");
        ties::run(&|number| url("ties", number), calls);
        println!("{name}: tied calls of other threads ... ok");
        passed += 2;
    }
    println!("stress: {passed} passed, 0 failed");
}

/// A node on a thread of its own. `set_up` registers what it serves; what it gives lives as long as the node.
struct Running {
    handle: Handle,
    thread: JoinHandle<()>,
}

fn start<T>(url: String, wait: Wait, workers: usize, set_up: impl FnOnce(&mut Node) -> T + Send + 'static) -> Running {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut node = Node::builder(url).wait(wait).workers(workers).build().expect("the name is free");
        let kept = set_up(&mut node);
        tell.send(node.handle()).expect("the starter waits");
        node.run();
        drop(kept);
    });
    Running { handle: told.recv().expect("the node starts"), thread }
}

impl Running {
    fn stop(self) {
        self.handle.stop();
        self.thread.join().expect("the node's thread ends well");
    }
}

/// The bytes of a caller's call: different ones for each, of lengths from a few bytes to several packets.
fn request(caller: u64, call: u64) -> Vec<u8> {
    let length = match call % 10 {
        0 => 20_000,
        1..3 => 3_000,
        _ => 16 + call as usize % 200,
    };
    let mut bytes: Vec<u8> = (0..length).map(|at| (at as u64 * 7 + call * 31 + caller) as u8).collect();
    bytes[..8].copy_from_slice(&call.to_le_bytes());
    bytes[8..16].copy_from_slice(&caller.to_le_bytes());
    bytes
}

fn reversed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}
