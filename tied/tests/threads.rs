//! Ties between nodes on threads of their own, with worker threads, on real ports: where a copy's start, its cancel, its deadline and
//! its end race for real. What must hold whatever the timing: each call is answered rightly, and at the end nothing is in use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tautline_rpc::{Address, CallError, Class, Fate, Handle, Method, Node, Service, Usage, Wait};
use tautline_tied::{
    Budget, Config, Delay, Mode, Outcome, Policy, Replicas, ReplicasHandle, Settings, Stagger, TieMetrics, TieServer,
    TieServerConfig, TiedError, TiedOptions,
};

const WORK: Method = Method::named("test/Work");
const SERVERS: usize = 3;

struct Server {
    handle: Handle,
    thread: std::thread::JoinHandle<(TieMetrics, Usage)>,
}

/// Executions by call number.
type Executions = Arc<Mutex<HashMap<u64, u32>>>;

/// Servers with one worker each, that know of each other.
fn servers(url: impl Fn(usize) -> String, executions: &Executions) -> Vec<Server> {
    let (tell_handle, handles) = mpsc::channel();
    let mut tell_allowed = Vec::new();
    let mut threads = Vec::new();
    for n in 0..SERVERS {
        let (tell, allowed) = mpsc::channel::<Vec<Address>>();
        let (url, tell_handle, executions) = (url(n), tell_handle.clone(), executions.clone());
        tell_allowed.push(tell);
        threads.push(std::thread::spawn(move || {
            let mut node = Node::builder(url).wait(Wait::Park).workers(1).build().unwrap();
            let service = Service::workers(move |request| {
                let call = u64::from_le_bytes(request.payload()[..8].try_into().unwrap());
                *executions.lock().unwrap().entry(call).or_default() += 1;
                // Some are longer than others.
                std::thread::sleep(Duration::from_micros(call % 7 * 30));
                Ok(call.reverse_bits().to_le_bytes().to_vec().into())
            });
            node.serve(WORK, service).unwrap();
            tell_handle.send((n, node.handle())).unwrap();
            let allowed = allowed.recv().unwrap();
            let ties = TieServer::install(&mut node, TieServerConfig { allowed, ..TieServerConfig::default() }).unwrap();
            node.run();
            (ties.metrics(), node.usage())
        }));
    }
    let mut handles: Vec<(usize, Handle)> = (0..SERVERS).map(|_| handles.recv().unwrap()).collect();
    handles.sort_by_key(|(n, _)| *n);
    let allowed: Vec<Address> = handles.iter().map(|(_, handle)| handle.address()).collect();
    tell_allowed.iter().for_each(|tell| tell.send(allowed.clone()).unwrap());
    handles.into_iter().zip(threads).map(|((_, handle), thread)| Server { handle, thread }).collect()
}

/// `calls` calls, some at a time, each answered rightly; gives what the servers counted.
fn answers_everything(client: &str, url: impl Fn(usize) -> String, policy: Policy, copies: u8, calls: u64) -> Vec<TieMetrics> {
    let executions = Executions::default();
    let servers = servers(url, &executions);
    let mut node = Node::builder(client).wait(Wait::Park).build().unwrap();
    let local = node.local();
    let config = Config {
        classes: [Settings { copies, ..Settings::new(policy) }; Class::COUNT],
        budget: Budget::UNLIMITED,
        ..Config::default()
    };
    let names = servers.iter().map(|server| server.handle.address());
    let replicas = Replicas::builder().replicas(names).config(config).build(&local).unwrap();
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..12)
        .map(|_| {
            let (replicas, next) = (replicas.clone(), next.clone());
            local.spawn(async move {
                loop {
                    let call = next.fetch_add(1, Ordering::Relaxed);
                    if call >= calls {
                        break;
                    }
                    let options = TiedOptions::new().deadline(Duration::from_secs(60));
                    let answer = replicas.call(WORK, call.to_le_bytes().to_vec(), &options).await;
                    let answer = answer.unwrap_or_else(|error| panic!("call {call}: {error}"));
                    assert_eq!(*answer.payload, call.reverse_bits().to_le_bytes(), "the answer to another call");
                }
            })
        })
        .collect();
    for task in tasks {
        node.block_on(task.unwrap()).expect("a task panicked");
    }
    let metrics = replicas.metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.calls, metrics.answered), (calls, calls));
    assert_eq!(replicas.outstanding() + (0..SERVERS).map(|n| replicas.outstanding_at(n) as usize).sum::<usize>(), 0);
    {
        let executions = executions.lock().unwrap();
        assert_eq!(executions.len() as u64, calls, "answered and never executed");
        assert!(executions.values().all(|count| *count <= u32::from(copies) + 1));
    }
    // The last cancels arrive.
    node.block_on(local.sleep(Duration::from_millis(50)));
    let usage = node.usage();
    assert!(usage.is_at_rest(), "{usage:?}");
    let stopped = servers.into_iter().map(|server| {
        server.handle.stop();
        let (ties, usage) = server.thread.join().unwrap();
        assert!(usage.is_at_rest(), "{usage:?}");
        assert_eq!(ties.copies, 0, "a tie is kept after its copy");
        ties
    });
    stopped.collect()
}

