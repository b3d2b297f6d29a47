//! One run's outcome, and the table of several: the paper's Table 2 in small.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// What one run of `chunkstore read` measured. Times are from the moment a read was due, not from when it was sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// What the table calls the policy.
    pub(crate) policy: String,
    /// What went on beside it: idle, sort (in each replica), or shared sort (on the machine).
    pub(crate) interference: String,
    /// Reads a second asked for.
    pub(crate) rate: f64,
    /// Reads that came back verified.
    pub(crate) reads: u64,
    /// Reads that ended in an error.
    pub(crate) errors: u64,
    /// Milliseconds.
    pub(crate) p50_ms: f64,
    /// Milliseconds.
    pub(crate) p90_ms: f64,
    /// Milliseconds.
    pub(crate) p99_ms: f64,
    /// Milliseconds.
    pub(crate) p999_ms: f64,
    /// Copies sent beyond one a read, in percent of the reads.
    pub(crate) extra_requests: f64,
    /// Disk reads beyond one a read, counted by the servers, in percent of the reads; `None` where one of them did not tell.
    pub(crate) extra_disk_reads: Option<f64>,
    /// The same as a number of reads.
    #[serde(alias = "double_starts")]
    pub(crate) disk_reads_beyond: Option<u64>,
    /// The replicas that did not tell what they read, or were started again during the run.
    #[serde(default)]
    pub(crate) silent: Vec<String>,
    /// From a replica's start to the flip of the queued copy elsewhere, the median in microseconds; `None` where nothing was cancelled.
    pub(crate) cancel_us: Option<f64>,
}

/// What the columns are.
const LEGEND: &str = "\
Times run from the moment a read was due until it was verified; a first second of warm-up counts neither there nor in `reads`.
Extra requests: copies sent beyond one a read. Extra disk reads: what the replicas' disks read beyond one a read, as the replicas
count it, in percent and as a number: two of them started the same read, whether or not one was stopped. Cancel: from one replica's start to the drop of the copy that another had queued.
";
const UNKNOWN: &str = "?: a replica did not tell what it read.\n";

/// The table of `outcomes`, in the order given, and what its columns are.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let head = ["", "policy", "reads", "p50", "p90", "p99", "p99.9", "extra", "extra disk", "extra disk", "cancel"];
    let unit = ["", "", "", "ms", "ms", "ms", "ms", "requests", "reads", "reads, no.", "us, p50"];
    for line in [head, unit] {
        write_line(&mut out, &line.map(str::to_owned));
    }
    for o in outcomes {
        write_line(
            &mut out,
            &[
                o.interference.clone(),
                o.policy.clone(),
                o.reads.to_string(),
                format!("{:.2}", o.p50_ms),
                format!("{:.2}", o.p90_ms),
                format!("{:.2}", o.p99_ms),
                format!("{:.2}", o.p999_ms),
                format!("{:.1} %", o.extra_requests),
                o.extra_disk_reads.map_or("?".to_owned(), |percent| format!("{percent:.1} %")),
                o.disk_reads_beyond.map_or("?".to_owned(), |reads| reads.to_string()),
                match o.cancel_us {
                    Some(us) => format!("{us:.0}"),
                    None if o.silent.is_empty() => "-".to_owned(),
                    None => "?".to_owned(),
                },
            ],
        );
    }
    out.push('\n');
    out.push_str(LEGEND);
    if outcomes.iter().any(|outcome| !outcome.silent.is_empty()) {
        out.push_str(UNKNOWN);
    }
    out
}

fn write_line(out: &mut String, cells: &[String; 11]) {
    const WIDTHS: [usize; 11] = [12, 17, 8, 8, 8, 8, 8, 9, 11, 11, 8];
    for (n, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        // Words to the left, numbers to the right; a string takes whatever is written to it.
        let _ = if n < 2 { write!(out, "{cell:<width$}") } else { write!(out, "{cell:>width$}") };
    }
    while out.ends_with(' ') {
        out.pop();
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(policy: &str, interference: &str, cancel_us: Option<f64>) -> Outcome {
        Outcome {
            policy: policy.to_owned(),
            interference: interference.to_owned(),
            rate: 100.0,
            reads: 1000,
            errors: 0,
            p50_ms: 0.5,
            p90_ms: 1.0,
            p99_ms: 2.25,
            p999_ms: 31.0,
            extra_requests: 4.94,
            extra_disk_reads: Some(0.31),
            disk_reads_beyond: Some(3),
            silent: Vec::new(),
            cancel_us,
        }
    }

    #[test]
    fn columns_line_up() {
        let text = table(&[outcome("tied, then hedged", "idle", Some(14.6)), outcome("none", "sort", None)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[4], "", "{text}");
        assert!(lines[2].starts_with("idle        tied") && lines[3].starts_with("sort        none"), "{text}");
        assert!(lines[2].ends_with("15") && lines[3].ends_with('-'), "{text}");
        assert_eq!(lines[2].find("31.00"), lines[3].find("31.00"));
    }

    #[test]
    fn what_a_replica_did_not_tell_is_a_question_mark() {
        let known = outcome("none", "idle", None);
        assert!(!table(std::slice::from_ref(&known)).contains('?'));
        let unknown =
            Outcome { extra_disk_reads: None, disk_reads_beyond: None, silent: vec!["127.0.0.1:1".to_owned()], ..known.clone() };
        let text = table(&[known, unknown]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[3].matches('?').count(), 3, "{text}");
        assert_eq!(lines[2].len(), lines[3].len(), "{text}");
        assert!(text.contains("?: a replica did not tell"), "{text}");
    }

    #[test]
    fn an_outcome_survives_json() {
        let json = serde_json::to_string(&outcome("hedged", "idle", None)).unwrap();
        let back: Outcome = serde_json::from_str(&json).unwrap();
        assert_eq!((back.policy.as_str(), back.cancel_us), ("hedged", None));
    }
}
