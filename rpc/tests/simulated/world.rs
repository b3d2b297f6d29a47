//! Nodes on a simulated network, in one thread and in virtual time.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tautline_net::port::sim::{LinkConfig, Network, SimPortConfig};
use tautline_rpc::*;
use tautline_testing::clocks::Clocks;

pub const ECHO: Method = Method::named("test/Echo");
pub const SLOW: Method = Method::named("test/Slow");

/// Frames of each pool of each node: few, so that a leak is noticed.
const FRAMES: usize = 96;

pub struct World {
    /// The network's clock, and that of nodes that are not apart.
    pub clock: Clock,
    pub clocks: Clocks,
    pub network: Network,
    /// By number; a place is empty while its node is down.
    pub nodes: Vec<Option<Node>>,
    /// Nodes that are not polled, as stopped processes.
    pub paused: Vec<bool>,
    seed: u64,
    starts: u64,
    /// Rounds since there was last nothing to do.
    rounds: u32,
}

impl World {
    pub fn new(seed: u64, link: LinkConfig) -> World {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000));
        let network = Network::new(seed, clock.clone(), link);
        let clocks = Clocks::new(&clock);
        World { clock, clocks, network, nodes: Vec::new(), paused: Vec::new(), seed, starts: 0, rounds: 0 }
    }

    /// Adds a node; its address is `sim://n<number>`.
    pub fn add(&mut self, config: NodeConfig) -> usize {
        self.add_apart(config, None)
    }

    /// Adds a node whose clock is ahead of the others'.
    pub fn add_apart(&mut self, config: NodeConfig, ahead: Option<Duration>) -> usize {
        self.clocks.add(ahead);
        self.nodes.push(None);
        self.paused.push(false);
        let number = self.nodes.len() - 1;
        self.start(number, config);
        number
    }

    /// A server and a client on a wire of 10 us.
    pub fn pair(config: NodeConfig) -> (World, usize, usize) {
        let mut world = World::new(1, LinkConfig::with_delay(Duration::from_micros(10)));
        let (server, client) = (world.add(config.clone()), world.add(config));
        (world, server, client)
    }

    /// Starts the node of this number, again if it was down.
    pub fn start(&mut self, number: usize, mut config: NodeConfig) {
        self.starts += 1;
        config.endpoint.seed = Some(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(self.starts));
        let frames = SimPortConfig { frames: FRAMES, ..SimPortConfig::default() };
        let port = self.network.port_with(&format!("n{number}"), frames).unwrap();
        let builder = Node::builder(format!("sim://n{number}")).port(Box::new(port)).clock(self.clocks.of(number));
        self.nodes[number] = Some(builder.wait(Wait::Spin).config(config).build().unwrap());
    }

    pub fn node(&mut self, number: usize) -> &mut Node {
        self.nodes[number].as_mut().expect("the node is up")
    }

    pub fn local(&self, number: usize) -> Local {
        self.nodes[number].as_ref().expect("the node is up").local()
    }

    /// The peer that node `at` knows node `number` by.
    pub fn peer(&self, at: usize, number: usize) -> Peer {
        self.local(at).peer(format!("sim://n{number}")).unwrap()
    }

    /// Polls every node once. `true` if one had something to do, or has at this moment.
    pub fn round(&mut self) -> bool {
        let mut busy = false;
        self.clocks.align();
        for (number, (node, &paused)) in self.nodes.iter_mut().zip(&self.paused).enumerate() {
            if let Some(node) = node
                && !paused
            {
                busy |= node.poll() > 0;
                // A handler may have moved its node's clock.
                self.clocks.align();
                busy |= node.next_timeout().is_some_and(|due| self.clocks.in_the_world(number, due) <= self.clock.now());
            }
        }
        busy
    }

    /// Polls until nobody has anything left to do at this moment. (Handlers that move the clock make more to do.)
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.round() {
                return;
            }
        }
        panic!("the nodes don't come to rest at {:?}", self.clock.now());
    }

    /// One round, or, if that finds nothing to do, a step to the next moment at which something happens, but not beyond `until`.
    pub fn step(&mut self, until: Time) {
        if self.round() {
            self.rounds += 1;
            assert!(self.rounds < 200_000, "the nodes don't come to rest at {:?}", self.clock.now());
            return;
        }
        self.rounds = 0;
        let awake = self.nodes.iter().zip(&self.paused).enumerate().filter(|(_, (_, paused))| !**paused);
        let timers =
            awake.filter_map(|(number, (node, _))| node.as_ref()?.next_timeout().map(|due| self.clocks.in_the_world(number, due)));
        let next = timers.chain(self.network.next_arrival()).min().unwrap_or(Time::NEVER);
        // A packet that nobody is awake to take is overdue for ever; move on all the same.
        let now = self.clock.now();
        let next = if next > now { next } else { now + Duration::from_micros(10) };
        self.clock.advance_to(next.min(until));
        self.clocks.align();
    }

    /// Lets `duration` pass.
    pub fn run(&mut self, duration: Duration) {
        let until = self.clock.now() + duration;
        while self.clock.now() < until {
            self.step(until);
        }
    }

    /// Runs until `future` completes; panics if that takes more than `limit`.
    pub fn finish_within<F: Future>(&mut self, future: F, limit: Duration) -> F::Output {
        let mut future = pin!(future);
        let until = self.clock.now() + limit;
        loop {
            if let Poll::Ready(output) = poll(future.as_mut()) {
                return output;
            }
            assert!(self.clock.now() < until, "nothing after {limit:?}");
            self.step(until);
        }
    }

    /// Runs until `future` completes, within ten virtual seconds.
    pub fn finish<F: Future>(&mut self, future: F) -> F::Output {
        self.finish_within(future, Duration::from_secs(10))
    }

    /// Calls and waits for the result.
    pub fn call(
        &mut self,
        from: usize,
        to: usize,
        method: Method,
        payload: &str,
        options: CallOptions,
    ) -> Result<String, CallError> {
        let call = self.local(from).call(self.peer(from, to), method, payload.to_owned(), options);
        self.finish(call).map(|reply| String::from_utf8(reply.to_vec()).unwrap())
    }

    /// Panics unless nothing but sessions is in use anywhere.
    pub fn assert_at_rest(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(node) = node {
                assert!(node.usage().is_at_rest(), "node {number} holds {:?}", node.usage());
            }
        }
    }
}

/// Polls once, with nobody to wake.
pub fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A service that answers with what it was sent.
pub fn echo() -> Service {
    Service::inline(|request| Ok(request.take_payload().into()))
}

/// What happened at a server, in order.
pub type Log = Rc<RefCell<Vec<String>>>;

/// A service of futures that take `time`; it logs the start and end of each, and what it was when it is dropped before.
pub fn slow(local: Local, time: Duration, log: &Log) -> Service {
    let log = log.clone();
    Service::future(move |request| {
        let (local, log) = (local.clone(), log.clone());
        async move {
            let name = String::from_utf8_lossy(request.payload()).into_owned();
            log.borrow_mut().push(format!("start {name}"));
            let mut end = LogEnd { log, name, done: false };
            local.sleep(time).await;
            end.done = true;
            Ok(format!("did {}", end.name).into())
        }
    })
}

struct LogEnd {
    log: Log,
    name: String,
    done: bool,
}

impl Drop for LogEnd {
    fn drop(&mut self) {
        let what = if self.done { "end" } else { "drop" };
        self.log.borrow_mut().push(format!("{what} {}", self.name));
    }
}

pub fn after(millis: u64) -> CallOptions {
    CallOptions::new().deadline(Duration::from_millis(millis))
}
