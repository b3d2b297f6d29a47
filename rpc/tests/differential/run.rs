//! Runs a script between two nodes and notes how each call ended and what handlers saw.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tautline_rpc::*;
use tautline_testing::fabric::{Fabric, Place};

use crate::script::{CONCURRENCY, GATED, How, MAX_MESSAGE, Operation, Scene, Script, answered, bytes, seen};

const INLINE: Method = Method::named("differential/Inline");
const QUEUED: Method = Method::named("differential/Queued");
const FUTURE: Method = Method::named("differential/Future");
const GATE: Method = Method::named("differential/Gate");
const UNKNOWN: Method = Method::named("differential/Unknown");

/// A deadline that passes when the script lets it.
const DEADLINE: Duration = Duration::from_secs(60);
/// A time that never comes.
const NEVER: Duration = Duration::from_secs(86_400);
/// Virtual time that passes at most while something is awaited, for each turn in which nothing happens; and while deadlines are to pass.
const GENTLY: Duration = Duration::from_micros(100);
const BOLDLY: Duration = Duration::from_secs(1);
/// Real time after which something that is awaited is not coming.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of a script.
#[derive(Debug, Default)]
pub struct Record {
    /// How each call ended, in the order of its ends: one, if all is well.
    pub ends: BTreeMap<usize, Vec<String>>,
    /// What handlers saw, sorted.
    pub executed: Vec<String>,
}

/// What the server's handlers share with the script.
#[derive(Default)]
struct Gates {
    open: bool,
    wakers: Vec<Waker>,
    started: HashSet<usize>,
    executed: Executed,
}

/// What handlers saw. (Those of workers could be on other threads.)
type Executed = Arc<Mutex<Vec<String>>>;

fn note(executed: &Executed, line: String) {
    executed.lock().unwrap().push(line);
}

type Shared = Rc<RefCell<Gates>>;

struct World {
    place: Place,
    client: Node,
    /// `None` while it restarts.
    server: Option<Node>,
    peer: Peer,
    gates: Shared,
    record: Record,
}

pub fn run(script: &Script, fabric: Fabric) -> Record {
    let mut place = Place::new(fabric, script.seed);
    let gates = Shared::default();
    let server = serve(&mut place, &gates);
    let client = open(&mut place, "client");
    let peer = client.local().peer(server.address()).unwrap();
    let mut world = World { place, client, server: Some(server), peer, gates, record: Record::default() };
    for scene in &script.scenes {
        world.play(scene);
    }
    world.settle();
    for node in world.nodes() {
        assert!(node.usage().is_at_rest(), "{}: {:?}", fabric.name(), node.usage());
    }
    let mut record = world.record;
    record.executed = std::mem::take(&mut *world.gates.borrow().executed.lock().unwrap());
    record.executed.sort();
    record
}

fn config() -> NodeConfig {
    NodeConfig {
        concurrency: CONCURRENCY,
        // Requests wait for as long as the script says, which is no reason to take credits away.
        credit: CreditConfig { target: NEVER, ..CreditConfig::default() },
        endpoint: EndpointConfig {
            max_message: MAX_MESSAGE,
            peer_timeout: NEVER,
            connect_timeout: NEVER,
            seed: Some(1),
            ..EndpointConfig::default()
        },
        ..NodeConfig::default()
    }
}

fn open(place: &mut Place, name: &str) -> Node {
    let port = place.open(name);
    let builder = Node::builder(name).port(port).clock(place.clock.clone()).wait(Wait::Spin);
    builder.config(config()).build().unwrap()
}

fn serve(place: &mut Place, gates: &Shared) -> Node {
    let mut node = open(place, "server");
    let [inline, queued, future] = std::array::from_fn(|_| gates.borrow().executed.clone());
    node.serve(INLINE, Service::inline(move |request| answer(&inline, request))).unwrap();
    node.serve(QUEUED, Service::workers(move |request| answer(&queued, &request))).unwrap();
    node.serve(FUTURE, Service::future(move |request| std::future::ready(answer(&future, &request)))).unwrap();
    let shared = gates.clone();
    node.serve(GATE, Service::future(move |request| gated(shared.clone(), request)).queue_limit(GATED)).unwrap();
    node
}

/// A request: its number, the length of its reply and what the handler does, one byte; then its bytes.
struct Ask {
    number: usize,
    reply: usize,
    act: u8,
    whole: bool,
}

const HEAD: usize = 9;
const PANIC: u8 = 255;

impl Ask {
    fn reply(&self) -> Vec<u8> {
        bytes(self.number, 1, self.reply)
    }
}

