//! Metrics in Prometheus' text exposition format, version 0.0.4.

use std::fmt::Write;

use tautline_net::endpoint::EndpointCounters;
use tautline_net::port::PortCounters;

use super::{Below, ClientSeries, Latency, Metrics, ServerSeries};
use crate::error::ErrorKind;

const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// All metrics of a node. A family that has no sample is left out.
pub(super) fn text(metrics: &Metrics) -> String {
    let mut out = String::new();
    node(&mut out, metrics);
    server(&mut out, metrics);
    client(&mut out, metrics);
    if let Some(now) = &metrics.below {
        below(&mut out, &now.endpoint, &now.port);
        in_use(&mut out, now);
    }
    out
}

fn node(out: &mut String, metrics: &Metrics) {
    let node = &metrics.node;
    let counters = [
        ("malformed", "Messages dropped because their head could not be read.", node.malformed),
        ("unknown_method", "Requests for methods that are not served here.", node.unknown_method),
        ("unsupported", "Requests of a version, class or extension that is not known here.", node.unsupported),
        ("late_replies", "Replies to calls that had ended.", node.late_replies),
        ("credits_overdrawn", "Calls sent without a credit, after none had moved for 100 ms.", node.credits_overdrawn),
        ("duplicate_calls", "Requests dropped because their call is being served.", node.duplicate_calls),
        ("cancelled_before_arrival", "Requests dropped because their cancel overtook them.", node.cancelled_before_arrival),
        ("late_cancels", "Cancels for calls that had ended or not arrived.", node.late_cancels),
        ("replies_dropped", "Replies that could not be sent: the session had ended.", node.replies_dropped),
        ("sessions_overrun", "Sessions closed because no reply fitted into their queue.", node.sessions_overrun),
        ("commands", "Commands from other threads.", node.commands),
        ("task_panics", "Tasks that panicked.", node.task_panics),
        ("turns", "Turns of the poll loop.", node.turns),
        ("waits", "Times the poller blocked.", node.waits),
    ];
    plain(out, "node", &counters);
}

fn below(out: &mut String, endpoint: &EndpointCounters, port: &PortCounters) {
    let counters = [
        ("packets_received", "Packets received and taken.", endpoint.packets_received),
        ("packets_sent", "Packets handed to the port.", endpoint.packets_sent),
        ("messages_received", "Whole messages received.", endpoint.messages_received),
        ("messages_sent", "Messages accepted for sending.", endpoint.messages_sent),
        ("malformed", "Packets dropped: cut short, of an unknown version, or damaged.", endpoint.malformed),
        ("stray", "Packets dropped: for a session that is not known here.", endpoint.stray),
        ("duplicate_packets", "Packets dropped: seen before, or too old to tell.", endpoint.duplicate_packets),
        ("duplicate_data", "Data ignored because it was there already.", endpoint.duplicate_data),
        ("deferred", "Fragments dropped for want of reassembly memory.", endpoint.deferred),
        ("retransmitted", "Fragments sent again.", endpoint.retransmitted),
        ("lost", "Packets declared lost.", endpoint.lost),
        ("probes", "Probe time-outs.", endpoint.probes),
        ("refused", "Handshakes refused.", endpoint.refused),
        ("resets", "Resets sent for unknown sessions.", endpoint.resets),
        ("challenges", "Handshakes answered by a challenge.", endpoint.challenges),
        ("port_errors", "Failures of the port's calls.", endpoint.port_errors),
    ];
    plain(out, "endpoint", &counters);
    let counters = [
        ("received", "Datagrams received.", port.received),
        ("transmitted", "Datagrams handed to the device.", port.transmitted),
        ("dropped_no_frame", "Datagrams dropped because no receive frame was free.", port.dropped_no_frame),
        ("dropped_oversize", "Datagrams dropped because they were longer than the MTU.", port.dropped_oversize),
        ("send_failed", "Datagrams given for sending and lost.", port.send_failed),
        ("segmentation_fallbacks", "Segmented sends repeated one by one.", port.segmentation_fallbacks),
        ("transmit_full", "Times the device had no room for a whole burst.", port.transmit_full),
        ("network_errors", "Errors the network reported of datagrams sent before.", port.network_errors),
    ];
    plain(out, "port", &counters);
}

