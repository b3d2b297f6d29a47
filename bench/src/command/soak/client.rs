//! A client: its sets of replicas, and the tasks on its node that make calls of every kind, one after the other each, until they are told
//! to pause.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use tautline_bench::error::BenchError;
use tautline_rpc::{Address, CallError, CallId, CallOptions, Class, Local, Method, Peer};
use tautline_tied::{Delay, Mode, Policy, Replicas, Stagger, TiedError, TiedOptions};

use super::pattern::{Ask, LARGEST, Manner};
use super::server::{FUTURE, INLINE, WORKER};
use super::tally::{OpenCall, Tally};

/// Calls of the task that submits by tags, at once.
const WINDOW: usize = 16;

/// What the tasks of one client share.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) local: Local,
    pub(super) sets: Rc<[Replicas]>,
    peers: Rc<[Peer]>,
    nobody: Peer,
    pub(super) shared: Caller,
}

/// What tasks, and threads that call from outside, share.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) tally: Tally,
    pub(super) running: Arc<AtomicBool>,
    /// The next call's number; the upper half tells this process from others.
    numbers: Arc<AtomicU64>,
}

impl Caller {
    pub(super) fn new(tally: &Tally) -> Caller {
        let base = u64::from(std::process::id()) << 40;
        Caller { tally: tally.clone(), running: Arc::default(), numbers: Arc::new(AtomicU64::new(base + 1)) }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// A request of up to `most` bytes, with a reply of up to as many: the question, and the length of its body.
    pub(super) fn ask(&self, random: &mut Rng, most: usize, pause: u32) -> (Ask, usize) {
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let ask = Ask { id, seed: random.u64(..), reply: random.u32(0..=most as u32), pause, manner: Manner::Answer };
        (ask, random.usize(0..=most))
    }
}

/// Classes, most calls in the one in the middle.
pub(super) fn class(random: &mut Rng) -> Class {
    [Class::Interactive, Class::Normal, Class::Normal, Class::Bulk][random.usize(..4)]
}

pub(super) fn options(random: &mut Rng) -> CallOptions {
    CallOptions::new().class(class(random)).deadline(Duration::from_secs(2))
}

pub(super) fn method(random: &mut Rng) -> Method {
    [INLINE, INLINE, WORKER, FUTURE][random.usize(..4)]
}

impl Client {
    pub(super) fn new(local: Local, replicas: &[Address], nobody: Address, seed: u64, tally: &Tally) -> Result<Client, BenchError> {
        let peer = |address: &Address| local.peer(address).map_err(BenchError::product("looking a server up"));
        let tied = |mode| Policy::Tied { mode, stagger: Stagger::Auto, then_hedge: Some(Delay::Fixed(Duration::from_millis(20))) };
        let policies = [("tied", tied(Mode::Cancel)), ("demoted", tied(Mode::Demote)), ("hedged", Policy::hedged())];
        let sets = policies.into_iter().zip(seed..).map(|((name, policy), seed)| {
            let config = tautline_tied::Config { seed: Some(seed), ..tautline_tied::Config::uniform(policy) };
            let builder = Replicas::builder().replicas(replicas).name(name).config(config);
            builder.build(&local).map_err(BenchError::product("making a set of replicas"))
        });
        let sets = sets.collect::<Result<Vec<_>, _>>()?.into();
        let peers = replicas.iter().map(peer).collect::<Result<Vec<_>, _>>()?.into();
        let nobody = peer(&nobody)?;
        Ok(Client { local, sets, peers, nobody, shared: Caller::new(tally) })
    }

