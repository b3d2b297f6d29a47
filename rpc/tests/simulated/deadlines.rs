//! Deadlines: enforced by the caller, at dequeue, and in running handlers; inherited; never wrapped around.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_rpc::*;

use crate::world::*;

#[test]
fn the_caller_does_not_wait_longer_than_its_deadline_whatever_the_server_does() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let log = Log::default();
    let service = slow(world.local(server), Duration::from_secs(5), &log);
    world.node(server).serve(SLOW, service).unwrap();
    let begun = world.clock.now();
    let error = world.call(client, server, SLOW, "x", after(20)).unwrap_err();
    assert_eq!(error, CallError::DeadlineExceeded { fate: Fate::MaybeExecuted });
    let took = world.clock.now().since(begun);
    assert!(took >= Duration::from_millis(20) && took < Duration::from_millis(21), "{took:?}");
    world.run(Duration::from_millis(1));
    world.assert_at_rest();
}

#[test]
fn a_deadline_that_has_passed_ends_the_call_before_it_is_sent() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let past = CallOptions { expires: Some(Time::ZERO), ..CallOptions::new() };
    for options in [past, CallOptions::new().deadline(Duration::ZERO)] {
        let error = world.call(client, server, ECHO, "x", options).unwrap_err();
        assert_eq!(error, CallError::DeadlineExceeded { fate: Fate::NotSent });
    }
    assert!(world.node(server).metrics().server(ECHO, Class::Normal).is_none());
    world.assert_at_rest();
}

#[test]
fn a_budget_too_small_for_the_way_is_refused_and_not_served_for_ever() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    world.call(client, server, ECHO, "first, to connect", CallOptions::new()).unwrap();
    // Less than a microsecond travels as zero.
    let options = CallOptions::new().deadline(Duration::from_nanos(900));
    let error = world.call(client, server, ECHO, "x", options).unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { .. }));
    world.run(Duration::from_millis(1));
    let metrics = world.node(server).metrics();
    let series = metrics.server(ECHO, Class::Normal).unwrap();
    assert_eq!((series.replies, series.expired), (1, 1));
}

#[test]
fn the_longest_deadline_does_not_wrap() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let remaining = seen.clone();
    let service = Service::inline(move |request| {
        remaining.borrow_mut().push(request.remaining());
        Ok(Reply::empty())
    });
    world.node(server).serve(ECHO, service).unwrap();
    for deadline in [Duration::MAX, Duration::from_secs(1 << 30), Duration::from_secs(7200)] {
        world.call(client, server, ECHO, "x", CallOptions::new().deadline(deadline)).unwrap();
    }
    // What is longer than the wire can say is the caller's own to watch: the server must not cut it short.
    assert_eq!(*seen.borrow(), [None, None, None]);
}

/// A server whose poller is kept busy for 10 ms by each "hog" while other requests wait behind it.
fn hogged() -> (World, usize, usize, Arc<Mutex<Vec<String>>>) {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let ran = Arc::new(Mutex::new(Vec::new()));
    let (clock, log) = (world.clock.clone(), ran.clone());
    let service = Service::workers(move |request| {
        let name = String::from_utf8_lossy(request.payload()).into_owned();
        if name.starts_with("hog") {
            clock.advance_to(clock.now() + Duration::from_millis(10));
        }
        log.lock().unwrap().push(name);
        Ok(Reply::empty())
    });
    world.node(server).serve(SLOW, service).unwrap();
    (world, server, client, ran)
}

#[test]
fn what_has_expired_in_the_queue_is_dropped_and_never_run() {
    let (mut world, server, client, ran) = hogged();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let hog = local.call(peer, SLOW, "hog", CallOptions::new());
    let late = local.call(peer, SLOW, "late", after(5));
    let patient = local.call(peer, SLOW, "patient", after(500));
    assert!(world.finish(hog).is_ok());
    assert!(matches!(world.finish(late), Err(CallError::DeadlineExceeded { .. })));
    assert!(world.finish(patient).is_ok());
    assert_eq!(*ran.lock().unwrap(), ["hog", "patient"]);
    assert_eq!(world.node(server).metrics().server(SLOW, Class::Normal).unwrap().expired, 1);
    world.run(Duration::from_millis(1));
    world.assert_at_rest();
}

#[test]
fn the_token_of_a_running_handler_fires_when_the_deadline_passes() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let fired = Arc::new(Mutex::new(Vec::new()));
    let (log, local) = (fired.clone(), world.local(server));
    let service = Service::future(move |request| {
        let (log, local) = (log.clone(), local.clone());
        request.cancellation().on_cancel(move |reason| log.lock().unwrap().push(reason));
        async move {
            let reason = request.cancellation().cancelled().await;
            assert!(request.cancellation().is_cancelled());
            assert_eq!(request.remaining(), Some(Duration::ZERO));
            local.sleep(Duration::from_millis(1)).await;
            Ok(format!("{reason:?}").into())
        }
    });
    world.node(server).serve(SLOW, service.finish_when_cancelled()).unwrap();
    let error = world.call(client, server, SLOW, "x", after(10)).unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { .. }));
    world.run(Duration::from_millis(5));
    assert_eq!(fired.lock().unwrap().len(), 1);
    world.assert_at_rest();
}

#[test]
fn a_handlers_own_calls_inherit_what_is_left_and_the_class() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let backend = world.add(NodeConfig::default());
    let seen = Rc::new(RefCell::new(None));
    let at_backend = seen.clone();
    let observe = Service::inline(move |request| {
        *at_backend.borrow_mut() = Some((request.class(), request.remaining().unwrap()));
        Ok(Reply::empty())
    });
    world.node(backend).serve(ECHO, observe).unwrap();
    let (local, peer) = (world.local(server), world.peer(server, backend));
    let relay = Service::future(move |request| {
        let local = local.clone();
        async move {
            // The handler would wait for a minute; its caller for less.
            local.sleep(Duration::from_millis(4)).await;
            let options = request.child_options().deadline(Duration::from_secs(60));
            let reply = local.call(peer, ECHO, "x", options).await;
            reply.map(Reply::from).map_err(|error| Status::new(Code::Unavailable, error.to_string()))
        }
    });
    world.node(server).serve(SLOW, relay).unwrap();
    world.call(client, server, SLOW, "x", after(10).class(Class::Interactive)).unwrap();
    let (class, left) = seen.borrow().unwrap();
    assert_eq!(class, Class::Interactive);
    assert!(left <= Duration::from_millis(6) && left > Duration::from_millis(5), "{left:?} of 10 ms after 4");
}

#[test]
fn a_call_that_waits_for_credit_ends_at_its_deadline_too() {
    let config = NodeConfig { initial_credit: 1, ..NodeConfig::default() };
    let (mut world, server, client) = World::pair(config);
    let log = Log::default();
    let service = slow(world.local(server), Duration::from_millis(50), &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let first = local.call(peer, SLOW, "first", CallOptions::new());
    let second = local.call(peer, SLOW, "second", after(10));
    let third = local.call(peer, SLOW, "third", CallOptions::new());
    assert_eq!(world.finish(second).unwrap_err(), CallError::DeadlineExceeded { fate: Fate::NotSent });
    assert!(world.finish(first).is_ok() && world.finish(third).is_ok());
    assert!(log.borrow().iter().all(|line| !line.contains("second")));
    world.run(Duration::from_millis(1));
    world.assert_at_rest();
}