fn in_use(out: &mut String, now: &Below) {
    let Below { usage, endpoint_usage: below, .. } = now;
    let gauges = [
        ("node_calls", "Calls made and not ended, or ended and not fetched.", usage.calls),
        ("node_credits", "Credits held by calls.", usage.credits),
        ("node_entries", "Requests that wait or run here.", usage.entries),
        ("node_words", "Words that hooks have left with requests.", usage.words),
        ("node_claims", "Slots of the claim table in use.", usage.claims),
        ("node_tasks", "Tasks of the executor.", usage.tasks),
        ("node_sleeps", "Futures that sleep.", usage.sleeps),
        ("node_timers", "Armed deadlines of calls and requests.", usage.timers),
        ("endpoint_sessions", "Sessions, those opening and closing included.", below.sessions),
        ("endpoint_sending", "Messages accepted for sending and not acknowledged.", below.sending),
        ("endpoint_receiving", "Incoming messages that are not complete.", below.receiving),
        ("endpoint_send_bytes", "Bytes held for sending.", below.send_bytes),
        ("endpoint_kept_bytes", "Bytes kept for incoming messages to come.", below.kept_bytes),
        ("endpoint_reassembly_bytes", "Bytes held for incoming messages that are not complete.", below.reassembly_bytes),
    ];
    for (name, help, value) in gauges {
        let name = format!("tautline_{name}");
        head(out, &name, help, "gauge");
        let _ = writeln!(out, "{name} {value}");
    }
    let name = "tautline_port_frames_out";
    head(out, name, "Frames of the port's pools that are out.", "gauge");
    let frames = below.frames;
    for (pool, value) in [("receive", frames.receive), ("transmit", frames.transmit), ("control", frames.control)] {
        let _ = writeln!(out, "{name}{{pool=\"{pool}\"}} {value}");
    }
}

fn plain(out: &mut String, layer: &str, counters: &[(&str, &str, u64)]) {
    for (name, help, value) in counters {
        let name = format!("tautline_{layer}_{name}_total");
        head(out, &name, help, "counter");
        let _ = writeln!(out, "{name} {value}");
    }
}

fn server(out: &mut String, metrics: &Metrics) {
    if metrics.servers().next().is_none() {
        return;
    }
    type Read = fn(&ServerSeries) -> u64;
    let counters: [(&str, &str, Read); 9] = [
        ("requests", "Requests received.", |s| s.requests),
        ("replies", "Requests answered with a reply.", |s| s.replies),
        ("statuses", "Requests answered with a status by their handler.", |s| s.statuses),
        ("overloaded", "Requests pushed back: a queue was full.", |s| s.overloaded),
        ("expired", "Requests dropped because their deadline passed before they started.", |s| s.expired),
        ("cancelled_queued", "Requests cancelled in the queue.", |s| s.cancelled_queued),
        ("cancelled_running", "Requests cancelled while their handler ran.", |s| s.cancelled_running),
        ("orphaned", "Requests dropped from the queue because their session ended.", |s| s.orphaned),
        ("panics", "Handlers that panicked.", |s| s.panics),
    ];
    for (name, help, read) in counters {
        let name = format!("tautline_server_{name}_total");
        head(out, &name, help, "counter");
        for (method, class, series) in metrics.servers() {
            let labels = labels(&method.to_string(), class.name());
            let _ = writeln!(out, "{name}{{{labels}}} {}", read(series));
        }
    }
    type Times = fn(&ServerSeries) -> &Latency;
    let times: [(&str, &str, Times); 2] = [
        (
            "tautline_server_sampled_service_time_seconds",
            "From a handler's start to its end. Of inline handlers one run in 64 is measured: _sum and _count are of those alone.",
            |s| &s.service_time,
        ),
        ("tautline_server_queue_delay_seconds", "From arrival to start, of requests that waited in the run queue.", |s| {
            &s.queue_delay
        }),
    ];
    for (name, help, read) in times {
        let all = metrics.servers().map(|(method, class, series)| (labels(&method.to_string(), class.name()), read(series)));
        summaries(out, name, help, all);
    }
}

