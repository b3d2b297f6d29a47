//! A port whose other end is in the fuzzer's hands: what arrives is what it was given, what is sent lies there to be looked at.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tautline_net::frame::{Frame, Pool, PoolConfig};
use tautline_net::port::{Address, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, Purpose};
use tautline_net::wire::{Acknowledgement, Fragment, Header, Hello, Item, Kind, Refusal, Welcome};

/// A datagram, and who it came from or goes to.
pub type Packet = (Address, Vec<u8>);

/// The fuzzer's end. It outlives the port, so that it can count the frames when the port's owner is gone.
#[derive(Clone)]
pub struct Wire(Rc<RefCell<State>>);

struct State {
    arriving: VecDeque<Packet>,
    sent: Vec<Packet>,
    /// How many more datagrams the device takes before it is full.
    room: usize,
    receive: Pool,
    transmit: Pool,
    control: Pool,
    capabilities: Capabilities,
}

impl Wire {
    /// A wire whose port has `frames` frames in each pool.
    pub fn new(frames: usize, mtu: usize, integrity: bool) -> Wire {
        let pool = || Pool::new(PoolConfig { frames, frame_size: mtu });
        Wire(Rc::new(RefCell::new(State {
            arriving: VecDeque::new(),
            sent: Vec::new(),
            room: usize::MAX,
            receive: pool(),
            transmit: pool(),
            control: pool(),
            capabilities: Capabilities { mtu, integrity, segmentation: false },
        })))
    }

    /// The port at this end.
    pub fn port(&self, address: Address) -> Box<dyn Port> {
        Box::new(WirePort { wire: self.clone(), address })
    }

    /// Puts a datagram on the way in. One that is longer than the MTU gets lost, as it does on a real port.
    pub fn arrive(&self, from: Address, bytes: Vec<u8>) {
        let mut state = self.0.borrow_mut();
        if bytes.len() <= state.capabilities.mtu {
            state.arriving.push_back((from, bytes));
        }
    }

    /// Whether something is on the way in.
    pub fn is_arriving(&self) -> bool {
        !self.0.borrow().arriving.is_empty()
    }

    /// How many more datagrams the device takes.
    pub fn set_room(&self, room: usize) {
        self.0.borrow_mut().room = room;
    }

    /// What was sent since the last time, each of it checked: whatever an endpoint is told, what it says itself is well-formed.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn sent(&self) -> Vec<Packet> {
        let Capabilities { mtu, integrity, .. } = self.0.borrow().capabilities;
        let sent = std::mem::take(&mut self.0.borrow_mut().sent);
        for (_, packet) in &sent {
            assert!(packet.len() <= mtu, "a packet of {} bytes was sent where {mtu} fit", packet.len());
            if let Err(problem) = check(packet, integrity) {
                panic!("a malformed packet was sent, {problem}: {packet:02x?}");
            }
        }
        sent
    }

    /// Panics unless every frame is back in its pool.
    ///
    /// # Panics
    ///
    /// If one is not.
    pub fn assert_frames_home(&self) {
        let state = self.0.borrow();
        for (name, pool) in [("receive", &state.receive), ("transmit", &state.transmit), ("control", &state.control)] {
            assert_eq!(pool.available(), pool.capacity(), "frames of the {name} pool did not come back");
        }
    }
}

fn check(packet: &[u8], integrity: bool) -> Result<(), String> {
    let said = |error: tautline_net::wire::WireError| error.to_string();
    let (_, kind) = Header::parse(packet).map_err(said)?;
    if !integrity {
        Header::verify(packet).map_err(said)?;
    }
    match kind {
        Kind::Hello => Hello::parse(packet).map(|_| ()).map_err(said),
        Kind::Challenge | Kind::Welcome => Welcome::parse(packet).map(|_| ()).map_err(said),
        Kind::Refuse => Refusal::parse(packet).map(|_| ()).map_err(said),
        Kind::Control => match Item::parse(packet).map_err(said)?.iter().find(|item| item.kind().is_none()) {
            Some(item) => Err(format!("unknown item {item:?}")),
            None => Ok(()),
        },
        Kind::Data => {
            let (fragment, payload) = Fragment::parse(packet).map_err(said)?;
            if fragment.shift == Fragment::BUNDLE {
                return check_bundle(&fragment, payload);
            }
            let end = u64::from(fragment.offset.get()) + payload.len() as u64;
            if end <= u64::from(fragment.total.get()) { Ok(()) } else { Err("a fragment past its message's end".to_owned()) }
        }
        Kind::Acks => Acknowledgement::parse(packet).map(|_| ()).map_err(said),
        Kind::Reset | Kind::Ack if packet.len() == Header::LEN => Ok(()),
        Kind::Reset | Kind::Ack => Err("bytes after the header".to_owned()),
    }
}

/// Messages that share a packet: the lengths that it says must fill it, and be as many as a receiver takes.
fn check_bundle(fragment: &Fragment, payload: &[u8]) -> Result<(), String> {
    if payload.len() != fragment.total.get() as usize || fragment.class == Fragment::CONTROL {
        return Err("a bundle that is not one".to_owned());
    }
    let (mut rest, mut count) = (payload.get(fragment.offset.get() as usize..), 1);
    while let Some(bytes) = rest.filter(|bytes| !bytes.is_empty()) {
        let length = bytes.first_chunk().map(|length| usize::from(u16::from_le_bytes(*length)));
        rest = length.and_then(|length| bytes.get(2 + length..));
        count += 1;
    }
    if rest.is_some() && (2..=64).contains(&count) { Ok(()) } else { Err(format!("a bundle of {count} messages")) }
}

struct WirePort {
    wire: Wire,
    address: Address,
}

impl Port for WirePort {
    fn capabilities(&self) -> Capabilities {
        self.wire.0.borrow().capabilities
    }

    fn local_address(&self) -> Address {
        self.address
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        let state = &mut *self.wire.0.borrow_mut();
        let before = into.len();
        while into.len() - before < max
            && let Some((peer, bytes)) = state.arriving.pop_front()
        {
            // Without a frame it is dropped.
            let Some(mut frame) = state.receive.take() else { continue };
            frame.set_range(0, bytes.len());
            frame.data_mut().copy_from_slice(&bytes);
            into.push(Datagram { frame, peer });
        }
        Ok(into.len() - before)
    }

    fn receive_frames_low(&self) -> bool {
        let pool = &self.wire.0.borrow().receive;
        pool.available() < pool.capacity() / 4
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        let state = self.wire.0.borrow();
        match purpose {
            Purpose::Transmit => state.transmit.take_burst(into, count),
            Purpose::Control => state.control.take_burst(into, count),
        }
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        let state = &mut *self.wire.0.borrow_mut();
        let count = burst.len().min(state.room);
        state.room -= count;
        state.sent.extend(burst.drain(..count).map(|Datagram { frame, peer }| (peer, frame.to_vec())));
        Ok(count)
    }

    fn attach_wait(&mut self, _: &mio::Registry, _: mio::Token, _: &Arc<mio::Waker>) -> io::Result<()> {
        Ok(())
    }

    fn prepare_wait(&mut self) -> bool {
        !self.wire.is_arriving()
    }

    fn finish_wait(&mut self) {}

    fn frames_out(&self) -> FramesOut {
        let state = self.wire.0.borrow();
        let out = |pool: &Pool| pool.capacity() - pool.available();
        FramesOut { receive: out(&state.receive), transmit: out(&state.transmit), control: out(&state.control) }
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
