//! What the incomplete messages of all sessions share, and what each of them still needs.

use super::super::buffers::Buffers;
use crate::class::Class;
use crate::clock::Time;

/// The memory that incomplete messages share.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) used: usize,
    pub(crate) limit: usize,
    /// What of it sessions on probation use.
    pub(crate) probation: usize,
    /// Messages that wait for others to give memory back, of trusted sessions and of those on probation; new ones wait behind them.
    pub(crate) waiting: [usize; 2],
    pub(super) buffers: Buffers,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Budget {
        Budget { used: 0, limit, probation: 0, waiting: [0; 2], buffers: Buffers::new() }
    }

    /// Bytes of memory kept for messages to come.
    pub(crate) fn kept(&self) -> usize {
        self.buffers.kept()
    }
}

/// How far an incomplete message is, for the grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) class: Class,
    pub(crate) total: u32,
    pub(crate) received: u32,
    pub(crate) granted: u32,
    pub(crate) progress: Time,
    /// It waits for memory.
    pub(crate) deferred: bool,
    /// It waits for other messages of its own session.
    pub(crate) crowded: bool,
}

impl Need {
    /// Bytes that may be sent and have not come.
    pub(crate) fn outstanding(&self) -> u32 {
        self.granted.saturating_sub(self.received)
    }
}
