//! Threads that call from outside the node: by its handle, and by that of a set of replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tautline_bench::error::BenchError;
use tautline_rpc::{Address, Handle};
use tautline_tied::{ReplicasHandle, TiedOptions};

use super::client::{Caller, class, end_replicated, method, options};

/// How long a call may take that has a deadline of two seconds. After that it counts as lost.
const LOST: Duration = Duration::from_secs(60);

/// The threads of one client.
pub(super) struct Callers {
    pub(super) caller: Caller,
    pub(super) node: Handle,
    pub(super) set: ReplicasHandle,
    pub(super) replicas: Vec<Address>,
    /// Threads that run.
    pub(super) alive: Arc<AtomicUsize>,
}

impl Callers {
    /// Starts the threads; they end when the caller is not running any more.
    pub(super) fn start(&self, random: &mut Rng) -> Result<(), BenchError> {
        let (caller, node, replicas) = (self.caller.clone(), self.node.clone(), self.replicas.clone());
        self.spawn(random.fork(), move |random| by_handle(&caller, &node, &replicas, random))?;
        let (caller, set) = (self.caller.clone(), self.set.clone());
        self.spawn(random.fork(), move |random| by_replicas(&caller, &set, random))
    }

    fn spawn(&self, mut random: Rng, work: impl FnOnce(&mut Rng) + Send + 'static) -> Result<(), BenchError> {
        let alive = self.alive.clone();
        alive.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("caller".to_owned()).spawn(move || {
            work(&mut random);
            alive.fetch_sub(1, Ordering::Relaxed);
        });
        thread.map(drop).map_err(BenchError::system("starting a thread"))
    }
}

fn by_handle(caller: &Caller, node: &Handle, replicas: &[Address], random: &mut Rng) {
    while caller.is_running() {
        let pause = random.u32(..1_000);
        let (ask, len) = caller.ask(random, 10_000, pause);
        let replica = replicas[random.usize(..replicas.len())];
        let open = caller.tally.begin("by handle");
        let call = node.call(replica, method(random), ask.request(len), options(random));
        let patience = if random.u8(..4) == 0 { Duration::from_micros(random.u64(..2_000)) } else { LOST };
        match call.wait_timeout(patience) {
            Ok(result) => open.end_with(&ask, result),
            Err(call) => {
                if patience == LOST {
                    caller.tally.fault(format!("a call by a handle did not end for {} s", LOST.as_secs()));
                }
                drop(call);
                open.end("given up");
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(..2_000)));
    }
}

fn by_replicas(caller: &Caller, set: &ReplicasHandle, random: &mut Rng) {
    while caller.is_running() {
        let pause = random.u32(..2_000);
        let (mut ask, len) = caller.ask(random, 10_000, pause);
        ask.id = 0;
        let options = TiedOptions::new().class(class(random)).deadline(Duration::from_secs(2));
        let open = caller.tally.begin("tied by handle");
        let call = set.call(method(random), ask.request(len), &options);
        if random.u8(..8) == 0 {
            drop(call);
            open.end("given up");
        } else {
            end_replicated(open, &ask, call.wait());
        }
        std::thread::sleep(Duration::from_micros(random.u64(..2_000)));
    }
}
