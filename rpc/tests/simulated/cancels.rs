//! Cancellation: by drop or by name, of what waits and what runs, and what it gives back.

use std::time::Duration;

use tautline_net::port::sim::{LinkConfig, Verdict};
use tautline_rpc::*;

use crate::world::*;

const MS: Duration = Duration::from_millis(1);

/// A server of futures that take 20 ms, with room for one at a time, and a client.
fn one_at_a_time() -> (World, usize, usize, Log) {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let log = Log::default();
    let service = slow(world.local(server), 20 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    (world, server, client, log)
}

#[test]
fn dropping_a_call_drops_the_handlers_future_and_all_it_holds() {
    let (mut world, server, client, log) = one_at_a_time();
    let call = world.local(client).call(world.peer(client, server), SLOW, "x", CallOptions::new());
    world.run(MS);
    assert_eq!(*log.borrow(), ["start x"]);
    drop(call);
    world.run(MS);
    assert_eq!(*log.borrow(), ["start x", "drop x"]);
    assert_eq!(world.node(server).metrics().server(SLOW, Class::Normal).unwrap().cancelled_running, 1);
    world.assert_at_rest();
}

#[test]
fn a_cancelled_handlers_own_calls_are_cancelled_down_the_tree() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let backend = world.add(NodeConfig::default());
    let log = Log::default();
    let service = slow(world.local(backend), 20 * MS, &log);
    world.node(backend).serve(SLOW, service).unwrap();
    let (local, peer) = (world.local(server), world.peer(server, backend));
    let relay = Service::future(move |mut request| {
        let call = local.call(peer, SLOW, request.take_payload(), request.child_options());
        async move { call.await.map(Reply::from).map_err(|error| Status::new(Code::Unavailable, error.to_string())) }
    });
    world.node(server).serve(ECHO, relay).unwrap();
    let call = world.local(client).call(world.peer(client, server), ECHO, "x", CallOptions::new());
    world.run(MS);
    drop(call);
    world.run(MS);
    assert_eq!(*log.borrow(), ["start x", "drop x"]);
    world.assert_at_rest();
}

#[test]
fn a_call_cancelled_by_name_completes_once_as_cancelled() {
    let (mut world, server, client, log) = one_at_a_time();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let id = local.submit(peer, SLOW, "x", &CallOptions::new(), 7).unwrap();
    world.run(MS);
    assert!(local.cancel(id));
    assert!(!local.cancel(id), "it has ended");
    world.run(50 * MS);
    let completion = local.next_completion().unwrap();
    assert_eq!(completion.tag, 7);
    assert_eq!(completion.result.unwrap_err(), CallError::Cancelled { fate: Fate::MaybeExecuted });
    assert!(local.next_completion().is_none());
    assert_eq!(*log.borrow(), ["start x", "drop x"]);
    world.assert_at_rest();
}

#[test]
fn a_call_cancelled_before_it_was_connected_was_not_sent() {
    let (mut world, server, client, log) = one_at_a_time();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let id = local.submit(peer, SLOW, "x", &CallOptions::new(), 7).unwrap();
    assert!(local.cancel(id));
    world.run(50 * MS);
    assert_eq!(local.next_completion().unwrap().result.unwrap_err(), CallError::Cancelled { fate: Fate::NotSent });
    assert!(log.borrow().is_empty());
    world.assert_at_rest();
}

#[test]
fn cancelled_calls_give_their_credit_back_to_those_that_wait() {
    let config = NodeConfig { initial_credit: 2, ..NodeConfig::default() };
    let (mut world, server, client) = World::pair(config);
    let log = Log::default();
    let service = slow(world.local(server), Duration::from_secs(3), &log);
    world.node(server).serve(SLOW, service).unwrap();
    world.node(server).serve(ECHO, echo()).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    for _ in 0..50 {
        // Two hold the credits, two wait; all are cancelled, in mixed order.
        let mut calls: Vec<_> = (0..4).map(|_| local.call(peer, SLOW, "x", CallOptions::new())).collect();
        world.run(MS);
        drop(calls.remove(2));
        drop(calls.remove(0));
        drop(calls);
    }
    world.run(MS);
    assert_eq!(world.node(client).usage().credits, 0);
    assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_cancel_that_overtakes_its_request_still_stops_it() {
    let (mut world, server, client, log) = one_at_a_time();
    world.node(server).serve(ECHO, echo()).unwrap();
    world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
    // The request's packet is lost once and sent again later; the cancel gets through at once.
    let call = {
        let peer = world.peer(client, server);
        let call = world.local(client).call(peer, SLOW, "x", CallOptions::new());
        world.network.set_filter(|packet| if packet.to == "n0" { Verdict::Lose } else { Verdict::Pass });
        world.settle();
        world.network.clear_filter();
        call
    };
    drop(call);
    world.run(100 * MS);
    assert!(log.borrow().is_empty(), "{:?}", log.borrow());
    let late = world.node(server).metrics().node.late_cancels;
    assert_eq!(late, 1);
    world.assert_at_rest();
}

#[test]
fn a_late_cancel_does_nothing_to_the_next_call() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
    for n in 0..100 {
        // Cancelled while the reply is on its way; the slot is used again at once.
        let call = local.call(peer, ECHO, "old", CallOptions::new());
        world.run(Duration::from_micros(15));
        drop(call);
        assert_eq!(world.call(client, server, ECHO, &format!("new {n}"), CallOptions::new()), Ok(format!("new {n}")));
    }
    assert_eq!(world.node(client).metrics().node.late_replies, 100);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn what_waits_in_the_queue_is_dropped_without_asking_anybody() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let log = Log::default();
    let (clock, ran) = (world.clock.clone(), std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0)));
    let count = ran.clone();
    // A worker's handler run by the poller: 1 ms each, one a turn, so that cancels get in between.
    let service = Service::workers(move |_| {
        clock.advance_to(clock.now() + MS);
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Reply::empty())
    });
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let first = local.call(peer, SLOW, "first", CallOptions::new());
    let losers: Vec<_> = (0..40).map(|_| local.call(peer, SLOW, "loser", CallOptions::new())).collect();
    let last = local.call(peer, SLOW, "last", CallOptions::new());
    assert!(world.finish(first).is_ok());
    drop(losers);
    assert!(world.finish(last).is_ok());
    world.run(MS);
    let ran = ran.load(std::sync::atomic::Ordering::Relaxed);
    let cancelled = world.node(server).metrics().server(SLOW, Class::Normal).unwrap().cancelled_queued;
    assert_eq!(u64::from(ran) + cancelled, 42);
    assert!(cancelled >= 35, "{cancelled} cancelled in the queue, {ran} ran");
    drop(log);
    world.assert_at_rest();
}

