//! What a node counts: per method and class, at the serving and at the calling side, and what belongs to no call.
//!
//! On the hot path a call costs a few plain additions and one histogram record. Histograms resize themselves: there is no upper
//! bound to exceed. Nothing is cleared when read.

mod prometheus;
pub(crate) mod sources;

use std::time::Duration;

use hdrhistogram::Histogram;
use tautline_net::class::Class;
use tautline_net::endpoint::{EndpointCounters, EndpointUsage};
use tautline_net::port::PortCounters;

use self::sources::Sources;
use crate::error::ErrorKind;
use crate::method::{Method, MethodTable};
use crate::usage::Usage;

/// Durations, as a histogram of nanoseconds with two significant digits.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum_nanos: u128,
    /// The values recorded last, each with how often it came in a row; not in the histogram yet. Calls that left in one turn and whose replies came
    /// in one turn took equally long by the turns' clock; and of several the places in the histogram are found at less cost together, which a
    /// lone call need not wait for.
    latest: Vec<(u64, u64)>,
}

/// How many values wait for their places at most.
const LATEST: usize = 32;

impl Latency {
    pub(crate) fn new() -> Latency {
        // Ten seconds of range to start with, so that recording does not allocate; longer ones make it grow.
        let mut histogram =
            Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("1 ns to 10 s with two digits are valid bounds");
        histogram.auto(true);
        Latency { histogram, sum_nanos: 0, latest: Vec::with_capacity(LATEST) }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        if let Some((last, times)) = self.latest.last_mut()
            && *last == nanos
        {
            *times += 1;
            return;
        }
        if self.latest.len() == LATEST {
            self.settle();
        }
        self.latest.push((nanos, 1));
    }

    /// Brings the histogram up to date.
    #[cold]
    fn settle(&mut self) {
        for (nanos, times) in self.latest.drain(..) {
            // It can fail only for values that do not fit into memory even resized; the sum still has them.
            let _ = self.histogram.record_n(nanos, times);
            self.sum_nanos += u128::from(nanos) * u128::from(times);
        }
    }

    /// With everything that was recorded.
    fn settled(&self) -> Latency {
        let mut all = self.clone();
        all.settle();
        all
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len() + self.latest.iter().map(|(_, times)| times).sum::<u64>()
    }

    /// The value below which this share (0 to 1) of the recorded ones lies, to two significant digits; zero if there is none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.settled().histogram.value_at_quantile(share))
    }

    /// The largest recorded, to two significant digits.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.settled().histogram.max())
    }

    /// The mean; zero if there is none.
    pub fn mean(&self) -> Duration {
        let mean = self.sum_nanos() / u128::from(self.count().max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The sum of all recorded.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.sum_nanos()).unwrap_or(u64::MAX))
    }

    fn sum_nanos(&self) -> u128 {
        let latest = self.latest.iter().map(|(nanos, times)| u128::from(*nanos) * u128::from(*times));
        self.sum_nanos + latest.sum::<u128>()
    }
}

/// One method and class at the serving side.
#[derive(Clone, Debug)]
pub struct ServerSeries {
    /// Requests received.
    pub requests: u64,
    /// Answered with a reply.
    pub replies: u64,
    /// Answered by the handler with a status.
    pub statuses: u64,
    /// Pushed back: a queue was full.
    pub overloaded: u64,
    /// Dropped because the deadline had passed before the handler started.
    pub expired: u64,
    /// Cancelled in the queue, by the caller or a hook.
    pub cancelled_queued: u64,
    /// Cancelled while the handler ran.
    pub cancelled_running: u64,
    /// Orphaned in the queue: the caller's session ended.
    pub orphaned: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// From the start of a handler to its end. Handlers that run where they are received are sampled, one in 61.
    pub service_time: Latency,
    /// From arrival to start, of requests that went through the run queue.
    pub queue_delay: Latency,
}

impl ServerSeries {
    #[cold]
    fn boxed() -> Box<ServerSeries> {
        Box::new(ServerSeries::new())
    }

