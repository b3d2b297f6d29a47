//! A small call in steady state allocates nothing, on either side.

use tautline_net::clock::{Clock, Time};
use tautline_rpc::{CallOptions, Method, Node, Service, Wait};

const ECHO: Method = Method::named("allocation.Test/Echo");
const BODY: [u8; 32] = [7; 32];

/// Two nodes on one thread, a window of calls between them.
struct Pair {
    client: Node,
    server: Node,
    clock: Clock,
    time: Time,
}

impl Pair {
    fn new(name: &str) -> Pair {
        let time = Time::from_nanos(1_000_000);
        let clock = Clock::virtual_at(time);
        let node = |side: &str| {
            Node::builder(format!("mem://allocation-{name}-{side}")).wait(Wait::Spin).clock(clock.clone()).build().unwrap()
        };
        let (client, mut server) = (node("client"), node("server"));
        server.serve(ECHO, Service::inline(|request| Ok(request.take_payload().into()))).unwrap();
        Pair { client, server, clock, time }
    }

    fn calls(&mut self, count: usize, window: usize) {
        let local = self.client.local();
        let peer = local.peer(self.server.address()).unwrap();
        let options = CallOptions::new();
        let (mut sent, mut ended) = (0, 0);
        while ended < count {
            while sent < count && sent - ended < window {
                local.submit(peer, ECHO, &BODY, &options, 0).unwrap();
                sent += 1;
            }
            self.time = self.time.plus_nanos(500);
            self.clock.advance_to(self.time);
            self.client.poll();
            self.server.poll();
            while let Some(completion) = self.client.next_completion() {
                assert_eq!(&*completion.result.unwrap(), &BODY);
                ended += 1;
            }
        }
    }
}

#[test]
fn a_small_call_allocates_nothing_once_its_path_is_warm() {
    for window in [1, 8, 32] {
        let mut pair = Pair::new(&window.to_string());
        pair.calls(5_000, window);
        let counted = allocation_counter::measure(|| pair.calls(10_000, window));
        assert_eq!(counted.count_total, 0, "window {window}: {counted:?}");
    }
}
