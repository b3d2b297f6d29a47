//! One client's small and large echo calls on one session, together or apart: what a small one waits for a large one.

use bytes::Bytes;
use tautline_net::clock::{Clock, Time};
use tautline_rpc::{Address, CallOptions, Local, Node, NodeConfig, Peer};

use crate::call::{ECHO, node};
use crate::error::BenchError;
use crate::floor::{PATIENCE, PAYLOAD};
use crate::rate::Rate;
use crate::samples::Samples;

/// Bytes of a large call.
pub const LARGE: usize = 1 << 20;
/// Large calls outstanding.
pub const OUTSTANDING: usize = 8;

/// What runs in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// One small call outstanding, the next as soon as it is answered.
    pub small: bool,
    /// [`OUTSTANDING`] large ones.
    pub large: bool,
}

/// What a phase gave.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Each small call, from before its submission to after its completion.
    pub small: Samples,
    /// Bytes of large calls that came back.
    pub large: Rate,
}

/// The client. All its calls are of one class and go to one peer, and so through one session.
pub struct Mixed {
    node: Node,
    local: Local,
    peer: Peer,
    clock: Clock,
    options: CallOptions,
    bulk: Bytes,
    small: usize,
    large: usize,
}

const SMALL_TAG: u64 = 1;
const LARGE_TAG: u64 = 2;
static PING: [u8; PAYLOAD] = [7; PAYLOAD];

impl Mixed {
    /// A client at `url` of the echo at `server`.
    pub fn connect(url: &str, server: Address, clock: &Clock) -> Result<Mixed, BenchError> {
        let node = node(url, clock, &NodeConfig::default())?;
        let local = node.local();
        let peer = local.peer(server).map_err(BenchError::product("looking the echo up"))?;
        let bulk = Bytes::from(vec![7; LARGE]);
        Ok(Mixed { node, local, peer, clock: clock.clone(), options: CallOptions::new(), bulk, small: 0, large: 0 })
    }

    /// Runs `load` for a warm-up and then for `nanos`, and waits for what is outstanding at the end; that does not count.
    pub fn phase(&mut self, load: Load, warm_up: u64, nanos: u64) -> Result<Seen, BenchError> {
        let mut seen = Seen { small: Samples::with_capacity((nanos / 200) as usize), ..Seen::default() };
        let begin = self.clock.now().plus_nanos(warm_up);
        let end = begin.plus_nanos(nanos);
        let mut sent = Time::ZERO;
        let mut last = begin;
        loop {
            let now = self.clock.now();
            let over = now >= end;
            if over && self.small + self.large == 0 {
                break;
            }
            if now.since(last) > PATIENCE {
                return Err(BenchError::Silent { what: "a call", seconds: PATIENCE.as_secs() });
            }
            while !over && load.large && self.large < OUTSTANDING {
                self.submit(self.bulk.clone(), LARGE_TAG)?;
                self.large += 1;
            }
            if !over && load.small && self.small == 0 {
                sent = self.clock.now();
                self.submit(Bytes::from_static(&PING), SMALL_TAG)?;
                self.small += 1;
            }
            self.node.poll();
            while let Some(done) = self.node.next_completion() {
                let reply = done.result.map_err(BenchError::product("a call"))?;
                let now = self.clock.now();
                last = last.max(now);
                let counts = now >= begin && now < end;
                match (done.tag, reply.len()) {
                    (SMALL_TAG, PAYLOAD) => {
                        self.small -= 1;
                        if counts {
                            seen.small.record(now.nanos_since(sent));
                        }
                    }
                    (LARGE_TAG, LARGE) => {
                        self.large -= 1;
                        if counts {
                            seen.large.done += LARGE as u64;
                        }
                    }
                    _ => {
                        return Err(BenchError::wrong_reply());
                    }
                }
            }
        }
        seen.large.nanos = nanos;
        Ok(seen)
    }

    fn submit(&self, message: Bytes, tag: u64) -> Result<(), BenchError> {
        let submitted = self.local.submit(self.peer, ECHO, message, &self.options, tag);
        submitted.map(drop).map_err(BenchError::product("submitting a call"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallEcho;
    use crate::duo::{Duo, Serve};

    #[test]
    fn each_phase_counts_what_it_was_asked_for_and_ends_with_nothing_outstanding() {
        let clock = Clock::tsc();
        let core = crate::pin::allowed().unwrap()[0];
        let theirs = clock.clone();
        let (mut duo, address) = Duo::start(core, move || {
            let echo = CallEcho::open("mem://bench-hol-echo", &theirs)?;
            let address = echo.address();
            Ok((vec![Box::new(echo) as Box<dyn Serve>], address))
        })
        .unwrap();
        let mut client = Mixed::connect("mem://bench-hol-client", address, &clock).unwrap();
        let mut phase = |small, large| duo.during(0, || client.phase(Load { small, large }, 1_000_000, 150_000_000)).unwrap();
        // However busy the machine is: as often as it takes.
        let alone = (0..100).map(|_| phase(true, false)).find(|alone| alone.small.count() > 0).expect("a small call");
        assert_eq!(alone.large.done, 0, "{alone:?}");
        assert!((0..100).any(|_| phase(true, true).large.done > 0), "no large call came back");
        assert_eq!(client.small + client.large, 0);
    }
}
