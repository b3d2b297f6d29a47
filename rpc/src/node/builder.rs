//! Making a node.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tautline_net::clock::Clock;
use tautline_net::endpoint::Endpoint;
use tautline_net::frame::Frame;
use tautline_net::port::{self, Address, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, PortUrl, Purpose};

use super::config::{NodeConfig, Wait};
use super::wait::Waiting;
use super::{Node, Root};
use crate::client::completions::Completions;
use crate::client::peers::Peers;
use crate::client::submit::Client;
use crate::client::table::Table;
use crate::core::Core;
use crate::error::BuildError;
use crate::executor::Executor;
use crate::local::Shared;
use crate::mail::Mail;
use crate::metrics::Metrics;
use crate::request::Request;
use crate::server::Server;
use crate::server::runqueue::RunQueue;
use crate::server::workers::Workers;
use crate::sleep::Sleeps;

/// Builds a [`Node`].
#[must_use]
pub struct Builder {
    url: String,
    wait: Wait,
    workers: usize,
    config: NodeConfig,
    clock: Option<Clock>,
    port: Option<Box<dyn Port>>,
}

impl Builder {
    pub(super) fn new(url: String) -> Builder {
        Builder { url, wait: Wait::default(), workers: 0, config: NodeConfig::default(), clock: None, port: None }
    }

    /// What the node does when there is nothing to do. Default [`Wait::Adaptive`].
    pub fn wait(mut self, wait: Wait) -> Builder {
        self.wait = wait;
        self
    }

    /// How many worker threads it has. Default none: then the poller runs the handlers meant for workers.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = workers;
        self
    }

    /// Sets the limits.
    pub fn config(mut self, config: NodeConfig) -> Builder {
        self.config = config;
        self
    }

    /// Takes the time from `clock` instead of the machine.
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.clock = Some(clock);
        self
    }

    /// Uses a port that is open already, instead of opening the one that the URL names.
    pub fn port(mut self, port: Box<dyn Port>) -> Builder {
        self.port = Some(port);
        self
    }

    /// Opens the port and starts the workers.
    pub fn build(self) -> Result<Node, BuildError> {
        let Builder { url, wait, workers, config, clock, port } = self;
        let clock = clock.unwrap_or_else(Clock::tsc);
        if clock.is_virtual() && (wait != Wait::Spin || workers > 0) {
            return Err(BuildError::Config("in virtual time a node can't block and has no threads: use Wait::Spin and no workers"));
        }
        let capacity = config.queue_limits.iter().try_fold(0usize, |sum, &limit| sum.checked_add(limit));
        let Some(capacity) = capacity.filter(|&capacity| (1..=1 << 24).contains(&capacity)) else {
            return Err(BuildError::Config("the queue limits must add up to between 1 and 16,777,216"));
        };
        if config.max_tasks == 0 || config.max_tasks > 1 << 24 || config.inbox > 1 << 24 {
            return Err(BuildError::Config("max_tasks must be between 1 and 16,777,216, and the inbox not larger"));
        }
        let port = match port {
            Some(port) => port,
            None => port::open(&url.parse::<PortUrl>().map_err(PortError::from)?, &clock)?,
        };
        let now = clock.now();
        let mut endpoint = Endpoint::new(port, config.endpoint.clone(), now);
        let mail = Mail::new(config.inbox, 2 * capacity, config.max_tasks);
        let waiting = Waiting::new(wait, config.spin, &mut endpoint, &mail)?;
        let queue = RunQueue::new(capacity, workers, mail.clone());
        let mut table = Table::new(config.max_calls, Peers::new(config.max_peers, config.initial_credit));
        table.wheel.expire(now, &mut Vec::new());
        let core = Core {
            endpoint,
            now,
            fresh: false,
            sessions: Vec::new(),
            client: Client {
                table,
                by_address: HashMap::default(),
                completions: Completions::default(),
                max_waiting: config.max_waiting,
                max_calls: config.max_calls,
            },
            server: Server::new(queue.clone(), workers > 0, &config, now),
            sleeps: Sleeps::default(),
            metrics: Metrics::new(config.max_methods),
            deferred: VecDeque::new(),
            hook_notes: VecDeque::new(),
            owed_cancels: VecDeque::new(),
            expired: Vec::new(),
            stopped: false,
            clock: clock.clone(),
        };
        let workers = Workers::start(queue, workers, &clock, config.worker_spin)
            .map_err(|source| BuildError::System { action: "starting a worker thread", source })?;
        let executor = Executor::new(mail.clone(), config.max_tasks);
        let shared = Rc::new(Shared { core: RefCell::new(core), mail: mail.clone(), executor });
        tracing::debug!(address = %shared.core.borrow().endpoint.local_address(), ?wait, "node built");
        let root = Arc::new(Root { woken: AtomicBool::new(false), mail });
        Ok(Node { shared, runners: Vec::new(), direct: Request::blank(clock), hooks: Vec::new(), workers, waiting, root })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("url", &self.url)
            .field("wait", &self.wait)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

/// The port of a node that is gone: nothing comes, and what is sent is lost.
pub(super) struct NoPort {
    address: Address,
}

impl NoPort {
    pub(super) fn new(address: Address) -> NoPort {
        NoPort { address }
    }
}

impl Port for NoPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: 1400, integrity: true, segmentation: false }
    }

    fn local_address(&self) -> Address {
        self.address
    }

    fn receive(&mut self, _into: &mut Vec<Datagram>, _max: usize) -> Result<usize, PortError> {
        Ok(0)
    }

    fn receive_frames_low(&self) -> bool {
        false
    }

    fn frames_out(&self) -> FramesOut {
        FramesOut::default()
    }

    fn allocate(&mut self, _purpose: Purpose, _into: &mut Vec<Frame>, _count: usize) -> usize {
        0
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        burst.clear();
        Ok(0)
    }

    fn attach_wait(&mut self, _: &mio::Registry, _: mio::Token, _: &Arc<mio::Waker>) -> io::Result<()> {
        Ok(())
    }

    fn prepare_wait(&mut self) -> bool {
        true
    }

    fn finish_wait(&mut self) {}

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