    /// Starts the tasks.
    pub(super) fn start(&self, random: &mut Rng) -> Result<(), BenchError> {
        let spawn = |task: Pin<Box<dyn Future<Output = ()>>>| {
            self.local.spawn(task).map(drop).map_err(BenchError::product("starting a task"))
        };
        for _ in 0..4 {
            spawn(Box::pin(self.clone().small(random.fork())))?;
            spawn(Box::pin(self.clone().dropped(random.fork())))?;
        }
        for set in 0..self.sets.len() {
            spawn(Box::pin(self.clone().replicated(set, random.fork())))?;
            spawn(Box::pin(self.clone().replicated(set, random.fork())))?;
        }
        for _ in 0..2 {
            spawn(Box::pin(self.clone().large(random.fork())))?;
            spawn(Box::pin(self.clone().late(random.fork())))?;
        }
        spawn(Box::pin(self.clone().submitted(random.fork())))?;
        spawn(Box::pin(self.clone().failing(random.fork())))?;
        spawn(Box::pin(self.clone().unanswered(random.fork())))
    }

    fn peer(&self, random: &mut Rng) -> Peer {
        self.peers[random.usize(..self.peers.len())]
    }

    async fn pause(&self, random: &mut Rng, most: u64) {
        self.local.sleep(Duration::from_micros(random.u64(..most))).await;
    }

    /// Small calls to every kind of handler.
    async fn small(self, mut random: Rng) {
        while self.shared.is_running() {
            let pause = random.u32(..1_000);
            let (mut ask, len) = self.shared.ask(&mut random, 1_000, pause);
            let method = method(&mut random);
            if method == FUTURE && random.u8(..4) == 0 {
                ask.manner = Manner::Nest;
            }
            let call = self.shared.tally.begin("small");
            let result = self.local.call(self.peer(&mut random), method, ask.request(len), options(&mut random)).await;
            call.end_with(&ask, result);
            self.pause(&mut random, 2_000).await;
        }
    }

    /// Requests and replies of up to some megabytes.
    async fn large(self, mut random: Rng) {
        while self.shared.is_running() {
            let most = LARGEST >> random.u32(..8);
            let (ask, len) = self.shared.ask(&mut random, most, 0);
            let options = CallOptions::new().class(class(&mut random)).deadline(Duration::from_secs(10));
            let call = self.shared.tally.begin("large");
            let result = self.local.call(self.peer(&mut random), method(&mut random), ask.request(len), options).await;
            call.end_with(&ask, result);
            self.pause(&mut random, 20_000).await;
        }
    }

    /// Calls that the caller gives up: at once, or in the middle of whatever goes on then. Some are large.
    async fn dropped(self, mut random: Rng) {
        while self.shared.is_running() {
            let most = if random.u8(..8) == 0 { LARGEST / 4 } else { 1_000 };
            let pause = random.u32(..4_000);
            let (ask, len) = self.shared.ask(&mut random, most, pause);
            let open = self.shared.tally.begin("dropped");
            let call = self.local.call(self.peer(&mut random), method(&mut random), ask.request(len), options(&mut random));
            let patience = random.u64(..4_000);
            match self.within(patience, call).await {
                Some(result) => open.end_with(&ask, result),
                None => open.end("given up"),
            }
            self.pause(&mut random, 2_000).await;
        }
    }

    /// Tied and hedged calls, some of them given up.
    async fn replicated(self, set: usize, mut random: Rng) {
        let kind = ["tied", "demoted", "hedged"][set];
        while self.shared.is_running() {
            let most = if random.u8(..16) == 0 { LARGEST / 8 } else { 1_000 };
            let pause = random.u32(..3_000);
            let (mut ask, len) = self.shared.ask(&mut random, most, pause);
            // It may run once a copy.
            ask.id = 0;
            let options = TiedOptions::new().class(class(&mut random)).deadline(Duration::from_secs(2));
            let open = self.shared.tally.begin(kind);
            let call = self.sets[set].call(method(&mut random), ask.request(len), &options);
            let patience = if random.u8(..8) == 0 { random.u64(..3_000) } else { 60_000_000 };
            match self.within(patience, call).await {
                Some(result) => end_replicated(open, &ask, result),
                None => open.end("given up"),
            }
            self.pause(&mut random, 2_000).await;
        }
    }

