//! A call as a ping-pong: an inline handler that returns its payload, and a client that submits and takes the completion.

use tautline_net::clock::Clock;
use tautline_rpc::{Address, CallOptions, Local, Method, Node, NodeConfig, Peer, Service, Wait};

use crate::duo::{Serve, Stage};
use crate::error::BenchError;
use crate::floor::{PAYLOAD, PingPong, spin_for};

pub(crate) const ECHO: Method = Method::named("bench.Echo/Echo");
/// Takes what it gets, and answers with its first byte.
pub(crate) const SINK: Method = Method::named("bench.Echo/Sink");

/// The client's end.
pub struct CallClient {
    node: Node,
    local: Local,
    peer: Peer,
    options: CallOptions,
    clock: Clock,
    number: u64,
}

impl CallClient {
    /// A client at `url` of the echo at `server`. The session opens with the first call.
    pub fn connect(url: &str, server: Address, clock: Clock) -> Result<CallClient, BenchError> {
        let node = node(url, &clock, &NodeConfig::default())?;
        let local = node.local();
        let peer = local.peer(server).map_err(BenchError::product("looking the echo up"))?;
        Ok(CallClient { node, local, peer, options: CallOptions::new(), clock, number: 0 })
    }
}

impl PingPong for CallClient {
    #[inline]
    fn ping(&mut self) -> Result<(), BenchError> {
        self.number += 1;
        let submitted = self.local.submit(self.peer, ECHO, &[7; PAYLOAD], &self.options, self.number);
        submitted.map_err(BenchError::product("submitting a call"))?;
        spin_for("the echo", &self.clock, || {
            self.node.poll();
            let Some(done) = self.node.next_completion() else { return Ok(None) };
            let reply = done.result.map_err(BenchError::product("a call"))?;
            if done.tag != self.number || reply.len() != PAYLOAD {
                return Err(BenchError::wrong_reply());
            }
            Ok(Some(()))
        })
    }
}

/// The server's end.
pub struct CallEcho {
    node: Node,
}

impl CallEcho {
    /// An echo at `url`.
    pub fn open(url: &str, clock: &Clock) -> Result<CallEcho, BenchError> {
        CallEcho::with(url, clock, &NodeConfig::default())
    }

    /// An echo with limits of its own.
    pub fn with(url: &str, clock: &Clock, config: &NodeConfig) -> Result<CallEcho, BenchError> {
        let mut node = node(url, clock, config)?;
        serve(&mut node)?;
        Ok(CallEcho { node })
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        self.node.address()
    }

    /// One turn of its node.
    #[inline]
    pub fn poll(&mut self) {
        self.node.poll();
    }
}

impl Serve for CallEcho {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        while !stage.over() {
            self.node.poll();
        }
        Ok(())
    }
}

/// Has a node serve the echo and the sink.
pub(crate) fn serve(node: &mut Node) -> Result<(), BenchError> {
    let echo = Service::inline(|request| Ok(request.take_payload().into()));
    node.serve(ECHO, echo).map_err(BenchError::product("serving the echo"))?;
    let sink = Service::inline(|request| {
        let first = request.payload().first().map_or(0, |byte| usize::from(*byte));
        Ok(FIRST_BYTE[first % FIRST_BYTE.len()][..].into())
    });
    node.serve(SINK, sink).map_err(BenchError::product("serving the sink"))?;
    Ok(())
}

/// Every answer of the sink.
static FIRST_BYTE: [[u8; 1]; 256] = {
    let mut table = [[0]; 256];
    let mut n = 0;
    while n < table.len() {
        table[n][0] = n as u8;
        n += 1;
    }
    table
};

/// A node whose owner polls it without a pause.
pub(crate) fn node(url: &str, clock: &Clock, config: &NodeConfig) -> Result<Node, BenchError> {
    let builder = Node::builder(url).wait(Wait::Spin).clock(clock.clone()).config(config.clone());
    builder.build().map_err(BenchError::product("building a node"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::Duo;
    use crate::floor::sample;

    #[test]
    fn every_call_comes_back() {
        let clock = Clock::tsc();
        let core = crate::pin::allowed().unwrap()[0];
        let theirs = clock.clone();
        let (mut duo, address) = Duo::start(core, move || {
            let echo = CallEcho::open("mem://bench-call-echo", &theirs)?;
            let address = echo.address();
            Ok((vec![Box::new(echo) as Box<dyn Serve>], address))
        })
        .unwrap();
        let mut client = CallClient::connect("mem://bench-call-client", address, clock.clone()).unwrap();
        let samples = duo.during(0, || sample(&clock, 1, 20, &mut client)).unwrap();
        assert_eq!(samples.count(), 20);
    }
}
