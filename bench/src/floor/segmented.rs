//! The floor of kernel UDP where many datagrams go to one peer: segmented sends (GSO) and coalesced receives (GRO), so that one system
//! call moves a burst.
//!
//! Two floors: a window of small datagrams that are sent back ([`BatchClient`], [`BatchEcho`]), and a one-way stream of full ones
//! ([`StreamSource`], [`StreamSink`]). The stream is kept from overrunning its receiver by a counter in shared memory, which costs less than
//! any acknowledgement would.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::socket::{GetSockOpt, SetSockOpt, sockopt};
use tautline_net::clock::{Clock, Time};

use crate::duo::{Serve, Stage};
use crate::error::BenchError;

/// Most segments in one send that every kernel with GSO takes.
const SEGMENTS: usize = 64;
/// The largest payload of an IPv4 datagram, and so of one segmented send.
const LARGEST: usize = 65_507;
/// Bytes of a stream in flight at most.
const IN_FLIGHT: u64 = 512 << 10;
/// Silence after which what is in flight counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(5);

/// The client's end of the small datagrams.
#[derive(Debug)]
pub struct BatchClient {
    socket: UdpSocket,
    size: usize,
    window: usize,
    outstanding: usize,
    buffer: Vec<u8>,
}

/// The server's end: sends back what it receives, burst by burst.
#[derive(Debug)]
pub struct BatchEcho {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl BatchClient {
    /// A client of the echo at `server`, with `window` datagrams of `size` bytes outstanding.
    pub fn connect(server: SocketAddr, size: usize, window: usize) -> Result<BatchClient, BenchError> {
        let socket = open(size)?;
        socket.connect(server).map_err(BenchError::system("connecting the floor's UDP socket"))?;
        Ok(BatchClient { socket, size, window, outstanding: 0, buffer: vec![7; 1 << 16] })
    }

    /// Sends what the window has room for, and takes what came back: how many datagrams that was.
    #[inline]
    pub fn turn(&mut self) -> Result<usize, BenchError> {
        while self.outstanding < self.window {
            // Two bursts in flight keep both sides at work.
            let burst = (self.window - self.outstanding).min(self.window.div_ceil(2)).min(SEGMENTS);
            if !sent(self.socket.send(&self.buffer[..burst * self.size]))? {
                break;
            }
            self.outstanding += burst;
        }
        let back = received(self.socket.recv(&mut self.buffer))?.unwrap_or(0) / self.size;
        self.outstanding = self.outstanding.saturating_sub(back);
        Ok(back)
    }

    /// Forgets what is outstanding: answered between stages, or lost.
    pub fn restart(&mut self) -> Result<(), BenchError> {
        while received(self.socket.recv(&mut self.buffer))?.is_some() {}
        self.outstanding = 0;
        Ok(())
    }
}

impl BatchEcho {
    /// An echo of datagrams of `size` bytes on a free port of the loopback address.
    pub fn open(size: usize) -> Result<BatchEcho, BenchError> {
        Ok(BatchEcho { socket: open(size)?, buffer: vec![0; 1 << 16] })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr, BenchError> {
        self.socket.local_addr().map_err(BenchError::system("asking for the floor's UDP address"))
    }
}

impl Serve for BatchEcho {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        while !stage.over() {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((len, client)) => {
                    sent(self.socket.send_to(&self.buffer[..len], client))?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(BenchError::system("receiving the floor's datagrams")(error)),
            }
        }
        Ok(())
    }
}

/// The sender of the stream.
#[derive(Debug)]
pub struct StreamSource {
    socket: UdpSocket,
    clock: Clock,
    received: Arc<AtomicU64>,
    sent: u64,
    seen: u64,
    quiet_since: Time,
    limit: u64,
    buffer: Vec<u8>,
}

/// The receiver of the stream: counts it.
#[derive(Debug)]
pub struct StreamSink {
    socket: UdpSocket,
    received: Arc<AtomicU64>,
    buffer: Vec<u8>,
}

impl StreamSource {
    /// The sender of datagrams of `size` bytes to the sink at `sink`, which counts in `received`.
    pub fn connect(sink: SocketAddr, size: usize, received: Arc<AtomicU64>, clock: Clock) -> Result<StreamSource, BenchError> {
        let socket = open(size)?;
        socket.connect(sink).map_err(BenchError::system("connecting the floor's stream"))?;
        let burst = (LARGEST / size).clamp(1, SEGMENTS) * size;
        let room = sockopt::RcvBuf.get(&socket.as_fd()).map_err(BenchError::system("asking for a socket's buffer"))?;
        let limit = IN_FLIGHT.min(room as u64 / 2).max(burst as u64);
        Ok(StreamSource { socket, clock, received, sent: 0, seen: 0, quiet_since: Time::ZERO, limit, buffer: vec![7; burst] })
    }

