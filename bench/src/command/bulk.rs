//! `bulk`: large messages one way, each answered with one byte, beside a stream of raw UDP with segmentation offload.

use std::time::Duration;

use tautline_net::clock::Clock;

use tautline_bench::call::CallEcho;
use tautline_bench::company::Company;
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::floor::segmented::{StreamSink, StreamSource};
use tautline_bench::pin::{Cores, pin};
use tautline_bench::pipeline::{Back, Pipeline};
use tautline_bench::rate::{Rate, measure, median};
use tautline_bench::report::Report;
use tautline_bench::rounds;
use tautline_rpc::NodeConfig;

use crate::cli::{Bulk, PortKind};

/// Message sizes; the last one is bounded.
const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Bytes outstanding, and the most messages that may be.
const OUTSTANDING: usize = 4 << 20;
const MOST_MESSAGES: usize = 64;

/// The floor's datagrams: as long as the udp port's.
const DATAGRAM: usize = 1344;

const SPAN: Duration = Duration::from_millis(150);
const WARM_UP: Duration = Duration::from_millis(30);

const BOUND: f64 = 0.5;

pub(crate) fn run(args: &Bulk) -> Result<Report, BenchError> {
    const FLOOR: usize = 0;
    const CALLS: usize = 1;
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let company = Company::start();
    let [client_url, server_url] = match args.port {
        PortKind::Udp => ["udp://127.0.0.1:0"; 2],
        PortKind::Mem => ["mem://bulk-client", "mem://bulk-server"],
    };
    let theirs = clock.clone();
    let (mut duo, (sink, count, server)) = Duo::start(cores.server, move || {
        let (sink, calls) = (StreamSink::open()?, CallEcho::open(server_url, &theirs)?);
        let (address, count) = sink.known()?;
        let known = (address, count, calls.address());
        Ok((vec![Box::new(sink) as Box<dyn Serve>, Box::new(calls)], known))
    })?;
    pin(cores.client)?;
    let mut source = StreamSource::connect(sink, DATAGRAM, count, clock.clone())?;
    let config = NodeConfig::default();
    // All on one session: one client, with a message of each size.
    let mut client = Pipeline::connect(client_url, server, &clock, &config, 1, 1, Back::OneByte)?;
    let sizes: &[usize] = if args.only_largest { &SIZES[SIZES.len() - 1..] } else { &SIZES };
    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        let floor = duo.during(FLOOR, || measure("the UDP stream", &clock, WARM_UP, SPAN, || source.turn()))?;
        let mut rates = Vec::with_capacity(sizes.len());
        for &size in sizes {
            client.set_size(size);
            client.set_window((OUTSTANDING / size).clamp(1, MOST_MESSAGES));
            rates.push(duo.during(CALLS, || {
                let calls = measure("a large call", &clock, WARM_UP, SPAN, || client.turn())?;
                client.drain()?;
                Ok(Rate { done: calls.done * size as u64, ..calls })
            })?);
        }
        Ok((floor, rates))
    })?;
    let mut report = Report::new(
        format!("bulk --port {}", args.port.name()),
        "messages one way, each answered with a byte, client and server spinning on a core each",
    );
    report.placed(&kept, cores);
    let floor = median(kept.rounds.iter().map(|(floor, _)| floor.per_second()));
    report.figure(format!("raw UDP stream (GSO, GRO), {DATAGRAM}-byte datagrams"), floor / 1e9, "GB/s", None);
    let mut points = Vec::new();
    for (n, &size) in sizes.iter().enumerate() {
        let rate = median(kept.rounds.iter().map(|(_, rates)| rates[n].per_second()));
        let window = (OUTSTANDING / size).clamp(1, MOST_MESSAGES);
        report.figure(format!("{} KiB messages, {window} outstanding", size >> 10), rate / 1e9, "GB/s", Some(rate / floor));
        points.push((size as f64, rate / 1e9));
        if size == 1 << 20 && args.port == PortKind::Udp {
            report.at_least("1 MiB messages / raw UDP stream", rate / floor, BOUND);
        }
    }
    let across = sizes.iter().map(|size| (*size as f64, floor / 1e9)).collect();
    report.curve("raw UDP stream", "message (bytes)", "GB/s", across);
    report.curve(format!("messages over {}", args.port.name()), "message (bytes)", "GB/s", points);
    if args.port == PortKind::Mem {
        report.note("The ratio over mem is to the UDP stream, for comparison; it has no bound.");
    }
    report.note_company(&company);
    Ok(report)
}
