//! Receiving: one datagram by one cheap call while traffic is thin, many by one call when it is not, and trains of datagrams that the
//! kernel has coalesced (UDP_GRO) parted again.
//!
//! Each message is read straight into a frame, so that a lone datagram is not copied. What is longer than a datagram may be
//! continues in a spare buffer; only trains do that. A train is expected to be of datagrams as long as those of the last one were: if they
//! are long, so that copying them costs something, the kernel scatters it over frames that lie together, each datagram into its own. Where
//! the guess was wrong they are copied.

use super::pieces::Pieces;
use super::slot::{Slot, parked};
use super::sockaddr::{RAW_LEN, RawAddress};
use super::source::{Coalescing, Source};
use crate::frame::{Frame, Pool, Run};
use crate::port::{Address, Datagram, PortCounters, PortError};

/// How many messages one call reads at most.
const BATCH: usize = 32;

/// Longest message that the kernel gives: a coalesced train.
const TRAIN: usize = 1 << 16;

/// From how many on several messages are asked for by one call. Below that they are taken one by one: a call for several costs a lone one,
/// and each empty look after it, more than it saves two.
pub(super) const SEVERAL: usize = 3;

/// How many messages are asked for once so many came one after the other, and by how much that grows as long as all that is asked for comes.
pub(super) const MORE: usize = 4;

/// How many messages of one call are asked for, and scattered over frames, while trains come, and the shortest datagrams for which it is done. A
/// call costs little beside a train's bytes, and of more than these the first would be out of the near cache before the last is there.
const SCATTERED: usize = 2;
const LONG: usize = 512;

/// After how many calls that brought no train the frames for trains go back to the pool.
const CALM: u32 = 256;

/// From how many messages in one call on traffic is thick.
const THICK: usize = 8;

/// How many errors of earlier sends one call passes over.
const ERRORS: usize = 16;

/// The receiving half of the port.
#[derive(Debug)]
pub(super) struct Receiver {
    mtu: usize,
    /// Where messages continue that do not fit into a frame: [`TRAIN`] bytes for each. Empty until a socket coalesces.
    spare: Box<[u8]>,
    slots: Box<[Slot]>,
    /// Slots `next..arrived` hold messages that were not handed out yet.
    arrived: usize,
    next: usize,
    /// How far the train in slot `next` has been handed out.
    offset: usize,
    /// Length of the datagrams that the last train was made of.
    train_segment: usize,
    /// Calls since a train came.
    trainless: u32,
    headers: Box<Headers>,
}

/// What the kernel reads and writes in a call, apart from the packets.
struct Headers {
    names: [RawAddress; BATCH],
    control: [Control; BATCH],
    pieces: Pieces,
    messages: [libc::mmsghdr; BATCH],
}