fn request(operation: &Operation) -> Vec<u8> {
    let act = match operation.how {
        How::Fail(code) => code as u8,
        How::Panic => PANIC,
        _ => 0,
    };
    let mut request = (operation.number as u32).to_le_bytes().to_vec();
    request.extend((operation.reply as u32).to_le_bytes());
    request.push(act);
    request.extend(bytes(operation.number, 2, operation.request - HEAD));
    request
}

fn read(payload: &[u8]) -> Ask {
    let four = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap()) as usize;
    let number = four(0);
    Ask { number, reply: four(4), act: payload[8], whole: payload[HEAD..] == bytes(number, 2, payload.len() - HEAD) }
}

fn answer(executed: &Executed, request: &Request) -> HandlerResult {
    let ask = read(request.payload());
    let end = if ask.whole { "" } else { "damaged" };
    note(executed, seen(ask.number, request.class(), request.payload().len(), end));
    match ask.act {
        0 => Ok(ask.reply().into()),
        PANIC => panic!("as the script says"),
        code => Err(Status::new(Code::ALL[usize::from(code)], "as the script says")),
    }
}

/// Runs until the gates are opened.
async fn gated(shared: Shared, request: Request) -> HandlerResult {
    let ask = read(request.payload());
    shared.borrow_mut().started.insert(ask.number);
    let mut end = End { shared: shared.clone(), request, number: ask.number, done: false };
    poll_fn(|cx| {
        let mut gates = shared.borrow_mut();
        if gates.open {
            return Poll::Ready(());
        }
        gates.wakers.push(cx.waker().clone());
        Poll::Pending
    })
    .await;
    end.done = true;
    Ok(ask.reply().into())
}

/// Notes how a gated handler ended.
struct End {
    shared: Shared,
    request: Request,
    number: usize,
    done: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        let end = match self.request.cancellation().reason() {
            _ if self.done => "done",
            // The server's own deadline, or the caller's cancel when its deadline passed: whichever was quicker.
            Some(CancelReason::Deadline | CancelReason::Cancelled) if self.request.deadline().is_some() => "deadline",
            Some(CancelReason::Cancelled) => "cancelled",
            Some(CancelReason::Stopped) => "stopped",
            other => panic!("a gated handler was dropped: {other:?}"),
        };
        let saw = seen(self.number, self.request.class(), self.request.payload().len(), end);
        note(&self.shared.borrow().executed, saw);
    }
}

fn end_of(result: Result<Payload, CallError>) -> String {
    match result {
        Ok(reply) => answered(&reply),
        Err(CallError::Status(status)) => format!("status {:?}", status.code),
        Err(CallError::Cancelled { fate }) => format!("cancelled, {fate:?}"),
        // What is known of it depends on whose timer went off first.
        Err(CallError::DeadlineExceeded { .. }) => "deadline".to_owned(),
        Err(CallError::Overloaded { .. }) => "overloaded".to_owned(),
        Err(CallError::UnknownMethod(_)) => "unknown method".to_owned(),
        Err(CallError::TooLarge { .. }) => "too large".to_owned(),
        Err(other) => other.to_string(),
    }
}

impl World {
    fn server(&self) -> &Node {
        self.server.as_ref().expect("only a restart takes it away, and gives it back")
    }

    fn nodes(&self) -> [&Node; 2] {
        [&self.client, self.server()]
    }

    fn play(&mut self, scene: &Scene) {
        match scene {
            Scene::Batch(calls) => drop(self.submit(calls, None)),
            Scene::CancelRunning { calls, by_drop: false } => {
                let ids = self.submit(calls, None);
                self.until_started(calls);
                self.cancel(&ids);
            }
            Scene::CancelRunning { calls, by_drop: true } => {
                let local = self.client.local();
                let options = |call: &Operation| CallOptions::new().class(call.class);
                let futures: Vec<Call> =
                    calls.iter().map(|call| local.call(self.peer, GATE, request(call), options(call))).collect();
                self.until_started(calls);
                drop(futures);
                calls.iter().for_each(|call| self.ended(call.number, "dropped".to_owned()));
            }
            Scene::CancelQueued { running, queued } => {
                self.submit(running, None);
                self.until_started(running);
                let ids = self.submit(queued, None);
                self.until_entries(running.len() + queued.len());
                self.cancel(&ids);
                self.until_entries(running.len());
                self.open_gates();
            }
            Scene::LateRunning(calls) => {
                self.submit(calls, Some(DEADLINE));
                self.until_started(calls);
                self.until_ended(calls, BOLDLY);
            }
            Scene::LateQueued { running, queued } => {
                self.submit(running, None);
                self.until_started(running);
                self.submit(queued, Some(DEADLINE));
                self.until_entries(running.len() + queued.len());
                self.until_ended(queued, BOLDLY);
                self.until_entries(running.len());
                self.open_gates();
            }
            Scene::Overload { taken, refused } => {
                self.submit(taken, None);
                self.until_entries(taken.len());
                self.submit(refused, None);
                self.until_ended(refused, GENTLY);
                self.open_gates();
            }
            Scene::Notified(call) => self.play_notified(call),
            Scene::Restart(calls) => {
                self.submit(calls, None);
                self.until_started(calls);
                let gates = self.gates.clone();
                // The old one must be gone before the new one has its address.
                self.server = None;
                self.server = Some(serve(&mut self.place, &gates));
                self.until_ended(calls, BOLDLY);
                // The server's goodbye comes after its answers. What is sent before it was heard goes to the server that is no more.
                self.until(GENTLY, |world| world.client.usage().sessions == 0);
            }
        }
        let operations: Vec<Operation> = scene.operations().into_iter().cloned().collect();
        self.until_ended(&operations, GENTLY);
        self.until_entries(0);
        self.gates.borrow_mut().open = false;
    }

