//! What the soak prints.

use super::drift::Drift;
use super::gauges::Gauges;
use super::tally::Counts;

/// One rest: a line a process.
pub(super) fn print<'a>(seconds: f64, first: bool, rows: impl Iterator<Item = (&'static str, &'a Gauges)>) {
    if first {
        println!(
            "\nAt rest, in use (frames: receive/transmit/control; held: bytes for sending and for incoming messages; kept: for those to come):"
        );
        println!(
            "{:>6}  {:<17} {:>8} {:>4} {:>4} {:>5} {:>5} {:>6} {:>7} {:>6} {:>6} {:>8} {:>8} {:>9} {:>6} {:>9} {:>9}",
            "s",
            "process",
            "RSS KiB",
            "fds",
            "thr",
            "sess",
            "calls",
            "credit",
            "entries",
            "timers",
            "slots",
            "held",
            "kept KiB",
            "frames",
            "ties",
            "tombs",
            "ended"
        );
    }
    for (name, gauges) in rows {
        let [receive, transmit, control] = gauges.frames;
        println!(
            "{seconds:>6.0}  {name:<17} {:>8} {:>4} {:>4} {:>5} {:>5} {:>6} {:>7} {:>6} {:>6} {:>8} {:>8} {:>9} {:>6} {:>9} {:>9}",
            gauges.rss_kib,
            gauges.descriptors,
            gauges.threads,
            gauges.sessions,
            gauges.calls,
            gauges.credits,
            gauges.entries,
            gauges.timers,
            gauges.sending + gauges.receiving,
            gauges.send_bytes + gauges.reassembly_bytes,
            gauges.kept_bytes >> 10,
            format!("{receive}/{transmit}/{control}"),
            gauges.tied_copies,
            gauges.tombstones,
            gauges.counts.ended()
        );
    }
}

/// How calls ended, in all processes and lives.
pub(super) fn print_ends(counts: &Counts) {
    println!("\nCalls by how they ended:");
    for (kind, ends) in &counts.ends {
        let ends: Vec<String> = ends.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        println!("  {kind:<15} {}", ends.join(", "));
    }
}

/// How resident memory moved where a process lived from the beginning to the end.
pub(super) fn print_drifts(drifts: &[(&str, Drift)]) {
    println!("\nResident memory, less what is kept, after the warm-up:");
    for (name, drift) in drifts {
        println!(
            "  {name:<17} {} -> {} KiB (at most {} more), {:+.0} KiB a minute (at most {:.0} in a long run)",
            drift.early,
            drift.late,
            super::drift::BOUND,
            drift.slope,
            super::drift::SLOPE
        );
    }
}
