//! Three servers that know of each other, a client's node, and callers on other threads who make tied calls by a handle of its set.

use std::sync::mpsc;
use std::time::Duration;

use tautline_rpc::{Address, Service, Wait};
use tautline_tied::{Budget, Mode, Policy, Replicas, Stagger, TieServer, TieServerConfig, TiedOptions};

use crate::{REVERSE, Running, request, reversed, start};

const SERVERS: usize = 3;
const CALLERS: u64 = 2;
/// Calls of a caller that are under way at once.
const AT_ONCE: u64 = 4;

pub(crate) fn run(url: &dyn Fn(usize) -> String, calls: u64) {
    let (tell_ties, ties) = mpsc::channel();
    let servers: Vec<Running> = (0..SERVERS)
        .map(|number| {
            let tell_ties = tell_ties.clone();
            start(url(number), Wait::Park, 1, move |node| {
                let reverse = Service::workers(|request| Ok(reversed(request.payload()).into()));
                node.serve(REVERSE, reverse).expect("the only method");
                let (tell, told) = mpsc::channel::<Vec<Address>>();
                tell_ties.send(tell).expect("the starter waits");
                // Those of the others come by a closure, when they are known.
                let allowed = vec![node.address()];
                let ties =
                    TieServer::install(node, TieServerConfig { allowed, ..TieServerConfig::default() }).expect("the only hook");
                let task = node.local();
                let at = task.clone();
                let learn = task.spawn(async move {
                    loop {
                        if let Ok(others) = told.try_recv() {
                            others.into_iter().for_each(|other| ties.allow(other).expect("addresses of nodes"));
                            return ties;
                        }
                        at.sleep(Duration::from_micros(200)).await;
                    }
                });
                learn.expect("there is room for a task")
            })
        })
        .collect();
    let addresses: Vec<Address> = servers.iter().map(|server| server.handle.address()).collect();
    ties.iter().take(SERVERS).for_each(|tell| tell.send(addresses.clone()).expect("the server waits for it"));
    for mode in [Mode::Cancel, Mode::Demote] {
        let (tell, told) = mpsc::channel();
        let replicas = addresses.clone();
        let client = start(url(SERVERS), Wait::Adaptive, 0, move |node| {
            let policy = Policy::Tied { mode, stagger: Stagger::Fixed(Duration::ZERO), then_hedge: None };
            let set = Replicas::builder().replicas(replicas).policy(policy).budget(Budget::UNLIMITED);
            tell.send(set.build(&node.local()).expect("three addresses").handle()).expect("the starter waits");
        });
        let set = told.recv().expect("the set is made");
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let set = set.clone();
                std::thread::spawn(move || {
                    for first in (0..calls).step_by(AT_ONCE as usize) {
                        let options = TiedOptions::new().deadline(Duration::from_secs(120));
                        let made: Vec<_> = (first..first + AT_ONCE)
                            .map(|call| (call, set.call(REVERSE, request(caller, call), &options)))
                            .collect();
                        for (call, made) in made {
                            if call % 9 == 8 {
                                // Given up: the copies are cancelled wherever they are.
                                drop(made);
                                continue;
                            }
                            let answer = made.wait().unwrap_or_else(|error| panic!("call {call} of caller {caller}: {error}"));
                            assert!(answer.payload[..] == reversed(&request(caller, call))[..], "the answer to another call");
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().expect("every answer is right"));
        drop(set);
        client.stop();
    }
    servers.into_iter().for_each(Running::stop);
}