    fn play_notified(&mut self, operation: &Operation) {
        let options = CallOptions::new().class(operation.class).notify_start();
        let mut call = self.client.local().call(self.peer, GATE, request(operation), options);
        self.until(GENTLY, |_| poll(&mut call.started()).is_ready());
        assert!(poll(&mut call).is_pending(), "it ended before its gate was opened");
        self.open_gates();
        let mut result = None;
        self.until(GENTLY, |_| match poll(&mut call) {
            Poll::Ready(ended) => {
                result = Some(ended);
                true
            }
            Poll::Pending => false,
        });
        self.ended(operation.number, format!("started, {}", end_of(result.unwrap())));
    }

    /// Begins calls; those that fail at once end at once.
    fn submit(&mut self, calls: &[Operation], deadline: Option<Duration>) -> Vec<CallId> {
        let local = self.client.local();
        let mut ids = Vec::new();
        for call in calls {
            let method = match call.how {
                How::Queued => QUEUED,
                How::Future => FUTURE,
                How::Gated => GATE,
                How::Unknown => UNKNOWN,
                How::Inline | How::Fail(_) | How::Panic | How::TooLarge => INLINE,
            };
            let options = CallOptions { deadline, ..CallOptions::new().class(call.class) };
            match local.submit(self.peer, method, request(call), &options, call.number as u64) {
                Ok(id) => ids.push(id),
                Err(error) => self.ended(call.number, end_of(Err(error))),
            }
        }
        ids
    }

    fn cancel(&mut self, ids: &[CallId]) {
        let local = self.client.local();
        assert!(ids.iter().all(|id| local.cancel(*id)), "a call had ended before it was cancelled");
    }

    fn ended(&mut self, number: usize, end: String) {
        self.record.ends.entry(number).or_default().push(end);
    }

    fn open_gates(&mut self) {
        let wakers = {
            let mut gates = self.gates.borrow_mut();
            gates.open = true;
            std::mem::take(&mut gates.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn until_started(&mut self, calls: &[Operation]) {
        self.until(GENTLY, |world| {
            let gates = world.gates.borrow();
            calls.iter().all(|call| gates.started.contains(&call.number))
        });
    }

    /// Until so many requests wait or run at the server.
    fn until_entries(&mut self, count: usize) {
        self.until(GENTLY, |world| world.server().usage().entries == count);
    }

    fn until_ended(&mut self, calls: &[Operation], stride: Duration) {
        self.until(stride, |world| calls.iter().all(|call| world.record.ends.contains_key(&call.number)));
    }

    /// Until nothing is on its way or held any more.
    fn settle(&mut self) {
        self.until(GENTLY, |world| {
            world.nodes().iter().all(|node| {
                let below = node.endpoint_usage();
                node.usage().is_at_rest() && (below.sending, below.receiving) == (0, 0)
            })
        });
    }

    fn until(&mut self, stride: Duration, mut done: impl FnMut(&mut World) -> bool) {
        let limit = Instant::now() + PATIENCE;
        while !done(self) {
            if Instant::now() > limit {
                let usages = self.nodes().map(|node| (node.usage(), node.endpoint_usage()));
                let last: Vec<_> = self.record.ends.iter().rev().take(8).collect();
                panic!("{}: it does not come to pass: {usages:?}; the last ends: {last:?}", self.place.fabric.name());
            }
            self.turn(stride);
        }
    }

    fn turn(&mut self, stride: Duration) {
        let server = self.server.as_mut().map_or(0, Node::poll);
        let busy = self.client.poll() + server > 0;
        while let Some(completion) = self.client.next_completion() {
            self.ended(completion.tag as usize, end_of(completion.result));
        }
        if !busy {
            let due = self.nodes().into_iter().filter_map(Node::next_timeout).min();
            self.place.pass(due, stride);
        }
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}
