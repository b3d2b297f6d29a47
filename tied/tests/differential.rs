//! Tied calls come to the same on every port: simulated, in memory, and kernel UDP on loopback, with and without faults. What holds the
//! servers up is let go by the test, step by step, so that nothing but the order of the steps decides who starts.
//!
//! Two servers run one request at a time; time is virtual on all ports.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tautline_rpc::{CallOptions, EndpointConfig, Method, Node, NodeConfig, Peer, Request, Service, Wait};
use tautline_testing::fabric::{Fabric, Place};
use tautline_tied::{
    Budget, Choice, Config, Mode, Outcome, Policy, ReplicaCall, Replicas, Stagger, TieServer, TieServerConfig, TiedOptions,
};

const WORK: Method = Method::named("differential.Tied/Work");

/// A time that never comes.
const NEVER: Duration = Duration::from_secs(86_400);
/// Virtual time that passes at most in a turn in which nothing happens.
const GENTLY: Duration = Duration::from_micros(100);
/// The same where time is to pass.
const BOLDLY: Duration = Duration::from_millis(10);
/// Real time after which something that is awaited is not coming.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between the copies of a tie: long enough for the first to be queued before the second is sent.
const STAGGER: Duration = Duration::from_millis(50);

/// What handlers wait for, and what they did: `name at server: end`.
#[derive(Default)]
struct Desk {
    open: Vec<String>,
    running: HashMap<(usize, String), Waker>,
    story: Vec<String>,
}

struct World {
    place: Place,
    client: Node,
    servers: Vec<Node>,
    ties: Vec<TieServer>,
    peers: Vec<Peer>,
    replicas: Replicas,
    desk: Rc<RefCell<Desk>>,
}

impl World {
    fn new(fabric: Fabric, seed: u64, mode: Mode, stagger: Duration) -> World {
        let mut place = Place::new(fabric, seed);
        let desk = Rc::new(RefCell::new(Desk::default()));
        let mut servers: Vec<Node> = ["s0", "s1"].map(|name| open(&mut place, name)).into();
        let allowed: Vec<_> = servers.iter().map(Node::address).collect();
        let mut ties = Vec::new();
        for (server, node) in servers.iter_mut().enumerate() {
            let desk = desk.clone();
            node.serve(WORK, Service::future(move |request| work(desk.clone(), server, request))).unwrap();
            let config = TieServerConfig { allowed: allowed.clone(), tombstone_life: NEVER, ..TieServerConfig::default() };
            ties.push(TieServer::install(node, config).unwrap());
        }
        let client = open(&mut place, "client");
        let policy = Policy::Tied { mode, stagger: Stagger::Fixed(stagger), then_hedge: None };
        let config = Config { choice: Choice::Ordered, budget: Budget::UNLIMITED, seed: Some(seed), ..Config::uniform(policy) };
        let replicas = Replicas::builder().replicas(&allowed).config(config).build(&client.local()).unwrap();
        let peers = allowed.iter().map(|address| client.local().peer(address).unwrap()).collect();
        World { place, client, servers, ties, peers, replicas, desk }
    }

    /// Keeps a server busy until `name` is let go.
    fn occupy(&mut self, server: usize, name: &str) {
        let call = self.client.local().call(self.peers[server], WORK, name.to_owned(), CallOptions::new());
        let task = self.client.local().spawn(async move { assert_eq!(&*call.await.unwrap(), b"done") });
        drop(task);
        self.until_running(server, name);
    }

    /// Makes a tied call whose copies both wait behind what holds the servers.
    fn tie(&mut self, name: &str, options: &TiedOptions) -> Pin<Box<ReplicaCall>> {
        self.occupy(0, &format!("{name}-0"));
        self.occupy(1, &format!("{name}-1"));
        let mut call = Box::pin(self.replicas.call(WORK, name.to_owned(), options));
        self.until("both copies wait", |world| {
            assert!(poll(&mut call).is_pending());
            world.waiting() == [2, 2]
        });
        call
    }

