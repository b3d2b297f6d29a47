//! How calls end: each is begun, and ends once, in one way. What must never happen is written down beside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tautline_rpc::{CallError, Payload};

use super::pattern::Ask;

/// Sentences kept; more are only counted.
const SENTENCES: usize = 8;

/// What one process has counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Calls begun.
    pub(super) begun: u64,
    /// Ends, by kind of call and outcome.
    pub(super) ends: BTreeMap<String, BTreeMap<String, u64>>,
    /// What must not happen, and did: how often, and the first cases.
    pub(super) faults: u64,
    pub(super) sentences: Vec<String>,
}

impl Counts {
    pub(super) fn ended(&self) -> u64 {
        self.ends.values().flat_map(BTreeMap::values).sum()
    }

    /// Adds what another process counted, or this one's predecessor.
    pub(super) fn add(&mut self, other: &Counts) {
        self.begun += other.begun;
        self.faults += other.faults;
        for (kind, ends) in &other.ends {
            let own = self.ends.entry(kind.clone()).or_default();
            for (outcome, count) in ends {
                *own.entry(outcome.clone()).or_default() += count;
            }
        }
        self.sentences.extend(other.sentences.iter().cloned());
        self.sentences.truncate(SENTENCES);
    }
}

/// Counts for all threads of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    /// A call is about to be made.
    pub(super) fn begin(&self, kind: &'static str) -> OpenCall {
        self.counts().begun += 1;
        OpenCall { tally: self.clone(), kind, open: true }
    }

    /// Something happened that must not.
    pub(super) fn fault(&self, sentence: String) {
        let mut counts = self.counts();
        counts.faults += 1;
        if counts.sentences.len() < SENTENCES {
            counts.sentences.push(sentence);
        }
    }

    pub(super) fn snapshot(&self) -> Counts {
        self.counts().clone()
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct OpenCall {
    tally: Tally,
    kind: &'static str,
    open: bool,
}

impl OpenCall {
    pub(super) fn end(mut self, outcome: &str) {
        self.note(outcome);
    }

    /// Ends it with what came back, which must be what was asked for.
    pub(super) fn end_with(self, ask: &Ask, result: Result<Payload, CallError>) {
        match result {
            Ok(reply) if ask.is_answered_by(&reply) => self.end("replied"),
            Ok(reply) => {
                let (kind, len, wanted) = (self.kind, reply.len(), ask.reply);
                self.tally.fault(format!("a {kind} call was answered with {len} bytes that are not the {wanted} it asked for"));
                self.end("wrong reply");
            }
            Err(error) => self.end_failed(&error),
        }
    }

    pub(super) fn end_failed(self, error: &CallError) {
        if let CallError::Status(status) | CallError::Refused(status) = error
            && status.code == tautline_rpc::Code::DataLoss
        {
            self.tally.fault(format!("a {} call's request arrived damaged: {status}", self.kind));
        }
        self.end(error.kind().name());
    }

    fn note(&mut self, outcome: &str) {
        self.open = false;
        let mut counts = self.tally.counts();
        let ends = counts.ends.entry(self.kind.to_owned()).or_default();
        *ends.entry(outcome.to_owned()).or_default() += 1;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.open {
            // The process stops.
            self.note("let go");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::soak::pattern::Manner;

    #[test]
    fn a_call_is_counted_once_by_how_it_ended_and_a_wrong_reply_is_a_fault() {
        let tally = Tally::default();
        let ask = Ask { id: 1, seed: 2, reply: 10, pause: 0, manner: Manner::Answer };
        tally.begin("small").end_with(&ask, Ok(ask.reply().into()));
        tally.begin("small").end_with(&ask, Ok(vec![0; 10].into()));
        tally.begin("tied").end_with(&ask, Err(CallError::Protocol));
        drop(tally.begin("tied"));
        let mut counts = tally.snapshot();
        assert_eq!((counts.begun, counts.ended(), counts.faults), (4, 4, 1));
        assert_eq!(counts.ends["small"], BTreeMap::from([("replied".to_owned(), 1), ("wrong reply".to_owned(), 1)]));
        counts.add(&tally.snapshot());
        assert_eq!((counts.begun, counts.ended(), counts.faults), (8, 8, 2));
    }
}
