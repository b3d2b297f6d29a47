//! A node's limits and how it waits. Every queue and table has a limit.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::EndpointConfig;

use crate::credit::CreditConfig;

/// What a node does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Looks again at once: the lowest latency, and a whole core.
    Spin,
    /// Looks again for a moment ([`NodeConfig::spin`]), then blocks until something happens.
    #[default]
    Adaptive,
    /// Blocks at once: the least work, and a wake-up on every packet's way.
    Park,
}

/// The limits of a node. Start from the default and change what you must.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Calls that have not ended, and results not fetched. Default 65,536.
    pub max_calls: usize,
    /// Calls that wait for credit, of each peer and class. Default 1,024.
    pub max_waiting: usize,
    /// Peers that calls go to. Idle ones are forgotten when it is reached. Default 65,536.
    pub max_peers: usize,
    /// Calls that a peer and class may have outstanding before its first reply says how many. Default 64.
    pub initial_credit: u16,
    /// Requests that wait or run here, of each class, most urgent first. Default 1,024 each.
    pub queue_limits: [usize; Class::COUNT],
    /// Tasks of the executor; handlers that are futures count. Default 16,384.
    pub max_tasks: usize,
    /// Handlers that are futures and run at once. Requests past it wait in the run queue, where classes order them and where deadlines,
    /// cancels and hooks reach them before they have cost anything; other handlers don't wait for them. Default: no limit.
    pub concurrency: usize,
    /// Commands from other threads that wait. Default 4,096.
    pub inbox: usize,
    /// Methods whose calls are counted apart. Default 1,024.
    pub max_methods: usize,
    /// How long [`Wait::Adaptive`] looks again before it blocks. Default 30 us.
    pub spin: Duration,
    /// How long a worker looks for work before it parks. Default 20 us.
    pub worker_spin: Duration,
    /// How credits are given to callers.
    pub credit: CreditConfig,
    /// The endpoint's limits.
    pub endpoint: EndpointConfig,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            max_calls: 65_536,
            max_waiting: 1024,
            max_peers: 65_536,
            initial_credit: 64,
            queue_limits: [1024; Class::COUNT],
            max_tasks: 16_384,
            concurrency: usize::MAX,
            inbox: 4096,
            max_methods: 1024,
            spin: Duration::from_micros(30),
            worker_spin: Duration::from_micros(20),
            credit: CreditConfig::default(),
            endpoint: EndpointConfig::default(),
        }
    }
}
