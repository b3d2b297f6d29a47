//! `cancel`: from one replica's start of a tied request to the flip of the queued copy on the other, whose workers are all busy.
//!
//! One thread has the client and the winner, the other core the loser: a second process for udp, a thread for mem. The loser's only
//! worker is held by a request that does not end, so that each copy sent there first stays queued; the second copy starts at
//! the winner, which is idle, and the winner tells the loser. The winner stamps its cancel with the time of its claim; the loser notes
//! when the queued copy has been taken out.

mod loser;
mod remote;

use std::cell::RefCell;
use std::rc::Rc;

use tautline_bench::anchor::{Anchor, kernel_time};
use tautline_bench::company::Company;
use tautline_bench::duo::Duo;
use tautline_bench::error::BenchError;
use tautline_bench::floor::udp::UdpClient;
use tautline_bench::floor::{Floor, ring, sample, sample_paced, spin_for};
use tautline_bench::pin::{Cores, pin};
use tautline_bench::report::{Report, Row};
use tautline_bench::rounds;
use tautline_bench::samples::Samples;
use tautline_rpc::{Address, CallOptions, Class, Clock, Local, Method, Node, Reply, Service, Time, Wait};
use tautline_tied::{Budget, Policy, Replicas, TieServer, TieServerConfig, TiedError, TiedOptions};

use self::loser::{Flips, Loser};
use self::remote::Remote;
use crate::cli::{Cancel, PortKind};

pub(crate) use self::remote::run_loser;

const WORK: Method = Method::named("bench.Cancel/Work");
const HOLD: Method = Method::named("bench.Cancel/Hold");

/// Stages of the loser's side.
const FLOOR: usize = 0;
const CANCEL: usize = 1;

/// Cancels a round, and how many milliseconds may pass between two.
const TRIALS: usize = 1_000;
const PAUSE_NANOS: u64 = 20_000;
/// Round trips of the floor, a round.
const TRIPS: usize = 5_000;

/// Half of the raw round trip, so many times: as pings follow each other at once, and over udp as they come at the pace of the cancels.
const UDP_BOUNDS: [f64; 2] = [1.25, 1.0];
const MEM_BOUND: f64 = 2.0;

/// The other core, wherever its process is.
trait Partner {
    fn enter(&mut self, stage: usize) -> Result<(), BenchError>;
    /// Ends the stage, and gives what the loser noted if it was one of cancels.
    fn leave(&mut self) -> Result<Option<Flips>, BenchError>;
    /// Lets the loser accept ties with the winner.
    fn allow(&mut self, winner: Address) -> Result<(), BenchError>;
    /// Whether its clock is another calibration than this process's.
    fn is_remote(&self) -> bool;
}

