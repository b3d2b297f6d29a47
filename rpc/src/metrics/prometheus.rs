//! Metrics in Prometheus' text exposition format, version 0.0.4.

use std::fmt::Write;

use super::{ClientSeries, Latency, Metrics, ServerSeries};
use crate::error::ErrorKind;

const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// All metrics of a node.
pub(super) fn text(metrics: &Metrics) -> String {
    let mut out = String::new();
    node(&mut out, metrics);
    server(&mut out, metrics);
    client(&mut out, metrics);
    out
}

fn node(out: &mut String, metrics: &Metrics) {
    let node = &metrics.node;
    for (name, value) in [
        ("malformed", node.malformed),
        ("unknown_method", node.unknown_method),
        ("unsupported", node.unsupported),
        ("late_replies", node.late_replies),
        ("duplicate_calls", node.duplicate_calls),
        ("cancelled_before_arrival", node.cancelled_before_arrival),
        ("late_cancels", node.late_cancels),
        ("replies_dropped", node.replies_dropped),
        ("sessions_overrun", node.sessions_overrun),
        ("commands", node.commands),
        ("task_panics", node.task_panics),
        ("turns", node.turns),
        ("waits", node.waits),
    ] {
        let _ = write!(out, "# TYPE tautline_node_{name}_total counter\ntautline_node_{name}_total {value}\n");
    }
}

fn server(out: &mut String, metrics: &Metrics) {
    type Read = fn(&ServerSeries) -> u64;
    let counters: [(&str, Read); 9] = [
        ("requests", |s| s.requests),
        ("replies", |s| s.replies),
        ("statuses", |s| s.statuses),
        ("overloaded", |s| s.overloaded),
        ("expired", |s| s.expired),
        ("cancelled_queued", |s| s.cancelled_queued),
        ("cancelled_running", |s| s.cancelled_running),
        ("orphaned", |s| s.orphaned),
        ("panics", |s| s.panics),
    ];
    for (name, read) in counters {
        let _ = writeln!(out, "# TYPE tautline_server_{name}_total counter");
        for (method, class, series) in metrics.servers() {
            let labels = labels(&method.to_string(), class.name());
            let _ = writeln!(out, "tautline_server_{name}_total{{{labels}}} {}", read(series));
        }
    }
    type Times = fn(&ServerSeries) -> &Latency;
    let times: [(&str, Times); 2] = [("service_time", |s| &s.service_time), ("queue_delay", |s| &s.queue_delay)];
    for (name, read) in times {
        let _ = writeln!(out, "# TYPE tautline_server_{name}_seconds summary");
        for (method, class, series) in metrics.servers() {
            let labels = labels(&method.to_string(), class.name());
            summary(out, &format!("tautline_server_{name}_seconds"), &labels, read(series));
        }
    }
}

fn client(out: &mut String, metrics: &Metrics) {
    type Read = fn(&ClientSeries) -> u64;
    let counters: [(&str, Read); 2] = [("calls", |s| s.calls), ("replies", |s| s.replies)];
    for (name, read) in counters {
        let _ = writeln!(out, "# TYPE tautline_client_{name}_total counter");
        for (method, class, series) in metrics.clients() {
            let labels = labels(&method.to_string(), class.name());
            let _ = writeln!(out, "tautline_client_{name}_total{{{labels}}} {}", read(series));
        }
    }
    let _ = writeln!(out, "# TYPE tautline_client_errors_total counter");
    for (method, class, series) in metrics.clients() {
        let labels = labels(&method.to_string(), class.name());
        for kind in ErrorKind::ALL {
            let _ = writeln!(out, "tautline_client_errors_total{{{labels},kind=\"{}\"}} {}", kind.name(), series.errors_of(kind));
        }
    }
    let _ = writeln!(out, "# TYPE tautline_client_latency_seconds summary");
    for (method, class, series) in metrics.clients() {
        let labels = labels(&method.to_string(), class.name());
        summary(out, "tautline_client_latency_seconds", &labels, &series.latency);
    }
}

fn summary(out: &mut String, name: &str, labels: &str, latency: &Latency) {
    for share in QUANTILES {
        let value = latency.quantile(share).as_secs_f64();
        let _ = writeln!(out, "{name}{{{labels},quantile=\"{share}\"}} {value}");
    }
    let _ = writeln!(out, "{name}_sum{{{labels}}} {}", latency.sum().as_secs_f64());
    let _ = writeln!(out, "{name}_count{{{labels}}} {}", latency.count());
}

/// The labels of a series. A label's value may hold anything once backslash, quote and newline are escaped.
fn labels(method: &str, class: &str) -> String {
    let method = method.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("method=\"{method}\",class=\"{class}\"")
}

#[cfg(test)]
mod tests {
    use tautline_net::class::Class;

    use super::*;
    use crate::method::Method;

    #[test]
    fn every_line_is_a_type_or_a_sample_and_every_sample_has_its_type() {
        let mut metrics = Metrics::new(8);
        metrics.add_service(Method::named("a\"b\\c"));
        metrics.serving(0, Class::Normal).requests = 3;
        let index = metrics.client_method(Method::named("x.Y/Z"));
        metrics.calling(index, Class::Interactive).latency.record(2_000_000);
        let text = metrics.prometheus();
        let mut typed = std::collections::HashSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(typed.insert(rest.split(' ').next().unwrap().to_owned()), "typed twice: {line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap_or_else(|_| panic!("no number: {line}"));
            let name = series.split('{').next().unwrap();
            let base = name.trim_end_matches("_sum").trim_end_matches("_count");
            assert!(typed.contains(name) || typed.contains(base), "no type: {line}");
        }
        assert!(text.contains("tautline_server_requests_total{method=\"a\\\"b\\\\c\",class=\"normal\"} 3"));
        assert!(text.contains("tautline_client_latency_seconds_count{method=\"x.Y/Z\",class=\"interactive\"} 1"));
    }
}
