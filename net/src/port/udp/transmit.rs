//! Sending: a lone datagram by the cheapest call; runs of equal datagrams to one peer as one segmented message (UDP_SEGMENT, "GSO");
//! several messages by one call.
//!
//! Whether segmentation works is found out by using it: a device may advertise it and then fail. When it fails, nothing has been
//! sent, so the same datagrams go one by one, and larger segments are not tried again.

use super::hot::Sockets;
use super::pieces::Pieces;
use super::sockaddr::SocketAddress;
use super::socket::Socket;
use crate::port::{Address, Datagram, PortCounters, PortError};

/// Segments in one message at most: what every kernel that has segmentation accepts.
const SEGMENTS: usize = 64;

/// Bytes in one message at most, so that it fits into an IP packet of either family.
const MESSAGE: usize = 65_535 - 40 - 8;

/// Messages in one call at most.
const BATCH: usize = 16;

/// How often one datagram is tried again because the kernel reported an error of an earlier one instead of sending it.
const RETRIES: usize = 8;

/// The sending half of the port.
#[derive(Debug)]
pub(super) struct Sender {
    mtu: usize,
    v6: bool,
    /// Longest segment that segmentation is used for; zero: it is off.
    segment_limit: usize,
    groups: Vec<Group>,
    pieces: Pieces,
    messages: Vec<libc::mmsghdr>,
}

/// A run of datagrams that leaves as one message.
struct Group {
    count: usize,
    /// Of how many pieces of memory they are.
    pieces: usize,
    /// Length of each but the last, which may be shorter.
    segment: usize,
    to: SocketAddress,
    control: Control,
}

/// Room for the one control message, aligned as it must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 24]);

/// What to do after a failed call.
enum After {
    /// Again, from the burst's front.
    Again,
    /// The device is full.
    Stop,
    /// The hot socket can't send it: again by the main one, which can if the error is of the connection.
    WithoutHot,
}

impl Sender {
    /// Sends datagrams of up to `mtu` bytes; `segmentation` if the kernel has it.
    pub(super) fn new(mtu: usize, v6: bool, segmentation: bool) -> Sender {
        Sender {
            mtu,
            v6,
            segment_limit: if segmentation { mtu } else { 0 },
            groups: Vec::with_capacity(BATCH),
            pieces: Pieces::with_capacity(BATCH * SEGMENTS),
            messages: Vec::with_capacity(BATCH),
        }
    }