fn client(out: &mut String, metrics: &Metrics) {
    if metrics.clients().next().is_none() {
        return;
    }
    type Read = fn(&ClientSeries) -> u64;
    let counters: [(&str, &str, Read); 2] =
        [("calls", "Calls begun.", |s| s.calls), ("replies", "Calls that ended with a reply.", |s| s.replies)];
    for (name, help, read) in counters {
        let name = format!("tautline_client_{name}_total");
        head(out, &name, help, "counter");
        for (method, class, series) in metrics.clients() {
            let labels = labels(&method.to_string(), class.name());
            let _ = writeln!(out, "{name}{{{labels}}} {}", read(series));
        }
    }
    head(out, "tautline_client_errors_total", "Calls that ended without a reply, by kind.", "counter");
    for (method, class, series) in metrics.clients() {
        let labels = labels(&method.to_string(), class.name());
        for kind in ErrorKind::ALL {
            let _ = writeln!(out, "tautline_client_errors_total{{{labels},kind=\"{}\"}} {}", kind.name(), series.errors_of(kind));
        }
    }
    let all = metrics.clients().map(|(method, class, series)| (labels(&method.to_string(), class.name()), &series.latency));
    summaries(out, "tautline_client_latency_seconds", "From a call to its reply, of calls that got one.", all);
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A family of summaries; those that have recorded nothing have no quantiles to tell and are left out.
fn summaries<'a>(out: &mut String, name: &str, help: &str, all: impl Iterator<Item = (String, &'a Latency)>) {
    let mut recorded = all.filter(|(_, latency)| latency.count() > 0).peekable();
    if recorded.peek().is_some() {
        head(out, name, help, "summary");
    }
    for (labels, latency) in recorded {
        summary(out, name, &labels, latency);
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
    fn every_sample_has_its_family_and_every_family_its_help_and_samples() {
        let mut metrics = Metrics::new(8);
        metrics.add_service(Method::named("a\"b\\c"));
        metrics.serving(0, Class::Normal).requests = 3;
        let index = metrics.client_method(Method::named("x.Y/Z"));
        metrics.calling(index, Class::Interactive).latency.record(2_000_000);
        metrics.below = Some(Below {
            endpoint: EndpointCounters { retransmitted: 7, ..EndpointCounters::default() },
            port: PortCounters { received: 9, ..PortCounters::default() },
            ..Below::default()
        });
        let text = metrics.prometheus();
        let mut families = std::collections::HashMap::new();
        let mut helped = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                helped = rest.split(' ').next().unwrap().to_owned();
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                assert_eq!(name, helped, "no help before {line}");
                assert!(families.insert(name.to_owned(), 0).is_none(), "typed twice: {line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap_or_else(|_| panic!("no number: {line}"));
            let name = series.split('{').next().unwrap();
            let base = name.trim_end_matches("_sum").trim_end_matches("_count");
            assert_eq!(base, helped, "not with its family: {line}");
            *families.get_mut(base).unwrap_or_else(|| panic!("no type: {line}")) += 1;
        }
        assert!(families.values().all(|samples| *samples > 0), "{families:?}");
        assert!(text.contains("tautline_server_requests_total{method=\"a\\\"b\\\\c\",class=\"normal\"} 3"));
        assert!(text.contains("tautline_client_latency_seconds_count{method=\"x.Y/Z\",class=\"interactive\"} 1"));
        assert!(text.contains("\ntautline_endpoint_retransmitted_total 7\n"));
        assert!(text.contains("\ntautline_port_received_total 9\n"));
        assert!(!text.contains("service_time"), "nothing was measured yet");
        metrics.serving(0, Class::Normal).service_time.record(5_000);
        assert!(metrics.prometheus().contains("\ntautline_server_sampled_service_time_seconds_count{"));
    }

    #[test]
    fn a_node_tells_what_it_has_in_use() {
        let mut node = crate::Node::builder("mem://prometheus-in-use").build().unwrap();
        let local = node.local();
        let nobody = local.peer("mem://prometheus-nobody").unwrap();
        let call = local.call(nobody, Method::named("x.Y/Z"), "hello", crate::CallOptions::new());
        node.poll();
        let held = [("node_calls", 1), ("node_credits", 1), ("endpoint_sessions", 1), ("endpoint_sending", 1), ("node_tasks", 0)];
        let text = node.metrics().prometheus();
        for (name, value) in held {
            assert!(text.contains(&format!("\ntautline_{name} {value}\n")), "{name}: {text}");
        }
        assert!(text.contains("\ntautline_port_frames_out{pool=\"control\"} "), "{text}");
        assert_eq!((local.usage().calls, local.endpoint_usage().sending), (1, 1));
        assert_eq!(node.endpoint_usage().frames, local.endpoint_usage().frames);
        drop(call);
        assert_eq!((node.usage().calls, node.usage().credits, node.endpoint_usage().sending), (0, 0, 0));
    }

    #[test]
    fn a_node_tells_what_its_endpoint_and_port_counted() {
        let mut node = crate::Node::builder("mem://prometheus-below").build().unwrap();
        node.poll();
        for text in [node.metrics().prometheus(), node.local().metrics().prometheus()] {
            assert!(text.contains("\ntautline_endpoint_packets_sent_total 0\n"), "{text}");
            assert!(text.contains("\ntautline_port_transmitted_total 0\n"), "{text}");
            assert!(text.contains("\ntautline_node_calls 0\n") && text.contains("\ntautline_endpoint_sessions 0\n"), "{text}");
        }
        assert!(!node.metrics().prometheus().contains("tautline_server_requests"), "it serves nothing");
    }
}