    /// Calls whose handlers take longer than their deadlines.
    async fn late(self, mut random: Rng) {
        while self.shared.is_running() {
            let (mut ask, len) = self.shared.ask(&mut random, 1_000, 30_000);
            ask.reply += 1;
            let options = CallOptions::new().deadline(Duration::from_micros(random.u64(..10_000)));
            let open = self.shared.tally.begin("late");
            let method = if random.bool() { FUTURE } else { WORKER };
            match self.local.call(self.peer(&mut random), method, ask.request(len), options).await {
                Ok(_) => {
                    self.shared.tally.fault("a call was answered after its deadline".to_owned());
                    open.end("replied");
                }
                Err(error) => open.end_failed(&error),
            }
            self.pause(&mut random, 5_000).await;
        }
    }

    /// Calls by tags, some of them cancelled by their numbers.
    async fn submitted(self, mut random: Rng) {
        let mut open: HashMap<u64, (CallId, Ask, OpenCall)> = HashMap::new();
        let mut tag = 0;
        while self.shared.is_running() || !open.is_empty() {
            while self.shared.is_running() && open.len() < WINDOW {
                let pause = random.u32(..1_000);
                let (ask, len) = self.shared.ask(&mut random, 1_000, pause);
                let call = self.shared.tally.begin("submitted");
                let (peer, method) = (self.peer(&mut random), method(&mut random));
                tag += 1;
                match self.local.submit(peer, method, ask.request(len), &options(&mut random), tag) {
                    Ok(id) => drop(open.insert(tag, (id, ask, call))),
                    Err(error) => {
                        call.end_failed(&error);
                        break;
                    }
                }
            }
            for (id, ..) in open.values() {
                if random.u8(..32) == 0 {
                    self.local.cancel(*id);
                }
            }
            while let Some(completion) = self.local.next_completion() {
                match open.remove(&completion.tag) {
                    Some((_, ask, call)) => call.end_with(&ask, completion.result),
                    None => self.shared.tally.fault("a call that had ended ended again".to_owned()),
                }
            }
            self.pause(&mut random, 2_000).await;
        }
    }

    /// Calls whose handlers fail.
    async fn failing(self, mut random: Rng) {
        while self.shared.is_running() {
            let (mut ask, len) = self.shared.ask(&mut random, 1_000, 0);
            ask.manner = Manner::Fail;
            let open = self.shared.tally.begin("failing");
            match self.local.call(self.peer(&mut random), method(&mut random), ask.request(len), options(&mut random)).await {
                Ok(_) => {
                    self.shared.tally.fault("a handler that failed was said to have answered".to_owned());
                    open.end("replied");
                }
                Err(error) => open.end_failed(&error),
            }
            self.pause(&mut random, 5_000).await;
        }
    }

    /// Calls to an address where nobody is.
    async fn unanswered(self, mut random: Rng) {
        while self.shared.is_running() {
            let (ask, len) = self.shared.ask(&mut random, 1_000, 0);
            let options = CallOptions::new().deadline(Duration::from_millis(random.u64(50..500)));
            let open = self.shared.tally.begin("unanswered");
            open.end_with(&ask, self.local.call(self.nobody, INLINE, ask.request(len), options).await);
            self.pause(&mut random, 100_000).await;
        }
    }

    /// The output of a future, if it comes within so many microseconds; else the future is dropped.
    async fn within<F: Future>(&self, micros: u64, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.local.sleep(Duration::from_micros(micros)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}

/// Ends a logical call.
pub(super) fn end_replicated(open: OpenCall, ask: &Ask, result: Result<tautline_tied::Answer, TiedError>) {
    match result {
        Ok(answer) => open.end_with(ask, Ok(answer.payload)),
        Err(TiedError::Call { error, .. } | TiedError::Codec(error) | TiedError::Node(error)) => open.end_failed(&error),
        Err(_) => open.end_failed(&CallError::Protocol),
    }
}
