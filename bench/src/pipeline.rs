//! Calls kept outstanding, a window of them: for rates, and for counting what a call costs where its peers share the work of a burst.

use bytes::Bytes;
use tautline_net::clock::Clock;
use tautline_rpc::{Address, CallOptions, Completion, Local, Method, Node, NodeConfig, Peer};

use crate::call::{CallEcho, ECHO, SINK, node};
use crate::error::BenchError;

/// Bytes of a small call.
pub const SMALL: usize = 32;

/// What comes back of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// All of it.
    Everything,
    /// One byte.
    OneByte,
}

/// A client that keeps a window of calls outstanding.
pub struct Pipeline {
    node: Node,
    local: Local,
    peer: Peer,
    options: CallOptions,
    method: Method,
    reply: usize,
    messages: Vec<Bytes>,
    window: usize,
    outstanding: usize,
    sent: u64,
}

impl Pipeline {
    /// A client at `url` of the [`CallEcho`] at `server`, with calls of `size` bytes (at least one). The session opens with the first call.
    pub fn connect(
        url: &str,
        server: Address,
        clock: &Clock,
        config: &NodeConfig,
        window: usize,
        size: usize,
        back: Back,
    ) -> Result<Pipeline, BenchError> {
        let node = node(url, clock, config)?;
        let local = node.local();
        let peer = local.peer(server).map_err(BenchError::product("looking the echo up"))?;
        let (method, reply) = match back {
            Back::Everything => (ECHO, size.max(1)),
            Back::OneByte => (SINK, 1),
        };
        Ok(Pipeline {
            node,
            local,
            peer,
            options: CallOptions::new(),
            method,
            reply,
            messages: messages(size),
            window,
            outstanding: 0,
            sent: 0,
        })
    }

    /// Submits what the window has room for, polls once, and takes what is complete. Says how many calls that was.
    #[inline]
    pub fn turn(&mut self) -> Result<usize, BenchError> {
        self.fill()?;
        self.collect()
    }

    /// Takes what is complete, and submits nothing. Says how many calls that was.
    #[inline]
    pub fn collect(&mut self) -> Result<usize, BenchError> {
        self.node.poll();
        let mut done = 0;
        while let Some(Completion { tag, result }) = self.node.next_completion() {
            let reply: &[u8] = match &result {
                Ok(reply) => reply,
                Err(error) => return Err(BenchError::product("a call")(error)),
            };
            if reply.len() != self.reply || reply.first() != self.messages[tag as usize % DIFFERENT].first() {
                return Err(BenchError::wrong_reply());
            }
            done += 1;
        }
        self.outstanding -= done;
        Ok(done)
    }

    /// Calls submitted and not complete.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Changes the size of the calls to come. Those that are echoed must have ended.
    pub fn set_size(&mut self, size: usize) {
        self.messages = messages(size);
        if self.method == ECHO {
            self.reply = size.max(1);
        }
    }

    /// Turns without new calls, until none is outstanding.
    pub fn drain(&mut self) -> Result<(), BenchError> {
        self.drain_beside(|| ())
    }

    fn drain_beside(&mut self, mut beside: impl FnMut()) -> Result<(), BenchError> {
        for _ in 0..MOST_TURNS {
            if self.outstanding == 0 {
                return Ok(());
            }
            beside();
            self.collect()?;
        }
        Err(BenchError::Product { action: "ending the calls", why: "some were never answered".to_owned() })
    }

    /// Changes the window; calls beyond it end on their own.
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    #[inline]
    fn fill(&mut self) -> Result<(), BenchError> {
        while self.outstanding < self.window {
            self.sent += 1;
            let message = self.messages[self.sent as usize % DIFFERENT].clone();
            let submitted = self.local.submit(self.peer, self.method, message, &self.options, self.sent);
            submitted.map_err(BenchError::product("submitting a call"))?;
            self.outstanding += 1;
        }
        Ok(())
    }
}

/// Messages above this are all the same.
const LARGE: usize = 64 << 10;

/// Messages that differ in their first byte, so that a reply to another call is noticed. A power of two.
const DIFFERENT: usize = 64;

/// Messages that cost nothing to send again: static where they are small, else counted.
fn messages(size: usize) -> Vec<Bytes> {
    static TABLE: [[u8; SMALL]; DIFFERENT] = {
        let mut table = [[7; SMALL]; DIFFERENT];
        let mut n = 0;
        while n < DIFFERENT {
            table[n][0] = n as u8;
            n += 1;
        }
        table
    };
    let one = |n: usize| match size {
        SMALL => Bytes::from_static(&TABLE[n]),
        size => {
            let mut message = vec![7; size.max(1)];
            message[0] = n as u8;
            Bytes::from(message)
        }
    };
    // Large ones share their bytes, or preparing them would take longer than sending them.
    if size > LARGE {
        return vec![Bytes::from(vec![0; size]); DIFFERENT];
    }
    (0..DIFFERENT).map(one).collect()
}

/// Client and server on one thread, polled in turns.
pub struct Solo {
    client: Pipeline,
    server: CallEcho,
}

impl Solo {
    /// An echo at one URL and its client at another, each with these limits.
    pub fn open(
        [client, server]: [&str; 2],
        clock: &Clock,
        config: &NodeConfig,
        window: usize,
        size: usize,
    ) -> Result<Solo, BenchError> {
        let server = CallEcho::with(server, clock, config)?;
        let client = Pipeline::connect(client, server.address(), clock, config, window, size, Back::Everything)?;
        Ok(Solo { client, server })
    }

    /// The calls leave, are answered, and complete; neither side looks at its port in vain. Says how many calls were completed.
    #[inline]
    pub fn turn(&mut self) -> Result<usize, BenchError> {
        let before = self.client.turn()?;
        self.server.poll();
        Ok(before + self.client.collect()?)
    }

    /// Changes the window.
    pub fn set_window(&mut self, window: usize) {
        self.client.set_window(window);
    }

    /// Turns without new calls, until none is outstanding.
    pub fn drain(&mut self) -> Result<(), BenchError> {
        self.client.drain_beside(|| self.server.poll())
    }
}

/// More turns than any window takes to be answered.
const MOST_TURNS: usize = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_kept_full_and_every_call_ends() {
        let clock = Clock::tsc();
        let urls = ["mem://bench-solo-client", "mem://bench-solo-server"];
        let mut solo = Solo::open(urls, &clock, &NodeConfig::default(), 8, SMALL).unwrap();
        let mut done = 0;
        while done < 100 {
            done += solo.turn().unwrap();
            assert!(solo.client.outstanding() <= 8);
        }
        solo.client.turn().unwrap();
        assert_eq!(solo.client.outstanding(), 8);
        solo.drain().unwrap();
        assert_eq!(solo.client.outstanding(), 0);
    }
}