#[test]
fn cancels_get_in_while_the_poller_has_a_queue_of_its_own() {
    // The same over a lossy wire: whatever is lost, nothing leaks.
    let mut world = World::new(9, LinkConfig { loss: 0.2, ..LinkConfig::with_delay(Duration::from_micros(50)) });
    let (server, client) = (world.add(NodeConfig::default()), world.add(NodeConfig::default()));
    let log = Log::default();
    let service = slow(world.local(server), MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    for round in 0..30u64 {
        let calls: Vec<_> = (0..5).map(|_| local.call(peer, SLOW, "x", CallOptions::new())).collect();
        world.run(Duration::from_micros(100 * round));
        drop(calls);
    }
    world.run(Duration::from_secs(2));
    world.assert_at_rest();
}

#[test]
fn a_start_notice_comes_before_the_reply() {
    let (mut world, server, client, _log) = one_at_a_time();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let mut call = local.call(peer, SLOW, "x", CallOptions::new().notify_start());
    assert!(!call.is_started());
    let begun = world.clock.now();
    assert!(world.finish(call.started()));
    assert!(world.clock.now().since(begun) < 10 * MS, "long before the reply");
    assert!(call.is_started() && !call.is_finished());
    assert!(world.finish(call).is_ok());
}

#[test]
fn a_call_that_ends_without_a_start_notice_ends_the_wait_for_one() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let mut call = world.local(client).call(world.peer(client, server), ECHO, "x", CallOptions::new().notify_start());
    // An inline handler answers at once: no notice.
    assert!(!world.finish(call.started()));
    assert!(world.finish(call).is_ok());
}

#[test]
fn a_start_notice_says_how_long_the_request_waited_and_outlives_the_call() {
    let (mut world, server, client) = World::pair(NodeConfig { concurrency: 1, ..NodeConfig::default() });
    let log = Log::default();
    let service = slow(world.local(server), 5 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let call = |name| local.call(peer, SLOW, name, CallOptions::new().notify_start());
    let (mut first, mut second) = (call("first"), call("second"));
    let sent = world.clock.now();
    assert_eq!(second.start(), None);
    world.finish(&mut first).unwrap();
    assert!(first.start().unwrap().waited < MS / 10);
    world.run(MS);
    let start = second.start().expect("it runs");
    assert!((49 * MS / 10..51 * MS / 10).contains(&start.waited), "{start:?}");
    assert!(start.heard.since(sent) >= start.waited && start.heard <= world.clock.now());
    // The next one's notice is delayed until its reply comes too.
    let mut third = call("third");
    world.run(MS / 10);
    world.network.pause("n1").unwrap();
    world.run(12 * MS);
    world.network.resume("n1").unwrap();
    world.finish(&mut second).unwrap();
    assert_eq!(second.start(), Some(start));
    world.finish(&mut third).unwrap();
    let late = third.start().expect("what came with the reply counts too");
    assert!(late.heard > start.heard && late.waited > MS, "{late:?}");
    // A slot's next call knows nothing of the start of the one before.
    let mut other = local.call(peer, SLOW, "no notice", CallOptions::new());
    world.finish(&mut other).unwrap();
    assert_eq!(other.start(), None);
}

#[test]
fn calls_given_up_at_once_are_all_cancelled_however_many_they_are() {
    let (mut world, server, client) = World::pair(NodeConfig { initial_credit: 500, concurrency: 1, ..NodeConfig::default() });
    let log = Log::default();
    let service = slow(world.local(server), 20 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    // Several times what a session holds of control messages.
    let calls: Vec<_> = (0..300).map(|n| local.call(peer, SLOW, n.to_string(), CallOptions::new())).collect();
    world.run(10 * MS);
    assert_eq!(world.node(server).metrics().server(SLOW, Class::Normal).unwrap().requests, 300);
    drop(calls);
    world.run(5 * MS);
    {
        let metrics = world.node(server).metrics();
        let series = metrics.server(SLOW, Class::Normal).unwrap();
        // While the first are cancelled others may begin; none comes to its end.
        assert_eq!(series.cancelled_queued + series.cancelled_running, 300, "{} ran", series.cancelled_running);
        assert_eq!(series.replies + series.statuses, 0);
    }
    let log = log.borrow();
    assert!(log.len() <= 2 * 300 / 20 && !log.iter().any(|line| line.starts_with("end")), "{log:?}");
    world.assert_at_rest();
}
