//! The sockets of a port: the main one, which serves every peer, and a second one for a hot peer while there is one.
//!
//! For each datagram that leaves through a socket that is not connected the kernel looks up a route, and for each that arrives it
//! checks one; for a connected socket it keeps them. On loopback that is 0.3 to 0.45 µs of a round trip. So the peer that has nearly
//! all traffic ([`Favour`]) gets a socket of its own, bound to the same address and connected to it. The kernel gives that what
//! this peer sends, and the main socket everything else.
//!
//! Nothing depends on which socket a datagram came by: while one is made or given up, either may get what is meant for the other. When
//! the second socket can't be had, or an error shows that its connection is of no use, all goes on by the main one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;

use super::favour::Favour;
use super::receive::Receiver;
use super::socket::{Buffers, Socket};
use super::source::{Coalescing, Source};
use crate::frame::Pool;
use crate::port::{Address, Datagram, PortCounters, PortError};

/// While the main socket is quiet: how many looks at the hot one find nothing for one at the main one...
const QUIET: u32 = 8;

/// ...and after how many receives it is looked at even if the hot one always has something.
const BUSY: u32 = 32;

/// In how many receives after one of its datagrams the main socket is looked at each time.
const ATTENTION: u32 = 64;

/// In how many receives the main socket comes first at most, after a hot one was made.
const SETTLE: u32 = 64;

/// How many looks in a row must find nothing before the socket of a peer that was hot is closed. One would do, but for a datagram
/// that another processor is just about to queue.
const GONE: u32 = 8;

/// The sockets of a port.
#[derive(Debug)]
pub(super) struct Sockets {
    main: Source,
    hot: Option<Hot>,
    /// The peer whose datagrams leave through the hot socket.
    hot_peer: Option<Address>,
    favour: Favour,
    enabled: bool,
    buffers: Buffers,
    wait: Option<(mio::Registry, mio::Token)>,
    failed_before: bool,
}

/// The second socket.
#[derive(Debug)]
struct Hot {
    source: Source,
    peer: SocketAddr,
    stage: Stage,
    /// Receives since the main socket was read.
    since_main: u32,
    /// Receives to come that read the main socket each.
    attention: u32,
    /// Whether the messages that wait in the receiver are the main socket's.
    from_main: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What the peer sent before is still in the main socket's queue, and comes first; in so many receives more.
    Settling(u32),
    Serving,
    /// Nothing arrives at it any more; what it has queued is taken. So many looks in a row found nothing.
    Retiring(u32),
}

/// One call of [`Sockets::receive`]: into where, and until when.
struct Call<'a> {
    receiver: &'a mut Receiver,
    pool: &'a Pool,
    counters: &'a mut PortCounters,
    into: &'a mut Vec<Datagram>,
    end: usize,
}

impl Sockets {
    /// The main socket; `enabled` if a hot peer may get one of its own, with these buffers.
    pub(super) fn new(main: Source, buffers: Buffers, enabled: bool) -> Sockets {
        Sockets {
            main,
            hot: None,
            hot_peer: None,
            favour: Favour::new(),
            enabled: enabled && cfg!(target_os = "linux"),
            buffers,
            wait: None,
            failed_before: false,
        }
    }

    /// The socket that serves every peer.
    pub(super) fn main(&self) -> &Socket {
        &self.main.socket
    }

    /// The peer whose datagrams should leave through the hot socket.
    #[inline]
    pub(super) fn hot_peer(&self) -> Option<Address> {
        self.hot_peer
    }

    /// The hot socket, if it is to send to this peer.
    #[inline]
    pub(super) fn hot_to(&self, peer: Address) -> Option<&Socket> {
        if self.hot_peer == Some(peer) { self.hot.as_ref().map(|hot| &hot.source.socket) } else { None }
    }

    /// Counts a datagram that was sent through that.
    #[inline]
    pub(super) fn sent_hot(&mut self) {
        self.favour.count_hot(1);
    }

    /// The socket to send through, by the hot one or not.
    #[inline]
    pub(super) fn to_send(&self, by_hot: bool) -> &Socket {
        match &self.hot {
            Some(hot) if by_hot => &hot.source.socket,
            _ => &self.main.socket,
        }
    }

