//! `tail`: three servers whose workers are taken away now and then by background work, called with no copies, hedged, and tied.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use tautline_bench::awake::KeepAwake;
use tautline_bench::counted::Counted;
use tautline_bench::error::BenchError;
use tautline_bench::pin::Cores;
use tautline_bench::placement::probe;
use tautline_bench::report::{Report, Row};
use tautline_bench::samples::Samples;
use tautline_bench::workload::{Arrivals, Interference};
use tautline_rpc::{
    Address, CallOptions, Class, Clock, CreditConfig, Handle, Local, Method, Node, NodeConfig, Peer, Reply, Service, Time, Wait,
};
use tautline_tied::{Budget, Choice, Policy, Replicas, Settings, TieMetrics, TieServer, TieServerConfig, TiedOptions};

use crate::cli::Tail;

const WORK: Method = Method::named("bench.Tail/Work");
const BACKGROUND: Method = Method::named("bench.Tail/Background");

const SERVERS: usize = 3;
/// Background work lasts as long as so many requests, ...
const STALL: u32 = 50;
/// ... and has a server's worker for this share of the time.
const SHARE: f64 = 0.02;
const ROUNDS: u64 = 4;
const WARM_UP: Duration = Duration::from_millis(500);
/// No call takes longer, unless something is broken.
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Tail) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let service = Duration::from_micros(args.service);
    let seconds = args.seconds.unwrap_or(if args.common.quick { 8 } else { 105 });
    let before = probe(cores, &clock)?;

    let awake = KeepAwake::start(cores);
    let mut servers = Servers::start(service)?;
    let mut node = Node::builder("udp://127.0.0.1:0")
        .wait(Wait::Park)
        .config(node_config())
        .clock(clock.clone())
        .build()
        .map_err(BenchError::product("building a node"))?;
    let local = node.local();
    let client = Client::new(&local, &servers)?;
    let mut floor = node.block_on(client.one_at_a_time(200))?;

    let mut policies = [
        Measured::new("none", &client, Policy::None)?,
        Measured::new("hedged at p95", &client, Policy::hedged())?,
        Measured::new("tied", &client, Policy::tied())?,
    ];
    let round = Duration::from_secs(seconds) / ROUNDS as u32;
    for number in 0..ROUNDS {
        for policy in &mut policies {
            let load = Load { seed: args.seed * 1_000 + number, rate: rate(args), service, length: round };
            let executed = servers.executed();
            let samples = node.block_on(client.clone().measure(policy.replicas.clone(), load))?;
            policy.executed += servers.executed() - executed;
            policy.calls += samples.calls;
            policy.samples.merge(&samples.counted);
        }
    }
    let kept_awake = awake.is_some();
    let cancels = servers.stop();
    drop(awake);
    let after = probe(cores, &clock)?;

    let command = format!("tail --seed {} --service {} --load {} --seconds {seconds}", args.seed, args.service, args.load);
    let mut report = Report::new(
        command,
        format!(
            "{SERVERS} servers of one worker, {} us of (sleeping) service, load {}, background work of {STALL} service times {} % of the time",
            args.service,
            args.load,
            SHARE * 100.0
        ),
    );
    report.probed(before, cores);
    if !before.same_as(after) {
        report.note(format!(
            "The placement changed during the run (a cache line there and back took {:.0} ns at the end). Times of milliseconds do not \
             depend on it.",
            after.round_trip_ns
        ));
    }
    if !kept_awake {
        report.note(
            "The cores could not be kept from halting (`chrt --idle` did not run): wake-ups may take long, and ties with them.",
        );
    }
    let floor = Row::of("alone, one at a time", &mut floor);
    let floor_us = floor.p50_us;
    report.row(floor);
    let rows: Vec<Row> = policies.iter_mut().map(|policy| Row::of(policy.name, &mut policy.samples).over(floor_us)).collect();
    for policy in &policies {
        report.note(policy.summary());
    }
    report.note(cancel_note(&cancels));
    let [none, hedged, tied] = &rows[..] else { unreachable!("a row for each policy") };
    report.bound("tied p99 / none p99", tied.p99_us / none.p99_us, 0.3);
    report.bound("tied p99.9 / none p99.9", tied.p999_us / none.p999_us, 0.3);
    report.bound_counted("tied, executed beyond one a call (%)", policies[2].extra_work(), 1.0);
    report.bound("tied p99 / hedged p99", tied.p99_us / hedged.p99_us, 1.0);
    report.bound("tied p99.9 / hedged p99.9", tied.p999_us / hedged.p999_us, 1.0);
    rows.into_iter().for_each(|row| report.row(row));
    Ok(report)
}

/// Requests a second that load the servers' workers as asked.
fn rate(args: &Tail) -> f64 {
    args.load * SERVERS as f64 / Duration::from_micros(args.service).as_secs_f64()
}

