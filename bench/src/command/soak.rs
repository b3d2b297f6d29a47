//! `soak`: mixed traffic between processes on loopback that are killed, stopped, frozen and started again, for as long as asked; at intervals
//! the traffic is let run out, and whatever is held then, in any process, is a leak.
//!
//! Three replicas and two clients, each a process. One replica and one client live from the beginning to the end, so that slow leaks
//! show in them; to the others happens whatever the seed says, and they come back on the same port.

mod callers;
mod client;
mod drift;
mod gauges;
mod interrupt;
mod part;
mod pattern;
mod process;
mod server;
mod table;
mod tally;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tautline_bench::error::BenchError;

pub(crate) use self::part::run as run_part;

use self::drift::Memory;
use self::gauges::Gauges;
use self::interrupt::Interrupt;
use self::process::{Plan, Process, Role};
use self::tally::Counts;
use crate::cli::Soak;

/// How long after the end of the traffic everything must be at rest: longer than a peer's silence is borne, a handshake tried, and a busy
/// machine needs.
const REST: Duration = Duration::from_secs(30);
/// Most sentences printed of one kind.
const SENTENCES: usize = 20;

/// One of the processes, over all its lives.
struct Part {
    plan: Plan,
    process: Option<Process>,
    /// Lives from the beginning to the end.
    steady: bool,
    /// When it is started again, while it is down.
    due: Instant,
    /// What its earlier lives counted, as far as they could say it.
    past: Counts,
    memory: Memory,
    starts: u32,
}

/// What happened to processes.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    killed: u32,
    stopped: u32,
    frozen: u32,
}

struct Run {
    parts: Vec<Part>,
    random: Rng,
    started: Instant,
    events: Events,
    /// Sentences about what leaks, or went wrong otherwise.
    leaks: Vec<String>,
    /// What was held at a rest, by process and thing: the latest sentence.
    held: BTreeMap<(&'static str, &'static str), String>,
    own_descriptors: Option<usize>,
}

pub(crate) fn run(args: &Soak) -> Result<(), BenchError> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let total = Duration::from_secs(args.seconds);
    let interval = Duration::from_secs(args.interval.unwrap_or((args.seconds / 20).clamp(4, 30)));
    println!("soak: {} s of traffic, at rest every {} s, --seed {seed}", args.seconds, interval.as_secs());
    let interrupt = Interrupt::listen()?;
    let mut run = Run::start(seed)?;
    let mut trafficked = Duration::ZERO;
    let mut round = 0;
    while trafficked < total && interrupt.signal().is_none() {
        let length = interval.min(total - trafficked);
        trafficked += run.traffic(length, round, &interrupt)?;
        round += 1;
        if interrupt.signal().is_some() {
            eprintln!("soak: interrupted: looking at what is held, then stopping (again to end at once)");
        }
        run.rest(round == 1)?;
    }
    run.finish(seed)?;
    match interrupt.signal() {
        Some(signal) if trafficked < total => {
            Err(BenchError::Interrupted { ran: trafficked.as_secs(), asked: args.seconds, signal })
        }
        _ => Ok(()),
    }
}

impl Run {
    fn start(seed: u64) -> Result<Run, BenchError> {
        let mut random = Rng::with_seed(seed);
        let ports = free_ports::<6>()?;
        let roles = [
            ("server 1, steady", Role::Server),
            ("server 2", Role::Server),
            ("server 3", Role::Server),
            ("client 1, steady", Role::Client),
            ("client 2", Role::Client),
        ];
        let now = Instant::now();
        let parts = roles.into_iter().zip(ports).map(|((name, role), port)| {
            let plan = Plan { name, role, port, replicas: ports[..3].to_vec(), nobody: ports[5], seed: random.u64(..) };
            let process = Some(Process::start(&plan)?);
            let steady = name.ends_with("steady");
            Ok(Part { plan, process, steady, due: now, past: Counts::default(), memory: Memory::default(), starts: 1 })
        });
        let parts = parts.collect::<Result<_, BenchError>>()?;
        Ok(Run {
            parts,
            random,
            started: now,
            events: Events::default(),
            leaks: Vec::new(),
            held: BTreeMap::new(),
            own_descriptors: None,
        })
    }

