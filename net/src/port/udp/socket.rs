//! The socket and its system calls: the only place of this port that speaks to the kernel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use super::sockaddr::{RAW_LEN, RawAddress, SocketAddress};
use crate::port::{Address, PortError};

/// A bound, non-blocking UDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: socket2::Socket,
    local: SocketAddr,
}

impl Socket {
    /// Binds `address`, with buffers as near to the sizes asked for as the system allows.
    pub(super) fn bind(address: SocketAddr, receive_buffer: usize, send_buffer: usize) -> Result<Socket, PortError> {
        let system = |action| move |source| PortError::System { action, source };
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))
            .map_err(system("making a UDP socket"))?;
        socket.set_nonblocking(true).map_err(system("making the socket non-blocking"))?;
        if address.is_ipv6() {
            // IPv4 peers reach an IPv6 socket that is bound to every address, whatever the system's default.
            socket.set_only_v6(!address.ip().is_unspecified()).map_err(system("choosing the families of the socket"))?;
        }
        socket.bind(&address.into()).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => PortError::InUse { address: Address::Inet(address) },
            io::ErrorKind::AddrNotAvailable => PortError::NotLocal { address: Address::Inet(address) },
            _ => PortError::System { action: "binding the socket", source },
        })?;
        let local = socket.local_addr().map_err(system("asking for the socket's address"))?;
        let local = local.as_socket().ok_or_else(|| PortError::System {
            action: "asking for the socket's address",
            source: io::Error::other("it has none"),
        })?;
        let socket = Socket { socket, local };
        // With the privilege the limits of net.core do not apply; without it the system gives what it allows, and less is no error.
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, receive_buffer as libc::c_int).is_err() {
            let _ = socket.socket.set_recv_buffer_size(receive_buffer);
        }
        if socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, send_buffer as libc::c_int).is_err() {
            let _ = socket.socket.set_send_buffer_size(send_buffer);
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

    /// Sends one datagram.
    #[inline]
    pub(super) fn send_to(&self, bytes: &[u8], to: &SocketAddress) -> Result<(), libc::c_int> {
        let (data, name): (*const u8, *const libc::c_void) = (bytes.as_ptr(), (&raw const to.raw).cast());
        // By number, as below: libc's own function first makes itself a cancellation point, at the cost of two atomic operations.
        // SAFETY: the kernel reads `bytes` and the address, both of which live over the call, with their lengths.
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
            let outcome = unsafe { libc::sendmsg(self.fd(), &one.msg_hdr, libc::MSG_DONTWAIT) };
            return if outcome >= 0 { Ok(1) } else { Err(errno()) };
        }
        let (count, flags) = (messages.len() as u32, libc::MSG_DONTWAIT);
        // SAFETY: the caller promises it.
        let outcome = unsafe { libc::sendmmsg(self.fd(), messages.as_mut_ptr(), count, flags as _) };
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
            let len = unsafe { libc::recvmsg(self.fd(), &mut one.msg_hdr, libc::MSG_DONTWAIT) };
            if len < 0 {
                return Err(errno());
            }
            one.msg_len = len as u32;
            return Ok(1);
        }
        let (count, flags) = (messages.len() as u32, libc::MSG_DONTWAIT);
        let no_timeout = std::ptr::null_mut();
        // SAFETY: the caller promises it.
        let outcome = unsafe { libc::recvmmsg(self.fd(), messages.as_mut_ptr(), count, flags as _, no_timeout) };
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

/// The calling thread's last error number.
#[inline]
fn errno() -> libc::c_int {
    // SAFETY: it gives a pointer to the thread's own variable, always.
    unsafe { *libc::__errno_location() }
}