/// How long a cancellation took: while it is on its way the other copy can start, so that it explains the calls that were executed twice.
fn cancel_note(servers: &[TieMetrics]) -> String {
    let micros = |server: &TieMetrics, share| server.cancel_round_trip.quantile(share).as_secs_f64() * 1e6;
    // Servers' medians differ little; the middle one stands for all.
    let mut medians: Vec<f64> = servers.iter().map(|server| micros(server, 0.5)).collect();
    medians.sort_by(f64::total_cmp);
    let median = medians.get(medians.len() / 2).copied().unwrap_or_default();
    let p99 = servers.iter().map(|server| micros(server, 0.99)).fold(0.0, f64::max);
    format!(
        "From a copy's start to the report that the other was dropped, a round trip, it took {median:.0} us in the median and up to {p99:.0} us in the p99: \
         copies that come to their turns within one way of it both start."
    )
}

/// A policy and what was measured of it.
struct Measured {
    name: &'static str,
    replicas: Replicas,
    samples: Samples,
    calls: u64,
    executed: u64,
}

impl Measured {
    fn new(name: &'static str, client: &Client, policy: Policy) -> Result<Measured, BenchError> {
        // One of the replicas at random, for all policies: a cleverer choice would help each of them and hide what the copies do.
        let replicas = Replicas::builder()
            .replicas(client.peers.iter().map(|peer| peer.address()))
            .class(Class::Normal, Settings::new(policy))
            .choice(Choice::Random)
            .budget(Budget::default())
            .build(&client.local)
            .map_err(BenchError::product("making a set of replicas"))?;
        Ok(Measured { name, replicas, samples: Samples::default(), calls: 0, executed: 0 })
    }

    /// Handlers run beyond one a call.
    fn extra_work(&self) -> Counted {
        // Each call was answered, so that one ran for each.
        Counted { events: self.executed.saturating_sub(self.calls), calls: self.calls }
    }

    fn summary(&self) -> String {
        let metrics = self.replicas.metrics();
        let class = metrics.class(Class::Normal);
        format!(
            "{}: executed {:.2} % beyond one a call; {:.2} % second copies sent, {} dropped from a queue, {} calls of which the client heard of two starts",
            self.name,
            self.extra_work().percent(),
            class.extra_copies() as f64 * 100.0 / class.calls as f64,
            class.cancelled_queued,
            class.double_starts
        )
    }
}

/// What one policy meets in one round.
#[derive(Clone, Copy)]
struct Load {
    seed: u64,
    rate: f64,
    service: Duration,
    length: Duration,
}

/// The calling side, on the client node's thread.
#[derive(Clone)]
struct Client {
    local: Local,
    peers: Vec<Peer>,
}

/// A round's samples; those of the warm-up are counted but not kept.
#[derive(Default)]
struct RoundSamples {
    counted: Samples,
    calls: u64,
}

impl Client {
    fn new(local: &Local, servers: &Servers) -> Result<Client, BenchError> {
        let peers = servers.addresses.iter().map(|server| local.peer(server)).collect::<Result<_, _>>();
        Ok(Client { local: local.clone(), peers: peers.map_err(BenchError::product("looking a server up"))? })
    }

    /// The floor: calls one after the other, with nothing else going on.
    async fn one_at_a_time(&self, count: usize) -> Result<Samples, BenchError> {
        let mut samples = Samples::with_capacity(count);
        for n in 0..count {
            let start = self.local.now();
            let call = self.local.call(self.peers[n % SERVERS], WORK, Vec::new(), CallOptions::new().deadline(DEADLINE));
            call.await.map_err(BenchError::product("a call without load"))?;
            samples.record(self.local.now().nanos_since(start));
        }
        Ok(samples)
    }

    /// Calls at the moments that the load's seed gives, while background work comes at moments of its own.
    async fn measure(self, replicas: Replicas, load: Load) -> Result<RoundSamples, BenchError> {
        let start = self.local.now() + Duration::from_millis(20);
        let end = start + WARM_UP + load.length;
        let mut tasks = Vec::new();
        for (n, peer) in self.peers.iter().enumerate() {
            let moments = Interference::new(load.seed * 10 + 1 + n as u64, load.service * STALL, SHARE);
            let background = self.clone().interfere(*peer, moments, start + WARM_UP, end);
            tasks.push(self.local.spawn(background).map_err(BenchError::product("starting the interference"))?);
        }
        let results = Rc::new(RefCell::new(Ok(RoundSamples::default())));
        let open = Rc::new(Cell::new(0_u64));
        for due in Arrivals::new(load.seed * 10, load.rate).map(|offset| start + offset).take_while(|due| *due < end) {
            self.local.sleep_until(due).await;
            open.set(open.get() + 1);
            let (local, replicas) = (self.local.clone(), replicas.clone());
            let (results, open) = (Rc::clone(&results), Rc::clone(&open));
            let counts = due >= start + WARM_UP;
            let one = async move {
                let answer = replicas.call(WORK, Vec::new(), &TiedOptions::new().deadline(DEADLINE)).await;
                let latency = local.now().nanos_since(due);
                record(&mut results.borrow_mut(), answer.map_err(BenchError::product("a call under load")), latency, counts);
                open.set(open.get() - 1);
            };
            self.local.spawn(one).map_err(BenchError::product("making a call"))?;
        }
        while open.get() > 0 {
            self.local.sleep(Duration::from_millis(5)).await;
        }
        for task in tasks {
            // `None`: it panicked, which its node has reported.
            task.await.unwrap_or(Ok(()))?;
        }
        // Losers that had started run to their end, and count.
        self.local.sleep(load.service * 3).await;
        results.replace(Ok(RoundSamples::default()))
    }

