//! The floor of kernel UDP: two non-blocking sockets over loopback, each side trying `recv` until it has something.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use tautline_net::clock::Clock;

use super::{Floor, PAYLOAD, PingPong, spin_for};
use crate::duo::{Serve, Stage};
use crate::error::BenchError;

/// The client's end.
#[derive(Debug)]
pub struct UdpClient {
    socket: UdpSocket,
    clock: Clock,
    ping: [u8; PAYLOAD],
}

/// The server's end: sends back what it receives.
#[derive(Debug)]
pub struct UdpEcho {
    socket: UdpSocket,
}

impl UdpClient {
    /// A client of the echo at `server`.
    pub fn connect(server: SocketAddr, clock: Clock) -> Result<UdpClient, BenchError> {
        let socket = open()?;
        socket.connect(server).map_err(BenchError::system("connecting the floor's UDP socket"))?;
        Ok(UdpClient { socket, clock, ping: [0; PAYLOAD] })
    }
}

impl PingPong for UdpClient {
    fn ping(&mut self) -> Result<(), BenchError> {
        // A late answer to a ping that was given up must not pass for this one's.
        let number = u64::from_le_bytes(*self.ping.first_chunk().expect("a ping is longer than a number")) + 1;
        self.ping[..8].copy_from_slice(&number.to_le_bytes());
        self.socket.send(&self.ping).map_err(BenchError::system("sending the floor's ping"))?;
        let mut pong = [0; PAYLOAD];
        spin_for("the UDP floor", &self.clock, || {
            let received = try_receive(&self.socket, &mut pong)?;
            Ok((received && pong == self.ping).then_some(()))
        })
    }
}

impl Floor for UdpClient {
    fn look(&mut self) -> Result<(), BenchError> {
        try_receive(&self.socket, &mut [0; PAYLOAD]).map(drop)
    }
}

impl UdpEcho {
    /// An echo on a free port of the loopback address.
    pub fn open() -> Result<UdpEcho, BenchError> {
        Ok(UdpEcho { socket: open()? })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr, BenchError> {
        self.socket.local_addr().map_err(BenchError::system("asking for the floor's UDP address"))
    }

    /// Echoes until `over`. Answers whoever asked first, and only that one: a connected socket skips a route look-up.
    pub fn echo_until(&mut self, over: impl Fn() -> bool) -> Result<(), BenchError> {
        let mut ping = [0; PAYLOAD];
        while self.socket.peer_addr().is_err() {
            if over() {
                return Ok(());
            }
            match self.socket.recv_from(&mut ping) {
                Ok((_, client)) => {
                    self.socket.connect(client).map_err(BenchError::system("connecting the floor's echo"))?;
                    self.socket.send(&ping).map_err(BenchError::system("sending the floor's pong"))?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(BenchError::system("receiving the floor's ping")(error)),
            }
        }
        while !over() {
            if try_receive(&self.socket, &mut ping)? {
                self.socket.send(&ping).map_err(BenchError::system("sending the floor's pong"))?;
            }
        }
        Ok(())
    }
}

impl Serve for UdpEcho {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        self.echo_until(|| stage.over())
    }
}

fn open() -> Result<UdpSocket, BenchError> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::system("opening the floor's UDP socket"))?;
    socket.set_nonblocking(true).map_err(BenchError::system("making the floor's UDP socket non-blocking"))?;
    Ok(socket)
}

#[inline]
fn try_receive(socket: &UdpSocket, into: &mut [u8; PAYLOAD]) -> Result<bool, BenchError> {
    match socket.recv(into) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(BenchError::system("receiving on the floor's UDP socket")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::Duo;
    use crate::floor::sample;

    #[test]
    fn every_ping_comes_back() {
        let core = crate::pin::allowed().unwrap()[0];
        let (mut duo, address) = Duo::start(core, || {
            let echo = UdpEcho::open()?;
            let address = echo.address()?;
            Ok((vec![Box::new(echo) as Box<dyn Serve>], address))
        })
        .unwrap();
        let clock = Clock::tsc();
        let mut client = UdpClient::connect(address, clock.clone()).unwrap();
        let samples = duo.during(0, || sample(&clock, 1, 20, &mut client)).unwrap();
        assert_eq!(samples.count(), 20);
    }
}
