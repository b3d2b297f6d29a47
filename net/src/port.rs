//! A port moves datagrams: one small trait, and one file a device beside this one.
//!
//! Reliability lives above it, so every port has the same semantics: datagrams may be lost, reordered or duplicated, never
//! cut short. Calls are burst-level: one virtual call moves many packets.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::clock::Clock;
use crate::frame::Frame;

mod address;
pub mod mem;
mod pools;
pub mod sim;
pub mod udp;

pub mod wrap;

pub use address::{Address, AddressError, LocalName, PortUrl, Scheme};

/// One packet and the peer it came from or goes to.
#[derive(Debug)]
pub struct Datagram {
    /// The packet.
    pub frame: Frame,
    /// Its source when received, its destination when sent.
    pub peer: Address,
}

impl Datagram {
    /// Puts one at the end of `burst`, word by word, and gives its frame there. `Vec::push` may have to call for more memory, so the compiler puts
    /// the value together on the stack first and copies it with wide loads, which wait until the narrow writes before them are done.
    #[inline(always)]
    pub(crate) fn push<'a>(burst: &'a mut Vec<Datagram>, frame: Frame, peer: &Address) -> &'a mut Frame {
        // Whoever drops it needs it in memory, even if that never happens: no panic is to come before it has its place.
        let frame = ManuallyDrop::new(frame);
        let at = burst.len();
        if at == burst.capacity() {
            Datagram::make_room(burst);
        }
        // SAFETY: there is room for one more behind the last: there was, or room was made. What is written there, part by part so that it is put
        // together nowhere else, is whole before it counts.
        unsafe {
            let place = burst.as_mut_ptr().add(at);
            (&raw mut (*place).frame).write(ManuallyDrop::into_inner(frame));
            (&raw mut (*place).peer).write(*peer);
            burst.set_len(at + 1);
            &mut (*place).frame
        }
    }

    #[cold]
    #[inline(never)]
    fn make_room(burst: &mut Vec<Datagram>) {
        burst.reserve(1);
    }
}

/// What a port can do; [`Port::capabilities`] gives it once, at start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest datagram in bytes that crosses the port whole, the protocol header included, lower headers not.
    pub mtu: usize,
    /// Whether damaged datagrams are dropped below (UDP or device checksum, or shared memory). Where not, the packet header's
    /// own checksum is used.
    pub integrity: bool,
    /// Whether a burst to one peer leaves as one segmented send.
    pub segmentation: bool,
}

/// Which pool a frame to send comes from. They are apart, so that data can't starve control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Data packets.
    Transmit,
    /// Acknowledgements, grants, handshakes and other control packets.
    Control,
}

/// A device that moves datagrams in bursts. It belongs to one thread.
pub trait Port {
    /// What the port can do. Constant over its life.
    fn capabilities(&self) -> Capabilities;

    /// The address that peers reach this port by.
    fn local_address(&self) -> Address;

    /// Appends up to `max` received datagrams to `into` and says how many. Never blocks. Datagrams that no frame was free for,
    /// and those longer than the MTU, are dropped and counted.
    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError>;

    /// [`Port::receive`], and shows `watch` the bytes of each datagram that it appends, with its sender, in the order in which it appends them: as soon
    /// as it can, which may be before they lie in their frame. A port that wraps another and changes what that receives must show what comes
    /// of it, as this does.
    fn receive_watching(
        &mut self,
        into: &mut Vec<Datagram>,
        max: usize,
        watch: &mut dyn FnMut(&Address, &[u8]),
    ) -> Result<usize, PortError> {
        let before = into.len();
        let outcome = self.receive(into, max);
        into[before..].iter().for_each(|datagram| watch(&datagram.peer, &datagram.frame));
        outcome
    }

    /// Whether receive frames run low: who holds received frames for long copies their bytes out then.
    fn receive_frames_low(&self) -> bool;

    /// Frames of the port's pools that are out now: with the port itself, with whoever sends, and with whoever holds what was received.
    fn frames_out(&self) -> FramesOut;

    /// Appends up to `count` empty frames for sending to `into` and says how many. Fewer than asked is pressure, not an error.
    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize;

    /// Sends from the front of `burst`; what the device took is removed, in order, and what it had no room for stays there for
    /// the next call. Datagrams that can never be sent (no route, larger than the MTU) are removed and counted as lost.
    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError>;

    /// Prepares for blocking: registers what becomes ready when packets arrive under `token`. A port without a file descriptor keeps
    /// `waker`, and its peers' threads call it.
    fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()>;

    /// Called before the owner blocks. `false` means that packets are waiting: don't.
    fn prepare_wait(&mut self) -> bool;

    /// Called after the owner woke.
    fn finish_wait(&mut self);

    /// What the port counted since it was opened.
    fn counters(&self) -> PortCounters;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn local_address(&self) -> Address {
        (**self).local_address()
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        (**self).receive(into, max)
    }

