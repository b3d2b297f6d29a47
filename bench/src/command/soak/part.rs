//! One process of the soak: a server or a client, which does what lines on its standard input say.
//!
//! First it says `ready`. Orders: `run SEED` starts a client's traffic, `pause` lets it run out, both answered by `ok`; `gauges` is answered
//! by a line of JSON; `stop` stops the node in order: the answer is the last gauges, and then the process ends. The end of its input
//! ends it at once.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use fastrand::Rng;
use tautline_bench::error::BenchError;
use tautline_rpc::{Address, Handle, Node, Wait};

use super::callers::Callers;
use super::client::Client;
use super::gauges::Gauges;
use super::server::{HERE, serve};
use super::tally::Tally;
use crate::cli::SoakPart;

/// How long the node may take to answer another thread.
const SILENCE: Duration = Duration::from_secs(30);
/// Threads of a server that run handlers.
const WORKERS: usize = 2;

pub(crate) fn run(args: &SoakPart) -> Result<(), BenchError> {
    let address = |port: u16| Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let replicas: Vec<Address> = args.replicas.iter().map(|port| address(*port)).collect();
    let tally = Tally::default();
    let workers = if args.client { 0 } else { WORKERS };
    let builder = Node::builder(format!("udp://127.0.0.1:{}", args.port)).wait(Wait::Park).workers(workers);
    let mut node = builder.build().map_err(BenchError::product("building a node"))?;
    let mut outside = Outside { node: node.handle(), tally: tally.clone(), callers: None };
    if args.client {
        let client = Client::new(node.local(), &replicas, address(args.nobody), args.seed, &tally)?;
        let (caller, set) = (client.shared.clone(), client.sets[0].handle());
        let (node, alive) = (node.handle(), Arc::new(AtomicUsize::new(0)));
        outside.callers = Some(Callers { caller, node, set, replicas, alive });
        HERE.with_borrow_mut(|here| here.client = Some(client));
    } else {
        let ties = serve(&mut node, &replicas, &tally)?;
        HERE.with_borrow_mut(|here| here.ties = Some(ties));
    }
    say("ready")?;
    let orders = std::thread::Builder::new().name("orders".to_owned()).spawn(move || outside.obey());
    orders.map_err(BenchError::system("starting a thread"))?;
    node.run();
    // Told to stop. What lives beside the node goes first.
    HERE.with_borrow_mut(|here| *here = Default::default());
    drop(node);
    let last = Gauges { counts: tally.snapshot(), ..Gauges::default() };
    say(&json(&last)?)
}

/// The thread that takes the orders.
struct Outside {
    node: Handle,
    tally: Tally,
    callers: Option<Callers>,
}

impl Outside {
    fn obey(mut self) {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            let done = match line.split_once(' ') {
                Some(("run", seed)) => self.start(seed.parse().unwrap_or(0)).and_then(|()| say("ok")),
                None if line == "pause" => {
                    if let Some(callers) = &self.callers {
                        callers.caller.running.store(false, Ordering::Relaxed);
                    }
                    say("ok")
                }
                None if line == "gauges" => self.gauges().and_then(|gauges| say(&json(&gauges)?)),
                None if line == "stop" => {
                    self.node.stop();
                    // The main thread has the last word.
                    return;
                }
                _ => Err(BenchError::PartnerEnded { what: "soak's process", why: format!("it was told `{line}`") }),
            };
            if let Err(error) = done {
                eprintln!("soak: {error}");
                break;
            }
        }
        // Nobody is there any more to tell anything to.
        std::process::exit(2);
    }

    fn start(&mut self, seed: u64) -> Result<(), BenchError> {
        let Some(callers) = &self.callers else { return Ok(()) };
        let mut random = Rng::with_seed(seed);
        callers.caller.running.store(true, Ordering::Relaxed);
        callers.start(&mut random)?;
        self.on_node(move |_| HERE.with_borrow(|here| here.client.as_ref().map_or(Ok(()), |client| client.start(&mut random))))?
    }

    fn gauges(&mut self) -> Result<Gauges, BenchError> {
        let mut gauges = self.on_node(|local| {
            HERE.with_borrow(|here| {
                let sets = here.client.as_ref().map(|client| &*client.sets);
                Gauges::of(local, here.ties.as_ref(), sets.unwrap_or_default())
            })
        })?;
        gauges.callers = self.callers.as_ref().map_or(0, |callers| callers.alive.load(Ordering::Relaxed));
        gauges.counts = self.tally.snapshot();
        gauges.ask_kernel()?;
        Ok(gauges)
    }

    /// Has the node's thread do something, and waits for what comes of it.
    fn on_node<T: Send + 'static>(&self, work: impl FnOnce(&tautline_rpc::Local) -> T + Send + 'static) -> Result<T, BenchError> {
        let (tell, told) = mpsc::channel();
        let taken = self.node.execute(move |local| drop(tell.send(work(local))));
        let silent = BenchError::Silent { what: "the node's own thread", seconds: SILENCE.as_secs() };
        if taken { told.recv_timeout(SILENCE).map_err(|_| silent) } else { Err(silent) }
    }
}

fn json(gauges: &Gauges) -> Result<String, BenchError> {
    serde_json::to_string(gauges).map_err(BenchError::product("writing the gauges"))
}

fn say(line: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(BenchError::system("writing to the parent"))
}
