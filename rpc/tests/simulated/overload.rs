//! Overload: bounded queues, pushback, credits, classes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_net::port::sim::LinkConfig;
use tautline_rpc::*;

use crate::world::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_full_queue_pushes_back_and_says_when_to_return() {
    let config = NodeConfig { queue_limits: [8; 4], ..NodeConfig::default() };
    let (mut world, server, client) = World::pair(config);
    let log = Log::default();
    let service = slow(world.local(server), 20 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let calls: Vec<_> = (0..12).map(|n| local.call(peer, SLOW, n.to_string(), CallOptions::new())).collect();
    let urgent = local.call(peer, SLOW, "urgent", CallOptions::new().class(Class::Interactive));
    let results: Vec<_> = calls.into_iter().map(|call| world.finish(call)).collect();
    let pushed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(pushed.len(), 4);
    for error in pushed {
        assert!(matches!(error, CallError::Overloaded { retry_after: Some(after) } if !after.is_zero()), "{error:?}");
        assert_eq!(error.fate(), Fate::NotExecuted);
    }
    assert!(world.finish(urgent).is_ok(), "one class' full queue is not another's");
    assert_eq!(log.borrow().iter().filter(|line| line.starts_with("start")).count(), 9);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn futures_past_the_concurrency_wait_by_class_and_inline_methods_go_past_them() {
    let (mut world, server, client) = World::pair(NodeConfig { concurrency: 2, ..NodeConfig::default() });
    let log = Log::default();
    let service = slow(world.local(server), 20 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    world.node(server).serve(ECHO, echo()).unwrap();
    const QUEUED: Method = Method::named("test/Queued");
    world.node(server).serve(QUEUED, Service::workers(|_| Ok(Reply::empty()))).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let send = |name: &str, class| local.call(peer, SLOW, name.to_owned(), CallOptions::new().class(class));
    let mut calls = vec![send("a", Class::Normal), send("b", Class::Normal)];
    world.run(5 * MS);
    calls.extend([send("c", Class::Bulk), send("d", Class::Normal), send("e", Class::Interactive)]);
    let unwanted = send("f", Class::Interactive);
    world.run(5 * MS);
    assert_eq!(*log.borrow(), ["start a", "start b"]);
    drop(unwanted);
    assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
    assert_eq!(log.borrow().len(), 2, "the inline call waited");
    assert!(world.call(client, server, QUEUED, "x", CallOptions::new()).is_ok());
    assert_eq!(log.borrow().len(), 2, "the queued call waited for a future");
    for call in calls {
        world.finish(call).unwrap();
    }
    let starts: Vec<_> = log.borrow().iter().filter_map(|line| line.strip_prefix("start ").map(str::to_owned)).collect();
    assert_eq!(starts, ["a", "b", "e", "d", "c"]);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_services_own_limit_holds_for_it_alone() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let log = Log::default();
    let service = slow(world.local(server), 20 * MS, &log);
    world.node(server).serve(SLOW, service.queue_limit(2)).unwrap();
    world.node(server).serve(ECHO, echo()).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let calls: Vec<_> = (0..5).map(|n| local.call(peer, SLOW, n.to_string(), CallOptions::new())).collect();
    assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
    let ok = calls.into_iter().map(|call| world.finish(call)).filter(Result::is_ok).count();
    assert_eq!(ok, 2);
}

#[test]
fn a_caller_sends_no_more_than_its_credit_and_the_rest_waits_in_order() {
    let config =
        NodeConfig { initial_credit: 3, credit: CreditConfig { max_share: 3, ..CreditConfig::default() }, ..NodeConfig::default() };
    let (mut world, server, client) = World::pair(config);
    let log = Log::default();
    let service = slow(world.local(server), 5 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let calls: Vec<_> = (0..12).map(|n| local.call(peer, SLOW, n.to_string(), CallOptions::new())).collect();
    for _ in 0..20 {
        world.run(MS);
        assert!(world.node(server).usage().entries <= 3);
    }
    for call in calls {
        assert!(world.finish(call).is_ok());
    }
    let started: Vec<_> = log.borrow().iter().filter_map(|line| line.strip_prefix("start ")?.parse::<u32>().ok()).collect();
    assert!(started.is_sorted(), "{started:?}");
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_line_for_credit_is_bounded_and_says_so() {
    let config = NodeConfig { initial_credit: 1, max_waiting: 2, max_calls: 5, ..NodeConfig::default() };
    let (mut world, server, client) = World::pair(config);
    let log = Log::default();
    let service = slow(world.local(server), 5 * MS, &log);
    world.node(server).serve(SLOW, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let submit = |class| local.submit(peer, SLOW, "x", &CallOptions::new().class(class), 0);
    let results: Vec<_> = (0..4).map(|_| submit(Class::Normal).map(drop)).collect();
    assert_eq!(results, [Ok(()), Ok(()), Ok(()), Err(CallError::Full(Limit::Waiting))]);
    assert!(submit(Class::Bulk).is_ok() && submit(Class::Bulk).is_ok(), "another class has a line of its own");
    assert_eq!(submit(Class::Bulk).map(drop), Err(CallError::Full(Limit::Calls)));
    world.run(50 * MS);
    // Results that nobody fetches count too, or they would grow without bound.
    assert_eq!(submit(Class::Normal).map(drop), Err(CallError::Full(Limit::Calls)));
    while local.next_completion().is_some() {}
    assert!(submit(Class::Normal).is_ok());
}

#[test]
fn a_server_that_is_slow_gives_less_credit_and_more_again_when_it_is_not() {
    overload(|work| Service::workers(move |_| work()), 200, 8);
    // What runs where it is received does not wait in the queue, but it does wait for the others of its burst.
    overload(|work| Service::inline(move |_| work()), 200, 32);
}

type Work = Box<dyn Fn() -> Result<Reply, Status> + Send + Sync>;

/// `outstanding` calls of 500 us each must leave the caller no more credits than `most`; calls that cost nothing must give them back.
fn overload(service: fn(Work) -> Service, outstanding: usize, most: u32) {
    let config = NodeConfig { initial_credit: 256, ..NodeConfig::default() };
    let (mut world, server, client) = World::pair(config);
    let clock = world.clock.clone();
    let cost = Arc::new(Mutex::new(Duration::from_micros(500)));
    let takes = cost.clone();
    let work: Work = Box::new(move || {
        clock.advance_to(clock.now() + *takes.lock().unwrap());
        Ok(Reply::empty())
    });
    world.node(server).serve(SLOW, service(work)).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let keep = |world: &mut World, outstanding: usize, duration: Duration| {
        let until = world.clock.now() + duration;
        let mut flying = 0;
        while world.clock.now() < until || flying > 0 {
            while world.clock.now() < until && flying < outstanding {
                local.submit(peer, SLOW, "x", &CallOptions::new(), 0).unwrap();
                flying += 1;
            }
            world.step(world.clock.now() + MS);
            while local.next_completion().is_some() {
                flying -= 1;
            }
        }
        local.credit_limit(peer, Class::Normal).unwrap()
    };
    // On one poller that is far more than can wait for less than 200 us.
    let overloaded = keep(&mut world, outstanding, 400 * MS);
    assert!(overloaded <= most, "{overloaded}");
    *cost.lock().unwrap() = Duration::from_nanos(100);
    let relieved = keep(&mut world, 4, 100 * MS);
    assert!(relieved > overloaded + 50, "{overloaded} -> {relieved}");
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn servers_that_call_each_other_from_their_handlers_go_on_with_one_credit_each() {
    let config =
        NodeConfig { initial_credit: 1, credit: CreditConfig { max_share: 1, ..CreditConfig::default() }, ..NodeConfig::default() };
    let mut world = World::new(1, LinkConfig::with_delay(Duration::from_micros(10)));
    let (one, two) = (world.add(config.clone()), world.add(config));
    for (at, other) in [(one, two), (two, one)] {
        let (local, peer) = (world.local(at), world.peer(at, other));
        world.node(at).serve(ECHO, echo()).unwrap();
        let relay = Service::future(move |mut request| {
            let call = local.call(peer, ECHO, request.take_payload(), CallOptions::new());
            async move { call.await.map(Reply::from).map_err(|error| Status::new(Code::Unavailable, error.to_string())) }
        });
        world.node(at).serve(SLOW, relay).unwrap();
    }
    let calls: Vec<_> = [(one, two), (two, one), (one, two)]
        .map(|(from, to)| world.local(from).call(world.peer(from, to), SLOW, from.to_string(), CallOptions::new()))
        .into_iter()
        .collect();
    for (call, from) in calls.into_iter().zip([one, two, one]) {
        assert_eq!(*world.finish(call).unwrap(), *from.to_string().as_bytes());
    }
    let overdrawn = [one, two].map(|at| world.node(at).metrics().node.credits_overdrawn);
    assert!(overdrawn.iter().sum::<u64>() > 0);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn the_most_urgent_class_is_served_first() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let (clock, order) = (world.clock.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = order.clone();
    let service = Service::workers(move |request| {
        clock.advance_to(clock.now() + MS);
        log.lock().unwrap().push(request.class());
        Ok(Reply::empty())
    });
    world.node(server).serve(SLOW, service).unwrap();
    world.node(server).serve(ECHO, echo()).unwrap();
    world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let mut calls = Vec::new();
    for class in Class::ALL.into_iter().rev() {
        for _ in 0..3 {
            calls.push(local.call(peer, SLOW, "x", CallOptions::new().class(class)));
        }
    }
    for call in calls {
        world.finish(call).unwrap();
    }
    // Whatever arrived first may have started first; the rest goes by class.
    let order = order.lock().unwrap();
    assert!(order[1..].is_sorted(), "{order:?}");
}

#[test]
fn an_inline_handler_waits_its_turn_behind_a_queue() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let order = Rc::new(RefCell::new(Vec::new()));
    let (clock, workers) = (world.clock.clone(), Arc::new(Mutex::new(0)));
    let count = workers.clone();
    let service = Service::workers(move |_| {
        clock.advance_to(clock.now() + MS);
        *count.lock().unwrap() += 1;
        Ok(Reply::empty())
    });
    world.node(server).serve(SLOW, service).unwrap();
    let (log, done) = (order.clone(), workers.clone());
    let inline = Service::inline(move |_| {
        log.borrow_mut().push(*done.lock().unwrap());
        Ok(Reply::empty())
    });
    world.node(server).serve(ECHO, inline).unwrap();
    world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    let slow: Vec<_> = (0..5).map(|_| local.call(peer, SLOW, "x", CallOptions::new())).collect();
    let inline = local.call(peer, ECHO, "x", CallOptions::new());
    let urgent = local.call(peer, ECHO, "x", CallOptions::new().class(Class::Interactive));
    for call in slow.into_iter().chain([inline, urgent]) {
        world.finish(call).unwrap();
    }
    let order = order.borrow();
    assert_eq!(order.len(), 3);
    assert!(order[1] < 5, "the urgent one goes before what was queued: after {} of 5", order[1]);
    assert_eq!(order[2], 5, "the other after what came before it");
}

#[test]
fn a_node_forgets_idle_peers_before_it_refuses_new_ones() {
    let mut world = World::new(1, LinkConfig::with_delay(Duration::from_micros(10)));
    let server = world.add(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let client = world.add(NodeConfig { max_peers: 2, ..NodeConfig::default() });
    assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
    for n in 0..20 {
        // Nobody is there; each is given up after a while.
        let local = world.local(client);
        let peer = local.peer(format!("sim://nobody-{n}")).unwrap();
        let call = local.call(peer, ECHO, "x", after(5));
        let error = world.finish_within(call, Duration::from_secs(20)).unwrap_err();
        assert!(matches!(error, CallError::DeadlineExceeded { fate: Fate::NotSent } | CallError::Full(Limit::Peers)), "{error:?}");
    }
    assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
}
