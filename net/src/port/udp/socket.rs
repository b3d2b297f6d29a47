//! The socket and its system calls: the only place of this port that speaks to the kernel.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use rustix::net::{RecvFlags, SendFlags};

use super::sockaddr::{RAW_LEN, RawAddress, SocketAddress};
use crate::port::{Address, PortError};

/// The discard port (RFC 863), from which nothing comes.
const DISCARD: u16 = 9;

/// Sizes of a socket's buffers, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) receive: usize,
    pub(super) send: usize,
}

/// A bound, non-blocking UDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: socket2::Socket,
    local: SocketAddr,
}

impl Socket {
    /// Binds `address`, with buffers as near to the sizes asked for as the system allows.
    pub(super) fn bind(address: SocketAddr, buffers: Buffers) -> Result<Socket, PortError> {
        let mut socket = Socket::new(address, buffers)?;
        socket.socket.bind(&address.into()).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => PortError::InUse { address: Address::Inet(address) },
            io::ErrorKind::AddrNotAvailable => PortError::NotLocal { address: Address::Inet(address) },
            _ => PortError::System { action: "binding the socket", source },
        })?;
        let local = socket.socket.local_addr().map_err(system("asking for the socket's address"))?;
        socket.local = local.as_socket().ok_or_else(|| PortError::System {
            action: "asking for the socket's address",
            source: io::Error::other("it has none"),
        })?;
        Ok(socket)
    }

    /// Makes a second socket of this one's address, connected to `peer`. From then on the kernel gives it what `peer` sends, and
    /// this one what others do. What arrives while it is made may go to either, whoever sent it.
    pub(super) fn beside(&self, peer: SocketAddr, buffers: Buffers) -> Result<Socket, PortError> {
        // An IPv6 socket makes a new route look-up for each datagram to a mapped IPv4 address, connected or not.
        let local = match (self.local, peer) {
            (SocketAddr::V6(local), SocketAddr::V4(_)) if local.ip().is_unspecified() => {
                (Ipv4Addr::UNSPECIFIED, local.port()).into()
            }
            (local, _) => local,
        };
        let second = Socket::new(local, buffers)?;
        // Both share the address while the second binds it and no longer, so that nobody else gets it: the kernel asks both
        // the socket that binds and those that are bound.
        let share = |on| {
            self.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, on)?;
            second.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, on)
        };
        let bound = share(1).and_then(|()| second.socket.bind(&local.into()));
        let shared = share(0);
        bound.and(shared).map_err(system("binding a second socket"))?;
        second.socket.connect(&peer.into()).map_err(system("connecting a second socket"))?;
        Ok(second)
    }

    /// Lets nothing more arrive at this socket, which [`Socket::beside`] has connected to `peer`; what is queued stays so. It can't
    /// be disconnected instead: it would get everybody's datagrams then.
    pub(super) fn turn_away(&self, peer: SocketAddr) -> io::Result<()> {
        let nobody = SocketAddr::new(peer.ip(), if peer.port() == DISCARD { DISCARD + 1 } else { DISCARD });
        let nobody = match (nobody, peer) {
            // A link-local address means nothing without its link.
            (SocketAddr::V6(mut nobody), SocketAddr::V6(peer)) => {
                nobody.set_scope_id(peer.scope_id());
                SocketAddr::V6(nobody)
            }
            (nobody, _) => nobody,
        };
        self.socket.connect(&nobody.into())
    }

    /// A socket that is to be bound to `address`.
    fn new(address: SocketAddr, buffers: Buffers) -> Result<Socket, PortError> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))
            .map_err(system("making a UDP socket"))?;
        socket.set_nonblocking(true).map_err(system("making the socket non-blocking"))?;
        if address.is_ipv6() {
            // IPv4 peers reach an IPv6 socket that is bound to every address, whatever the system's default.
            socket.set_only_v6(!address.ip().is_unspecified()).map_err(system("choosing the families of the socket"))?;
        }
        let socket = Socket { socket, local: address };
        // With the privilege the limits of net.core do not apply; without it the system gives what it allows, and less is no error.
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffers.receive as libc::c_int).is_err() {
            let _ = socket.socket.set_recv_buffer_size(buffers.receive);
        }
        if socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, buffers.send as libc::c_int).is_err() {
            let _ = socket.socket.set_send_buffer_size(buffers.send);
        }
        Ok(socket)
    }

    /// The address that it is bound to.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sets an integer option.
    pub(super) fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value is an int of our own that lives over the call, and its length is given.
        let outcome = unsafe { libc::setsockopt(self.fd(), level, option, (&raw const value).cast(), len) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends one datagram to the peer that the socket is connected to.
    #[inline]
    pub(super) fn send(&self, bytes: &[u8]) -> Result<(), libc::c_int> {
        rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT).map(drop).map_err(|error| error.raw_os_error())
    }

    /// Sends one datagram, to the peer that the socket is connected to if `to` says so.
    #[inline]
    pub(super) fn send_to(&self, bytes: &[u8], to: &SocketAddress) -> Result<(), libc::c_int> {
        if to.len == 0 {
            return self.send(bytes);
        }
        let (data, name) = (bytes.as_ptr(), to.pointer());
        // By number, as below: libc's own function first makes itself a cancellation point, at the cost of two atomic operations.
        // SAFETY: the kernel reads `bytes` and the address, if there is one; both live over the call, and have these lengths.
        let outcome = unsafe { libc::syscall(libc::SYS_sendto, self.fd(), data, bytes.len(), libc::MSG_DONTWAIT, name, to.len) };
        if outcome >= 0 { Ok(()) } else { Err(errno()) }
    }

    /// Sends several messages, and says how many went.
    ///
    /// # Safety
    ///
    /// Every pointer in `messages` leads to as much live memory as its length says.
    pub(super) unsafe fn send_messages(&self, messages: &mut [libc::mmsghdr]) -> Result<usize, libc::c_int> {
        if let [one] = messages {
            // SAFETY: the caller promises it.
            let outcome = unsafe { libc::syscall(libc::SYS_sendmsg, self.fd(), &raw const one.msg_hdr, libc::MSG_DONTWAIT) };
            return if outcome >= 0 { Ok(1) } else { Err(errno()) };
        }
        let (count, flags) = (messages.len() as u32, libc::MSG_DONTWAIT);
        // SAFETY: the caller promises it.
        let outcome = unsafe { libc::syscall(libc::SYS_sendmmsg, self.fd(), messages.as_mut_ptr(), count, flags) };
        if outcome >= 0 { Ok(outcome as usize) } else { Err(errno()) }
    }

    /// Receives one datagram without waiting: its length, of which as much as fits is in `into`, and its source.
    #[inline]
    pub(super) fn receive_from(&self, into: &mut [u8]) -> Result<(usize, Option<Address>), libc::c_int> {
        let (mut name, mut name_len) = (RawAddress::ZERO, RAW_LEN);
        // With MSG_TRUNC the whole length comes back, also of a datagram that does not fit.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (data, address): (*mut u8, *mut libc::c_void) = (into.as_mut_ptr(), (&raw mut name).cast());
        let address_len = &raw mut name_len;
        // SAFETY: the kernel writes into `into`, `name` and `name_len`, all of which live over the call, no more than their lengths.
        let len = unsafe { libc::syscall(libc::SYS_recvfrom, self.fd(), data, into.len(), flags, address, address_len) };
        if len >= 0 { Ok((len as usize, name.decode(name_len))) } else { Err(errno()) }
    }

    /// The same, of a socket of which it is known whose datagrams come: without the source, which costs the kernel another write.
    #[inline]
    pub(super) fn receive(&self, into: &mut [u8]) -> Result<usize, libc::c_int> {
        let received = rustix::net::recv(&self.socket, into, RecvFlags::DONTWAIT | RecvFlags::TRUNC);
        received.map(|(_, len)| len).map_err(|error| error.raw_os_error())
    }

    /// Receives up to as many messages as there are headers, without waiting, and says how many came; each header's `msg_len`
    /// has its length.
    ///
    /// # Safety
    ///
    /// Every pointer in `messages` leads to as much live memory as its length says, that nothing else accesses during the call.
    #[inline]
    pub(super) unsafe fn receive_messages(&self, messages: &mut [libc::mmsghdr]) -> Result<usize, libc::c_int> {
        if let [one] = messages {
            // SAFETY: the caller promises it.
            let len = unsafe { libc::syscall(libc::SYS_recvmsg, self.fd(), &raw mut one.msg_hdr, libc::MSG_DONTWAIT) };
            if len < 0 {
                return Err(errno());
            }
            one.msg_len = len as u32;
            return Ok(1);
        }
        let (count, flags) = (messages.len() as u32, libc::MSG_DONTWAIT);
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: the caller promises it.
        let outcome = unsafe { libc::syscall(libc::SYS_recvmmsg, self.fd(), messages.as_mut_ptr(), count, flags, no_timeout) };
        if outcome >= 0 { Ok(outcome as usize) } else { Err(errno()) }
    }

    /// Is a datagram waiting, or an error to be read?
    pub(super) fn is_waiting(&self) -> bool {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the kernel writes at most one byte to `byte`, which lives over the call.
        let outcome = unsafe { libc::recv(self.fd(), (&raw mut byte).cast(), 1, flags) };
        outcome >= 0 || errno() != libc::EAGAIN
    }

    #[inline]
    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

/// Says what was being done when the system refused.
fn system(action: &'static str) -> impl Fn(io::Error) -> PortError {
    move |source| PortError::System { action, source }
}

/// The calling thread's last error number.
#[inline]
fn errno() -> libc::c_int {
    // SAFETY: it gives a pointer to the thread's own variable, always.
    unsafe { *libc::__errno_location() }
}
