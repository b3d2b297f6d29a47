//! A replica: one method each for inline handlers, workers and futures, and ties.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tautline_bench::error::BenchError;
use tautline_rpc::{Address, Code, HandlerResult, Local, Method, Node, Request, Service, Status};
use tautline_tied::{TieServer, TieServerConfig};

use super::gauges::TOMBSTONES;
use super::pattern::{Ask, Manner};
use super::tally::Tally;

pub(super) const INLINE: Method = Method::named("soak.Server/Inline");
pub(super) const WORKER: Method = Method::named("soak.Server/Worker");
pub(super) const FUTURE: Method = Method::named("soak.Server/Future");

/// Numbers of calls remembered, to notice one that is executed twice.
const REMEMBERED: usize = 1 << 14;

/// The numbers of the calls executed last.
#[derive(Debug)]
struct Executed {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Default for Executed {
    /// As large as it gets, so that it does not look like a leak while it fills.
    fn default() -> Executed {
        Executed { known: HashSet::with_capacity(2 * REMEMBERED), order: VecDeque::with_capacity(REMEMBERED + 1) }
    }
}

impl Executed {
    /// `false`: it was executed before.
    fn add(&mut self, id: u64) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// What the handlers of a server share.
#[derive(Clone, Debug, Default)]
struct Ledger {
    tally: Tally,
    executed: Arc<Mutex<Executed>>,
}

impl Ledger {
    /// Reads a request, and notes that its handler runs.
    fn open(&self, payload: &[u8]) -> Result<Ask, Status> {
        let ask = Ask::read(payload).inspect_err(|_| self.tally.fault("a request arrived damaged".to_owned()))?;
        if ask.id != 0 && !self.executed.lock().unwrap_or_else(PoisonError::into_inner).add(ask.id) {
            self.tally.fault(format!("call {:#x} was executed twice", ask.id));
        }
        match ask.manner {
            Manner::Fail => Err(Status::new(Code::FailedPrecondition, "as asked")),
            _ => Ok(ask),
        }
    }
}

/// Has `node` serve, as one of `replicas`.
pub(super) fn serve(node: &mut Node, replicas: &[Address], tally: &Tally) -> Result<TieServer, BenchError> {
    let ledger = Ledger { tally: tally.clone(), ..Ledger::default() };
    let inline = ledger.clone();
    let refused = "serving";
    node.serve(INLINE, Service::inline(move |request| Ok(inline.open(request.payload())?.reply().into())))
        .map_err(BenchError::product(refused))?;
    let workers = ledger.clone();
    node.serve(WORKER, Service::workers(move |request| work(&workers, &request))).map_err(BenchError::product(refused))?;
    let (local, own, replicas_) = (node.local(), node.address(), replicas.to_vec());
    let future = move |request: Request| wait(ledger.clone(), local.clone(), own, replicas_.clone(), request);
    node.serve(FUTURE, Service::future(future)).map_err(BenchError::product(refused))?;
    let config = TieServerConfig { allowed: replicas.to_vec(), tombstones: TOMBSTONES, ..TieServerConfig::default() };
    TieServer::install(node, config).map_err(BenchError::product("installing ties"))
}

/// On a worker thread: small steps, with checkpoints between.
fn work(ledger: &Ledger, request: &Request) -> HandlerResult {
    let ask = ledger.open(request.payload())?;
    let steps = ask.pause / 200;
    for _ in 0..steps {
        std::thread::sleep(Duration::from_micros(200));
        if !request.checkpoint() {
            return Err(Status::new(Code::Cancelled, "stopped at a checkpoint"));
        }
    }
    Ok(ask.reply().into())
}

/// As a future: it sleeps, and calls another replica if it is to.
async fn wait(ledger: Ledger, local: Local, own: Address, replicas: Vec<Address>, request: Request) -> HandlerResult {
    let ask = ledger.open(request.payload())?;
    local.sleep(Duration::from_micros(ask.pause.into())).await;
    if ask.manner == Manner::Nest {
        let others: Vec<Address> = replicas.into_iter().filter(|replica| *replica != own).collect();
        let other = others[ask.seed as usize % others.len()];
        let peer = local.peer(other).map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let inner = Ask { id: 0, seed: ask.seed ^ 1, reply: 100, pause: 0, manner: Manner::Answer };
        let call = ledger.tally.begin("nested");
        let result = local.call(peer, INLINE, inner.request(100), request.child_options()).await;
        call.end_with(&inner, result);
    }
    Ok(ask.reply().into())
}

thread_local! {
    /// What is on the thread of the process's node beside it, for what other threads have it do there.
    pub(super) static HERE: RefCell<Here> = RefCell::default();
}

/// See [`HERE`].
#[derive(Default)]
pub(super) struct Here {
    pub(super) ties: Option<TieServer>,
    pub(super) client: Option<super::client::Client>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_executed_twice_is_a_fault_and_old_ones_are_forgotten() {
        let ledger = Ledger::default();
        let request = |id| Ask { id, seed: 1, reply: 1, pause: 0, manner: Manner::Answer }.request(3);
        for id in [0, 0, 5, 6] {
            ledger.open(&request(id)).unwrap();
        }
        assert_eq!(ledger.tally.snapshot().faults, 0);
        ledger.open(&request(5)).unwrap();
        assert_eq!(ledger.tally.snapshot().faults, 1);
        let mut executed = Executed::default();
        for id in 1..3 * REMEMBERED as u64 {
            assert!(executed.add(id));
        }
        assert_eq!((executed.known.len(), executed.order.len()), (REMEMBERED, REMEMBERED));
    }
}
