//! Inline handlers that run where their request was received, many of a packet one after the other: what one does with its request is no
//! business of the next.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tautline_rpc::*;

use crate::world::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn requests_of_one_packet_share_nothing_whatever_their_handlers_do() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let kept: Rc<RefCell<Vec<(u8, CancelToken, tautline_net::payload::Payload)>>> = Rc::default();
    let (keep, local) = (kept.clone(), world.local(server));
    let service = Service::inline(move |request| {
        let n = request.payload()[0];
        match n % 5 {
            0 => {
                // Kept for good, and with them the packet that they came in.
                let token = request.cancellation().clone();
                assert!(!token.is_cancelled(), "request {n} came cancelled");
                token.cancel(CancelReason::Cancelled);
                assert!(request.cancellation().is_cancelled() && !request.checkpoint());
                assert_eq!((request.deadline(), request.remaining()), (None, None));
                keep.borrow_mut().push((n, token, request.take_payload()));
                assert!(request.payload().is_empty());
                Ok(vec![n].into())
            }
            1 => panic!("request {n}"),
            2 => {
                // Back into the node.
                assert!(local.metrics().server(ECHO, Class::Normal).is_some());
                let peer = request.peer();
                drop(local.call(local.peer(peer).unwrap(), SLOW, vec![n], CallOptions::new()));
                Err(Status::new(Code::NotFound, "no"))
            }
            3 => {
                assert!(!request.cancellation().is_cancelled() && request.checkpoint());
                Ok(request.take_payload().into())
            }
            _ => Ok(vec![n].into()),
        }
    });
    world.node(server).serve(ECHO, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    // A first call, so that the session is there and the rest leaves in bundles.
    world.call(client, server, ECHO, "\u{4}", CallOptions::new()).unwrap();
    for n in 0..60u8 {
        local.submit(peer, ECHO, vec![n], &CallOptions::new(), n.into()).unwrap();
    }
    world.run(5 * MS);
    let mut ended = 0;
    while let Some(Completion { tag, result }) = local.next_completion() {
        ended += 1;
        let n = tag as u8;
        match (n % 5, result) {
            (0 | 3 | 4, Ok(reply)) => assert_eq!(*reply, [n]),
            (1, Err(CallError::Status(status))) => assert_eq!(status.code, Code::Internal),
            (2, Err(CallError::Status(status))) => assert_eq!(status.code, Code::NotFound),
            (_, other) => panic!("call {n}: {other:?}"),
        }
    }
    assert_eq!(ended, 60);
    let kept = kept.take();
    assert_eq!(kept.len(), 12);
    for (n, _, payload) in &kept {
        assert_eq!(**payload, [*n], "a kept payload changed");
    }
    assert_eq!(world.node(server).metrics().server(ECHO, Class::Normal).unwrap().panics, 12);
    drop(kept);
    world.assert_at_rest();
}

#[test]
fn a_flood_of_requests_is_served_a_part_a_turn_and_all_are_answered() {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let served = Rc::new(std::cell::Cell::new(0));
    let count = served.clone();
    let service = Service::inline(move |_| {
        count.set(count.get() + 1);
        Ok(Reply::empty())
    });
    world.node(server).serve(ECHO, service).unwrap();
    let (peer, local) = (world.peer(client, server), world.local(client));
    world.call(client, server, ECHO, "", CallOptions::new()).unwrap();
    const CALLS: u64 = 900;
    for n in 0..CALLS {
        local.submit(peer, ECHO, vec![], &CallOptions::new(), n).unwrap();
    }
    world.node(client).poll();
    let mut ended = 0;
    for _ in 0..10_000 {
        let before = served.get();
        world.clock.advance_to(world.clock.now() + Duration::from_micros(1));
        let done = world.node(server).poll();
        let more = served.get() - before;
        assert!(more < 2 * 64, "{more} in one turn");
        assert!(done > 0 || more == 0, "work that was not said");
        world.node(client).poll();
        ended += std::iter::from_fn(|| local.next_completion()).filter(|completion| completion.result.is_ok()).count() as u64;
    }
    assert_eq!((ended, served.get()), (CALLS, CALLS + 1));
}