    /// Sends from the front of `burst` until it is empty or the device is full.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        sockets: &mut Sockets,
        counters: &mut PortCounters,
        burst: &mut Vec<Datagram>,
    ) -> Result<usize, PortError> {
        let mut failed = None;
        // A lone datagram to the hot peer: a call that somebody waits for.
        if burst.len() == 1
            && let Some(lone) = burst.first()
            && lone.frame.len() <= self.mtu
            && let Some(socket) = sockets.hot_to(lone.peer)
        {
            match socket.send(&lone.frame) {
                Ok(()) => {
                    sockets.sent_hot();
                    counters.transmitted += 1;
                    // It goes back from where it lies: the one datagram is moved nowhere.
                    if let Some(Datagram { frame, .. }) = burst.pop() {
                        drop(frame);
                    }
                    return Ok(1);
                }
                Err(errno) => failed = Some(errno),
            }
        }
        self.transmit_all(sockets, counters, burst, failed)
    }

    /// The same for any burst. `failed`: that was just tried, a lone datagram to the hot peer, and gave this error.
    #[inline(never)]
    fn transmit_all(
        &mut self,
        sockets: &mut Sockets,
        counters: &mut PortCounters,
        burst: &mut Vec<Datagram>,
        mut failed: Option<libc::c_int>,
    ) -> Result<usize, PortError> {
        let mut sent = 0;
        let mut retries = 0;
        while let Some(first) = burst.first() {
            let hot = sockets.hot_peer();
            let by_hot = hot == Some(first.peer);
            let to = if by_hot { Some(SocketAddress::CONNECTED) } else { SocketAddress::encode(first.peer, self.v6) };
            let to = match to {
                Some(to) if first.frame.len() <= self.mtu => to,
                _ => {
                    counters.send_failed += 1;
                    burst.remove(0);
                    continue;
                }
            };
            let socket = sockets.to_send(by_hot);
            let (outcome, tried) = if let Some(errno) = failed.take() {
                (Err(errno), 1)
            } else if burst.len() == 1 {
                (socket.send_to(&first.frame, &to).map(|()| 1), 1)
            } else {
                self.send_groups(socket, to, burst, hot)
            };
            match outcome {
                Ok(count) => {
                    sockets.sent(by_hot, burst.iter().take(count));
                    if count == burst.len() {
                        burst.clear();
                    } else {
                        burst.drain(..count);
                    }
                    sent += count;
                    retries = 0;
                }
                Err(errno) => match self.failed(errno, tried, by_hot, burst, counters, &mut retries)? {
                    After::Again => {}
                    After::Stop => break,
                    After::WithoutHot => sockets.retire(),
                },
            }
        }
        counters.transmitted += sent as u64;
        Ok(sent)
    }

    /// Sends what of the burst's front fits into one call and goes through the same socket as `first`, the address of the first: that
    /// to `hot` goes through the hot one. Gives how many datagrams went, or the error; and how many datagrams
    /// the first message was made of.
    fn send_groups(
        &mut self,
        socket: &Socket,
        first: SocketAddress,
        burst: &[Datagram],
        hot: Option<Address>,
    ) -> (Result<usize, libc::c_int>, usize) {
        self.group(first, burst, hot);
        let tried = self.groups.first().map_or(0, |group| group.count);
        if let ([group], Some(datagram)) = (&self.groups[..], burst.first())
            && group.count == 1
        {
            return (socket.send_to(&datagram.frame, &group.to).map(|()| 1), 1);
        }
        self.messages.clear();
        let mut rest = &*self.pieces.lists();
        for group in &mut self.groups {
            let (pieces, after) = rest.split_at(group.pieces);
            rest = after;
            self.messages.push(group.message(pieces));
        }
        // SAFETY: names and control messages are in `groups`, gather lists in `pieces`, their bytes in the burst's frames, and none
        // of these changes before the call returns.
        let outcome = unsafe { socket.send_messages(&mut self.messages) };
        (outcome.map(|count| self.groups.iter().take(count).map(|group| group.count).sum()), tried)
    }

    /// Parts the burst's front into groups.
    fn group(&mut self, first: SocketAddress, burst: &[Datagram], hot: Option<Address>) {
        self.groups.clear();
        self.pieces.clear();
        let by_hot = first.len == 0;
        let mut peer: Option<Address> = None;
        let mut bytes = 0;
        // Whether the last group may grow: not once a shorter datagram has ended it.
        let mut open = false;
        for datagram in burst {
            let len = datagram.frame.len();
            let joins = open
                && peer == Some(datagram.peer)
                && (1..=self.groups.last().map_or(0, |group| group.segment)).contains(&len)
                && bytes + len <= MESSAGE;
            if let Some(group) = self.groups.last_mut().filter(|group| joins && group.count < SEGMENTS) {
                group.count += 1;
                bytes += len;
                open = len == group.segment;
            } else {
                if self.groups.len() == BATCH || len > self.mtu || (hot == Some(datagram.peer)) != by_hot {
                    break;
                }
                let to = if by_hot || self.groups.is_empty() { Some(first) } else { SocketAddress::encode(datagram.peer, self.v6) };
                let Some(to) = to else { break };
                self.end_group();
                self.groups.push(Group { count: 1, pieces: 0, segment: len, to, control: Control([0; 24]) });
                peer = Some(datagram.peer);
                bytes = len;
                open = (1..=self.segment_limit).contains(&len);
            }
            self.pieces.push(datagram.frame.data().as_ptr(), len);
        }
        self.end_group();
    }

    /// The last group has all its datagrams.
    #[inline]
    fn end_group(&mut self) {
        if let Some(group) = self.groups.last_mut() {
            group.pieces = self.pieces.end();
        }
    }

    /// Decides what a failed call means for the burst, of which the first `tried` datagrams were one message.
    #[cold]
    fn failed(
        &mut self,
        errno: libc::c_int,
        tried: usize,
        by_hot: bool,
        burst: &mut Vec<Datagram>,
        counters: &mut PortCounters,
        retries: &mut usize,
    ) -> Result<After, PortError> {
        match errno {
            libc::EINTR => return Ok(After::Again),
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => {
                counters.transmit_full += 1;
                return Ok(After::Stop);
            }
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT => {
                let source = std::io::Error::from_raw_os_error(errno);
                return Err(PortError::System { action: "sending to the UDP socket", source });
            }
            // The error of an earlier datagram, reported by ICMP; this one was not tried.
            libc::ECONNREFUSED if *retries < RETRIES => {
                counters.network_errors += 1;
                *retries += 1;
                return Ok(After::Again);
            }
            // Of a hot socket it may be the connection's: the main one will tell.
            libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP if tried > 1 && !by_hot => {
                counters.segmentation_fallbacks += 1;
                let segment = burst.first().map_or(0, |first| first.frame.len());
                self.limit_segments(errno, segment);
                return Ok(After::Again);
            }
            _ => {}
        }
        *retries = 0;
        if by_hot {
            return Ok(After::WithoutHot);
        }
        // No route, a firewall's refusal, too long for the path: these datagrams can't be sent.
        counters.send_failed += tried as u64;
        burst.drain(..tried);
        Ok(After::Again)
    }

    /// Segmentation failed. A segment may have been too long for one peer's path: shorter ones may still work, up to three
    /// quarters of it next; when even small ones fail, or the device has failed (EIO), it is off.
    fn limit_segments(&mut self, errno: libc::c_int, segment: usize) {
        let shorter = segment / 4 * 3;
        self.segment_limit = if errno == libc::EIO || shorter < 512 { 0 } else { shorter.min(self.segment_limit) };
        tracing::warn!(
            error = %std::io::Error::from_raw_os_error(errno),
            segment,
            limit = self.segment_limit,
            "segmented sending failed; datagrams longer than the limit go one by one from now on",
        );
    }
}

impl Group {
    /// The header that sends `pieces`. It points into `self`.
    fn message(&mut self, pieces: &[libc::iovec]) -> libc::mmsghdr {
        // SAFETY: a plain C struct of integers and pointers, for which zero is a value.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let header = &mut message.msg_hdr;
        header.msg_name = self.to.pointer().cast_mut();
        header.msg_namelen = self.to.len;
        header.msg_iov = pieces.as_ptr().cast_mut();
        header.msg_iovlen = pieces.len() as _;
        if self.count > 1 {
            header.msg_control = (&raw mut self.control).cast();
            header.msg_controllen = size_of::<Control>() as _;
            // SAFETY: the buffer is aligned, and has room for a control header and a u16 (asserted below), which are written here.
            unsafe {
                let control = libc::CMSG_FIRSTHDR(header);
                (*control).cmsg_level = libc::SOL_UDP;
                (*control).cmsg_type = libc::UDP_SEGMENT;
                (*control).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                libc::CMSG_DATA(control).cast::<u16>().write_unaligned(self.segment as u16);
            }
        }
        message
    }
}

// SAFETY: plain arithmetic.
const _: () = assert!(unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize == size_of::<Control>());

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} x {})", self.count, self.segment)
    }
}
