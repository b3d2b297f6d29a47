//! What a node has in use: gauges to watch, and to find at rest what was not given back.

use crate::core::Core;
use crate::local::Shared;

/// What a node has in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Calls made and not ended, or ended and not fetched by their future.
    pub calls: usize,
    /// Credits held by calls.
    pub credits: usize,
    /// Requests that wait or run here.
    pub entries: usize,
    /// Slots of the claim table in use.
    pub claims: usize,
    /// Words that hooks have left with requests.
    pub words: usize,
    /// Tasks of the executor.
    pub tasks: usize,
    /// Futures that sleep.
    pub sleeps: usize,
    /// Armed deadlines of calls and requests.
    pub timers: usize,
    /// Sessions, those opening and closing included.
    pub sessions: usize,
}

impl Usage {
    /// Whether nothing but sessions is in use.
    pub fn is_at_rest(&self) -> bool {
        *self == Usage { sessions: self.sessions, ..Usage::default() }
    }
}

impl Shared {
    pub(crate) fn usage(&self) -> Usage {
        self.core.borrow().usage(self.executor.len())
    }
}

impl Core {
    /// `tasks`: the executor is not the core's.
    pub(crate) fn usage(&self, tasks: usize) -> Usage {
        let peers = self.client.table.peers.iter();
        Usage {
            calls: self.client.table.live(),
            credits: peers.flat_map(|peer| &peer.lanes).map(|lane| lane.account.held() as usize).sum(),
            entries: self.server.len(),
            claims: self.server.queue.claims.len(),
            words: self.server.orders.len(),
            tasks,
            sleeps: self.sleeps.len(),
            timers: self.client.table.wheel.len() + self.server.wheel.len(),
            sessions: self.endpoint.session_count(),
        }
    }
}
