//! A client, or some, and servers that each run one request at a time, on one simulated network. Real nodes, virtual time; everything
//! follows from the seed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tautline_net::clock::{Clock, Time};
use tautline_net::port::sim::{LinkConfig, Network};
use tautline_net::port::{Address, LocalName};
use tautline_rpc::metrics::Metrics;
use tautline_rpc::{Code, EndpointConfig, Local, Method, Node, NodeConfig, Service, Status, Usage, Wait};
use tautline_testing::clocks::Clocks;
use tautline_tied::{Answer, Config, Policy, Replicas, TieMetrics, TieServer, TieServerConfig, TiedError, TiedOptions};

pub(crate) const WORK: Method = Method::named("test/Work").idempotent();
/// The same, of which nobody declared that it may be executed twice.
pub(crate) const ONCE: Method = Method::named("test/Work");

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const US: Duration = Duration::from_micros(1);

/// The shortest turn of a poll loop.
const TURN: Duration = Duration::from_nanos(200);

/// What a server does with the requests it starts from now on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mood {
    /// Works for as long as the request says.
    Works,
    /// Works so many times as long.
    Slow(u32),
    /// Works, and then answers this.
    Fails(Code),
    /// Works, and then panics.
    Panics,
    /// Never answers.
    Stalls,
    /// Works to the end even if cancelled... and its token shows it.
    Answers(Status),
}

/// What became of one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Running,
    Finished,
    /// Stopped before its end.
    Stopped,
}

/// One start of a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Execution {
    pub(crate) server: usize,
    pub(crate) call: u64,
    pub(crate) at: Time,
    pub(crate) fate: Fate,
}

pub(crate) type Log = Rc<RefCell<Vec<Execution>>>;

/// A logical call's end, and when.
pub(crate) type Ending = (Result<Answer, TiedError>, Time);

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) node: Option<Node>,
    pub(crate) ties: Option<TieServer>,
    pub(crate) mood: Rc<RefCell<Mood>>,
    /// Its process is stopped: it is not polled, and its packets wait.
    stopped: bool,
    starts: u64,
    serves: bool,
    /// Whether it has a [`TieServer`].
    takes_ties: bool,
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) clocks: Clocks,
    /// Where hosts' clocks are apart: by how much, at random.
    apart: Option<fastrand::Rng>,
    pub(crate) network: Network,
    pub(crate) hosts: Vec<Host>,
    pub(crate) log: Log,
    /// Which servers' ties each server takes.
    pub(crate) allowed: Vec<Address>,
    pub(crate) node_config: NodeConfig,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) ended: Rc<RefCell<HashMap<u64, Vec<Ending>>>>,
    next_call: Rc<Cell<u64>>,
    /// What [`World::call`] calls.
    pub(crate) method: Method,
    seed: u64,
}

pub(crate) fn link(delay: Duration) -> LinkConfig {
    LinkConfig::with_delay(delay)
}

pub(crate) fn address(name: &str) -> Address {
    Address::Local(LocalName::new(name).unwrap())
}