    /// Counts what was sent.
    #[inline]
    pub(super) fn sent<'a>(&mut self, by_hot: bool, datagrams: impl ExactSizeIterator<Item = &'a Datagram>) {
        if by_hot {
            self.favour.count_hot(datagrams.len());
        } else if self.hot_peer.is_some() {
            self.favour.count_others(datagrams.len());
        } else if self.enabled {
            datagrams.for_each(|datagram| self.favour.count(datagram.peer));
        }
    }

    /// Appends up to `max` datagrams to `into`, after at most one successful call to the kernel for each socket.
    #[inline]
    pub(super) fn receive(
        &mut self,
        receiver: &mut Receiver,
        pool: &Pool,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
        max: usize,
    ) -> Result<usize, PortError> {
        let before = into.len();
        let Some(hot) = &mut self.hot else { return self.receive_alone(receiver, pool, counters, into, max) };
        let mut call = Call { receiver, pool, counters, end: before.saturating_add(max), into };
        if !hot.comes_first() || self.favour.is_lost() || call.receiver.is_waiting() {
            self.receive_both(&mut call)?;
            return Ok(into.len() - before);
        }
        hot.since_main += 1;
        hot.from_main = false;
        match call.read(&mut hot.source) {
            Ok(0) if hot.since_main >= QUIET => self.read_main(&mut call),
            Ok(count) => {
                self.favour.count_hot(count);
                Ok(count)
            }
            Err(error) => {
                self.hot_failed(&error);
                Ok(0)
            }
        }
    }

    /// Receives while there is no hot socket.
    #[inline(never)]
    fn receive_alone(
        &mut self,
        receiver: &mut Receiver,
        pool: &Pool,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
        max: usize,
    ) -> Result<usize, PortError> {
        let before = into.len();
        let count = receiver.receive(&mut self.main, pool, counters, into, max)?;
        if count > 0 && self.enabled {
            into[before..].iter().for_each(|datagram| self.favour.count(datagram.peer));
            if let Some(Address::Inet(peer)) = self.favour.favourite() {
                self.make_hot(peer);
            }
        }
        Ok(count)
    }

    /// Receives while there is a hot socket, whatever it is to be used for.
    #[inline(never)]
    fn receive_both(&mut self, call: &mut Call<'_>) -> Result<(), PortError> {
        if self.favour.is_lost() {
            self.retire();
        }
        let Some(hot) = &mut self.hot else { return Ok(()) };
        hot.since_main += 1;
        if call.receiver.is_waiting() {
            // Neither socket is read.
            if hot.from_main {
                self.read_main(call)?
            } else {
                self.read_hot(call)
            };
            return Ok(());
        }
        let main_first = match hot.stage {
            Stage::Settling(_) => true,
            Stage::Serving => hot.since_main >= BUSY,
            Stage::Retiring(_) => false,
        };
        if main_first {
            self.read_main(call)?;
        }
        if call.has_room() {
            let count = self.read_hot(call);
            if !main_first && call.has_room() && self.main_is_due(count) {
                self.read_main(call)?;
            }
        }
        Ok(())
    }

    /// Whether to look at the main socket too, after the hot one has given `count` datagrams.
    #[inline]
    fn main_is_due(&self, count: usize) -> bool {
        self.hot.as_ref().is_none_or(|hot| {
            hot.attention > 0 || (count == 0 && hot.since_main >= QUIET) || matches!(hot.stage, Stage::Retiring(_))
        })
    }

    #[inline(never)]
    fn read_main(&mut self, call: &mut Call<'_>) -> Result<usize, PortError> {
        let count = call.read(&mut self.main)?;
        if let Some(hot) = &mut self.hot {
            hot.from_main = true;
            hot.since_main = 0;
            hot.attention = if count > 0 { ATTENTION } else { hot.attention.saturating_sub(1) };
            match &mut hot.stage {
                Stage::Settling(left) if count > 0 && *left > 0 => *left -= 1,
                Stage::Settling(_) => hot.stage = Stage::Serving,
                // Whoever sent them: if it was the hot peer, its socket is of little use.
                Stage::Serving => self.favour.count_others(count),
                Stage::Retiring(_) => {}
            }
        }
        Ok(count)
    }

    #[inline]
    fn read_hot(&mut self, call: &mut Call<'_>) -> usize {
        let Some(hot) = &mut self.hot else { return 0 };
        hot.from_main = false;
        let count = match call.read(&mut hot.source) {
            Ok(count) => count,
            Err(error) => {
                self.hot_failed(&error);
                return 0;
            }
        };
        match &mut hot.stage {
            Stage::Retiring(empty) => {
                *empty = if count == 0 && !call.receiver.is_waiting() { *empty + 1 } else { 0 };
                if *empty >= GONE {
                    self.close();
                }
            }
            Stage::Settling(_) | Stage::Serving => self.favour.count_hot(count),
        }
        count
    }

    /// The hot socket can't be read.
    #[cold]
    fn hot_failed(&mut self, error: &PortError) {
        if let Some(hot) = &self.hot {
            tracing::debug!(%error, peer = %hot.peer, "the socket of a hot peer has failed");
        }
        self.retire();
    }

    /// Gives `peer` a socket of its own, or counts that it could not be had.
    #[cold]
    fn make_hot(&mut self, peer: SocketAddr) {
        match self.open(peer) {
            Ok(hot) => {
                tracing::debug!(%peer, "nearly all traffic is with one peer: it gets a socket of its own");
                self.favour.begin();
                self.hot_peer = Some(Address::Inet(peer));
                self.hot = Some(hot);
            }
            Err(error) => {
                self.favour.end();
                if !self.failed_before {
                    self.failed_before = true;
                    tracing::debug!(%error, %peer, "no socket for the hot peer; its packets go through the one of all peers");
                }
            }
        }
    }

    fn open(&self, peer: SocketAddr) -> Result<Hot, PortError> {
        let socket = self.main.socket.beside(peer, self.buffers)?;
        let mut source = Source::new(socket, Some(Address::Inet(peer)), self.main.coalescing != Coalescing::Never);
        if self.main.coalescing == Coalescing::On {
            source.coalesce();
        }
        if let Some((registry, token)) = &self.wait {
            // If something has arrived already, this makes an edge.
            registry
                .register(&mut SourceFd(&source.socket.as_raw_fd()), *token, mio::Interest::READABLE)
                .map_err(|source| PortError::System { action: "watching a second socket", source })?;
        }
        Ok(Hot { source, peer, stage: Stage::Settling(SETTLE), since_main: 0, attention: 0, from_main: true })
    }

    /// Sends nothing through the hot socket any more, and closes it when what it has queued is received.
    #[cold]
    pub(super) fn retire(&mut self) {
        if self.hot_peer.take().is_none() {
            return;
        }
        self.favour.end();
        if let Some(hot) = &mut self.hot {
            tracing::debug!(peer = %hot.peer, "the peer with a socket of its own loses it");
            hot.stage = Stage::Retiring(0);
            if let Err(error) = hot.source.socket.turn_away(hot.peer) {
                // No route any more: nothing can come from there.
                tracing::debug!(%error, peer = %hot.peer, "the socket of a peer that was hot could not be turned away from it");
            }
        }
    }

    #[cold]
    fn close(&mut self) {
        if let (Some(hot), Some((registry, _))) = (self.hot.take(), &self.wait) {
            // It is closed with the socket in any case.
            let _ = registry.deregister(&mut SourceFd(&hot.source.socket.as_raw_fd()));
        }
    }

    /// Registers every socket, now and those to come.
    pub(super) fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token) -> io::Result<()> {
        let hot = self.hot.as_ref().map(|hot| &hot.source.socket);
        for socket in [Some(&self.main.socket), hot].into_iter().flatten() {
            registry.register(&mut SourceFd(&socket.as_raw_fd()), token, mio::Interest::READABLE)?;
        }
        if self.enabled {
            self.wait = Some((registry.try_clone()?, token));
        }
        Ok(())
    }

    /// Whether a datagram is waiting in a socket. When none is, whatever comes to either makes an edge.
    pub(super) fn is_waiting(&self) -> bool {
        self.hot.as_ref().is_some_and(|hot| hot.source.socket.is_waiting()) || self.main.socket.is_waiting()
    }

    /// Before a sleep that either socket may end, or prevent: if the hot one has nothing then, the next receive looks at the main one.
    pub(super) fn expect_either(&mut self) {
        if let Some(hot) = &mut self.hot {
            hot.since_main = hot.since_main.max(QUIET);
        }
    }
}

impl Hot {
    /// Whether the next receive looks at this socket, and at the main one only if there was nothing for long.
    #[inline]
    fn comes_first(&self) -> bool {
        self.stage == Stage::Serving && self.attention == 0 && self.since_main < BUSY - 1
    }
}

impl Call<'_> {
    #[inline]
    fn read(&mut self, source: &mut Source) -> Result<usize, PortError> {
        let max = self.end - self.into.len();
        self.receiver.receive(source, self.pool, self.counters, self.into, max)
    }

    /// Whether another socket can be read: not while messages of the last one wait.
    #[inline]
    fn has_room(&self) -> bool {
        self.into.len() < self.end && !self.receiver.is_waiting()
    }
}

#[cfg(test)]
mod tests;