    fn new() -> ServerSeries {
        ServerSeries {
            requests: 0,
            replies: 0,
            statuses: 0,
            overloaded: 0,
            expired: 0,
            cancelled_queued: 0,
            cancelled_running: 0,
            orphaned: 0,
            panics: 0,
            service_time: Latency::new(),
            queue_delay: Latency::new(),
        }
    }
}

/// One method and class at the calling side.
#[derive(Clone, Debug)]
pub struct ClientSeries {
    /// Calls begun.
    pub calls: u64,
    /// Ended with a reply.
    pub replies: u64,
    /// Ended without, by [`ErrorKind`].
    pub errors: [u64; ErrorKind::COUNT],
    /// From the call to its reply, of calls that got one.
    pub latency: Latency,
}

impl ClientSeries {
    #[cold]
    fn boxed() -> Box<ClientSeries> {
        Box::new(ClientSeries::new())
    }

    fn new() -> ClientSeries {
        ClientSeries { calls: 0, replies: 0, errors: [0; ErrorKind::COUNT], latency: Latency::new() }
    }

    /// A call got its reply, after so long.
    #[inline(always)]
    pub(crate) fn replied(&mut self, nanos: u64) {
        self.replies += 1;
        self.latency.record(nanos);
    }

    /// Calls that ended with an error of this kind.
    pub fn errors_of(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize]
    }
}

/// What belongs to no single call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Messages dropped because their head could not be read.
    pub malformed: u64,
    /// Requests for methods that are not served here.
    pub unknown_method: u64,
    /// Requests of a version or class that this node does not know, or with an extension that no hook takes.
    pub unsupported: u64,
    /// Replies to calls that had ended already.
    pub late_replies: u64,
    /// Calls sent without a credit, after none had moved for 100 ms.
    pub credits_overdrawn: u64,
    /// Requests that carried the number of a call that is still being served; dropped.
    pub duplicate_calls: u64,
    /// Requests dropped because their cancel had overtaken them.
    pub cancelled_before_arrival: u64,
    /// Cancels received for calls that had ended, or had not arrived.
    pub late_cancels: u64,
    /// Replies that could not be sent: the session had ended.
    pub replies_dropped: u64,
    /// Sessions closed because not even an error reply fitted into their queue.
    pub sessions_overrun: u64,
    /// Commands from other threads.
    pub commands: u64,
    /// Tasks that panicked.
    pub task_panics: u64,
    /// Turns of the poll loop.
    pub turns: u64,
    /// Times the poller blocked.
    pub waits: u64,
}

/// What the layers below had counted, and what node and endpoint had in use, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Below {
    pub(crate) endpoint: EndpointCounters,
    pub(crate) port: PortCounters,
    pub(crate) usage: Usage,
    pub(crate) endpoint_usage: EndpointUsage,
}

/// Everything that a node counted since it was built.
#[derive(Debug)]
pub struct Metrics {
    /// What belongs to no single call.
    pub node: NodeCounters,
    server: Vec<(Method, [Option<Box<ServerSeries>>; Class::COUNT])>,
    client: Vec<(Method, [Option<Box<ClientSeries>>; Class::COUNT])>,
    client_index: MethodTable,
    client_limit: usize,
    /// How things stood when these metrics were last asked for.
    pub(crate) below: Option<Below>,
    /// What lives on the node and counts for itself.
    pub(crate) sources: Sources,
}

/// Where the calls of all methods beyond the limit are counted.
const OTHER: Method = Method::named("other");

impl Metrics {
    pub(crate) fn new(client_limit: usize) -> Metrics {
        Metrics {
            node: NodeCounters::default(),
            server: Vec::new(),
            client: vec![(OTHER, Default::default())],
            client_index: MethodTable::new(),
            client_limit,
            below: None,
            sources: Sources::default(),
        }
    }

    /// The serving side of a method and class; `None` if no request came.
    pub fn server(&self, method: Method, class: Class) -> Option<&ServerSeries> {
        let (_, classes) = self.server.iter().find(|(known, _)| *known == method)?;
        classes[class.index()].as_deref()
    }

    /// The calling side of a method and class; `None` if no call was made.
    pub fn client(&self, method: Method, class: Class) -> Option<&ClientSeries> {
        let index = self.client_index.find(method.id())? + 1;
        self.client[index as usize].1[class.index()].as_deref()
    }

