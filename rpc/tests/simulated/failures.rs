//! Peers that die, restart, fall silent and return: at each moment of a call, one clear end.

use std::time::Duration;

use tautline_net::port::sim::LinkConfig;
use tautline_rpc::*;

use crate::world::*;

const MS: Duration = Duration::from_millis(1);

fn quick() -> NodeConfig {
    let mut config = NodeConfig::default();
    // Shorter than calls wait for credit before one goes without.
    config.endpoint.peer_timeout = Duration::from_millis(80);
    config.endpoint.connect_timeout = Duration::from_millis(200);
    config
}

fn serve(world: &mut World, server: usize, log: &Log) {
    let service = slow(world.local(server), 20 * MS, log);
    world.node(server).serve(SLOW, service).unwrap();
    world.node(server).serve(ECHO, echo()).unwrap();
}

#[test]
fn a_call_to_nobody_was_not_sent() {
    let (mut world, server, client) = World::pair(quick());
    world.nodes[server] = None;
    let error = world.call(client, server, ECHO, "x", CallOptions::new()).unwrap_err();
    assert_eq!(error, CallError::Disconnected { reason: CloseReason::TimedOut, fate: Fate::NotSent });
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_server_that_falls_silent_ends_each_of_its_calls_once_and_the_next_call_reconnects() {
    let config = NodeConfig { initial_credit: 4, credit: CreditConfig { max_share: 4, ..CreditConfig::default() }, ..quick() };
    let (mut world, server, client) = World::pair(config);
    let log = Log::default();
    serve(&mut world, server, &log);
    let (peer, local) = (world.peer(client, server), world.local(client));
    world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
    for tag in 0..10 {
        local.submit(peer, SLOW, "x", &CallOptions::new(), tag).unwrap();
    }
    world.run(MS);
    world.paused[server] = true;
    world.network.pause("n0").unwrap();
    world.run(Duration::from_secs(1));
    let mut fates = Vec::new();
    while let Some(Completion { tag, result }) = local.next_completion() {
        let error = result.unwrap_err();
        assert!(matches!(error, CallError::Disconnected { reason: CloseReason::PeerDead, .. }), "{error:?}");
        fates.push((tag, error.fate()));
    }
    fates.sort();
    let expected: Vec<_> = (0..10).map(|tag| (tag, if tag < 4 { Fate::MaybeExecuted } else { Fate::NotSent })).collect();
    assert_eq!(fates, expected);
    let usage = world.node(client).usage();
    assert!(usage.is_at_rest(), "{usage:?}");
    world.paused[server] = false;
    world.network.resume("n0").unwrap();
    world.run(Duration::from_secs(1));
    assert_eq!(world.call(client, server, ECHO, "again", CallOptions::new()).as_deref(), Ok("again"));
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_server_that_is_busy_is_there_and_one_that_is_stopped_falls_silent() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let log = Log::default();
    serve(&mut world, server, &log);
    let (peer, local) = (world.peer(client, server), world.local(client));
    assert_eq!(local.presence(peer), Presence::Unknown);
    let silent = |local: &Local| match local.presence(peer) {
        Presence::Open { silent } => silent,
        other => panic!("{other:?}"),
    };
    local.submit(peer, SLOW, "x", &CallOptions::new(), 0).unwrap();
    assert_eq!(local.presence(peer), Presence::Opening { since: Duration::ZERO });
    world.run(10 * MS);
    assert!(local.next_completion().is_none() && silent(&local).is_zero(), "it works, and owes nothing");
    world.run(20 * MS);
    local.next_completion().unwrap().result.unwrap();
    world.paused[server] = true;
    world.network.pause("n0").unwrap();
    world.run(500 * MS);
    assert!(silent(&local).is_zero(), "nothing was asked of it");
    local.submit(peer, ECHO, "x", &CallOptions::new(), 1).unwrap();
    world.run(100 * MS);
    assert!((90 * MS..=100 * MS).contains(&silent(&local)), "{:?}", silent(&local));
    world.paused[server] = false;
    world.network.resume("n0").unwrap();
    world.run(10 * MS);
    assert!(silent(&local).is_zero());
    local.next_completion().unwrap().result.unwrap();
}

#[test]
fn a_server_that_restarts_is_noticed_and_called_again() {
    let (mut world, server, client) = World::pair(quick());
    let log = Log::default();
    serve(&mut world, server, &log);
    let call = world.local(client).call(world.peer(client, server), SLOW, "x", CallOptions::new());
    world.run(MS);
    // Killed, not closed: no goodbye leaves.
    world.network.partition("n0", "n1").unwrap();
    world.nodes[server] = None;
    world.network.heal("n0", "n1").unwrap();
    world.start(server, quick());
    serve(&mut world, server, &log);
    let error = world.finish(call).unwrap_err();
    assert!(matches!(error, CallError::Disconnected { fate: Fate::MaybeExecuted, .. }), "{error:?}");
    assert_eq!(world.call(client, server, ECHO, "again", CallOptions::new()).as_deref(), Ok("again"));
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_server_that_stops_in_order_says_what_became_of_each_call() {
    let (mut world, server, client) = World::pair(quick());
    let log = Log::default();
    serve(&mut world, server, &log);
    let running = world.local(client).call(world.peer(client, server), SLOW, "x", CallOptions::new());
    world.run(MS);
    world.nodes[server] = None;
    assert_eq!(world.finish(running).unwrap_err(), CallError::Cancelled { fate: Fate::MaybeExecuted });
    assert_eq!(*log.borrow(), ["start x", "drop x"]);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_client_that_dies_leaves_nothing_behind_at_its_server() {
    let (mut world, server, client) = World::pair(quick());
    let log = Log::default();
    serve(&mut world, server, &log);
    let (peer, local) = (world.peer(client, server), world.local(client));
    let calls: Vec<_> = (0..5).map(|n| local.call(peer, SLOW, n.to_string(), CallOptions::new())).collect();
    world.run(MS);
    assert_eq!(world.node(server).usage().entries, 5);
    world.network.partition("n1", "n0").unwrap();
    world.nodes[client] = None;
    drop(calls);
    world.run(Duration::from_secs(1));
    assert_eq!(world.node(server).usage(), Usage::default());
    let log = log.borrow();
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    // The handlers took 20 ms, and 100 ms passed before the client counted as dead.
    assert_eq!((count("start"), count("end"), count("drop")), (5, 5, 0));
}

#[test]
fn the_token_of_a_dead_clients_handler_fires() {
    let (mut world, server, client) = World::pair(quick());
    let (fired, local) = (Log::default(), world.local(server));
    let log = fired.clone();
    let service = Service::future(move |request| {
        let (log, local) = (log.clone(), local.clone());
        async move {
            let reason = request.cancellation().cancelled().await;
            log.borrow_mut().push(format!("{reason:?}"));
            drop(local);
            Ok(Reply::empty())
        }
    });
    world.node(server).serve(SLOW, service.finish_when_cancelled()).unwrap();
    let call = world.local(client).call(world.peer(client, server), SLOW, "x", CallOptions::new());
    world.run(MS);
    world.network.partition("n1", "n0").unwrap();
    world.nodes[client] = None;
    drop(call);
    world.run(Duration::from_secs(1));
    assert_eq!(*fired.borrow(), ["PeerGone"]);
    assert_eq!(world.node(server).usage(), Usage::default());
}

#[test]
fn a_new_client_in_the_place_of_a_dead_one_gets_its_own_answers() {
    let (mut world, server, client) = World::pair(quick());
    let log = Log::default();
    let local = world.local(server);
    let service = slow(local, 500 * MS, &log);
    world.node(server).serve(SLOW, service.finish_when_cancelled()).unwrap();
    let old = world.local(client).call(world.peer(client, server), SLOW, "old", CallOptions::new());
    world.run(MS);
    world.network.partition("n1", "n0").unwrap();
    world.nodes[client] = None;
    drop(old);
    world.network.heal("n1", "n0").unwrap();
    // The restarted client's first call has the same number as the old one's.
    world.start(client, quick());
    world.run(200 * MS);
    assert_eq!(world.call(client, server, SLOW, "new", CallOptions::new()).as_deref(), Ok("did new"));
    world.run(MS);
    assert_eq!(*log.borrow(), ["start old", "start new", "end old", "end new"]);
    world.assert_at_rest();
}

#[test]
fn a_one_way_partition_ends_calls_and_they_work_again_after() {
    for (from, to) in [("n0", "n1"), ("n1", "n0")] {
        let (mut world, server, client) = World::pair(quick());
        let log = Log::default();
        serve(&mut world, server, &log);
        world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
        world.network.partition(from, to).unwrap();
        let error = world.call(client, server, ECHO, "x", CallOptions::new()).unwrap_err();
        assert!(matches!(error, CallError::Disconnected { .. }), "{error:?}");
        world.network.heal(from, to).unwrap();
        world.run(Duration::from_secs(1));
        assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
        world.run(MS);
        world.assert_at_rest();
    }
}

#[test]
fn calls_of_a_node_that_is_gone_end_and_new_ones_fail() {
    let (mut world, server, client) = World::pair(quick());
    let log = Log::default();
    serve(&mut world, server, &log);
    let (peer, local) = (world.peer(client, server), world.local(client));
    let call = local.call(peer, SLOW, "x", CallOptions::new());
    world.run(MS);
    world.nodes[client] = None;
    assert_eq!(world.finish(call).unwrap_err(), CallError::Stopped { fate: Fate::MaybeExecuted });
    assert_eq!(world.finish(local.call(peer, ECHO, "x", CallOptions::new())).unwrap_err().fate(), Fate::NotSent);
    assert!(local.spawn(async {}).is_err());
    // The place is free, although somebody still holds a `Local`.
    world.start(client, quick());
    assert!(world.call(client, server, ECHO, "x", CallOptions::new()).is_ok());
}

#[test]
fn many_lost_packets_cost_time_and_no_call() {
    let mut world = World::new(5, LinkConfig { loss: 0.3, ..LinkConfig::with_delay(Duration::from_micros(50)) });
    let (server, client) = (world.add(NodeConfig::default()), world.add(NodeConfig::default()));
    world.node(server).serve(ECHO, echo()).unwrap();
    for n in 0..300 {
        assert_eq!(world.call(client, server, ECHO, &n.to_string(), CallOptions::new()), Ok(n.to_string()));
    }
    assert_eq!(world.node(server).metrics().server(ECHO, Class::Normal).unwrap().requests, 300);
    world.run(MS);
    world.assert_at_rest();
}