    fn receive_watching(
        &mut self,
        into: &mut Vec<Datagram>,
        max: usize,
        watch: &mut dyn FnMut(&Address, &[u8]),
    ) -> Result<usize, PortError> {
        (**self).receive_watching(into, max, watch)
    }

    #[inline]
    fn receive_frames_low(&self) -> bool {
        (**self).receive_frames_low()
    }

    fn frames_out(&self) -> FramesOut {
        (**self).frames_out()
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        (**self).allocate(purpose, into, count)
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        (**self).transmit(burst)
    }

    fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()> {
        (**self).attach_wait(registry, token, waker)
    }

    fn prepare_wait(&mut self) -> bool {
        (**self).prepare_wait()
    }

    fn finish_wait(&mut self) {
        (**self).finish_wait();
    }

    fn counters(&self) -> PortCounters {
        (**self).counters()
    }
}

/// Opens the port that `url` names, within the wrappers that its options ask for.
///
/// The options of each kind of port are said in its module; those of every port (`pcap`, `trace`, and faults such as `loss`) in
/// [`wrap`]. An option that is not known is refused.
pub fn open(url: &PortUrl, clock: &Clock) -> Result<Box<dyn Port>, PortError> {
    let (device, wrappers) = wrap::split(url)?;
    let port: Box<dyn Port> = match device.scheme {
        Scheme::Udp => Box::new(udp::UdpPort::open(&device)?),
        Scheme::Mem => Box::new(mem::MemPort::open(&device)?),
        Scheme::Sim => Box::new(sim::SimPort::open(&device)?),
        Scheme::Xdp | Scheme::Dpdk | Scheme::Rdma => {
            return Err(PortError::NotBuilt { scheme: device.scheme.name().to_owned() });
        }
    };
    wrappers.apply(port, clock)
}

/// What a port counts, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams handed to the device.
    pub transmitted: u64,
    /// Received and dropped because no receive frame was free.
    pub dropped_no_frame: u64,
    /// Received and dropped because they were longer than the MTU.
    pub dropped_oversize: u64,
    /// Given for sending, and lost: no route, refused, oversized.
    pub send_failed: u64,
    /// Segmented sends that failed and were sent again one by one.
    pub segmentation_fallbacks: u64,
    /// Times the device had no room for a whole burst.
    pub transmit_full: u64,
    /// Errors that the network reported later, of datagrams sent before (ICMP: port unreachable and the like).
    pub network_errors: u64,
}

/// Frames of a port's pools that are out. A port and its endpoint keep some at hand: a few bursts, however long they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramesOut {
    /// Of the frames to receive into.
    pub receive: usize,
    /// Of the frames for data packets.
    pub transmit: usize,
    /// Of the frames for control packets.
    pub control: usize,
}

/// Why a port could not be opened, or stopped working.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The URL is malformed or asks for what this port does not have.
    #[error("{0}")]
    Address(#[from] AddressError),
    /// The address is taken.
    #[error("{address} is in use: {}", instead(*address))]
    InUse {
        /// The address asked for.
        address: Address,
    },
    /// The address is another machine's.
    #[error("{address} is not an address of this machine: use one that `ip address` shows")]
    NotLocal {
        /// The address asked for.
        address: Address,
    },
    /// The operating system refused.
    #[error("{action} failed: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// An option's value can't work on this device.
    #[error("{option}={value}: {reason}")]
    Option {
        /// The option's name in the URL.
        option: String,
        /// Its value.
        value: String,
        /// What would be accepted.
        reason: String,
    },
    /// A `sim` port was opened by URL in a thread that has no network.
    #[error("this thread has no simulated network: make one with Network::new and install it before opening sim:// ports")]
    NoNetwork,
    /// The scheme is reserved for a port that does not exist yet.
    #[error("this version has no {scheme} port yet: use udp, mem or sim")]
    NotBuilt {
        /// The URL's scheme.
        scheme: String,
    },
}

/// What to do about an address that is taken.
fn instead(address: Address) -> &'static str {
    match address {
        Address::Inet(_) => "another process or port holds it; stop that one or choose another port number (0 picks a free one)",
        Address::Local(_) => "another port here has the name; choose another name, or close that port first",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_whose_port_can_not_be_had_says_what_can() {
        let clock = Clock::tsc();
        let mut held = Vec::new();
        let mut refusal = |url: &str| match open(&url.parse().unwrap(), &clock) {
            Ok(port) => {
                held.push(port);
                String::new()
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(refusal("xdp://eth1/10.0.0.1:7000"), "this version has no xdp port yet: use udp, mem or sim");
        assert_eq!(refusal("rdma://10.0.0.1:7000"), "this version has no rdma port yet: use udp, mem or sim");
        assert_eq!(refusal("mem://taken-twice"), "");
        let taken = refusal("mem://taken-twice");
        assert!(taken.contains("choose another name") && !taken.contains("number"), "{taken}");
    }
}
