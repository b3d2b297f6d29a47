//! A socket that datagrams are received from, and how it is best read: what recent traffic has shown.

use super::receive::{MORE, SEVERAL};
use super::socket::Socket;
use crate::port::Address;

/// A socket, and how to read it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) socket: Socket,
    /// How many messages the next call asks for: one while traffic is thin, so that no call is made to learn that there
    /// is nothing more; below [`SEVERAL`] they are taken one by one.
    pub(super) ask: usize,
    pub(super) coalescing: Coalescing,
    /// The peer that the socket is connected to.
    pub(super) connected: Option<Address>,
    /// The queue was seen empty. Others' datagrams may have come while the socket was bound and not yet connected; from then on all are the
    /// peer's, and the kernel need not write down whose each is.
    pub(super) emptied: bool,
}

/// Whether the kernel coalesces (UDP_GRO). It does not from the start: to know the parts of a train needs `recvmsg`, which costs a lone
/// datagram some 80 ns more than `recvfrom`, and each empty look 45. The first thick burst turns it on. It then stays on, because
/// trains that are queued when it is turned off arrive without their parts' length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coalescing {
    /// The kernel can't, or the user does not want it.
    Never,
    /// From the first thick burst on.
    Later,
    /// The socket has it on.
    On,
}

impl Source {
    /// Reads `socket`, which is connected to that peer if there is one; `coalesce` if the kernel may coalesce its datagrams.
    pub(super) fn new(socket: Socket, connected: Option<Address>, coalesce: bool) -> Source {
        Source {
            socket,
            ask: 1,
            connected,
            emptied: false,
            coalescing: if coalesce { Coalescing::Later } else { Coalescing::Never },
        }
    }

    /// A datagram came by a call for one. Perhaps there is another; and if there is, more.
    #[inline]
    pub(super) fn ask_on(&mut self) {
        self.ask = if self.ask == 1 { SEVERAL - 1 } else { MORE };
    }

    /// The one peer that anything can come from, once that is certain.
    #[inline]
    pub(super) fn only_peer(&self) -> Option<&Address> {
        if self.emptied { self.connected.as_ref() } else { None }
    }

    /// Turns coalescing on, if the kernel has it.
    pub(super) fn coalesce(&mut self) {
        self.coalescing = match self.socket.set(libc::SOL_UDP, libc::UDP_GRO, 1) {
            Ok(()) => Coalescing::On,
            Err(_) => Coalescing::Never,
        };
    }
}
