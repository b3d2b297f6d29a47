//! Worker threads: blocking work, cancellation across threads, and what a busy worker does not hold up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tautline_rpc::*;

use crate::support::*;

/// Holds workers until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    inside: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// A server with this many workers whose handler waits at the gate if the request says "wait".
fn gated(workers: usize) -> (Server, Arc<Gate>, Arc<Mutex<Vec<String>>>) {
    let (gate, ran) = (Arc::new(Gate::default()), Arc::new(Mutex::new(Vec::new())));
    let (at_gate, log) = (gate.clone(), ran.clone());
    let server = Server::start("udp://127.0.0.1:0", Wait::Adaptive, workers, move |node| {
        let work = Service::workers(move |request| {
            let name = String::from_utf8_lossy(request.payload()).into_owned();
            log.lock().unwrap().push(name.clone());
            if name == "wait" {
                at_gate.pass();
            }
            Ok(name.into())
        });
        node.serve(WORK, work).unwrap();
        node.serve(ECHO, echo()).unwrap();
    });
    (server, gate, ran)
}

fn client() -> Node {
    Node::builder("udp://127.0.0.1:0").build().unwrap()
}

#[test]
fn blocked_workers_hold_up_neither_the_poller_nor_cancels_of_what_waits() {
    let (server, gate, ran) = gated(2);
    let mut node = client();
    let local = node.local();
    let peer = local.peer(server.handle.address()).unwrap();
    let blocked: Vec<_> = (0..2).map(|_| local.call(peer, WORK, "wait", CallOptions::new())).collect();
    node.block_on(async {
        while gate.inside.load(Ordering::SeqCst) < 2 {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
    // All workers are busy. Inline calls are answered, and queued ones can be cancelled, by the poller alone.
    let queued: Vec<_> = (0..5).map(|_| local.call(peer, WORK, "loser", CallOptions::new())).collect();
    assert!(node.block_on(local.call(peer, ECHO, "x", CallOptions::new())).is_ok());
    drop(queued);
    let handle = server.handle.clone();
    let cancelled =
        move || ask(&handle, |local| local.metrics().server(WORK, Class::Normal).map_or(0, |series| series.cancelled_queued));
    node.block_on(async {
        while cancelled() < 5 {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
    gate.open();
    for call in blocked {
        assert_eq!(&*node.block_on(call).unwrap(), b"wait");
    }
    assert_eq!(&*node.block_on(local.call(peer, WORK, "after", CallOptions::new())).unwrap(), b"after");
    assert_eq!(*ran.lock().unwrap(), ["wait", "wait", "after"]);
}

#[test]
fn a_running_workers_token_fires_from_the_poller() {
    let seen = Arc::new(AtomicBool::new(false));
    let fired = seen.clone();
    let started = Arc::new(AtomicBool::new(false));
    let running = started.clone();
    let server = Server::start("udp://127.0.0.1:0", Wait::Adaptive, 1, move |node| {
        let work = Service::workers(move |request| {
            running.store(true, Ordering::SeqCst);
            let token = request.cancellation().clone();
            wait_until("the cancel", || token.is_cancelled());
            fired.store(token.reason() == Some(CancelReason::Cancelled), Ordering::SeqCst);
            Ok(Reply::empty())
        });
        node.serve(WORK, work).unwrap();
    });
    let mut node = client();
    let local = node.local();
    let call = local.call(local.peer(server.handle.address()).unwrap(), WORK, "x", CallOptions::new());
    node.block_on(async {
        while !started.load(Ordering::SeqCst) {
            local.sleep(Duration::from_millis(1)).await;
        }
        drop(call);
        while !seen.load(Ordering::SeqCst) {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_start_notice_comes_while_the_worker_runs() {
    let (server, gate, _) = gated(1);
    let mut node = client();
    let local = node.local();
    let peer = local.peer(server.handle.address()).unwrap();
    let mut call = local.call(peer, WORK, "wait", CallOptions::new().notify_start());
    assert!(node.block_on(call.started()));
    assert!(!call.is_finished());
    gate.open();
    assert!(node.block_on(call).is_ok());
}

#[test]
fn every_request_is_run_by_some_worker_and_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let runs = count.clone();
    let server = Server::start("udp://127.0.0.1:0", Wait::Adaptive, 3, move |node| {
        let work = Service::workers(move |request| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(request.payload().to_vec().into())
        });
        node.serve(WORK, work).unwrap();
    });
    let mut node = client();
    let local = node.local();
    let peer = local.peer(server.handle.address()).unwrap();
    for round in 0..200u32 {
        // Now and then the workers fall asleep in between.
        if round % 50 == 0 {
            node.block_on(local.sleep(Duration::from_millis(5)));
        }
        let calls: Vec<_> =
            (0..10u32).map(|n| (n, local.call(peer, WORK, vec![round as u8, n as u8], CallOptions::new()))).collect();
        for (n, call) in calls {
            assert_eq!(&*node.block_on(call).unwrap(), [round as u8, n as u8]);
        }
    }
    assert_eq!(count.load(Ordering::Relaxed), 2000);
    assert!(node.usage().is_at_rest());
}

#[test]
fn a_stopped_node_waits_for_its_workers_and_answers_what_they_did() {
    let (server, gate, _) = gated(1);
    let mut node = client();
    let local = node.local();
    let peer = local.peer(server.handle.address()).unwrap();
    let running = local.call(peer, WORK, "wait", CallOptions::new());
    let queued = local.call(peer, WORK, "never", CallOptions::new());
    node.block_on(async {
        while gate.inside.load(Ordering::SeqCst) < 1 {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
    let entries = server.handle.clone();
    node.block_on(async {
        while ask(&entries, |local| local.metrics().server(WORK, Class::Normal).map_or(0, |series| series.requests)) < 2 {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
    server.handle.stop();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        gate.open();
    });
    match node.block_on(queued) {
        Err(CallError::Refused(status)) => assert_eq!(status.code, Code::Unavailable),
        Err(error) => assert_eq!(error.fate(), Fate::NotExecuted, "{error}"),
        Ok(_) => panic!("it was never run"),
    }
    assert_eq!(&*node.block_on(running).unwrap(), b"wait");
    opener.join().unwrap();
}

#[test]
fn a_long_handler_lets_more_urgent_ones_in_at_its_checkpoints_and_stops_when_it_is_cancelled() {
    let urgent_ran = Arc::new(AtomicBool::new(false));
    let stopped = Arc::new(AtomicBool::new(false));
    let started = Arc::new(AtomicBool::new(false));
    let (urgent, stop, start) = (urgent_ran.clone(), stopped.clone(), started.clone());
    // One worker: whatever is served while the long handler runs is served by it.
    let server = Server::start("udp://127.0.0.1:0", Wait::Adaptive, 1, move |node| {
        let work = Service::workers(move |request| {
            if request.class() == Class::Interactive {
                urgent.store(true, Ordering::SeqCst);
                return Ok(Reply::empty());
            }
            start.store(true, Ordering::SeqCst);
            while request.checkpoint() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::SeqCst);
            Ok(Reply::empty())
        });
        node.serve(WORK, work).unwrap();
    });
    let mut node = client();
    let local = node.local();
    let peer = local.peer(server.handle.address()).unwrap();
    let long = local.call(peer, WORK, "long", CallOptions::new().class(Class::Bulk));
    node.block_on(async {
        while !started.load(Ordering::SeqCst) {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
    let equal = local.call(peer, WORK, "equal", CallOptions::new().class(Class::Background));
    assert!(node.block_on(local.call(peer, WORK, "urgent", CallOptions::new().class(Class::Interactive))).is_ok());
    assert!(urgent_ran.load(Ordering::SeqCst) && !stopped.load(Ordering::SeqCst) && !equal.is_finished());
    drop(long);
    node.block_on(async {
        while !stopped.load(Ordering::SeqCst) {
            local.sleep(Duration::from_millis(1)).await;
        }
    });
    drop(equal);
}
