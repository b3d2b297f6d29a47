//! A server, an honest client and a thousand hostile peers on real sockets: what the flood costs the honest one.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline_net::class::Class;
use tautline_net::clock::{Clock, Time};
use tautline_net::endpoint::{Endpoint, EndpointConfig, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::{Address, PortUrl, open};
use tautline_testing::mob::{Abuse, Mob, answer, limits};

use crate::duo::{Serve, Stage};
use crate::error::BenchError;
use crate::floor::{PATIENCE, PAYLOAD};
use crate::samples::Samples;

/// Packets that the mob sends in a row at most: what it missed while a call was waited for is not made up for at once.
const IN_A_ROW: u64 = 16;

/// The most that the server had in use at one moment.
#[derive(Debug, Default)]
pub struct Peaks {
    /// Bytes of incomplete messages.
    pub reassembly: AtomicUsize,
    /// Bytes held for sending.
    pub sending: AtomicUsize,
    /// Sessions.
    pub sessions: AtomicUsize,
}

/// The server: sends back what it receives, or what the mob asks for.
pub struct Victim {
    endpoint: Endpoint,
    clock: Clock,
    peaks: Arc<Peaks>,
}

impl Victim {
    /// A server at `url`.
    pub fn open(url: &PortUrl, clock: Clock, peaks: Arc<Peaks>) -> Result<Victim, BenchError> {
        let port = open(url, &clock).map_err(BenchError::product("opening a port"))?;
        Ok(Victim { endpoint: Endpoint::new(port, limits(), clock.now()), clock, peaks })
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        self.endpoint.local_address()
    }
}

impl Serve for Victim {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        while !stage.over() {
            let now = self.clock.now();
            self.endpoint.poll(now);
            while let Some(event) = self.endpoint.next_event() {
                if let Event::Message { session, class, payload } = event {
                    // A session that reads nothing may hold no more.
                    let _ = self.endpoint.send(session, class, &[], Payload::from(answer(&payload)), 0, now);
                }
            }
            self.endpoint.flush(now);
            self.peaks.reassembly.fetch_max(self.endpoint.reassembly_bytes(), Ordering::Relaxed);
            self.peaks.sending.fetch_max(self.endpoint.send_bytes(), Ordering::Relaxed);
            self.peaks.sessions.fetch_max(self.endpoint.session_count(), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The client's thread: the honest peer, and the mob beside it.
pub struct Siege {
    honest: Endpoint,
    session: SessionId,
    clock: Clock,
    mob: Mob,
    sockets: Vec<UdpSocket>,
    /// Packets that the mob has sent.
    pub sent: u64,
}

impl Siege {
    /// An honest peer of the server at `server`, and `peers` hostile ones, each at an address of its own (127.0.0.0/8).
    pub fn lay(clock: &Clock, server: Address, peers: usize, abuses: &[Abuse]) -> Result<Siege, BenchError> {
        let Address::Inet(address) = server else { unreachable!("the server is at a udp URL") };
        let url: PortUrl = "udp://127.0.0.1:0".parse().expect("a literal URL");
        let port = open(&url, clock).map_err(BenchError::product("opening a port"))?;
        let mut honest = Endpoint::new(port, EndpointConfig::default(), clock.now());
        let session = honest.connect(server, clock.now()).map_err(BenchError::product("opening a session"))?;
        allow_descriptors(peers as u64 + 100)?;
        let sockets = (0..peers).map(|peer| hostile(peer, address)).collect::<Result<_, _>>()?;
        let mob = Mob::new(1, peers, abuses);
        Ok(Siege { honest, session, clock: clock.clone(), mob, sockets, sent: 0 })
    }

    /// Hostile peers that have a session.
    pub fn sessions(&self) -> usize {
        self.mob.sessions()
    }

    /// The honest peer's messages, one after the other, for so long; `flood` packets a second are sent in between. They are sent before a
    /// message and not while one is waited for: it meets them at the server, and not in its own thread.
    pub fn phase(&mut self, flood: u64, warm_up: u64, nanos: u64) -> Result<Samples, BenchError> {
        let mut samples = Samples::with_capacity((nanos / 2_000) as usize);
        let start = self.clock.now();
        let (begin, end) = (start.plus_nanos(warm_up), start.plus_nanos(warm_up + nanos));
        let mut due = start;
        loop {
            let now = self.clock.now();
            if now >= end {
                return Ok(samples);
            }
            if let Some(gap) = 1_000_000_000u64.checked_div(flood) {
                for _ in 0..IN_A_ROW {
                    if due > now {
                        break;
                    }
                    self.attack();
                    due = due.plus_nanos(gap);
                }
                due = due.max(Time::from_nanos(now.as_nanos().saturating_sub(IN_A_ROW * gap)));
            }
            let sent = self.clock.now();
            let done = self.ask(sent)?;
            if sent >= begin {
                samples.record(done.nanos_since(sent));
            }
        }
    }

    /// One packet of the mob, after its sender has looked what it got.
    fn attack(&mut self) {
        let mut buffer = [0; 2048];
        let at = self.mob.turn();
        while let Ok(len) = self.sockets[at].recv(&mut buffer) {
            self.mob.take(at, &buffer[..len]);
        }
        let (at, packet) = self.mob.packet();
        // What does not go is lost; there is more where it came from.
        let _ = self.sockets[at].send(&packet);
        self.sent += 1;
    }

    fn ask(&mut self, sent: Time) -> Result<Time, BenchError> {
        let ping = Payload::copy_from(&[7; PAYLOAD]);
        self.honest.send(self.session, Class::Normal, &[], ping, 0, sent).map_err(BenchError::product("sending a message"))?;
        self.honest.flush(sent);
        loop {
            let now = self.clock.now();
            self.honest.poll(now);
            while let Some(event) = self.honest.next_event() {
                match event {
                    Event::Message { payload, .. } if payload.len() == PAYLOAD => return Ok(self.clock.now()),
                    Event::Closed { reason, .. } => {
                        return Err(BenchError::Product { action: "the honest peer's session ended", why: reason.to_string() });
                    }
                    _ => {}
                }
            }
            self.honest.flush(now);
            if now.since(sent) > PATIENCE {
                return Err(BenchError::Silent { what: "the server under siege", seconds: PATIENCE.as_secs() });
            }
        }
    }
}

fn hostile(peer: usize, server: SocketAddr) -> Result<UdpSocket, BenchError> {
    let own = Ipv4Addr::new(127, 1, (peer / 250) as u8, (peer % 250 + 1) as u8);
    let open = || {
        let socket = UdpSocket::bind((own, 0))?;
        socket.set_nonblocking(true)?;
        socket.connect(server)?;
        Ok::<_, std::io::Error>(socket)
    };
    open().map_err(BenchError::system("opening the socket of a hostile peer"))
}

/// Raises the limit of open files, as far as this process may.
fn allow_descriptors(wanted: u64) -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(limit.maximum.map_or(wanted, |most| most.min(wanted))), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).map_err(BenchError::system("raising the limit of open files (`ulimit -n`)"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::Duo;

    #[test]
    fn an_honest_peer_is_served_beside_a_mob_that_has_its_sessions() {
        let (clock, peaks) = (Clock::tsc(), Arc::<Peaks>::default());
        let core = crate::pin::allowed().unwrap()[0];
        let (theirs, record) = (clock.clone(), peaks.clone());
        let (mut duo, server) = Duo::start(core, move || {
            let victim = Victim::open(&"udp://127.0.0.1:0".parse().expect("a literal URL"), theirs, record)?;
            let address = victim.address();
            Ok((vec![Box::new(victim) as Box<dyn Serve>], address))
        })
        .unwrap();
        let mut siege = Siege::lay(&clock, server, 12, &Abuse::ALL).unwrap();
        let mut calls = 0;
        // As long as it takes, where others have the cores.
        while siege.sessions() < 8 || calls < 20 {
            calls += duo.during(0, || siege.phase(20_000, 0, 20_000_000)).unwrap().count();
            assert!(siege.sent < 1_000_000, "{} sessions and {calls} calls after {} packets", siege.sessions(), siege.sent);
        }
        assert!(peaks.sessions.load(Ordering::Relaxed) > 8);
    }
}