/// What a call asks for: a number that the answer depends on, and how long the work takes.
fn request(call: u64, work: Duration) -> Vec<u8> {
    let mut bytes = call.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(work.as_nanos() as u64).to_le_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<(u64, Duration)> {
    let (call, rest) = bytes.split_first_chunk::<8>()?;
    let work = rest.first_chunk::<8>()?;
    Some((u64::from_le_bytes(*call), Duration::from_nanos(u64::from_le_bytes(*work))))
}

/// The right answer.
pub(crate) fn answer(call: u64) -> [u8; 8] {
    (call ^ 0x5eed_0fa7_a57e_d0f1).rotate_left(17).to_le_bytes()
}

impl World {
    /// A client, host 0, and `servers` servers named `s1`, `s2` and so on, 10 us apart, under `policy`.
    pub(crate) fn new(seed: u64, servers: usize, policy: Policy) -> World {
        World::with(seed, servers, link(10 * US), NodeConfig::default(), Config::uniform(policy))
    }

    pub(crate) fn with(seed: u64, servers: usize, link: LinkConfig, node_config: NodeConfig, config: Config) -> World {
        World::build(seed, servers, link, node_config, config, None)
    }

    /// The same with hosts whose clocks are up to an hour apart.
    pub(crate) fn apart(seed: u64, servers: usize, link: LinkConfig, node_config: NodeConfig, config: Config) -> World {
        World::build(seed, servers, link, node_config, config, Some(fastrand::Rng::with_seed(seed)))
    }

    fn build(
        seed: u64,
        servers: usize,
        link: LinkConfig,
        node_config: NodeConfig,
        config: Config,
        apart: Option<fastrand::Rng>,
    ) -> World {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
        let mut world = World {
            network: Network::new(seed, clock.clone(), link),
            clocks: Clocks::new(&clock),
            apart,
            clock,
            hosts: Vec::new(),
            log: Log::default(),
            allowed: (1..=servers).map(|n| address(&format!("s{n}"))).collect(),
            node_config,
            replicas: None,
            ended: Rc::default(),
            next_call: Rc::default(),
            method: WORK,
            seed,
        };
        world.host("client", false);
        for n in 1..=servers {
            world.host(&format!("s{n}"), true);
        }
        let names: Vec<Address> = world.allowed.clone();
        let config = Config { seed: Some(seed), ..config };
        world.replicas = Some(Replicas::builder().replicas(names).config(config).build(&world.local(0)).unwrap());
        world
    }

    pub(crate) fn host(&mut self, name: &str, serves: bool) -> usize {
        self.clocks.add(self.apart.as_mut().map(|random| Duration::from_secs(random.u64(..3600))));
        self.hosts.push(Host {
            name: name.to_owned(),
            node: None,
            ties: None,
            mood: Rc::new(RefCell::new(Mood::Works)),
            stopped: false,
            starts: 0,
            serves,
            takes_ties: serves,
        });
        self.start(self.hosts.len() - 1);
        self.hosts.len() - 1
    }

    /// Starts a host, or starts it again.
    pub(crate) fn start(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.starts += 1;
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(at as u64 * 1_009 + host.starts);
        let endpoint = EndpointConfig { seed: Some(seed), ..self.node_config.endpoint.clone() };
        let mut node = Node::builder(format!("sim://{}", host.name))
            .port(Box::new(self.network.port(&host.name).unwrap()))
            .clock(self.clocks.of(at))
            .wait(Wait::Spin)
            .config(NodeConfig { concurrency: 1, endpoint, ..self.node_config.clone() })
            .build()
            .unwrap();
        if host.serves {
            let (local, log, mood) = (node.local(), self.log.clone(), host.mood.clone());
            node.serve(WORK, Service::future(move |request| work(local.clone(), log.clone(), mood.clone(), at, request))).unwrap();
            if host.takes_ties {
                let config = TieServerConfig { allowed: self.allowed.clone(), ..TieServerConfig::default() };
                host.ties = Some(TieServer::install(&mut node, config).unwrap());
            }
        }
        host.node = Some(node);
    }

    /// Starts a server again, as one that takes ties or does not.
    pub(crate) fn restart(&mut self, at: usize, takes_ties: bool) {
        self.kill(at);
        self.hosts[at].takes_ties = takes_ties;
        self.start(at);
    }

    /// Takes a host down without a word to anybody.
    pub(crate) fn kill(&mut self, at: usize) {
        let name = self.hosts[at].name.clone();
        // What it would say on its way down is lost.
        for other in 0..self.hosts.len() {
            self.network.partition(&name, &self.hosts[other].name).unwrap();
        }
        drop(self.hosts[at].node.take());
        self.hosts[at].ties = None;
        for other in 0..self.hosts.len() {
            self.network.heal(&name, &self.hosts[other].name).unwrap();
        }
    }

    /// Stops a host's process, or lets it go on.
    pub(crate) fn stop(&mut self, at: usize, stopped: bool) {
        let host = &mut self.hosts[at];
        host.stopped = stopped;
        if stopped { self.network.pause(&host.name) } else { self.network.resume(&host.name) }.unwrap();
    }

    pub(crate) fn partition(&self, a: usize, b: usize) {
        self.network.partition(&self.hosts[a].name, &self.hosts[b].name).unwrap();
        self.network.partition(&self.hosts[b].name, &self.hosts[a].name).unwrap();
    }

    pub(crate) fn heal(&self, a: usize, b: usize) {
        self.network.heal(&self.hosts[a].name, &self.hosts[b].name).unwrap();
        self.network.heal(&self.hosts[b].name, &self.hosts[a].name).unwrap();
    }

    pub(crate) fn local(&self, host: usize) -> Local {
        self.hosts[host].node.as_ref().expect("the host is up").local()
    }

    pub(crate) fn replicas(&self) -> &Replicas {
        self.replicas.as_ref().expect("made with the world")
    }

    pub(crate) fn mood(&self, host: usize, mood: Mood) {
        *self.hosts[host].mood.borrow_mut() = mood;
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Makes a logical call; its number finds its executions and its end.
    pub(crate) fn call(&self, work: Duration, options: TiedOptions) -> u64 {
        self.call_by(0, self.replicas(), work, options)
    }

    pub(crate) fn call_by(&self, host: usize, replicas: &Replicas, work: Duration, options: TiedOptions) -> u64 {
        let call = self.next_call.get();
        self.next_call.set(call + 1);
        let (future, ended, local) =
            (replicas.call(self.method, request(call, work), &options), self.ended.clone(), self.local(host));
        let clock = local.clone();
        let task = local.spawn(async move {
            let result = future.await;
            ended.borrow_mut().entry(call).or_default().push((result, clock.now()));
        });
        task.unwrap();
        call
    }

    /// Keeps the one place of a server busy, by a call of its own that is in nobody's way.
    pub(crate) fn occupy(&mut self, server: usize, work: Duration) -> u64 {
        let call = self.next_call.get();
        self.next_call.set(call + 1);
        let local = self.local(0);
        let peer = local.peer(address(&self.hosts[server].name)).unwrap();
        let made = local.call(peer, WORK, request(call, work), Default::default());
        local.spawn(made).unwrap();
        self.run_until(|world| world.executions(call).len() == 1);
        call
    }

    pub(crate) fn executions(&self, call: u64) -> Vec<Execution> {
        self.log.borrow().iter().filter(|execution| execution.call == call).copied().collect()
    }

    /// Who executed a call, in order, and what became of it.
    pub(crate) fn story(&self, call: u64) -> Vec<(usize, Fate)> {
        self.executions(call).iter().map(|execution| (execution.server, execution.fate)).collect()
    }

    /// Ends of a call so far: none or one, or something is wrong.
    pub(crate) fn is_over(&self, call: u64) -> bool {
        let ended = self.ended.borrow();
        let ends = ended.get(&call).map_or(0, Vec::len);
        assert!(ends <= 1, "call {call} ended {ends} times");
        ends == 1
    }

    /// Runs until a call ends, and takes its end.
    pub(crate) fn finish(&mut self, call: u64) -> Ending {
        self.run_until(|world| world.is_over(call));
        self.ended.borrow_mut().remove(&call).unwrap().pop().unwrap()
    }

    /// The same for a call that must be answered, rightly; gives the answering host.
    pub(crate) fn answered(&mut self, call: u64) -> usize {
        let (result, _) = self.finish(call);
        let result = result.unwrap_or_else(|error| panic!("call {call}: {error}"));
        assert_eq!(&*result.payload, &answer(call), "the answer to another call");
        result.replica + 1
    }

    pub(crate) fn failed(&mut self, call: u64) -> TiedError {
        self.finish(call).0.expect_err("no error")
    }

    pub(crate) fn ties(&self, server: usize) -> TieMetrics {
        self.hosts[server].ties.as_ref().expect("a server that is up").metrics()
    }

    pub(crate) fn metrics<R>(&self, host: usize, read: impl FnOnce(&Metrics) -> R) -> R {
        read(&self.hosts[host].node.as_ref().expect("the host is up").metrics())
    }

    /// One turn of every node, then time goes to the next thing that happens, but not past `end`; `false` if nothing ever will.
    pub(crate) fn step(&mut self, end: Time) -> bool {
        let mut done = 0;
        self.clocks.align();
        for host in self.hosts.iter_mut().filter(|host| !host.stopped) {
            if let Some(node) = &mut host.node {
                done += node.poll();
            }
        }
        let now = self.now();
        if done > 0 {
            self.clock.advance_to(now + TURN);
            return true;
        }
        let running = self.hosts.iter().enumerate().filter(|(_, host)| !host.stopped);
        let timeouts = running.filter_map(|(at, host)| Some(self.clocks.in_the_world(at, host.node.as_ref()?.next_timeout()?)));
        match timeouts.chain(self.network.next_arrival()).min() {
            Some(next) => {
                self.clock.advance_to(next.max(now + TURN).min(end));
                true
            }
            None => false,
        }
    }

    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut World) -> bool) {
        let mut steps = 0u32;
        while !done(self) {
            assert!(self.step(Time::NEVER), "nothing will happen any more (seed {})", self.seed);
            steps += 1;
            assert!(steps < 3_000_000, "no end after {steps} steps (seed {})", self.seed);
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now() + duration;
        while self.now() < end && self.step(end) {}
        self.clock.advance_to(end);
    }

    /// Everything borrowed has been given back, at clients and servers.
    pub(crate) fn assert_at_rest(&mut self) {
        for host in &self.hosts {
            let Some(node) = &host.node else { continue };
            let usage: Usage = node.usage();
            assert!(usage.is_at_rest(), "{} has {usage:?} in use (seed {})", host.name, self.seed);
            if let Some(ties) = &host.ties {
                assert_eq!(ties.metrics().copies, 0, "{} keeps a tie (seed {})", host.name, self.seed);
            }
        }
        let replicas = self.replicas();
        assert_eq!(replicas.outstanding(), 0);
        assert!((0..replicas.len()).all(|replica| replicas.outstanding_at(replica) == 0));
    }
}

/// Marks an execution as stopped unless it came to its end.
struct Running {
    log: Log,
    place: usize,
}

impl Running {
    fn finish(self) {
        self.log.borrow_mut()[self.place].fate = Fate::Finished;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let execution = &mut self.log.borrow_mut()[self.place];
        if execution.fate == Fate::Running {
            execution.fate = Fate::Stopped;
        }
    }
}

async fn work(
    local: Local,
    log: Log,
    mood: Rc<RefCell<Mood>>,
    server: usize,
    request: tautline_rpc::Request,
) -> tautline_rpc::HandlerResult {
    let (call, work) = parse(request.payload()).ok_or_else(|| Status::new(Code::InvalidArgument, "not a request"))?;
    let place = log.borrow().len();
    log.borrow_mut().push(Execution { server, call, at: local.now(), fate: Fate::Running });
    let running = Running { log, place };
    let mood = mood.borrow().clone();
    local.sleep(if let Mood::Slow(times) = mood { work * times } else { work }).await;
    let result = match mood {
        Mood::Works | Mood::Slow(_) => Ok(answer(call).to_vec().into()),
        Mood::Fails(code) => Err(Status::new(code, "as told")),
        Mood::Answers(status) => Err(status),
        Mood::Panics => panic!("as told"),
        Mood::Stalls => std::future::pending().await,
    };
    running.finish();
    result
}
