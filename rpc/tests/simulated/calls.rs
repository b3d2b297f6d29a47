//! Plain calls: what comes back, and what bad requests get.

use std::time::Duration;

use tautline_net::endpoint::{Endpoint, Event};
use tautline_net::port::sim::LinkConfig;
use tautline_rpc::*;

use crate::world::*;

#[test]
fn a_call_gets_its_own_reply() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let peer = world.peer(client, server);
    let calls: Vec<_> =
        (0..200).map(|n| world.local(client).call(peer, ECHO, format!("message {n}"), CallOptions::new())).collect();
    for (n, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(&*world.finish(call).unwrap(), format!("message {n}").as_bytes());
    }
    world.run(Duration::from_millis(10));
    world.assert_at_rest();
}

#[test]
fn a_submitted_call_completes_under_its_tag() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    for tag in 0..100u64 {
        local.submit(peer, ECHO, tag.to_string(), &CallOptions::new(), tag).unwrap();
    }
    world.run(Duration::from_millis(10));
    let mut seen = Vec::new();
    while let Some(Completion { tag, result }) = world.node(client).next_completion() {
        assert_eq!(&*result.unwrap(), tag.to_string().as_bytes());
        seen.push(tag);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    world.assert_at_rest();
}

#[test]
fn a_large_message_goes_both_ways() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let large = "0123456789".repeat(50_000);
    assert_eq!(world.call(client, server, ECHO, &large, CallOptions::new()), Ok(large));
}

#[test]
fn both_sides_call_each_other_over_what_session_there_is() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    for node in [server, client] {
        world.node(node).serve(ECHO, echo()).unwrap();
    }
    assert_eq!(world.call(client, server, ECHO, "there", CallOptions::new()).as_deref(), Ok("there"));
    assert_eq!(world.call(server, client, ECHO, "back", CallOptions::new()).as_deref(), Ok("back"));
    assert_eq!(world.node(server).usage().sessions, 1, "the session there was is used");
}

#[test]
fn a_handlers_status_arrives_as_it_was() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let status = Status::new(Code::NotFound, "no such thing").retry_after(Duration::from_millis(3));
    let answer = status.clone();
    world.node(server).serve(ECHO, Service::inline(move |_| Err(answer.clone()))).unwrap();
    let error = world.call(client, server, ECHO, "", CallOptions::new()).unwrap_err();
    assert_eq!(error, CallError::Status(status));
    assert_eq!((error.fate(), error.is_deterministic()), (Fate::Executed, true));
}

#[test]
fn a_handler_that_panics_answers_internal_and_serves_on() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let fickle = |payload: &[u8]| if payload == b"bad" { panic!("as the test asked") } else { Ok("fine".into()) };
    world.node(server).serve(ECHO, Service::inline(move |request| fickle(request.payload()))).unwrap();
    world.node(server).serve(SLOW, Service::future(move |request| async move { fickle(request.payload()) })).unwrap();
    let queued = Method::named("test/Queued");
    world.node(server).serve(queued, Service::workers(move |request| fickle(request.payload()))).unwrap();
    for method in [ECHO, SLOW, queued] {
        match world.call(client, server, method, "bad", CallOptions::new()) {
            Err(CallError::Status(status)) => assert_eq!(status.code, Code::Internal),
            other => panic!("{method}: {other:?}"),
        }
        assert_eq!(world.call(client, server, method, "good", CallOptions::new()).as_deref(), Ok("fine"));
        assert_eq!(world.node(server).metrics().server(method, Class::Normal).unwrap().panics, 1);
    }
    world.run(Duration::from_millis(1));
    world.assert_at_rest();
}

#[test]
fn an_unknown_method_is_refused_by_its_name() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let error = world.call(client, server, ECHO, "", CallOptions::new()).unwrap_err();
    assert_eq!(error, CallError::UnknownMethod(ECHO));
    assert_eq!(error.fate(), Fate::NotExecuted);
    assert!(error.to_string().contains("test/Echo"));
    assert_eq!(world.node(server).metrics().node.unknown_method, 1);
}

#[test]
fn a_request_above_the_limit_is_not_sent_and_a_reply_above_it_is_a_status() {
    let mut config = NodeConfig::default();
    config.endpoint.max_message = 10_000;
    let (mut world, server, client) = World::pair(config);
    world.node(server).serve(ECHO, Service::inline(|_| Ok(vec![0; 20_000].into()))).unwrap();
    match world.call(client, server, ECHO, &"x".repeat(10_000), CallOptions::new()) {
        Err(error @ CallError::TooLarge { limit: 10_000, .. }) => assert_eq!(error.fate(), Fate::NotSent),
        other => panic!("{other:?}"),
    }
    match world.call(client, server, ECHO, "", CallOptions::new()) {
        Err(CallError::Status(status)) => assert_eq!(status.code, Code::ResourceExhausted),
        other => panic!("{other:?}"),
    }
    world.run(Duration::from_millis(10));
    world.assert_at_rest();
}

