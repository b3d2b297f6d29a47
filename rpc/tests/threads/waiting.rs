//! The waiting modes, on the ports that have a handle to block on.

use std::time::Duration;

use tautline_rpc::*;

use crate::support::*;

#[test]
fn each_waiting_mode_serves_on_each_port() {
    for (n, url) in ["udp://127.0.0.1:0", "udp://[::1]:0", "mem://w"].into_iter().enumerate() {
        for wait in [Wait::Spin, Wait::Adaptive, Wait::Park] {
            let name = |role: &str| if n == 2 { format!("{url}-{role}-{wait:?}") } else { url.to_owned() };
            let server = Server::start(&name("server"), wait, 1, |node| {
                node.serve(ECHO, echo()).unwrap();
                node.serve(WORK, Service::workers(|request| Ok(request.payload().to_vec().into()))).unwrap();
            });
            let mut node = Node::builder(name("client")).wait(wait).build().unwrap();
            let local = node.local();
            let peer = local.peer(server.handle.address()).unwrap();
            let rounds = if wait == Wait::Spin { 20 } else { 100 };
            for round in 0..rounds {
                for method in [ECHO, WORK] {
                    let text = format!("{round}");
                    let reply = node.block_on(local.call(peer, method, text.clone(), CallOptions::new()));
                    assert_eq!(&*reply.unwrap(), text.as_bytes());
                }
            }
        }
    }
}

#[test]
fn a_blocked_node_wakes_for_a_deadline_and_not_much_later() {
    let mut node = Node::builder("udp://127.0.0.1:0").wait(Wait::Park).build().unwrap();
    let local = node.local();
    // A socket that is bound, and never read.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let peer = local.peer(nobody.local_addr().unwrap()).unwrap();
    let clock = Clock::tsc();
    let begun = clock.now();
    let deadline = Duration::from_millis(30);
    let error = node.block_on(local.call(peer, ECHO, "x", CallOptions::new().deadline(deadline))).unwrap_err();
    assert_eq!(error, CallError::DeadlineExceeded { fate: Fate::NotSent });
    assert!(clock.now().since(begun) >= deadline);
    assert!(node.metrics().node.waits > 0, "it blocked");
}

#[test]
fn timers_below_a_millisecond_are_kept_while_blocked() {
    let mut node = Node::builder("udp://127.0.0.1:0").wait(Wait::Park).build().unwrap();
    let (local, clock) = (node.local(), Clock::tsc());
    let mut best = Duration::MAX;
    for _ in 0..50 {
        let begun = clock.now();
        node.block_on(local.sleep(Duration::from_micros(200)));
        let took = clock.now().since(begun);
        assert!(took >= Duration::from_micros(200), "woke early: {took:?}");
        best = best.min(took);
    }
    // Whole milliseconds, as epoll's own time-out would give, never do this; a busy machine may do it seldom.
    assert!(best < Duration::from_millis(1), "{best:?}");
}

#[test]
fn an_idle_node_blocks_and_a_busy_one_wakes_for_work_from_other_threads() {
    let server = Server::start("udp://127.0.0.1:0", Wait::Park, 0, |_| ());
    let waits = |local: &Local| local.metrics().node.waits;
    for _ in 0..20 {
        // It has nothing else to do than to go to sleep.
        let before = ask(&server.handle, waits);
        wait_until("sleep", || {
            std::thread::sleep(Duration::from_millis(1));
            ask(&server.handle, waits) > before
        });
    }
    let turns = |local: &Local| local.metrics().node.turns;
    let before = ask(&server.handle, turns);
    std::thread::sleep(Duration::from_millis(200));
    let idle = ask(&server.handle, turns) - before;
    assert!(idle < 100, "{idle} turns in 200 ms without work");
}

#[test]
fn virtual_time_and_blocking_exclude_each_other() {
    for (wait, workers) in [(Wait::Park, 0), (Wait::Spin, 1)] {
        let clock = Clock::virtual_at(Time::ZERO);
        let built = Node::builder("mem://waiting-virtual").clock(clock).wait(wait).workers(workers).build();
        assert!(matches!(built, Err(BuildError::Config(_))));
    }
}

#[test]
fn a_bad_url_or_a_taken_port_says_what_to_do() {
    let error = Node::builder("127.0.0.1:7000").build().unwrap_err().to_string();
    assert!(error.contains("scheme://"), "{error}");
    let first = Node::builder("udp://127.0.0.1:0").build().unwrap();
    let error = Node::builder(format!("udp://{}", first.address())).build().unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
}
