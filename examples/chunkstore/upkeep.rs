//! Gives a replica's workers the steps of its sort: calls of the lowest class from a node of its own, paced so that they take a set
//! share of a worker's time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tautline_rpc::{Address, CallOptions, Class, Code, Method, Node, Reply, Request, Service, Status, Wait};

use crate::external::External;
use crate::{Failure, any_port};

const STEP: Method = Method::named("chunkstore.Upkeep/Step");

/// The sort of one replica. It goes on until this is dropped; its files go when the replica's node does.
#[derive(Debug)]
pub(crate) struct Upkeep(Arc<AtomicBool>);

impl Upkeep {
    /// Serves the steps at `node`, and starts to ask for them: `share` of one worker's time (0 < share < 1).
    pub(crate) fn start(node: &mut Node, dir: &Path, share: f64) -> Result<Upkeep, Failure> {
        // Only the replica itself may have its workers sort.
        let secret = fastrand::u64(..);
        let sort = External::start(dir, secret).map_err(|error| format!("starting a sort in {} failed: {error}", dir.display()))?;
        let sort = Mutex::new(sort);
        node.serve(STEP, Service::workers(move |request| step(&sort, secret, &request)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (server, stopped) = (node.address(), Arc::clone(&stop));
        std::thread::Builder::new().name("upkeep".to_owned()).spawn(move || {
            if let Err(error) = ask(server, secret, share, &stopped)
                && !stopped.load(Ordering::Relaxed)
            {
                eprintln!("chunkstore: the sort ended: {error}");
            }
        })?;
        Ok(Upkeep(stop))
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A worker's side: one step. Gives how long it held the worker.
fn step(sort: &Mutex<External>, secret: u64, request: &Request) -> Result<Reply, Status> {
    if request.payload()[..] != secret.to_le_bytes() {
        return Err(Status::new(Code::PermissionDenied, "a replica sorts for nobody but itself"));
    }
    let start = Instant::now();
    let done = sort.lock().unwrap_or_else(PoisonError::into_inner).step();
    done.map_err(|error| Status::new(Code::Unavailable, format!("a step of the sort failed: {error}")))?;
    Ok((start.elapsed().as_nanos() as u64).to_le_bytes().to_vec().into())
}

/// The asking side: step after step, with pauses that keep the share on average and come at random.
fn ask(server: Address, secret: u64, share: f64, stopped: &AtomicBool) -> Result<(), Failure> {
    let mut node = Node::builder(any_port(&[server])).wait(Wait::Park).build()?;
    let local = node.local();
    let peer = local.peer(server)?;
    node.block_on(async {
        while !stopped.load(Ordering::Relaxed) {
            let options = CallOptions::new().class(Class::Background);
            let reply = local.call(peer, STEP, secret.to_le_bytes().to_vec(), options).await?;
            let held = reply.first_chunk().map_or(0, |nanos| u64::from_le_bytes(*nanos));
            let pause = held as f64 * (1.0 - share) / share * 2.0 * fastrand::f64();
            local.sleep(Duration::from_nanos(pause as u64)).await;
        }
        Ok(())
    })
}