    /// Every serving series that has counted anything.
    pub fn servers(&self) -> impl Iterator<Item = (Method, Class, &ServerSeries)> {
        self.server.iter().flat_map(|(method, classes)| {
            Class::ALL.iter().filter_map(move |&class| Some((*method, class, classes[class.index()].as_deref()?)))
        })
    }

    /// Every calling series that has counted anything.
    pub fn clients(&self) -> impl Iterator<Item = (Method, Class, &ClientSeries)> {
        self.client.iter().flat_map(|(method, classes)| {
            Class::ALL.iter().filter_map(move |&class| Some((*method, class, classes[class.index()].as_deref()?)))
        })
    }

    /// Everything in the text format of Prometheus, with what the endpoint and the port below had counted, and what was in use, when
    /// the node or [`Local`](crate::Local) gave these metrics, and the texts of [`Local::metrics_source`](crate::Local::metrics_source).
    pub fn prometheus(&self) -> String {
        prometheus::text(self) + &self.sources.text()
    }

    pub(crate) fn add_service(&mut self, method: Method) {
        self.server.push((method, Default::default()));
    }

    #[inline(always)]
    pub(crate) fn serving(&mut self, service: u32, class: Class) -> &mut ServerSeries {
        self.server[service as usize].1[class.index()].get_or_insert_with(ServerSeries::boxed)
    }

    /// The dense index of a method at the calling side.
    #[inline]
    pub(crate) fn client_method(&mut self, method: Method) -> u32 {
        match self.client_index.find(method.id()) {
            Some(index) => index + 1,
            None => self.new_client_method(method),
        }
    }

    #[inline(always)]
    pub(crate) fn calling(&mut self, method: u32, class: Class) -> &mut ClientSeries {
        self.client[method as usize].1[class.index()].get_or_insert_with(ClientSeries::boxed)
    }

    #[cold]
    fn new_client_method(&mut self, method: Method) -> u32 {
        if self.client_index.len() >= self.client_limit {
            return 0;
        }
        self.client.push((method, Default::default()));
        self.client_index.insert(method).map_or(0, |index| index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_above_the_histogram_range_is_recorded_and_not_an_error() {
        let mut latency = Latency::new();
        latency.record(1_000);
        latency.record(3_600_000_000_000);
        assert_eq!(latency.count(), 2);
        assert!(latency.max() >= Duration::from_secs(3_590));
        assert!(latency.quantile(0.5) <= Duration::from_nanos(1_010));
    }

    #[test]
    fn reading_clears_nothing() {
        let mut latency = Latency::new();
        assert_eq!(latency.quantile(0.99), Duration::ZERO);
        latency.record(500);
        assert_eq!(latency.quantile(0.5), latency.quantile(0.5));
        assert_eq!((latency.count(), latency.mean()), (1, Duration::from_nanos(500)));
    }

    #[test]
    fn values_count_from_the_moment_they_are_recorded_whether_or_not_they_have_their_places() {
        let (mut latency, mut sum) = (Latency::new(), 0);
        for n in 0..5 * LATEST as u64 {
            // Runs of three.
            let nanos = 1_000 * (1 + n / 3);
            latency.record(nanos);
            sum += nanos;
            assert_eq!((latency.count(), latency.sum()), (n + 1, Duration::from_nanos(sum)));
            let max = latency.max().as_nanos() as u64;
            assert!((nanos..=nanos + nanos / 64).contains(&max), "{max} after {nanos}");
        }
        let median = latency.quantile(0.5).as_nanos() as u64;
        assert!((26_000..29_000).contains(&median), "{median}");
    }

    #[test]
    fn methods_beyond_the_limit_are_counted_together() {
        let mut metrics = Metrics::new(2);
        let indices: Vec<u32> = (0..4).map(|id| metrics.client_method(Method::from_id(id))).collect();
        assert_eq!(indices, [1, 2, 0, 0]);
        metrics.calling(indices[3], Class::Bulk).calls += 1;
        assert_eq!(metrics.clients().map(|(method, ..)| method.name()).collect::<Vec<_>>(), ["other"]);
    }
}