/// A peer that speaks the transport and writes its own heads.
struct Raw {
    endpoint: Endpoint,
    session: SessionId,
}

impl Raw {
    fn connect(world: &mut World, to: &str) -> Raw {
        let port = world.network.port("raw").unwrap();
        let now = world.clock.now();
        let mut endpoint = Endpoint::new(Box::new(port), EndpointConfig { seed: Some(3), ..EndpointConfig::default() }, now);
        let address = to.to_address().unwrap();
        let session = endpoint.connect(address, now).unwrap();
        Raw { endpoint, session }
    }

    /// Sends a message and gives what comes back within a millisecond.
    fn exchange(&mut self, world: &mut World, message: &[u8], control: bool) -> Vec<Vec<u8>> {
        let now = world.clock.now();
        if control {
            self.endpoint.send_control(self.session, message, now).unwrap();
        } else {
            self.endpoint.send(self.session, Class::Normal, message, Payload::empty(), 0, now).unwrap();
        }
        let mut replies = Vec::new();
        for _ in 0..100 {
            let now = world.clock.now();
            self.endpoint.poll(now);
            self.endpoint.flush(now);
            while let Some(event) = self.endpoint.next_event() {
                if let Event::Message { payload, .. } = event {
                    replies.push(payload.to_vec());
                }
            }
            world.run(Duration::from_micros(10));
        }
        replies
    }
}

/// A request's head: version 1, class 1, method, call 7, no deadline.
fn head(method: Method) -> Vec<u8> {
    let mut head = vec![1, 1, 1, 0];
    head.extend(method.id().to_le_bytes());
    head.extend(7u64.to_le_bytes());
    head.extend(u32::MAX.to_le_bytes());
    head.extend([0, 0, 0, 0]);
    head
}