fn tied(mode: Mode, stagger: Duration) -> Policy {
    Policy::Tied { mode, stagger: Stagger::Fixed(stagger), then_hedge: None }
}

fn total(ties: &[TieMetrics], outcome: Outcome) -> u64 {
    ties.iter().map(|ties| ties.counters.outcomes.of(outcome)).sum()
}

#[test]
fn ties_over_shared_memory_drop_queued_copies_and_answer_everything() {
    let ties = answers_everything("mem://tied-a", |n| format!("mem://tied-a{n}"), tied(Mode::Cancel, Duration::ZERO), 2, 1500);
    assert!(total(&ties, Outcome::Dropped) > 100, "{ties:?}");
    assert!(ties.iter().any(|ties| ties.cancel_round_trip.count() > 0));
}

#[test]
fn ties_of_three_over_udp_drop_queued_copies_and_answer_everything() {
    let url = |_| "udp://127.0.0.1:0".to_owned();
    let ties = answers_everything("udp://127.0.0.1:0", url, tied(Mode::Cancel, Duration::ZERO), 3, 800);
    assert!(total(&ties, Outcome::Dropped) > 100, "{ties:?}");
}

#[test]
fn demoted_copies_are_answered_or_cancelled_and_nothing_is_left() {
    let ties = answers_everything("mem://tied-b", |n| format!("mem://tied-b{n}"), tied(Mode::Demote, Duration::ZERO), 2, 1000);
    assert!(total(&ties, Outcome::Demoted) > 50, "{ties:?}");
}

#[test]
fn hedges_at_once_are_answered_or_cancelled_and_nothing_is_left() {
    let policy = Policy::Hedged { delay: Delay::Fixed(Duration::from_micros(50)) };
    answers_everything("mem://tied-c", |n| format!("mem://tied-c{n}"), policy, 3, 1000);
}

/// The README's way to read metrics while `run` holds the node's thread.
fn scrape(node: &Handle) -> Option<String> {
    let (tell, told) = mpsc::channel();
    node.execute(move |local| drop(tell.send(local.metrics().prometheus()))).then(|| told.recv().ok())?
}

#[test]
fn one_scrape_from_another_thread_has_what_ties_and_replicas_counted() {
    let (tell, handle) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut node = Node::builder("mem://tied-scrape").wait(Wait::Park).build().unwrap();
        node.serve(WORK, Service::inline(|request| Ok(request.take_payload().into()))).unwrap();
        let allowed = vec![node.address()];
        TieServer::install(&mut node, TieServerConfig { allowed, ..TieServerConfig::default() }).unwrap();
        let set = |name: &str| {
            let builder = Replicas::builder().replica("mem://tied-scrape").policy(Policy::tied()).name(name);
            builder.build(&node.local()).unwrap()
        };
        let (one, gone) = (set("one"), set("gone"));
        for replicas in [&one, &gone] {
            node.block_on(replicas.call(WORK, "hello", &TiedOptions::new())).unwrap();
        }
        drop(gone);
        tell.send(node.handle()).unwrap();
        node.run();
        drop(one);
    });
    let handle = handle.recv().unwrap();
    let text = scrape(&handle).unwrap();
    for line in [
        "tautline_replica_calls_total{set=\"one\",class=\"normal\",end=\"answered\"} 1",
        "tautline_tie_cancels_total{what=\"stranger\"} 0",
        "tautline_client_calls_total{method=\"test/Work\",class=\"normal\"} 2",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("gone"));
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let different: std::collections::HashSet<&str> = heads.iter().copied().collect();
    assert_eq!(heads.len(), different.len(), "a family in two pieces");
    handle.stop();
    thread.join().unwrap();
}