    /// Traffic, and what happens to the processes meanwhile; for how long it was, where it is interrupted.
    fn traffic(&mut self, length: Duration, round: u64, interrupt: &Interrupt) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        let end = begin + length;
        for part in &mut self.parts {
            part.run(&mut self.random, round)?;
        }
        let mut next = Instant::now() + Duration::from_millis(self.random.u64(100..1_000));
        while Instant::now() < end && interrupt.signal().is_none() {
            std::thread::sleep(Duration::from_millis(10));
            let now = Instant::now();
            for part in &mut self.parts {
                if part.process.is_none() && part.due <= now {
                    part.restart()?;
                    part.run(&mut self.random, round)?;
                }
            }
            if next <= now {
                self.strike()?;
                next = Instant::now() + Duration::from_millis(self.random.u64(100..1_500));
            }
        }
        for part in &mut self.parts {
            if part.process.is_none() {
                part.restart()?;
            }
        }
        Ok(if interrupt.signal().is_some() { begin.elapsed().min(length) } else { length })
    }

    /// Something happens to one of the processes.
    fn strike(&mut self) -> Result<(), BenchError> {
        let index = self.random.usize(..self.parts.len());
        let (what, pause) = (self.random.u8(..8), Duration::from_millis(self.random.u64(20..1_200)));
        let part = &mut self.parts[index];
        let Some(mut process) = part.process.take() else { return Ok(()) };
        if part.steady || what < 2 {
            process.freeze(pause / 4)?;
            part.process = Some(process);
            self.events.frozen += 1;
            return Ok(());
        }
        part.due = Instant::now() + pause;
        let name = part.plan.name;
        if what < 6 {
            // What it would have said of itself is lost with it; what it has counted so far is not.
            if let Ok(gauges) = process.gauges() {
                part.past.add(&without_open(&gauges.counts));
            }
            process.kill()?;
            self.events.killed += 1;
        } else {
            match process.stop() {
                Ok(last) => part.past.add(&last.counts),
                Err(error) => self.leaks.push(format!("{name}: it was told to stop: {error}")),
            }
            self.events.stopped += 1;
        }
        Ok(())
    }

    /// Lets the traffic run out and looks at what is held.
    fn rest(&mut self, first: bool) -> Result<(), BenchError> {
        for part in &mut self.parts {
            part.alive()?.order("pause")?;
        }
        let deadline = Instant::now() + REST;
        let rows = loop {
            let mut rows = Vec::new();
            for part in &mut self.parts {
                let process = part.alive()?;
                let gauges = process.gauges()?;
                let held = gauges.held(&process.fresh);
                rows.push((gauges, held));
            }
            if rows.iter().all(|(_, held)| held.is_empty()) || Instant::now() >= deadline {
                break rows;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let seconds = self.started.elapsed().as_secs_f64();
        table::print(seconds, first, self.parts.iter().map(|part| part.plan.name).zip(rows.iter().map(|(gauges, _)| gauges)));
        for (part, (gauges, held)) in self.parts.iter_mut().zip(&rows) {
            let name = part.plan.name;
            for held in held {
                let sentence = format!("{name}: {}, {} s after the traffic ended", held.sentence, REST.as_secs());
                // Its latest size: one sentence a leak.
                self.held.insert((name, held.what), sentence);
            }
            if part.steady {
                // What the endpoint keeps on purpose has a bound of its own.
                part.memory.add(seconds, gauges.rss_kib.saturating_sub(gauges.kept_bytes as u64 >> 10));
            }
        }
        self.watch_own_descriptors()
    }

    /// This process starts and ends others: it must not keep anything of them.
    fn watch_own_descriptors(&mut self) -> Result<(), BenchError> {
        let mut own = Gauges::default();
        own.ask_kernel()?;
        let known = *self.own_descriptors.get_or_insert(own.descriptors);
        if own.descriptors > known {
            self.leaks.push(format!("the soak itself: {} descriptors are open, {known} at the first rest", own.descriptors));
        }
        Ok(())
    }

    /// Stops everything in order, prints the sums, and gives the verdict.
    fn finish(mut self, seed: u64) -> Result<(), BenchError> {
        let mut sum = Counts::default();
        let mut drifts = Vec::new();
        for part in &mut self.parts {
            let name = part.plan.name;
            match part.process.take().map(Process::stop) {
                Some(Ok(last)) => part.past.add(&last.counts),
                Some(Err(error)) => self.leaks.push(format!("{name}: it was told to stop: {error}")),
                None => {}
            }
            if let Some(drift) = part.memory.drift() {
                self.leaks.extend(drift.leak().map(|leak| format!("{name}: {leak}")));
                drifts.push((name, drift));
            }
            if part.past.faults > 0 {
                self.leaks.extend(part.past.sentences.iter().map(|sentence| format!("{name}: {sentence}")));
            }
            sum.add(&part.past);
        }
        self.leaks.extend(self.held.values().cloned());
        table::print_ends(&sum);
        table::print_drifts(&drifts);
        let Events { killed, stopped, frozen } = self.events;
        let starts: u32 = self.parts.iter().map(|part| part.starts).sum();
        println!(
            "\nProcesses: {starts} started, {killed} killed, {stopped} stopped in order while calls were under way, {frozen} frozen for a while."
        );
        if self.leaks.is_empty() && sum.faults == 0 {
            println!("soak: no leak; {} calls, each ended once", sum.ended());
            return Ok(());
        }
        for leak in self.leaks.iter().take(SENTENCES) {
            println!("soak: LEAK: {leak}");
        }
        Err(BenchError::Leaks { count: self.leaks.len().max(1), seed })
    }
}

impl Part {
    fn alive(&mut self) -> Result<&mut Process, BenchError> {
        let name = self.plan.name;
        self.process.as_mut().ok_or_else(|| BenchError::PartnerEnded { what: "soak's process", why: format!("{name} is down") })
    }

    fn restart(&mut self) -> Result<(), BenchError> {
        self.process = Some(Process::start(&self.plan)?);
        self.starts += 1;
        Ok(())
    }

    /// Starts the traffic of a client; each life and each round has its own.
    fn run(&mut self, random: &mut Rng, round: u64) -> Result<(), BenchError> {
        if self.plan.role == Role::Client && self.process.is_some() {
            let order = format!("run {}", random.u64(..) ^ round);
            self.alive()?.order(&order)?;
        }
        Ok(())
    }
}

/// What a process counted that is about to be killed: its calls under way end with it.
fn without_open(counts: &Counts) -> Counts {
    let mut counts = counts.clone();
    let open = counts.begun.saturating_sub(counts.ended());
    if open > 0 {
        counts.ends.entry("killed".to_owned()).or_default().insert("under way".to_owned(), open);
    }
    counts
}

/// Ports that nobody holds, below those that the system gives out by itself: a process that is down must not find its own taken.
fn free_ports<const N: usize>() -> Result<[u16; N], BenchError> {
    let mut held = Vec::new();
    for _ in 0..1_000 {
        let port = fastrand::u16(15_000..32_000);
        if let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) {
            held.push((port, socket));
        }
        if held.len() == N {
            return Ok(std::array::from_fn(|n| held[n].0));
        }
    }
    let why = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    Err(BenchError::System { action: "finding free ports on 127.0.0.1", source: why })
}