    fn let_go(&mut self, name: &str) {
        let mut desk = self.desk.borrow_mut();
        desk.open.push(name.to_owned());
        desk.running.iter().filter(|((_, running), _)| running == name).for_each(|(_, waker)| waker.wake_by_ref());
    }

    /// What a call came to.
    fn end(&mut self, mut call: Pin<Box<ReplicaCall>>) -> String {
        let mut end = None;
        self.until_by(BOLDLY, "the tied call ends", |_| match poll(&mut call) {
            Poll::Ready(Ok(answer)) => {
                assert_eq!(&*answer.payload, b"done");
                end = Some(format!("replica {}, {} copies", answer.replica, answer.copies));
                true
            }
            Poll::Ready(Err(error)) => {
                end = Some(format!("{:?}", error).split([' ', '(']).next().unwrap().to_owned());
                true
            }
            Poll::Pending => false,
        });
        end.unwrap()
    }

    /// Requests that wait or run, at each server.
    fn waiting(&self) -> [usize; 2] {
        [0, 1].map(|server: usize| self.servers[server].usage().entries)
    }

    fn until_running(&mut self, server: usize, name: &str) {
        self.until(name, |world| world.desk.borrow().running.contains_key(&(server, name.to_owned())));
    }

    fn until_told(&mut self, server: usize, outcome: Outcome, count: u64) {
        self.until(outcome.name(), |world| world.ties[server].metrics().counters.outcomes.of(outcome) == count);
    }

    fn until(&mut self, what: &str, done: impl FnMut(&mut World) -> bool) {
        self.until_by(GENTLY, what, done);
    }

    fn until_by(&mut self, stride: Duration, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let limit = Instant::now() + PATIENCE;
        while !done(self) {
            let story = self.desk.borrow().story.clone();
            assert!(Instant::now() < limit, "{}: {what}: {story:?}, {:?}", self.place.fabric.name(), self.waiting());
            let busy = self.client.poll() + self.servers.iter_mut().map(Node::poll).sum::<usize>() > 0;
            if !busy {
                let due = self.servers.iter().chain([&self.client]).filter_map(Node::next_timeout).min();
                self.place.pass(due, stride);
            }
        }
    }

    /// Lets go of everything, and says what happened.
    fn finish(mut self) -> Vec<String> {
        self.until("all is over", |world| {
            let nodes = world.servers.iter().chain([&world.client]);
            nodes.map(Node::usage).all(|usage| usage.is_at_rest()) && world.ties.iter().all(|ties| ties.metrics().copies == 0)
        });
        let mut story = std::mem::take(&mut self.desk.borrow_mut().story);
        story.sort();
        story
    }
}

fn open(place: &mut Place, name: &str) -> Node {
    let endpoint = EndpointConfig { peer_timeout: NEVER, connect_timeout: NEVER, seed: Some(1), ..EndpointConfig::default() };
    let config = NodeConfig { concurrency: 1, endpoint, ..NodeConfig::default() };
    let port = place.open(name);
    Node::builder(name).port(port).clock(place.clock.clone()).wait(Wait::Spin).config(config).build().unwrap()
}

