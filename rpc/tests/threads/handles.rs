//! A node used from other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tautline_rpc::*;

use crate::support::*;

#[test]
fn callers_on_many_threads_each_get_their_own_replies() {
    let server = Server::start("mem://handles-many-server", Wait::Adaptive, 0, |node| node.serve(ECHO, echo()).unwrap());
    let client = Server::start("mem://handles-many-client", Wait::Adaptive, 0, |_| ());
    let peer = server.handle.address();
    let threads: Vec<_> = (0..4u32)
        .map(|thread| {
            let handle = client.handle.clone();
            std::thread::spawn(move || {
                for n in 0..200u32 {
                    let text = format!("{thread}: {n}");
                    let calls: Vec<_> = (0..3).map(|_| handle.call(peer, ECHO, text.clone(), CallOptions::new())).collect();
                    for call in calls {
                        assert_eq!(&*call.wait().unwrap(), text.as_bytes());
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_dropped_remote_call_is_cancelled_at_the_server() {
    let server = Server::start("mem://handles-drop-server", Wait::Adaptive, 0, |node| {
        let forever = Service::future(|request| async move {
            request.cancellation().cancelled().await;
            Ok(Reply::empty())
        });
        node.serve(WORK, forever.finish_when_cancelled()).unwrap();
    });
    let client = Server::start("mem://handles-drop-client", Wait::Adaptive, 0, |_| ());
    let call = client.handle.call(server.handle.address(), WORK, "x", CallOptions::new());
    let requests =
        |local: &Local| local.metrics().server(WORK, Class::Normal).map_or((0, 0), |s| (s.requests, s.cancelled_running));
    wait_until("the request", || ask(&server.handle, requests).0 == 1);
    drop(call);
    wait_until("the cancel", || ask(&server.handle, requests).1 == 1);
}

#[test]
fn a_handle_that_outlives_its_node_fails_and_does_not_hang() {
    let server = Server::start("mem://handles-gone-server", Wait::Adaptive, 0, |node| {
        node.serve(WORK, Service::future(|_| std::future::pending::<HandlerResult>())).unwrap();
    });
    let client = Server::start("mem://handles-gone-client", Wait::Adaptive, 0, |_| ());
    let (handle, peer) = (client.handle.clone(), server.handle.address());
    let pending = handle.call(peer, WORK, "x", CallOptions::new());
    let waiting = std::thread::spawn(move || pending.wait());
    wait_until("the request", || ask(&server.handle, |local| local.metrics().server(WORK, Class::Normal).is_some()));
    drop(client);
    assert_eq!(waiting.join().unwrap().unwrap_err(), CallError::Stopped { fate: Fate::MaybeExecuted });
    let error = handle.call(peer, WORK, "x", CallOptions::new()).wait().unwrap_err();
    assert_eq!(error, CallError::Stopped { fate: Fate::NotSent });
    assert!(!handle.execute(|_| ()));
}

#[test]
fn a_node_that_was_stopped_and_is_still_there_fails_calls_and_does_not_hang() {
    // Nobody answers: only the stop can end what is under way.
    let _silent = Node::builder("mem://stopped-server").build().unwrap();
    let mut node = Node::builder("mem://stopped-client").wait(Wait::Park).build().unwrap();
    let handle = node.handle();
    let (started, running) = std::sync::mpsc::channel();
    let other = handle.clone();
    let caller = std::thread::spawn(move || {
        let call = other.call("mem://stopped-server", ECHO, "x", CallOptions::new());
        let call = call.wait_timeout(Duration::from_millis(20)).expect_err("nobody answers");
        started.send(()).unwrap();
        call.wait()
    });
    std::thread::spawn(move || {
        running.recv().unwrap();
        handle.stop();
    });
    node.run();
    assert!(matches!(caller.join().unwrap(), Err(CallError::Stopped { .. })));
    let handle = node.handle();
    let late = handle.call("mem://stopped-server", ECHO, "x", CallOptions::new());
    assert_eq!(late.wait().unwrap_err(), CallError::Stopped { fate: Fate::NotSent });
    assert!(!handle.execute(|_| {}));
    node.run();
    assert!(node.usage().is_at_rest());
}

#[test]
fn calls_raced_against_the_nodes_end_all_end() {
    for round in 0..20 {
        let name = format!("mem://handles-race-{round}");
        let client = Server::start(&name, Wait::Adaptive, 0, |node| node.serve(ECHO, echo()).unwrap());
        let (handle, ended) = (client.handle.clone(), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (handle, ended) = (handle.clone(), ended.clone());
                std::thread::spawn(move || {
                    loop {
                        // To itself: a node may.
                        match handle.call(handle.address(), ECHO, "x", CallOptions::new()).wait() {
                            Err(CallError::Stopped { .. }) => break,
                            _ => ended.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                })
            })
            .collect();
        wait_until("a call", || ended.load(Ordering::Relaxed) > round);
        drop(client);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_future_may_be_woken_from_another_thread() {
    let mut node = Node::builder("mem://handles-wake").wait(Wait::Park).build().unwrap();
    let token = CancelToken::new();
    let fire = token.clone();
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fire.cancel(CancelReason::Cancelled);
    });
    let task = node.local().spawn(async move { token.cancelled().await }).unwrap();
    assert_eq!(node.block_on(task), Some(CancelReason::Cancelled));
    waker.join().unwrap();
    assert!(node.usage().is_at_rest());
}

#[test]
fn a_task_that_panics_ends_alone() {
    let mut node = Node::builder("mem://handles-panic").build().unwrap();
    let local = node.local();
    let bad = local.spawn(async { panic!("as the test asked") }).unwrap();
    let good = local.spawn(async { 7 }).unwrap();
    assert_eq!((node.block_on(bad).map(|(): ()| ()), node.block_on(good)), (None, Some(7)));
    assert_eq!(node.metrics().node.task_panics, 1);
    let cancelled = local.spawn(std::future::pending::<()>()).unwrap();
    cancelled.cancel();
    node.block_on(local.sleep(Duration::from_millis(1)));
    assert!(node.usage().is_at_rest());
}

#[test]
fn tasks_are_bounded_and_a_place_is_free_again_when_its_task_ends() {
    let config = NodeConfig { max_tasks: 2, ..NodeConfig::default() };
    let mut node = Node::builder("mem://handles-tasks").config(config).build().unwrap();
    let local = node.local();
    let first = local.spawn(local.sleep(Duration::from_millis(1))).unwrap();
    let second = local.spawn(std::future::pending::<()>()).unwrap();
    assert_eq!(local.spawn(async {}).unwrap_err(), SpawnError::Full { limit: 2 });
    node.block_on(first);
    assert!(local.spawn(async {}).is_ok());
    drop(second);
    // A detached task ends with its node.
    drop(node);
    assert_eq!(local.spawn(async {}).unwrap_err(), SpawnError::Stopped);
}