    /// Takes one server's worker away at each moment, ahead of everything that waits for it.
    async fn interfere(self, peer: Peer, moments: Interference, start: Time, end: Time) -> Result<(), BenchError> {
        for (offset, length) in moments {
            let at = start + offset;
            if at >= end {
                break;
            }
            self.local.sleep_until(at).await;
            let options = CallOptions::new().class(Class::Interactive).deadline(DEADLINE);
            let micros = (length.as_micros() as u64).to_le_bytes().to_vec();
            self.local.call(peer, BACKGROUND, micros, options).await.map_err(BenchError::product("the interference"))?;
        }
        Ok(())
    }
}

fn record<T>(into: &mut Result<RoundSamples, BenchError>, answer: Result<T, BenchError>, latency: u64, counts: bool) {
    match (into, answer) {
        (Ok(samples), Ok(_)) => {
            samples.calls += 1;
            if counts {
                samples.counted.record(latency);
            }
        }
        (into @ Ok(_), Err(error)) => *into = Err(error),
        // The first error is the one reported.
        (Err(_), _) => {}
    }
}

/// The serving nodes, each on a thread of its own, stopped when this is dropped.
struct Servers {
    addresses: Vec<Address>,
    executed: Arc<AtomicU64>,
    running: Vec<(Handle, JoinHandle<Option<TieMetrics>>)>,
}

impl Servers {
    fn start(service: Duration) -> Result<Servers, BenchError> {
        let mut servers = Servers { addresses: Vec::new(), executed: Arc::default(), running: Vec::new() };
        let mut waiting = Vec::new();
        for number in 0..SERVERS {
            let executed = Arc::clone(&servers.executed);
            let (built, known) = channel();
            let (replicas, told) = channel::<Vec<Address>>();
            let serve = move || {
                let mut node = match serving_node(service, executed) {
                    Ok(node) => node,
                    Err(error) => {
                        // Nobody listens only if the client has failed already.
                        let _ = built.send(Err(error));
                        return None;
                    }
                };
                let _ = built.send(Ok((node.address(), node.handle())));
                let allowed = told.recv().ok()?;
                let config = TieServerConfig { allowed, ..TieServerConfig::default() };
                let ties = TieServer::install(&mut node, config).ok()?;
                node.run();
                Some(ties.metrics())
            };
            let thread = std::thread::Builder::new().name(format!("server-{number}")).spawn(serve);
            let thread = thread.map_err(BenchError::system("starting a server's thread"))?;
            let ended = || BenchError::PartnerEnded { what: "server", why: "it panicked while it was set up".to_owned() };
            let (address, handle) = known.recv().map_err(|_| ended())??;
            servers.addresses.push(address);
            servers.running.push((handle, thread));
            waiting.push(replicas);
        }
        for replicas in waiting {
            // A server that is gone fails the first call.
            let _ = replicas.send(servers.addresses.clone());
        }
        Ok(servers)
    }

    /// Handlers that ran, on all servers.
    fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// Stops them, and says what each counted of ties.
    fn stop(&mut self) -> Vec<TieMetrics> {
        let stop = |(handle, thread): (Handle, JoinHandle<Option<TieMetrics>>)| {
            handle.stop();
            // A panic was printed, and there is nobody left to tell.
            thread.join().ok().flatten()
        };
        self.running.drain(..).filter_map(stop).collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serving_node(service: Duration, executed: Arc<AtomicU64>) -> Result<Node, BenchError> {
    let builder = Node::builder("udp://127.0.0.1:0").wait(Wait::Park).workers(1).config(node_config());
    let mut node = builder.build().map_err(BenchError::product("building a server"))?;
    let work = Service::workers(move |_| {
        executed.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(service);
        Ok(Reply::empty())
    });
    let background = Service::workers(|request| {
        let micros = request.payload().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        std::thread::sleep(Duration::from_micros(micros));
        Ok(Reply::empty())
    });
    node.serve(WORK, work).map_err(BenchError::product("serving"))?;
    node.serve(BACKGROUND, background).map_err(BenchError::product("serving"))?;
    Ok(node)
}

fn node_config() -> NodeConfig {
    NodeConfig {
        // A stalled worker's queue is what is measured here, so overload control must not hide it at the client.
        credit: CreditConfig { target: DEADLINE, ..CreditConfig::default() },
        // Seven threads share two cores: one that looks again before it blocks is in the way of the next one's wake-up.
        worker_spin: Duration::ZERO,
        ..NodeConfig::default()
    }
}