/// A node that calls the servers, on a thread of its own, and the handle of its replicas.
fn caller(url: &'static str, servers: &[Server], policy: Policy) -> (ReplicasHandle, std::thread::JoinHandle<Usage>) {
    let names: Vec<Address> = servers.iter().map(|server| server.handle.address()).collect();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut node = Node::builder(url).wait(Wait::Park).build().unwrap();
        tell.send(Replicas::over(&node.local(), names, policy).unwrap().handle()).unwrap();
        node.run();
        // The last cancels leave, and their replies come.
        node.block_on(node.local().sleep(Duration::from_millis(50)));
        node.usage()
    });
    (told.recv().unwrap(), thread)
}

#[test]
fn other_threads_make_tied_calls_by_a_handle() {
    let executions = Executions::default();
    let servers = servers(|n| format!("mem://tied-h{n}"), &executions);
    let (handle, thread) = caller("mem://tied-h", &servers, tied(Mode::Cancel, Duration::ZERO));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                for call in (thread * 1000..).take(100) {
                    let options = TiedOptions::new().deadline(Duration::from_secs(60));
                    let made = handle.call(WORK, call.to_le_bytes().to_vec(), &options);
                    // Some wait as futures do, in an executor that knows nothing of nodes.
                    let answer = if call % 2 == 0 { made.wait() } else { block_on(made) };
                    assert_eq!(*answer.unwrap().payload, call.reverse_bits().to_le_bytes(), "the answer to another call");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(executions.lock().unwrap().len(), 400);
    handle.node().stop();
    let usage = thread.join().unwrap();
    assert!(usage.is_at_rest(), "{usage:?}");
    // The thread, and the set with it, is gone; the handle says so.
    let error = handle.call(WORK, "late", &TiedOptions::new()).wait().unwrap_err();
    assert_eq!(error, TiedError::Node(CallError::Stopped { fate: Fate::NotSent }));
    for server in servers {
        server.handle.stop();
        server.thread.join().unwrap();
    }
}

#[test]
fn a_dropped_call_of_another_thread_is_cancelled_and_a_dropped_handle_gives_its_set_back() {
    let executions = Executions::default();
    let servers = servers(|n| format!("mem://tied-i{n}"), &executions);
    let (handle, thread) = caller("mem://tied-i", &servers, tied(Mode::Cancel, Duration::ZERO));
    let node = handle.node().clone();
    // Most of these wait for their server when they are given up.
    let calls: Vec<_> =
        (0..300u64).map(|call| handle.call(WORK, (call * 7 + 6).to_le_bytes().to_vec(), &TiedOptions::new())).collect();
    // The node takes them up before it answers this.
    (0..2).for_each(|_| drop(scrape(&node).unwrap()));
    drop(calls);
    handle.call(WORK, 0u64.to_le_bytes().to_vec(), &TiedOptions::new()).wait().unwrap();
    let text = scrape(&node).unwrap();
    let value = |line: &str| {
        let found = text.lines().find_map(|have| have.strip_prefix(line)).unwrap_or_else(|| panic!("no {line} in\n{text}"));
        found.trim().parse::<u64>().unwrap()
    };
    let abandoned = value("tautline_replica_calls_total{set=\"0\",class=\"normal\",end=\"abandoned\"}");
    assert!(abandoned > 0, "none was cancelled");
    assert!(executions.lock().unwrap().len() < 250, "what was given up was executed");
    drop(handle);
    assert!(!scrape(&node).unwrap().contains("tautline_replica"), "the set is kept without a handle");
    node.stop();
    let usage = thread.join().unwrap();
    assert!(usage.is_at_rest(), "{usage:?}");
    for server in servers {
        server.handle.stop();
        server.thread.join().unwrap();
    }
}

/// The least of executors.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