pub(crate) fn run(args: &Cancel) -> Result<Report, BenchError> {
    let cores = Cores::pick_or(args.common.cores)?;
    let clock = Clock::tsc();
    let company = Company::start();
    let (mut partner, mut floor, loser): (Box<dyn Partner>, Box<dyn Floor>, Address) = match args.port {
        PortKind::Udp => {
            let (remote, floor_address, loser) = Remote::start(cores.server)?;
            (Box::new(remote), Box::new(UdpClient::connect(floor_address, clock.clone())?), loser)
        }
        PortKind::Mem => {
            let (ring, echo) = ring::pair(clock.clone());
            let theirs = clock.clone();
            let (duo, (loser, flips, allow)) = Duo::start(cores.server, move || {
                let (loser, known) = Loser::open("mem://cancel-loser", theirs)?;
                Ok((vec![Box::new(echo), Box::new(loser)], known))
            })?;
            (Box::new(Beside { duo, flips, allow }), Box::new(ring), loser)
        }
    };
    pin(cores.client)?;
    let mut winner = Winner::open(args.port, loser, &clock)?;
    partner.allow(winner.server.address())?;
    partner.enter(CANCEL)?;
    winner.hold_the_loser()?;
    partner.leave()?;

    let kept = rounds::run(cores, &clock, args.rounds.wanted(&args.common), |_| {
        partner.enter(FLOOR)?;
        let hot = sample(&clock, TRIPS / 10, TRIPS, floor.as_mut())?;
        partner.leave()?;
        partner.enter(CANCEL)?;
        let before = Anchor::now(&clock);
        let period = winner.trials(TRIALS)?;
        let anchors = [before, Anchor::now(&clock)];
        let flips = partner.leave()?.unwrap_or_default();
        partner.enter(FLOOR)?;
        let paced = sample_paced(&clock, TRIALS / 10, TRIALS, period, floor.as_mut())?;
        partner.leave()?;
        Ok([hot, paced, latencies(&flips, anchors, partner.is_remote())])
    })?;

    // The loser's process, once it has ended, counts as this one's own.
    drop(partner);

    let [mut hot, mut paced, mut cancel]: [Samples; 3] = Default::default();
    for [hot_round, paced_round, cancel_round] in &kept.rounds {
        hot.merge(&hot_round.halved());
        paced.merge(&paced_round.halved());
        cancel.merge(cancel_round);
    }
    let name = match args.port {
        PortKind::Udp => "half of raw UDP's round trip",
        PortKind::Mem => "half of the raw ring's round trip",
    };
    let half = Row::of(name, &mut hot);
    let paced = Row::of("the same, at the cancels' pace", &mut paced).over(half.p50_us);
    let cancel = Row::of("claim to flipped copy", &mut cancel).over(half.p50_us);
    let paced_ratio = cancel.p50_us / paced.p50_us;
    let mut report = Report::new(
        format!("cancel --port {}", args.port.name()),
        "from the winner's claim to the flip of the loser's queued copy, the loser's workers all busy",
    );
    report.placed(&kept, cores);
    report.note(format!("{} of {} ties ended with a queued copy flipped.", cancel.samples, kept.rounds.len() * TRIALS));
    report.note(match args.port {
        PortKind::Udp => {
            "Two processes, each timing its end by the time-stamp counter, brought onto one scale by the kernel's monotonic clock (within some \
             tens of ns)."
        }
        PortKind::Mem => "Two threads of one process, timed by one clock.",
    });
    let ratio = cancel.ratio.unwrap_or(f64::NAN);
    match args.port {
        PortKind::Udp => {
            report.bound(format!("cancel p50 / {name}"), ratio, UDP_BOUNDS[0]);
            report.bound(format!("cancel p50 / {name} at the cancels' pace"), paced_ratio, UDP_BOUNDS[1]);
        }
        PortKind::Mem => report.bound(format!("cancel p50 / {name}"), ratio, MEM_BOUND),
    }
    report.note(format!(
        "p50 is {ratio:.2} times the floor's where one ping follows the other at once, and {paced_ratio:.2} times the floor's at the cancels' pace."
    ));
    report.row(half);
    report.row(paced);
    report.row(cancel);
    report.note_company(&company);
    Ok(report)
}

/// From claim to flip, in nanoseconds. Clocks of two processes are compared by way of the kernel's.
fn latencies(flips: &Flips, anchors: [Anchor; 2], remote: bool) -> Samples {
    let nanos = |(claimed, flipped): &(Time, Time)| {
        if remote {
            (kernel_time(*flipped, flips.anchors) - kernel_time(*claimed, anchors)).max(0.0) as u64
        } else {
            flipped.nanos_since(*claimed)
        }
    };
    flips.times.iter().map(nanos).collect()
}

/// The client and the winner, on one thread.
struct Winner {
    client: Node,
    server: Node,
    local: Local,
    loser: Address,
    replicas: Replicas,
    clock: Clock,
    done: Rc<RefCell<Option<Result<(), TiedError>>>>,
}