    /// Sends a burst if the sink keeps up, and says how many bytes it has received since the last turn.
    #[inline]
    pub fn turn(&mut self) -> Result<usize, BenchError> {
        let received = self.received.load(Ordering::Relaxed);
        let news = received - self.seen;
        self.seen = received;
        if self.sent.saturating_sub(received) + self.buffer.len() as u64 <= self.limit {
            if sent(self.socket.send(&self.buffer))? {
                self.sent = self.sent.max(received) + self.buffer.len() as u64;
            }
            self.quiet_since = Time::ZERO;
        } else if news == 0 {
            let now = self.clock.now();
            if self.quiet_since == Time::ZERO {
                self.quiet_since = now;
            } else if now.since(self.quiet_since) > LOST_AFTER {
                self.sent = received;
            }
        } else {
            self.quiet_since = Time::ZERO;
        }
        Ok(news as usize)
    }
}

impl StreamSink {
    /// A sink on a free port of the loopback address.
    pub fn open() -> Result<StreamSink, BenchError> {
        Ok(StreamSink { socket: open(SEGMENTS)?, received: Arc::default(), buffer: vec![0; 1 << 16] })
    }

    /// Where it listens, and what it counts in.
    pub fn known(&self) -> Result<(SocketAddr, Arc<AtomicU64>), BenchError> {
        let address = self.socket.local_addr().map_err(BenchError::system("asking for the floor's UDP address"))?;
        Ok((address, Arc::clone(&self.received)))
    }
}

impl Serve for StreamSink {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        while !stage.over() {
            if let Some(len) = received(self.socket.recv(&mut self.buffer))? {
                self.received.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// A socket that sends segments of `size` bytes and receives coalesced ones.
fn open(size: usize) -> Result<UdpSocket, BenchError> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::system("opening the floor's UDP socket"))?;
    socket.set_nonblocking(true).map_err(BenchError::system("making the floor's UDP socket non-blocking"))?;
    let fd = socket.as_fd();
    sockopt::UdpGsoSegment.set(&fd, &(size as i32)).map_err(BenchError::system("asking for segmented sends (UDP_SEGMENT)"))?;
    sockopt::UdpGroSegment.set(&fd, &true).map_err(BenchError::system("asking for coalesced receives (UDP_GRO)"))?;
    // As large as the product's; without the privilege the system gives what it allows, and the stream stays within that.
    let buffer = 8 << 20;
    if sockopt::RcvBufForce.set(&fd, &buffer).is_err() {
        let _ = sockopt::RcvBuf.set(&fd, &buffer);
    }
    if sockopt::SndBufForce.set(&fd, &buffer).is_err() {
        let _ = sockopt::SndBuf.set(&fd, &buffer);
    }
    Ok(socket)
}

/// Whether the kernel took it; `false` where it had no room.
#[inline]
fn sent(outcome: std::io::Result<usize>) -> Result<bool, BenchError> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(BenchError::system("sending on the floor's UDP socket")(error)),
    }
}

#[inline]
fn received(outcome: std::io::Result<usize>) -> Result<Option<usize>, BenchError> {
    match outcome {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(BenchError::system("receiving on the floor's UDP socket")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::Duo;
    use crate::rate::measure;

    /// Whether spans come to more than `wanted`, in as many of them as it takes on a busy machine.
    fn comes_to(wanted: u64, mut span: impl FnMut() -> u64) -> bool {
        let mut done = 0;
        (0..500).any(|_| {
            done += span();
            done > wanted
        })
    }

    #[test]
    fn a_window_of_datagrams_comes_back_and_a_stream_arrives() {
        let core = crate::pin::allowed().unwrap()[0];
        let (mut duo, (echo, (sink, count))) = Duo::start(core, || {
            let (echo, sink) = (BatchEcho::open(88)?, StreamSink::open()?);
            let known = (echo.address()?, sink.known()?);
            Ok((vec![Box::new(echo) as Box<dyn Serve>, Box::new(sink)], known))
        })
        .unwrap();
        let clock = Clock::tsc();
        let mut client = BatchClient::connect(echo, 88, 64).unwrap();
        let span = Duration::from_millis(30);
        let mut echo = || duo.during(0, || measure("the echo", &clock, Duration::ZERO, span, || client.turn())).unwrap().done;
        assert!(comes_to(64, &mut echo));
        assert!(client.outstanding <= 64);
        let mut source = StreamSource::connect(sink, 1344, count, clock.clone()).unwrap();
        let mut stream = || duo.during(1, || measure("the stream", &clock, Duration::ZERO, span, || source.turn())).unwrap().done;
        assert!(comes_to(1 << 20, &mut stream));
    }
}