/// Room for control messages, aligned as they must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Receiver {
    /// Receives datagrams of up to `mtu` bytes.
    pub(super) fn new(mtu: usize) -> Receiver {
        Receiver {
            mtu,
            spare: Box::default(),
            slots: (0..BATCH).map(|_| Slot::default()).collect(),
            arrived: 0,
            next: 0,
            offset: 0,
            train_segment: 0,
            trainless: 0,
            headers: Box::new(Headers::new()),
        }
    }

    /// Has the kernel given messages that were not handed out yet?
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.next < self.arrived
    }

    /// Appends up to `max` datagrams to `into`, after at most one successful call to the kernel. Messages that are waiting come first,
    /// whatever socket they are of.
    #[inline]
    pub(super) fn receive(
        &mut self,
        source: &mut Source,
        pool: &Pool,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
        max: usize,
    ) -> Result<usize, PortError> {
        if source.ask < SEVERAL && source.coalescing != Coalescing::On && !self.is_waiting() && max > 0 {
            return self.receive_one(source, pool, counters, into);
        }
        self.receive_several(source, pool, counters, into, max)
    }

    #[inline(never)]
    fn receive_several(
        &mut self,
        source: &mut Source,
        pool: &Pool,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
        max: usize,
    ) -> Result<usize, PortError> {
        let before = into.len();
        if !self.is_waiting() {
            self.read(source, pool, counters, max)?;
        }
        while self.is_waiting() && into.len() - before < max {
            let slot = &self.slots[self.next];
            if slot.segment == slot.len && slot.len <= slot.posted && !slot.truncated {
                self.hand_out(counters, into);
            } else {
                self.part(pool, counters, into, max - (into.len() - before));
            }
        }
        let count = into.len() - before;
        counters.received += count as u64;
        Ok(count)
    }

    /// Receives one datagram by the cheapest call.
    #[inline]
    fn receive_one(
        &mut self,
        source: &mut Source,
        pool: &Pool,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
    ) -> Result<usize, PortError> {
        if self.slots[0].frame.is_none() {
            self.slots[0].frame = pool.take().or_else(|| parked(&mut self.slots));
        }
        match source.only_peer() {
            Some(peer) => match source.socket.receive(self.room()) {
                Ok(len) => {
                    let count = self.hand_one(len, Some(peer), counters, into);
                    source.ask_on();
                    Ok(count)
                }
                Err(errno) => self.failed(source, errno, counters, into),
            },
            None => self.receive_one_of_any(source, counters, into),
        }
    }

    /// The same, from whoever sent it.
    #[inline(never)]
    fn receive_one_of_any(
        &mut self,
        source: &mut Source,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
    ) -> Result<usize, PortError> {
        match source.socket.receive_from(self.room()) {
            Ok((len, peer)) => {
                source.ask_on();
                Ok(self.hand_one(len, peer.as_ref(), counters, into))
            }
            Err(errno) => self.failed(source, errno, counters, into),
        }
    }

    /// Where one datagram is read into.
    #[inline]
    fn room(&mut self) -> &mut [u8] {
        match &mut self.slots[0].frame {
            Some(frame) => &mut frame.buffer_mut()[..self.mtu],
            None => &mut [],
        }
    }

    /// Hands out the one datagram that was read, of this length, and says how many that was.
    #[inline]
    fn hand_one(&mut self, len: usize, peer: Option<&Address>, counters: &mut PortCounters, into: &mut Vec<Datagram>) -> usize {
        if len <= self.mtu
            && let Some(&peer) = peer
            && let Some(frame) = self.slots[0].frame.take()
        {
            hand(frame, len, peer, into);
            counters.received += 1;
            return 1;
        }
        self.drop_one(counters);
        0
    }

    /// There is no frame for a datagram, or not as long a one.
    #[cold]
    fn drop_one(&self, counters: &mut PortCounters) {
        match self.slots[0].frame {
            None => counters.dropped_no_frame += 1,
            Some(_) => counters.dropped_oversize += 1,
        }
    }

    /// A call for one datagram has failed: mostly because there is none.
    #[inline]
    fn failed(
        &mut self,
        source: &mut Source,
        errno: libc::c_int,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
    ) -> Result<usize, PortError> {
        if errno == libc::EAGAIN {
            (source.ask, source.emptied) = (1, true);
            return Ok(0);
        }
        self.receive_past_errors(source, errno, counters, into)
    }

    /// Receives one datagram after a call for it gave an error instead, perhaps one that an earlier send has made.
    #[cold]
    fn receive_past_errors(
        &mut self,
        source: &mut Source,
        mut errno: libc::c_int,
        counters: &mut PortCounters,
        into: &mut Vec<Datagram>,
    ) -> Result<usize, PortError> {
        for attempt in 1..=ERRORS {
            if errno == libc::EAGAIN {
                return self.failed(source, errno, counters, into);
            }
            if !passes(errno, counters)? || attempt == ERRORS {
                break;
            }
            match source.socket.receive_from(self.room()) {
                Ok((len, peer)) => {
                    source.ask_on();
                    return Ok(self.hand_one(len, peer.as_ref(), counters, into));
                }
                Err(next) => errno = next,
            }
        }
        Ok(0)
    }

    /// Fills slots from the kernel.
    #[inline]
    fn read(&mut self, source: &mut Source, pool: &Pool, counters: &mut PortCounters, max: usize) -> Result<(), PortError> {
        (self.next, self.arrived, self.offset) = (0, 0, 0);
        let ask = source.ask.min(max).min(if self.scatter() > 0 { SCATTERED } else { BATCH });
        if ask == 0 {
            return Ok(());
        }
        if self.train_segment != 0 {
            self.trainless += 1;
            if self.trainless > CALM {
                self.train_segment = 0;
                self.rest();
            }
        }
        for _ in 0..ERRORS {
            self.post(ask, pool);
            // SAFETY: `post` has set these headers up: names, control and pieces are in `headers`, frames and spare buffer are
            // owned by us, each of its own slot, and nothing else touches them before the call returns.
            match unsafe { source.socket.receive_messages(&mut self.headers.messages[..ask]) } {
                Ok(count) => {
                    for index in 0..count {
                        self.note(index);
                    }
                    self.arrived = count;
                    // All that was asked for came: ask for more. One came of several: traffic is thin again.
                    if count == ask {
                        source.ask = (source.ask * MORE).min(BATCH);
                    } else if count <= 1 {
                        source.ask = 1;
                    }
                    if count >= THICK && source.coalescing == Coalescing::Later {
                        self.coalesce(source);
                    }
                    return Ok(());
                }
                Err(libc::EAGAIN) => {
                    (source.ask, source.emptied) = (1, true);
                    return Ok(());
                }
                Err(errno) => {
                    if !passes(errno, counters)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// The length of the datagrams that trains are scattered by; zero: by none.
    #[inline]
    fn scatter(&self) -> usize {
        if !self.spare.is_empty() && (LONG..=self.mtu).contains(&self.train_segment) { self.train_segment } else { 0 }
    }

    /// No train is expected, or not soon: the frames for trains go back to the pool, unless they hold what was not handed out yet.
    pub(super) fn rest(&mut self) {
        if !self.is_waiting() {
            self.slots[..SCATTERED].iter_mut().for_each(|slot| slot.more = None);
        }
    }

    /// Turns coalescing on.
    #[cold]
    fn coalesce(&mut self, source: &mut Source) {
        source.coalesce();
        if source.coalescing == Coalescing::On && self.spare.is_empty() {
            self.spare = vec![0; BATCH * TRAIN].into_boxed_slice();
        }
    }

    /// Sets up the first `count` slots and headers. Where no frame is free, the slot has none, and what comes is dropped.
    #[inline]
    fn post(&mut self, count: usize, pool: &Pool) {
        let coalesced = !self.spare.is_empty();
        let spare = self.spare.as_mut_ptr();
        let scatter = self.scatter();
        let Headers { names, control, pieces, messages } = &mut *self.headers;
        pieces.clear();
        for index in 0..count {
            if self.slots[index].frame.is_none() {
                self.slots[index].frame = pool.take().or_else(|| parked(&mut self.slots[index..]));
            }
            let slot = &mut self.slots[index];
            let scattered = scatter > 0 && index < SCATTERED && slot.frame.is_some();
            if scattered {
                // Only from a pool that is half full at least: others need the rest more.
                let spared = pool.available().saturating_sub(pool.capacity() / 2);
                slot.take_more(pool, (TRAIN / scatter).min(Run::MOST).min(slot.more_len() + spared));
                slot.list_all(scatter, pieces);
            } else {
                slot.list_one(self.mtu, pieces);
            }
            let header = &mut messages[index].msg_hdr;
            header.msg_name = (&raw mut names[index]).cast();
            header.msg_namelen = RAW_LEN;
            if coalesced {
                // SAFETY: the spare buffer has `TRAIN` bytes for each of `BATCH` slots.
                pieces.push(unsafe { spare.add(index * TRAIN) }, TRAIN);
                header.msg_control = (&raw mut control[index]).cast();
                header.msg_controllen = size_of::<Control>() as _;
            }
            header.msg_iovlen = pieces.end();
        }
        // Now that they stay where they are.
        let mut rest = pieces.lists();
        for message in &mut messages[..count] {
            message.msg_hdr.msg_iov = rest.as_mut_ptr();
            rest = &mut rest[message.msg_hdr.msg_iovlen..];
        }
    }

    /// Notes what the kernel wrote about message `index`.
    #[inline]
    fn note(&mut self, index: usize) {
        let message = &self.headers.messages[index];
        let slot = &mut self.slots[index];
        slot.len = message.msg_len as usize;
        slot.truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        slot.from = self.headers.names[index].decode(message.msg_hdr.msg_namelen);
        let segment = if message.msg_hdr.msg_controllen == 0 { None } else { segment_size(&message.msg_hdr) };
        slot.segment = match segment {
            Some(segment) if segment > 0 => segment.min(slot.len),
            _ => slot.len,
        };
    }

    /// Hands out the datagram in slot `next`, which is whole and in its frame.
    #[inline]
    fn hand_out(&mut self, counters: &mut PortCounters, into: &mut Vec<Datagram>) {
        let slot = &mut self.slots[self.next];
        self.next += 1;
        let len = slot.len;
        match (slot.frame.take(), slot.from) {
            (Some(frame), Some(peer)) if len <= slot.posted => hand(frame, len, peer, into),
            (None, _) => counters.dropped_no_frame += 1,
            // From no IP address: the kernel does not do that.
            (frame, _) => slot.frame = frame,
        }
    }

    /// Parts the train in slot `next` into up to `max` datagrams, which are in frames of their own already or are copied there; or drops
    /// what is too long.
    #[cold]
    fn part(&mut self, pool: &Pool, counters: &mut PortCounters, into: &mut Vec<Datagram>, max: usize) {
        let index = self.next;
        let slot = &mut self.slots[index];
        let spare = self.spare.get(index * TRAIN..(index + 1) * TRAIN).unwrap_or(&[]);
        if slot.truncated {
            // Longer than the frame; or there was no frame, and nothing else to read it into.
            let dropped = if slot.room == 0 { &mut counters.dropped_no_frame } else { &mut counters.dropped_oversize };
            *dropped += 1;
            self.offset = slot.len;
        }
        let mut left = max;
        while left > 0 && self.offset < slot.len {
            let (offset, len) = (self.offset, slot.segment.min(slot.len - self.offset));
            self.offset += len;
            if len > self.mtu {
                counters.dropped_oversize += 1;
                continue;
            }
            let Some(peer) = slot.from else {
                counters.dropped_no_frame += 1;
                continue;
            };
            let frame = if slot.segment == slot.posted && offset < slot.room {
                if offset == 0 { slot.frame.take() } else { slot.next_frame() }
            } else {
                pool.take().map(|mut frame| {
                    slot.gather(spare, offset, &mut frame.buffer_mut()[..len]);
                    frame
                })
            };
            let Some(frame) = frame else {
                counters.dropped_no_frame += 1;
                continue;
            };
            hand(frame, len, peer, into);
            left -= 1;
        }
        if self.offset >= slot.len {
            if slot.is_train() {
                (self.train_segment, self.trainless) = (slot.segment, 0);
            }
            self.next += 1;
            self.offset = 0;
        }
    }
}

/// Hands out a frame with `len` bytes in it.
#[inline]
fn hand(frame: Frame, len: usize, peer: Address, into: &mut Vec<Datagram>) {
    Datagram::push(into, frame, &peer).set_range(0, len);
}

/// Whether to call again after this error. An error of an earlier send, told by ICMP, is counted and passed over.
#[cold]
fn passes(errno: libc::c_int, counters: &mut PortCounters) -> Result<bool, PortError> {
    match errno {
        libc::EINTR => Ok(true),
        // The system is short of memory: no datagram, for now.
        libc::ENOMEM | libc::ENOBUFS => Ok(false),
        libc::EBADF | libc::EFAULT | libc::EINVAL | libc::ENOTSOCK => {
            let source = std::io::Error::from_raw_os_error(errno);
            Err(PortError::System { action: "receiving from the UDP socket", source })
        }
        _ => {
            counters.network_errors += 1;
            Ok(true)
        }
    }
}

/// The length of the datagrams in a train, if the kernel has said that it is one.
fn segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the header's control pointer and length are those that the kernel has left, over a buffer of ours.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: plain arithmetic.
    let wanted = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) } as _;
    while !control.is_null() {
        // SAFETY: not null, so it leads to a whole control header within the buffer.
        let (level, kind, len) = unsafe { ((*control).cmsg_level, (*control).cmsg_type, (*control).cmsg_len) };
        if level == libc::SOL_UDP && kind == libc::UDP_GRO && len >= wanted {
            // SAFETY: the length says that an int follows the header; it need not be aligned.
            let size = unsafe { libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned() };
            return usize::try_from(size).ok();
        }
        // SAFETY: `control` is a control header of `header`.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    None
}

impl Headers {
    fn new() -> Headers {
        // SAFETY: these are plain C structs of integers and pointers, for which zero is a value.
        let messages = unsafe { std::mem::zeroed() };
        Headers { names: [RawAddress::ZERO; BATCH], control: [Control([0; 64]); BATCH], pieces: Pieces::default(), messages }
    }
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Headers")
    }
}
