//! What one process has in use: its node's own gauges, and what the kernel says of it. And what of that is too much while nothing is going on.

use serde::{Deserialize, Serialize};
use tautline_bench::error::BenchError;
use tautline_rpc::{EndpointUsage, Local, Usage};
use tautline_tied::{Replicas, TieServer};

use super::tally::Counts;

/// Frames that a port and its endpoint may keep at hand, of each pool.
const FRAMES_AT_HAND: usize = 64;
/// Cancels that a server keeps for copies that have not come, at most. They are let go when the next one is looked at.
pub(super) const TOMBSTONES: usize = 256;
/// Sessions at rest: one each way with each of the other processes.
const SESSIONS: usize = 8;
/// A port may open a connected socket for a peer that has nearly all of the traffic.
const HOT_SOCKETS: usize = 1;

/// What is in use at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Gauges {
    pub(super) calls: usize,
    pub(super) credits: usize,
    pub(super) entries: usize,
    pub(super) claims: usize,
    pub(super) words: usize,
    pub(super) tasks: usize,
    pub(super) sleeps: usize,
    pub(super) timers: usize,
    pub(super) sessions: usize,
    pub(super) sending: usize,
    pub(super) receiving: usize,
    pub(super) send_bytes: usize,
    pub(super) reassembly_bytes: usize,
    /// Memory that the endpoint keeps for large messages to come, up to a limit of its own.
    pub(super) kept_bytes: usize,
    /// Frames out: receive, transmit, control.
    pub(super) frames: [usize; 3],
    /// Calls that the node's metrics say have begun and not ended.
    pub(super) uncounted: i64,
    /// Logical calls of sets of replicas, and copies at each replica.
    pub(super) replica_calls: usize,
    pub(super) tied_copies: usize,
    pub(super) tombstones: usize,
    /// Threads that make calls from outside.
    pub(super) callers: usize,
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) rss_kib: u64,
    pub(super) counts: Counts,
}

/// Something that is held although nothing is going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// What, whatever its number.
    pub(super) what: &'static str,
    pub(super) sentence: String,
}

impl Gauges {
    /// The node's part, on its thread.
    pub(super) fn of(local: &Local, ties: Option<&TieServer>, sets: &[Replicas]) -> Gauges {
        let Usage { calls, credits, entries, claims, words, tasks, sleeps, timers, sessions } = local.usage();
        let EndpointUsage { sending, receiving, send_bytes, reassembly_bytes, kept_bytes, frames, .. } = local.endpoint_usage();
        let ties = ties.map(TieServer::metrics);
        let at = |set: &Replicas| (0..set.len()).map(|replica| set.outstanding_at(replica) as usize).sum::<usize>();
        let metrics = local.metrics();
        let open =
            metrics.clients().map(|(.., series)| series.calls as i64 - (series.replies + series.errors.iter().sum::<u64>()) as i64);
        Gauges {
            calls,
            credits,
            entries,
            claims,
            words,
            tasks,
            sleeps,
            timers,
            sessions,
            sending,
            receiving,
            send_bytes,
            reassembly_bytes,
            kept_bytes,
            frames: [frames.receive, frames.transmit, frames.control],
            uncounted: open.sum(),
            replica_calls: sets.iter().map(|set| set.outstanding() + at(set)).sum(),
            tied_copies: ties.as_ref().map_or(0, |ties| ties.copies),
            tombstones: ties.as_ref().map_or(0, |ties| ties.tombstones.0),
            ..Gauges::default()
        }
    }

    /// Adds what the kernel says of this process.
    pub(super) fn ask_kernel(&mut self) -> Result<(), BenchError> {
        let status = std::fs::read_to_string("/proc/self/status").map_err(BenchError::system("reading /proc/self/status"))?;
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        self.threads = field("Threads:") as usize;
        self.rss_kib = field("VmRSS:");
        let descriptors = std::fs::read_dir("/proc/self/fd").map_err(BenchError::system("reading /proc/self/fd"))?;
        // The look itself takes one.
        self.descriptors = descriptors.count() - 1;
        Ok(())
    }

    /// What is still held although nothing is going on, one sentence each. `fresh`: how the process was before it did anything.
    pub(super) fn held(&self, fresh: &Gauges) -> Vec<Held> {
        let zero = [
            ("calls have not ended", self.calls),
            ("credits are held", self.credits),
            ("requests are in the run queue or running", self.entries),
            ("slots of the claim table are in use", self.claims),
            ("words are left with requests", self.words),
            ("tasks have not ended", self.tasks),
            ("futures sleep", self.sleeps),
            ("deadlines are armed", self.timers),
            ("messages are not acknowledged", self.sending),
            ("incoming messages are not complete", self.receiving),
            ("bytes are held for sending", self.send_bytes),
            ("bytes are held for incoming messages", self.reassembly_bytes),
            ("calls or copies of sets of replicas have not ended", self.replica_calls),
            ("tied copies are known", self.tied_copies),
            ("threads wait for their calls", self.callers),
        ];
        let mut held: Vec<Held> = zero
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .map(|(what, value)| Held { what, sentence: format!("{value} {what}") })
            .collect();
        let bounded = [
            ("sessions are open", self.sessions, SESSIONS),
            ("tombstones are kept", self.tombstones, TOMBSTONES),
            ("receive frames are out", self.frames[0], FRAMES_AT_HAND),
            ("transmit frames are out", self.frames[1], FRAMES_AT_HAND),
            ("control frames are out", self.frames[2], FRAMES_AT_HAND),
            ("descriptors are open", self.descriptors, fresh.descriptors + HOT_SOCKETS),
            ("threads run", self.threads, fresh.threads),
        ];
        held.extend(
            bounded
                .into_iter()
                .filter(|(_, value, most)| value > most)
                .map(|(what, value, most)| Held { what, sentence: format!("{value} {what} ({most} at most)") }),
        );
        let (begun, ended) = (self.counts.begun, self.counts.ended());
        if begun != ended {
            held.push(Held { what: "callers' count", sentence: format!("{begun} calls were begun and {ended} ended") });
        }
        if self.uncounted != 0 {
            let sentence = format!("the node's metrics count {} calls more begun than ended", self.uncounted);
            held.push(Held { what: "node's count", sentence });
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_rest_is_named_with_its_number_and_bound() {
        let fresh = Gauges { descriptors: 9, threads: 3, ..Gauges::default() };
        let rest = Gauges { sessions: 8, frames: [33, 32, 12], descriptors: 10, ..fresh.clone() };
        assert_eq!(rest.held(&fresh), []);
        let leaks = Gauges { credits: 2, frames: [65, 0, 0], descriptors: 11, threads: 4, uncounted: -1, ..rest };
        let held: Vec<String> = leaks.held(&fresh).into_iter().map(|held| held.sentence).collect();
        assert_eq!(held.len(), 5, "{held:?}");
        assert!(held.contains(&"2 credits are held".to_owned()));
        assert!(held.contains(&"11 descriptors are open (10 at most)".to_owned()));
    }

    #[test]
    fn the_kernel_is_asked_for_this_process() {
        let mut gauges = Gauges::default();
        gauges.ask_kernel().unwrap();
        assert!(gauges.threads >= 1 && gauges.descriptors >= 3 && gauges.rss_kib > 500, "{gauges:?}");
    }
}