/// Runs until the test lets go of its name.
async fn work(desk: Rc<RefCell<Desk>>, server: usize, request: Request) -> tautline_rpc::HandlerResult {
    let name = String::from_utf8_lossy(request.payload()).into_owned();
    let mut end = End { desk: desk.clone(), server, name: name.clone(), done: false };
    poll_fn(|cx| {
        let mut desk = desk.borrow_mut();
        desk.running.insert((server, name.clone()), cx.waker().clone());
        if desk.open.contains(&name) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    end.done = true;
    Ok("done".into())
}

struct End {
    desk: Rc<RefCell<Desk>>,
    server: usize,
    name: String,
    done: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut desk = self.desk.borrow_mut();
        desk.running.remove(&(self.server, self.name.clone()));
        // Those that only hold a server up are not the story.
        if !self.name.contains('-') {
            let end = if self.done { "done" } else { "stopped" };
            desk.story.push(format!("{} at {}: {end}", self.name, self.server));
        }
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a scene on every port; `expected` is what it must come to.
fn everywhere(mode: Mode, stagger: Duration, scene: impl Fn(&mut World) -> Vec<String>, expected: &[&str]) {
    for fabric in Fabric::GOOD.into_iter().chain(Fabric::BAD) {
        for seed in 1..=4 {
            let mut world = World::new(fabric, seed, mode, stagger);
            let mut all = scene(&mut world);
            all.extend(world.finish());
            assert_eq!(all, expected, "seed {seed} on {}", fabric.name());
        }
    }
}

#[test]
fn who_starts_first_has_the_other_copy_dropped() {
    let scene = |world: &mut World| {
        let mut ends = Vec::new();
        for (round, winner) in [0usize, 1, 1, 0].into_iter().enumerate() {
            let name = format!("t{round}");
            let call = world.tie(&name, &TiedOptions::new());
            let before = world.ties[winner].metrics().counters.outcomes.of(Outcome::Dropped);
            world.let_go(&format!("{name}-{winner}"));
            world.until_running(winner, &name);
            world.until_told(winner, Outcome::Dropped, before + 1);
            world.let_go(&name);
            ends.push(world.end(call));
            world.let_go(&format!("{name}-{}", 1 - winner));
            world.until("the servers are idle", |world| world.waiting() == [0, 0]);
        }
        ends
    };
    let ends = ["replica 0, 2 copies", "replica 1, 2 copies", "replica 1, 2 copies", "replica 0, 2 copies"];
    let story = ["t0 at 0: done", "t1 at 1: done", "t2 at 1: done", "t3 at 0: done"];
    everywhere(Mode::Cancel, STAGGER, scene, &[ends, story].concat());
}

#[test]
fn a_copy_that_started_keeps_the_other_from_being_sent() {
    let stagger = Duration::from_secs(2);
    let scene = |world: &mut World| {
        let mut call = Box::pin(world.replicas.call(WORK, "t", &TiedOptions::new()));
        world.until("it runs", |world| {
            assert!(poll(&mut call).is_pending());
            world.desk.borrow().running.contains_key(&(0, "t".to_owned()))
        });
        // The notice is heard long before the stagger is over, after which the second copy would have been sent.
        let late = world.place.clock.now() + 2 * stagger;
        world.until_by(BOLDLY, "the stagger is over", |world| {
            assert!(poll(&mut call).is_pending());
            world.place.clock.now() >= late
        });
        world.let_go("t");
        let end = world.end(call);
        vec![end, format!("{} at the other", world.ties[1].metrics().counters.admitted)]
    };
    everywhere(Mode::Cancel, stagger, scene, &["replica 0, 1 copies", "0 at the other", "t at 0: done"]);
}

#[test]
fn a_demoted_copy_waits_behind_and_goes_when_the_call_is_answered() {
    let scene = |world: &mut World| {
        let call = world.tie("t", &TiedOptions::new());
        world.let_go("t-0");
        world.until_running(0, "t");
        world.until_told(0, Outcome::Demoted, 1);
        world.let_go("t");
        let end = world.end(call);
        world.until("the caller has cancelled the other copy", |world| world.waiting() == [0, 1]);
        world.let_go("t-1");
        vec![end]
    };
    everywhere(Mode::Demote, STAGGER, scene, &["replica 0, 2 copies", "t at 0: done"]);
}

#[test]
fn a_tied_call_that_is_dropped_or_late_runs_nowhere() {
    let scene = |world: &mut World| {
        let call = world.tie("dropped", &TiedOptions::new());
        drop(call);
        world.until("both copies are gone", |world| world.waiting() == [1, 1]);
        ["dropped-0", "dropped-1"].into_iter().for_each(|name| world.let_go(name));
        world.until("the servers are idle", |world| world.waiting() == [0, 0]);
        let call = world.tie("late", &TiedOptions::new().deadline(Duration::from_secs(1)));
        let end = world.end(call);
        world.until("both copies are gone", |world| world.waiting() == [1, 1]);
        ["late-0", "late-1"].into_iter().for_each(|name| world.let_go(name));
        vec![end]
    };
    everywhere(Mode::Cancel, STAGGER, scene, &["Call"]);
}
