//! Many sessions between two endpoints, of which any may be used next: what a session costs that is only kept.

use tautline_net::class::Class;
use tautline_net::clock::Clock;
use tautline_net::endpoint::{Endpoint, EndpointConfig, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::{Address, PortUrl, open};

use crate::error::BenchError;
use crate::floor::PATIENCE;
use crate::pipeline::SMALL;

/// Handshakes under way at once: no more than a port's ring holds.
const OPENING: usize = 64;

/// Limits that allow `sessions` sessions with one peer.
pub fn config(sessions: usize) -> EndpointConfig {
    EndpointConfig { max_sessions_per_peer: sessions, max_sessions: sessions + 16, ..EndpointConfig::default() }
}

/// The client's end: sends small messages into sessions at random, and takes what comes back.
pub struct Crowd {
    endpoint: Endpoint,
    sessions: Vec<SessionId>,
    clock: Clock,
    random: fastrand::Rng,
    window: usize,
    outstanding: usize,
    /// The sessions that the next messages go to.
    next: Vec<SessionId>,
}

static PING: [u8; SMALL] = [7; SMALL];

impl Crowd {
    /// A client at `url` without sessions yet.
    pub fn open(url: &PortUrl, clock: &Clock, sessions: usize, window: usize) -> Result<Crowd, BenchError> {
        let port = open(url, clock).map_err(BenchError::product("opening a port"))?;
        let endpoint = Endpoint::new(port, config(sessions), clock.now());
        let random = fastrand::Rng::with_seed(1);
        Ok(Crowd {
            endpoint,
            sessions: Vec::with_capacity(sessions),
            clock: clock.clone(),
            random,
            window,
            outstanding: 0,
            next: Vec::with_capacity(window),
        })
    }

    /// Opens `count` more sessions to the echo at `server`, which must be serving.
    pub fn connect(&mut self, server: Address, count: usize) -> Result<(), BenchError> {
        let (mut established, mut last) = (self.sessions.len(), self.clock.now());
        let wanted = established + count;
        while established < wanted {
            let now = self.clock.now();
            while self.sessions.len() < wanted && self.sessions.len() - established < OPENING {
                let session = self.endpoint.connect(server, now).map_err(BenchError::product("opening a session"))?;
                self.sessions.push(session);
            }
            self.endpoint.poll(now);
            while let Some(event) = self.endpoint.next_event() {
                match event {
                    Event::Established { .. } => {
                        established += 1;
                        last = now;
                    }
                    other => not_closed(&other)?,
                }
            }
            self.endpoint.flush(now);
            if now.since(last) > PATIENCE {
                return Err(BenchError::Silent { what: "a handshake", seconds: PATIENCE.as_secs() });
            }
        }
        Ok(())
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.endpoint.session_count()
    }

    /// Fills the window with messages into sessions at random, which the endpoint is told of beforehand, and takes what came back: how many that was.
    #[inline]
    pub fn turn(&mut self) -> Result<usize, BenchError> {
        let now = self.clock.now();
        for _ in self.outstanding..self.window {
            self.next.push(self.sessions[self.random.usize(..self.sessions.len())]);
        }
        self.endpoint.prepare(&self.next);
        for session in self.next.drain(..) {
            let ping = Payload::from(&PING[..]);
            let sent = self.endpoint.send(session, Class::Normal, &[], ping, 0, now);
            sent.map_err(BenchError::product("sending a message"))?;
            self.outstanding += 1;
        }
        self.endpoint.flush(now);
        self.collect()
    }

    /// Takes what came back, and sends nothing new.
    pub fn collect(&mut self) -> Result<usize, BenchError> {
        let now = self.clock.now();
        self.endpoint.poll(now);
        let mut back = 0;
        while let Some(event) = self.endpoint.next_event() {
            match event {
                Event::Message { payload, .. } if payload.len() == SMALL => back += 1,
                other => not_closed(&other)?,
            }
        }
        self.endpoint.flush(now);
        self.outstanding -= back;
        Ok(back)
    }

    /// Messages that have not come back.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

fn not_closed(event: &Event) -> Result<(), BenchError> {
    match event {
        Event::Closed { reason, .. } => Err(BenchError::Product { action: "a session ended", why: format!("{reason:?}") }),
        _ => Ok(()),
    }
}

/// Bytes of memory that this process has in use (its resident set); nothing where the system does not say.
pub fn resident() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::{Duo, Serve};
    use crate::message::MessageEcho;

    #[test]
    fn messages_into_many_sessions_come_back() {
        let clock = Clock::tsc();
        let core = crate::pin::allowed().unwrap()[0];
        let theirs = clock.clone();
        let (mut duo, address) = Duo::start(core, move || {
            let url = "mem://bench-crowd-echo".parse().expect("a literal URL");
            let echo = MessageEcho::with(&url, theirs, config(300))?;
            let address = echo.address();
            Ok((vec![Box::new(echo) as Box<dyn Serve>], address))
        })
        .unwrap();
        let url = "mem://bench-crowd-client".parse().unwrap();
        let mut crowd = Crowd::open(&url, &clock, 300, 16).unwrap();
        duo.during(0, || {
            crowd.connect(address, 100)?;
            crowd.connect(address, 200)?;
            let mut back = 0;
            while back < 1_000 {
                back += crowd.turn()?;
            }
            while crowd.outstanding() > 0 {
                crowd.collect()?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(crowd.sessions(), 300);
    }

    #[test]
    fn memory_that_is_written_becomes_resident() {
        let before = resident().unwrap();
        let written = vec![1u8; 32 << 20];
        assert!(resident().unwrap() >= before + (16 << 20), "{} bytes were written", written.len());
    }
}
