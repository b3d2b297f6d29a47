//! What ties and hedges did, counted so that copies never pass for calls: a logical call counts once, however many copies it had, and a
//! cancelled copy is neither a success nor a failure of anything.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use tautline_net::class::Class;

use crate::header::Outcome;
use crate::race::Purpose;
use crate::table::TableCounters;

/// Durations, in nanoseconds with two significant digits. It grows with what it is given: no duration is too long for it.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Latency {
        // Enough to begin with that recording does not allocate.
        let mut histogram =
            Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("1 ns to 10 s with two digits are valid bounds");
        histogram.auto(true);
        Latency(histogram)
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        // Beyond 73 years the histogram itself has no room.
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(1 << 61);
        let _ = self.0.record(nanos);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value that this share (0 to 1) of the recorded ones does not exceed; zero if there is none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }

    /// The mean; zero if there is none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The largest recorded.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    fn summary(&self, into: &mut String, name: &str, labels: &str) {
        for share in [0.5, 0.9, 0.99, 0.999] {
            let value = self.quantile(share).as_secs_f64();
            let _ = writeln!(into, "{name}{{{labels}{comma}quantile=\"{share}\"}} {value}", comma = comma(labels));
        }
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let sum = self.mean().as_secs_f64() * self.count() as f64;
        let _ = writeln!(into, "{name}_sum{braces} {sum}\n{name}_count{braces} {}", self.count());
    }
}

/// As many places in the order of sending as the counts tell apart; the last one is for it and all after it.
pub const PLACES: usize = 4;

/// What the calls of one class did.
#[derive(Clone, Debug)]
pub struct ClassMetrics {
    /// Logical calls made.
    pub calls: u64,
    /// Of these, answered.
    pub answered: u64,
    /// Of these, ended in an error.
    pub failed: u64,
    /// Of these, given up by the caller.
    pub abandoned: u64,
    /// Copies sent, by [`Purpose`].
    pub sent: [u64; Purpose::ALL.len()],
    /// Copies not sent, for another one had started.
    pub suppressed_by_start: u64,
    /// Copies not sent, for want of budget.
    pub suppressed_by_budget: u64,
    /// Copies not sent, for want of another replica that is well.
    pub suppressed_by_replicas: u64,
    /// Answers by the copy sent first, second, and so on.
    pub won: [u64; PLACES],
    /// Copies that their tie ended in the queue.
    pub cancelled_queued: u64,
    /// Copies given up after the answer that were known to run.
    pub cancelled_running: u64,
    /// Copies given up after the answer of which nothing was known.
    pub cancelled_unknown: u64,
    /// Logical calls of which more than one copy was known to start: what the client heard, not what the servers' handlers did.
    pub double_starts: u64,
    /// Time that copies were known to run whose answer was not used.
    pub wasted: Duration,
    /// From the call to its answer.
    pub latency: Latency,
}

impl ClassMetrics {
    fn new() -> ClassMetrics {
        ClassMetrics {
            calls: 0,
            answered: 0,
            failed: 0,
            abandoned: 0,
            sent: [0; Purpose::ALL.len()],
            suppressed_by_start: 0,
            suppressed_by_budget: 0,
            suppressed_by_replicas: 0,
            won: [0; PLACES],
            cancelled_queued: 0,
            cancelled_running: 0,
            cancelled_unknown: 0,
            double_starts: 0,
            wasted: Duration::ZERO,
            latency: Latency::new(),
        }
    }

    /// Copies sent for this purpose.
    pub fn sent_as(&self, purpose: Purpose) -> u64 {
        self.sent[purpose as usize]
    }

    /// Copies sent beyond one a call.
    pub fn extra_copies(&self) -> u64 {
        self.sent.iter().sum::<u64>() - self.sent_as(Purpose::First)
    }
}

/// What a set of replicas did, by class.
#[derive(Clone, Debug)]
pub struct ReplicasMetrics {
    classes: [ClassMetrics; Class::COUNT],
}

impl ReplicasMetrics {
    pub(crate) fn new() -> ReplicasMetrics {
        ReplicasMetrics { classes: std::array::from_fn(|_| ClassMetrics::new()) }
    }

