//! Calls from one node to another on the same thread: answered where they arrive, and through the run queue, whose cost is the difference.

use criterion::{Criterion, Throughput};
use tautline_rpc::{CallOptions, Clock, EndpointConfig, Local, Method, Node, NodeConfig, Peer, Service, Time, Wait};

const INLINE: Method = Method::named("bench.Pieces/Inline");
const QUEUED: Method = Method::named("bench.Pieces/Queued");

static MESSAGE: [u8; 32] = [7; 32];

struct Nodes {
    clock: Clock,
    client: Node,
    server: Node,
    local: Local,
    peer: Peer,
}

impl Nodes {
    fn new() -> Nodes {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000_000));
        let node = |url: &str| {
            let endpoint = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
            let config = NodeConfig { endpoint, ..NodeConfig::default() };
            Node::builder(url).wait(Wait::Spin).clock(clock.clone()).config(config).build().expect("the name is free")
        };
        let (client, mut server) = (node("mem://pieces-caller"), node("mem://pieces-callee"));
        server.serve(INLINE, Service::inline(|request| Ok(request.take_payload().into()))).expect("the first of its name");
        // There are no workers: the poller takes it from the run queue.
        let queued = Service::workers(|_| Ok(MESSAGE[..].into()));
        server.serve(QUEUED, queued).expect("the first of its name");
        let local = client.local();
        let peer = local.peer(server.address()).expect("both are mem");
        Nodes { clock, client, server, local, peer }
    }

    fn call(&mut self, method: Method) {
        self.local.submit(self.peer, method, &MESSAGE[..], &CallOptions::new(), 1).expect("there is credit");
        loop {
            self.client.poll();
            if let Some(done) = self.client.next_completion() {
                assert_eq!(done.result.expect("the method is served").len(), MESSAGE.len());
                break;
            }
            self.server.poll();
            self.clock.advance_to(self.clock.now().plus_nanos(500));
        }
    }
}

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("call");
    group.throughput(Throughput::Elements(1));
    let mut nodes = Nodes::new();
    group.bench_function("answered where it arrives", |bencher| bencher.iter(|| nodes.call(INLINE)));
    group.bench_function("through the run queue", |bencher| bencher.iter(|| nodes.call(QUEUED)));
    group.finish();
}
