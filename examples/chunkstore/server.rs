//! One replica: reads chunks on its worker threads, and drops those whose tied copy another replica has started.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tautline_rpc::{Code, Method, Node, NodeConfig, Reply, Request, Service, Status, Wait};
use tautline_tied::{TieServer, TieServerConfig};

use crate::files::{Access, Chunks, replica_path};
use crate::upkeep::Upkeep;
use crate::{Failure, Serve, check_replicas};

/// Takes a chunk's number as 32 bits, little endian; gives its bytes.
pub(crate) const READ: Method = Method::named("chunkstore.Chunks/Read").idempotent();
/// Takes nothing; gives [`Stats`] as JSON.
pub(crate) const STATS: Method = Method::named("chunkstore.Chunks/Stats");

/// What a replica has counted since it was started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Tells one start of the replica from the next.
    pub(crate) start: u64,
    /// Whether the replica sorts beside its reads.
    pub(crate) sorts: bool,
    /// Reads that went to the disk.
    pub(crate) reads: u64,
    /// Copies elsewhere that were dropped from their queue because the copy here had started.
    pub(crate) cancels: u64,
    /// From the start here to the drop there: the median, in microseconds.
    pub(crate) cancel_us: f64,
}

/// Serves until a signal.
pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    let Some(url) = args.replicas.get(args.replica) else {
        let given = args.replicas.len();
        return Err(format!("--replica {} is not among the {given} --replicas, which count from 0", args.replica).into());
    };
    check_replicas(&args.replicas)?;
    let chunks = Arc::new(Chunks::open(&args.dir, args.replica)?);
    // A read takes many times as long as a wake-up, and replicas and client may share a few cores: who looks for work there is in the
    // way of who has some.
    let config = NodeConfig { worker_spin: Duration::ZERO, ..NodeConfig::default() };
    let mut node = Node::builder(url.to_string()).wait(Wait::Park).config(config).workers(args.workers.into()).build()?;
    let allowed = args.replicas.iter().map(|replica| replica.address).collect();
    let ties = TieServer::install(&mut node, TieServerConfig { allowed, ..TieServerConfig::default() })?;

    let reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reads);
    if !args.quiet || chunks.access() != Access::Direct {
        eprintln!("replica {} serves {} chunks at {url}, read by {}", args.replica, chunks.count(), chunks.access());
    }
    node.serve(READ, Service::workers(move |request| read(&chunks, &counter, &request)))?;
    let (start, sorts) = (fastrand::u64(..), args.sort.is_some());
    node.serve(STATS, Service::inline(move |_| stats(start, sorts, &reads, &ties)))?;
    let upkeep = match args.sort {
        Some(percent) => {
            let dir = replica_path(&args.dir, args.replica);
            let dir = dir.parent().unwrap_or(&args.dir);
            Some(Upkeep::start(&mut node, dir, f64::from(percent) / 100.0)?)
        }
        None => None,
    };

    let handle = node.handle();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            handle.stop();
        }
    });
    if let Some(ready) = &args.ready {
        fs::write(ready, "").map_err(|error| format!("writing {} failed: {error}", ready.display()))?;
    }
    node.run();
    drop(upkeep);
    Ok(())
}

fn read(chunks: &Chunks, reads: &AtomicU64, request: &Request) -> Result<Reply, Status> {
    let number: &[u8; 4] = request.payload()[..].try_into().map_err(|_| Status::new(Code::InvalidArgument, "ask by 4 bytes"))?;
    reads.fetch_add(1, Ordering::Relaxed);
    match chunks.read(u32::from_le_bytes(*number)) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Err(Status::new(Code::NotFound, error.to_string())),
        Err(error) => Err(Status::new(Code::Unavailable, format!("reading failed: {error}"))),
    }
}

fn stats(start: u64, sorts: bool, reads: &AtomicU64, ties: &TieServer) -> Result<Reply, Status> {
    let metrics = ties.metrics();
    let stats = Stats {
        start,
        sorts,
        reads: reads.load(Ordering::Relaxed),
        cancels: metrics.cancel_round_trip.count(),
        cancel_us: metrics.cancel_latency(0.5).as_nanos() as f64 / 1e3,
    };
    serde_json::to_vec(&stats).map(Reply::from).map_err(|error| Status::new(Code::Internal, error.to_string()))
}