    /// The calls of a class.
    pub fn class(&self, class: Class) -> &ClassMetrics {
        &self.classes[class.index()]
    }

    pub(crate) fn class_mut(&mut self, class: Class) -> &mut ClassMetrics {
        &mut self.classes[class.index()]
    }

    /// The classes that were used, in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        self.text(None)
    }

    /// The same, of a set that has a name.
    pub(crate) fn text(&self, set: Option<&str>) -> String {
        let set = set.map(|set| format!("set=\"{}\",", escape(set))).unwrap_or_default();
        let mut text = String::new();
        let used = || Class::ALL.into_iter().map(|class| (class, self.class(class))).filter(|(_, metrics)| metrics.calls > 0);
        let mut counter = |name: &str, help: &str, values: &dyn Fn(&ClassMetrics) -> Vec<(String, f64)>| {
            head(&mut text, name, help, "counter");
            for (class, metrics) in used() {
                for (label, value) in values(metrics) {
                    let _ = writeln!(text, "{name}{{{set}class=\"{class}\"{}{label}}} {value}", comma(&label));
                }
            }
        };
        counter("tautline_replica_calls_total", "Logical calls, by how they ended.", &|metrics| {
            let ends = [("answered", metrics.answered), ("failed", metrics.failed), ("abandoned", metrics.abandoned)];
            ends.map(|(end, count)| (format!("end=\"{end}\""), count as f64)).to_vec()
        });
        counter("tautline_replica_copies_total", "Copies sent.", &|metrics| {
            Purpose::ALL.map(|purpose| (format!("purpose=\"{}\"", purpose.name()), metrics.sent_as(purpose) as f64)).to_vec()
        });
        counter("tautline_replica_copies_suppressed_total", "Copies not sent, by reason.", &|metrics| {
            let reasons = [
                ("start", metrics.suppressed_by_start),
                ("budget", metrics.suppressed_by_budget),
                ("replicas", metrics.suppressed_by_replicas),
            ];
            reasons.map(|(reason, count)| (format!("reason=\"{reason}\""), count as f64)).to_vec()
        });
        counter("tautline_replica_won_total", "Answers, by the place of the copy in the order of sending.", &|metrics| {
            (0..PLACES).map(|place| (format!("place=\"{place}\""), metrics.won[place] as f64)).collect()
        });
        counter("tautline_replica_cancelled_total", "Losing copies, by what was known of them.", &|metrics| {
            let states = [
                ("queued", metrics.cancelled_queued),
                ("running", metrics.cancelled_running),
                ("unknown", metrics.cancelled_unknown),
            ];
            states.map(|(state, count)| (format!("state=\"{state}\""), count as f64)).to_vec()
        });
        counter(
            "tautline_replica_double_starts_total",
            "Logical calls of which the client heard that more than one copy had started.",
            &|metrics| vec![(String::new(), metrics.double_starts as f64)],
        );
        counter("tautline_replica_wasted_seconds_total", "Time that losing copies were known to run.", &|metrics| {
            vec![(String::new(), metrics.wasted.as_secs_f64())]
        });
        let name = "tautline_replica_latency_seconds";
        head(&mut text, name, "From a logical call to its answer.", "summary");
        for (class, metrics) in used() {
            metrics.latency.summary(&mut text, name, &format!("{set}class=\"{class}\""));
        }
        text
    }
}

/// What a server's side of ties did.
#[derive(Clone, Debug)]
pub struct TieMetrics {
    /// The counts.
    pub counters: TableCounters,
    /// Tied copies known now.
    pub copies: usize,
    /// Cancels kept now for copies that have not arrived, and how many were dropped early for want of room.
    pub tombstones: (usize, u64),
    /// From the start of a copy to the report of what its cancel did to another: a round trip. Copies that were dropped or demoted.
    pub cancel_round_trip: Latency,
    /// Control messages that could not be sent.
    pub unsent: u64,
}

impl TieMetrics {
    /// From the start of a copy to the end of another at its own server, estimated as half of the round trip, at this share (0 to 1)
    /// of cancels.
    pub fn cancel_latency(&self, share: f64) -> Duration {
        self.cancel_round_trip.quantile(share) / 2
    }

