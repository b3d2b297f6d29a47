//! Two nodes that serve and call each other, each with workers, and callers on other threads.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_rpc::{CallOptions, Class, Handle, Method, Node, Payload, Reply, Service, Wait};

use crate::{ECHO, NEVER, RELAY, REVERSE, Running, request, reversed, start};

const CALLERS: u64 = 3;
/// Received payloads that are kept and dropped by whoever comes by: their frames go home from any thread, and after their node is gone.
const KEPT: usize = 16;

type Kept = Arc<Mutex<Vec<Payload>>>;

pub(crate) fn run(url: &dyn Fn(usize) -> String, calls: u64) {
    let kept = Kept::default();
    let nodes: Vec<Running> = [Wait::Adaptive, Wait::Park]
        .into_iter()
        .enumerate()
        .map(|(number, wait)| {
            let kept = kept.clone();
            start(url(number), wait, 2, move |node| serve(node, &kept))
        })
        .collect();
    // Each learns where the other is by the calls that come: the address of whom to relay to is in them.
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let [a, b] = [0, 1].map(|number| nodes[number].handle.clone());
            let kept = kept.clone();
            std::thread::spawn(move || make_calls(caller, calls, &a, &b, &kept))
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().expect("every answer is right"));
    // Some calls are under way when their node ends.
    let (by, to) = (nodes[0].handle.clone(), nodes[1].handle.address());
    let hanging: Vec<_> = (0..8).map(|_| by.call(to, NEVER, "x", CallOptions::new())).collect();
    let waiting = std::thread::spawn(move || hanging.into_iter().for_each(|call| assert!(call.wait().is_err())));
    // Frames that outlive their pools come home while the nodes end, and after that, by a thread that nothing else tells when that is:
    // only the frames' own orderings keep the last one from freeing what somebody uses.
    let left = std::mem::take(&mut *kept.lock().expect("nobody panicked with it"));
    let dropping = std::thread::spawn(move || {
        for payload in left {
            std::thread::sleep(Duration::from_millis(2));
            drop(payload);
        }
    });
    nodes.into_iter().for_each(Running::stop);
    waiting.join().expect("calls end when their node does");
    dropping.join().expect("frames may outlive their pool");
}

fn serve(node: &mut Node, kept: &Kept) {
    let keep = kept.clone();
    let reverse = Service::workers(move |mut request| {
        let payload = request.take_payload();
        let reply = reversed(&payload);
        let mut kept = keep.lock().expect("nobody panicked with it");
        let place = reply.len() % KEPT;
        match kept.get_mut(place) {
            Some(place) => *place = payload,
            None => kept.push(payload),
        }
        Ok(reply.into())
    });
    let local = node.local();
    let relay = Service::future(move |request| {
        let local = local.clone();
        async move {
            // Where the caller is, there is another who serves the same.
            let peer = local.peer(request.peer()).expect("an address that a packet came from");
            let relayed = local.call(peer, REVERSE, request.payload().to_vec(), request.child_options()).await;
            Ok(relayed.expect("nobody gives these up").to_vec().into())
        }
    });
    let never = Service::future(|request| async move {
        request.cancellation().cancelled().await;
        Ok(Reply::empty())
    });
    let services: [(Method, Service); 4] = [
        (ECHO, Service::inline(|request| Ok(request.take_payload().into()))),
        (REVERSE, reverse),
        (RELAY, relay),
        (NEVER, never.finish_when_cancelled()),
    ];
    for (method, service) in services {
        node.serve(method, service).expect("four names that differ");
    }
}

fn make_calls(caller: u64, calls: u64, a: &Handle, b: &Handle, kept: &Kept) {
    for call in 0..calls {
        let (by, to) = if (caller + call).is_multiple_of(2) { (a, b) } else { (b, a) };
        let method = [ECHO, REVERSE, RELAY][(call % 3) as usize];
        let options = CallOptions::new().class(Class::ALL[(call % 4) as usize]).deadline(Duration::from_secs(120));
        let bytes = request(caller, call);
        let made = by.call(to.address(), method, bytes.clone(), options);
        // One that is given up at once, or while it waits or runs.
        let given_up = (call % 5 == 0).then(|| by.call(to.address(), NEVER, "x", CallOptions::new()));
        let reply = made.wait().unwrap_or_else(|error| panic!("call {call} of caller {caller}: {error}"));
        let right = if method == ECHO { bytes } else { reversed(&bytes) };
        assert!(reply[..] == right[..], "call {call} of caller {caller} got another answer");
        drop(given_up);
        if call % 7 == 0 {
            kept.lock().expect("nobody panicked with it").pop();
        }
        if call % 16 == 0 {
            let (tell, told) = std::sync::mpsc::channel();
            assert!(by.execute(move |local| drop(tell.send(local.metrics().prometheus()))), "a running node takes closures");
            assert!(told.recv().expect("and runs them").contains("tautline"));
        }
    }
}