impl Winner {
    fn open(kind: PortKind, loser: Address, clock: &Clock) -> Result<Winner, BenchError> {
        let url = |name: &str| match kind {
            PortKind::Udp => "udp://127.0.0.1:0".to_owned(),
            PortKind::Mem => format!("mem://cancel-{name}"),
        };
        let node = |name: &str| {
            let builder = Node::builder(url(name)).wait(Wait::Spin).clock(clock.clone());
            builder.build().map_err(BenchError::product("building a node"))
        };
        let (client, mut server) = (node("client")?, node("winner")?);
        server.serve(WORK, Service::inline(|_| Ok(Reply::empty()))).map_err(BenchError::product("serving"))?;
        let config = TieServerConfig { allowed: vec![loser, server.address()], ..TieServerConfig::default() };
        TieServer::install(&mut server, config).map_err(BenchError::product("installing ties"))?;
        let local = client.local();
        let replicas = Replicas::builder()
            .replicas([loser, server.address()])
            .policy(Policy::tied())
            // Every call here needs its second copy.
            .budget(Budget::UNLIMITED)
            .build(&local)
            .map_err(BenchError::product("making a set of replicas"))?;
        Ok(Winner { client, server, local, loser, replicas, clock: clock.clone(), done: Rc::default() })
    }

    /// Gives the loser's only worker a request that does not end.
    fn hold_the_loser(&mut self) -> Result<(), BenchError> {
        let peer = self.local.peer(self.loser).map_err(BenchError::product("looking the loser up"))?;
        // In a class of its own, so that it holds no credit of the copies'.
        let options = CallOptions::new().class(Class::Interactive).notify_start();
        let mut call = self.local.call(peer, HOLD, Vec::new(), options);
        let clock = self.clock.clone();
        let node = &mut self.client;
        spin_for("the loser", &clock, || {
            node.poll();
            Ok((call.is_started() || call.is_finished()).then_some(()))
        })?;
        if call.is_finished() {
            let result = node.block_on(&mut call).map(|_| ());
            let why = result.map_or_else(|error| error.to_string(), |()| "it was answered".to_owned());
            return Err(BenchError::Product { action: "holding the loser's worker", why });
        }
        // The request stays: only a dropped call is cancelled.
        self.local.spawn(async move { drop(call.await) }).map_err(BenchError::product("holding the loser's worker"))?;
        Ok(())
    }

    /// Tied calls, one after the other, each first to the loser. Gives the mean time from one to the next, in nanoseconds.
    fn trials(&mut self, count: usize) -> Result<u64, BenchError> {
        let began = self.clock.now();
        for _ in 0..count {
            let (call, done) = (self.replicas.call(WORK, Vec::new(), &TiedOptions::new().first(0)), Rc::clone(&self.done));
            let task = async move {
                let result = call.await.map(|_| ());
                done.replace(Some(result));
            };
            self.local.spawn(task).map_err(BenchError::product("making a tied call"))?;
            let done = Rc::clone(&self.done);
            self.poll_until("a tied call", || done.take())?.map_err(BenchError::product("a tied call"))?;
            // Until both servers are at rest again.
            let until = self.clock.now().plus_nanos(PAUSE_NANOS);
            let clock = self.clock.clone();
            self.poll_until("the clock", || (clock.now() >= until).then_some(()))?;
        }
        Ok(self.clock.now().nanos_since(began) / count.max(1) as u64)
    }

    fn poll_until<T>(&mut self, what: &'static str, mut done: impl FnMut() -> Option<T>) -> Result<T, BenchError> {
        let clock = self.clock.clone();
        spin_for(what, &clock, || {
            self.client.poll();
            self.server.poll();
            Ok(done())
        })
    }
}

/// The loser on a thread of this process.
struct Beside {
    duo: Duo,
    flips: loser::Shared,
    allow: loser::Allow,
}

impl Partner for Beside {
    fn enter(&mut self, stage: usize) -> Result<(), BenchError> {
        self.duo.enter(stage)
    }

    fn leave(&mut self) -> Result<Option<Flips>, BenchError> {
        self.duo.leave()?;
        Ok(self.flips.take())
    }

    fn allow(&mut self, winner: Address) -> Result<(), BenchError> {
        self.allow.tell(winner);
        Ok(())
    }

    fn is_remote(&self) -> bool {
        false
    }
}