    /// In the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let counters = &self.counters;
        let mut counter = |name: &str, help: &str, values: &[(&str, f64)]| {
            head(&mut text, name, help, "counter");
            for (label, value) in values {
                let braces = if label.is_empty() { String::new() } else { format!("{{what=\"{label}\"}}") };
                let _ = writeln!(text, "{name}{braces} {value}");
            }
        };
        let copies = [
            ("admitted", counters.admitted),
            ("untied_full", counters.untied_full),
            ("untied_duplicate", counters.untied_duplicate),
            ("malformed", counters.malformed),
            ("dropped_on_arrival", counters.dropped_on_arrival),
        ]
        .map(|(what, count)| (what, count as f64));
        counter("tautline_tie_copies_total", "Requests that came with a tie.", &copies);
        let cancels = [
            ("sent", counters.cancels_sent),
            ("stranger", counters.strangers),
            ("refused", counters.refused),
            ("unsent", self.unsent),
            ("tombstone_evicted", self.tombstones.1),
        ]
        .map(|(what, count)| (what, count as f64));
        counter("tautline_tie_cancels_total", "Cancels between servers.", &cancels);
        let of = |outcomes: &crate::table::Outcomes| Outcome::ALL.map(|outcome| (outcome.name(), outcomes.of(outcome) as f64));
        counter("tautline_tie_cancels_taken_total", "Cancels from other servers, by what they did.", &of(&counters.cancels_taken));
        counter("tautline_tie_outcomes_total", "Cancels to other servers, by what they did there.", &of(&counters.outcomes));
        let wasted = counters.wasted.as_secs_f64();
        counter("tautline_tie_wasted_seconds_total", "Time that copies ran before their tie stopped them.", &[("", wasted)]);
        for (name, help, value) in [
            ("tautline_tie_copies", "Tied copies that wait or run.", self.copies),
            ("tautline_tie_tombstones", "Cancels kept for copies that have not arrived.", self.tombstones.0),
        ] {
            head(&mut text, name, help, "gauge");
            let _ = writeln!(text, "{name} {value}");
        }
        let name = "tautline_tie_cancel_round_trip_seconds";
        head(&mut text, name, "From a copy's start to the report that another one was cancelled.", "summary");
        self.cancel_round_trip.summary(&mut text, name, "");
        text
    }
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value, as the format wants it.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn comma(labels: &str) -> &'static str {
    if labels.is_empty() { "" } else { "," }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_latency_is_too_long_to_record() {
        let mut latency = Latency::new();
        latency.record(Duration::from_millis(3));
        latency.record(Duration::MAX);
        assert_eq!(latency.count(), 2);
        assert!(latency.max() > Duration::from_secs(3600));
    }

    #[test]
    fn the_text_has_each_used_class_and_only_well_formed_lines() {
        let mut metrics = ReplicasMetrics::new();
        let bulk = metrics.class_mut(Class::Bulk);
        (bulk.calls, bulk.answered, bulk.double_starts) = (3, 2, 1);
        bulk.sent[Purpose::Hedge as usize] = 5;
        bulk.latency.record(Duration::from_millis(2));
        let text = metrics.prometheus();
        for line in [
            "tautline_replica_calls_total{class=\"bulk\",end=\"answered\"} 2",
            "tautline_replica_copies_total{class=\"bulk\",purpose=\"hedge\"} 5",
            "tautline_replica_double_starts_total{class=\"bulk\"} 1",
            "tautline_replica_latency_seconds_count{class=\"bulk\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("normal") && !text.contains("set="));
        let named = metrics.text(Some("a\"b"));
        assert!(named.contains("\ntautline_replica_double_starts_total{set=\"a\\\"b\",class=\"bulk\"} 1\n"), "{named}");
        let tie = TieMetrics {
            counters: TableCounters::default(),
            copies: 1,
            tombstones: (2, 3),
            cancel_round_trip: Latency::new(),
            unsent: 0,
        };
        for line in text.lines().chain(tie.prometheus().lines()).filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && !name.contains("{,") && !name.contains(",}"), "{line}");
        }
    }
}