#[test]
fn every_malformed_or_unknown_head_is_answered_or_counted_and_never_run() {
    let mut world = World::new(1, LinkConfig::with_delay(Duration::from_micros(10)));
    let server = world.add(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    let mut raw = Raw::connect(&mut world, "sim://n0");
    let code_and_flags = |replies: &[Vec<u8>]| replies.iter().map(|reply| (reply[2], reply[3])).collect::<Vec<_>>();

    let good = raw.exchange(&mut world, &head(ECHO), false);
    assert_eq!(code_and_flags(&good), [(0, 0)]);
    let version = raw.exchange(&mut world, &[&[1, 9], &head(ECHO)[2..]].concat(), false);
    assert_eq!(code_and_flags(&version), [(Code::Unimplemented as u8, 1 | 4)]);
    let class = raw.exchange(&mut world, &[&[1, 1, 200], &head(ECHO)[3..]].concat(), false);
    assert_eq!(code_and_flags(&class), [(Code::InvalidArgument as u8, 1)]);
    let method = raw.exchange(&mut world, &head(SLOW), false);
    assert_eq!(code_and_flags(&method), [(Code::Unimplemented as u8, 1 | 2)]);
    // An extension that nothing takes must not be ignored: it may say "not unless ...".
    let mut extended = head(ECHO);
    (extended[20], extended[21]) = (5, 2);
    extended.extend([0, 0]);
    assert_eq!(code_and_flags(&raw.exchange(&mut world, &extended, false)), [(Code::Unimplemented as u8, 1)]);

    let before = world.node(server).metrics().node.malformed;
    let long_extension = [&head(ECHO)[..20], &[5, 201, 0, 0], &[0; 201]].concat();
    let cut_extension = [&head(ECHO)[..20], &[5, 9, 0, 0], &[0; 8]].concat();
    let unreadable: [&[u8]; 6] = [&[], &[1], &[77; 40], &head(ECHO)[..23], &long_extension, &cut_extension];
    for message in unreadable {
        assert!(raw.exchange(&mut world, message, false).is_empty(), "{message:?}");
    }
    let control: [&[u8]; 5] = [&[], &[3], &[4; 15], &[5, 1, 9, 0, 1, 2], &[200; 16]];
    for message in control {
        assert!(raw.exchange(&mut world, message, true).is_empty(), "{message:?}");
    }
    assert_eq!(world.node(server).metrics().node.malformed, before + 6 + 5);
    assert_eq!(world.node(server).metrics().server(ECHO, Class::Normal).unwrap().replies, 1);
    world.assert_at_rest();
}

#[test]
fn replies_that_nobody_asked_for_complete_nothing() {
    let mut world = World::new(1, LinkConfig::with_delay(Duration::from_micros(10)));
    let (server, client) = (world.add(NodeConfig::default()), world.add(NodeConfig::default()));
    let log = Log::default();
    let service = slow(world.local(server), Duration::from_millis(5), &log);
    world.node(server).serve(SLOW, service).unwrap();
    let call = world.local(client).call(world.peer(client, server), SLOW, "x", CallOptions::new());
    world.run(Duration::from_millis(1));
    // Another peer guesses the number of the call under way: slot 0, generation 1.
    let mut raw = Raw::connect(&mut world, "sim://n1");
    let mut forged = vec![2, 1, 0, 0, 1, 0, 1, 0];
    forged.extend((1u64 << 32).to_le_bytes());
    forged.extend([0; 8]);
    forged.extend(b"forged");
    raw.exchange(&mut world, &forged, false);
    assert_eq!(world.node(client).metrics().node.late_replies, 1);
    assert_eq!(&*world.finish(call).unwrap(), b"did x");
}

#[test]
fn a_call_number_that_is_in_use_is_not_run_again() {
    let mut world = World::new(1, LinkConfig::with_delay(Duration::from_micros(10)));
    let server = world.add(NodeConfig::default());
    let log = Log::default();
    let service = slow(world.local(server), Duration::from_secs(1), &log);
    world.node(server).serve(SLOW, service).unwrap();
    let mut raw = Raw::connect(&mut world, "sim://n0");
    raw.exchange(&mut world, &head(SLOW), false);
    raw.exchange(&mut world, &head(SLOW), false);
    assert_eq!(world.node(server).metrics().node.duplicate_calls, 1);
    assert_eq!(log.borrow().len(), 1);
}

#[test]
fn typed_calls_carry_their_types_and_refuse_what_does_not_decode() {
    struct Double;
    impl Rpc for Double {
        type Request = u64;
        type Reply = u64;
        type Codec = Plain;
        const METHOD: Method = Method::named("test/Double");
    }
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(Double::METHOD, Service::inline_typed::<Double>(|number, _| Ok(number * 2))).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    assert_eq!(world.finish(local.call_typed::<Double>(peer, 21, CallOptions::new())), Ok(42));
    match world.call(client, server, Double::METHOD, "seven", CallOptions::new()) {
        Err(CallError::Status(status)) => assert_eq!(status.code, Code::InvalidArgument),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_counts_each_call_once_by_method_and_class() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).serve(ECHO, echo()).unwrap();
    for _ in 0..3 {
        world.call(client, server, ECHO, "x", CallOptions::new().class(Class::Bulk)).unwrap();
    }
    let _ = world.call(client, server, SLOW, "x", CallOptions::new());
    let metrics = world.node(client).metrics();
    let series = metrics.client(ECHO, Class::Bulk).unwrap();
    assert_eq!((series.calls, series.replies, series.latency.count()), (3, 3, 3));
    assert!(series.latency.quantile(0.5) >= Duration::from_micros(20), "two ways of 10 us each");
    assert_eq!(metrics.client(SLOW, Class::Normal).unwrap().errors_of(ErrorKind::Refused), 1);
    drop(metrics);
    assert_eq!(world.node(server).metrics().server(ECHO, Class::Bulk).unwrap().requests, 3);
    assert!(
        world.node(server).metrics().prometheus().contains("tautline_server_requests_total{method=\"test/Echo\",class=\"bulk\"} 3")
    );
}

#[test]
fn a_future_that_computes_for_long_lets_the_loop_turn() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let (local, clock, log) = (world.local(server), world.clock.clone(), Log::default());
    let order = log.clone();
    let compute = Service::future(move |_| {
        let (local, clock, log) = (local.clone(), clock.clone(), order.clone());
        async move {
            for _ in 0..20 {
                clock.advance_to(clock.now() + Duration::from_micros(20));
                local.yield_now().await;
            }
            log.borrow_mut().push("computed".to_owned());
            Ok(Reply::empty())
        }
    });
    world.node(server).serve(SLOW, compute).unwrap();
    let order = log.clone();
    let short = Service::inline(move |_| {
        order.borrow_mut().push("short".to_owned());
        Ok(Reply::empty())
    });
    world.node(server).serve(ECHO, short).unwrap();
    world.call(client, server, ECHO, "connect", CallOptions::new()).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let long = local.call(peer, SLOW, "x", CallOptions::new());
    let short = local.call(peer, ECHO, "x", CallOptions::new());
    assert!(world.finish(short).is_ok() && world.finish(long).is_ok());
    assert_eq!(*log.borrow(), ["short", "short", "computed"]);
}

#[test]
fn an_inline_handler_may_call_others_and_look_at_its_own_node() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let backend = world.add(NodeConfig::default());
    world.node(backend).serve(ECHO, echo()).unwrap();
    let (local, peer) = (world.local(server), world.peer(server, backend));
    let forward = Service::inline(move |request| {
        let options = request.child_options();
        local.submit(peer, ECHO, request.take_payload(), &options, 5).map_err(|_| Status::new(Code::Unavailable, "no room"))?;
        assert!(local.now() > Time::ZERO);
        let calls = local.metrics().client(ECHO, Class::Normal).map_or(0, |series| series.calls);
        Ok(calls.to_string().into())
    });
    world.node(server).serve(SLOW, forward).unwrap();
    assert_eq!(world.call(client, server, SLOW, "on", CallOptions::new()).as_deref(), Ok("1"));
    world.run(Duration::from_millis(1));
    let completion = world.node(server).next_completion().unwrap();
    assert_eq!((completion.tag, &*completion.result.unwrap()), (5, &b"on"[..]));
    world.assert_at_rest();
}
