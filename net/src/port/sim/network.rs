//! The simulated network itself: hosts, links and the packets in flight, ordered by time.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

use super::link::{Link, LinkConfig, LinkCounters, Shaper};
use super::{SimPort, SimPortConfig};
use crate::clock::{Clock, Time};
use crate::port::{Address, AddressError, LocalName, PortError};

thread_local! {
    static INSTALLED: RefCell<Option<Network>> = const { RefCell::new(None) };
}

/// A network of named hosts in one thread, in the time of its clock. Clones are handles of the same network.
///
/// Nothing happens by itself: move the clock to [`Network::next_arrival`] (or to the next timer of what is tested, if that is earlier),
/// poll the ports, and repeat. The same seed and the same calls give the same run.
#[derive(Clone)]
pub struct Network(Rc<RefCell<Core>>);

/// A packet about to enter its link, as a filter sees it.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    /// The source that it claims.
    pub from: &'a str,
    /// Its destination.
    pub to: &'a str,
    /// The packet.
    pub bytes: &'a [u8],
    /// The time.
    pub now: Time,
}

/// What a filter decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it enter the link.
    Pass,
    /// Lose it. Counted with the link's losses.
    Lose,
}

impl Network {
    /// A network in which every two hosts are linked as `link` says, until [`Network::link`] says otherwise.
    pub fn new(seed: u64, clock: Clock, link: LinkConfig) -> Network {
        Network(Rc::new(RefCell::new(Core {
            seed,
            clock,
            default: link,
            links: BTreeMap::new(),
            hosts: BTreeMap::new(),
            flight: BinaryHeap::new(),
            sequence: 0,
            ready: 0,
            filter: None,
        })))
    }

    /// Makes this the network that `sim://` URLs opened in this thread belong to.
    pub fn install(&self) {
        INSTALLED.with(|installed| *installed.borrow_mut() = Some(self.clone()));
    }

    /// The network installed in this thread.
    pub fn installed() -> Option<Network> {
        INSTALLED.with(|installed| installed.borrow().clone())
    }

    /// Forgets the network installed in this thread.
    pub fn uninstall() {
        INSTALLED.with(|installed| *installed.borrow_mut() = None);
    }

    /// The network's clock.
    pub fn clock(&self) -> Clock {
        self.0.borrow().clock.clone()
    }

    /// Opens the port of host `name`. Packets already on their way to that name reach it, as a restarted host's do.
    pub fn port(&self, name: &str) -> Result<SimPort, PortError> {
        self.port_with(name, SimPortConfig::default())
    }

    /// [`Network::port`] with sizes other than the defaults.
    pub fn port_with(&self, name: &str, config: SimPortConfig) -> Result<SimPort, PortError> {
        let name = LocalName::new(name)?;
        let mut core = self.0.borrow_mut();
        let host = core.hosts.entry(name).or_insert_with(Host::new);
        if host.open {
            return Err(PortError::InUse { address: Address::Local(name) });
        }
        host.open = true;
        let clock = core.clock.clone();
        drop(core);
        Ok(SimPort::new(self.clone(), name, clock, config))
    }

    /// Sets both directions between `a` and `b`. What is in flight stays.
    pub fn link(&self, a: &str, b: &str, config: LinkConfig) -> Result<(), AddressError> {
        self.link_one_way(a, b, config)?;
        self.link_one_way(b, a, config)
    }

    /// Sets the direction `from` to `to`.
    pub fn link_one_way(&self, from: &str, to: &str, config: LinkConfig) -> Result<(), AddressError> {
        self.with_link(from, to, |link| link.configure(config))
    }

    /// Loses everything sent from `from` to `to` from now on. The other direction is not touched.
    pub fn partition(&self, from: &str, to: &str) -> Result<(), AddressError> {
        self.with_link(from, to, |link| link.partitioned = true)
    }

    /// Ends a partition of the direction `from` to `to`.
    pub fn heal(&self, from: &str, to: &str) -> Result<(), AddressError> {
        self.with_link(from, to, |link| link.partitioned = false)
    }

    /// Limits what host `name` can send and receive in all, in bits per second, each through a drop-tail queue of `queue` bytes:
    /// its cable to the switch. Many senders to one receiver then meet in the receiver's queue. Zero for no limit.
    pub fn access(&self, name: &str, bandwidth: u64, queue: usize) -> Result<(), AddressError> {
        self.with_host(name, |host| {
            host.up = Shaper::new(bandwidth, queue);
            host.down = Shaper::new(bandwidth, queue);
        })
    }

    /// Stops host `name`, as a stopped process: its port neither receives nor sends, packets to it wait in its inbox.
    pub fn pause(&self, name: &str) -> Result<(), AddressError> {
        self.set_paused(name, true)
    }

    /// Lets a paused host go on.
    pub fn resume(&self, name: &str) -> Result<(), AddressError> {
        self.set_paused(name, false)
    }

    /// Sends `bytes` to host `to` as if from host `from`, which need not exist, over the link between them.
    pub fn inject(&self, from: &str, to: &str, bytes: &[u8]) -> Result<(), AddressError> {
        let (from, to) = (LocalName::new(from)?, LocalName::new(to)?);
        let mut core = self.0.borrow_mut();
        let now = core.clock.now();
        core.enter_link(from, to, bytes.to_vec(), now);
        Ok(())
    }

    /// Shows every packet that enters a link to `filter`, which may lose it: for tests that lose exactly one. The filter can't call the
    /// network.
    pub fn set_filter(&self, filter: impl FnMut(&Passing<'_>) -> Verdict + 'static) {
        self.0.borrow_mut().filter = Some(Box::new(filter));
    }

    /// Removes the filter.
    pub fn clear_filter(&self) {
        self.0.borrow_mut().filter = None;
    }

    /// When the next packet arrives somewhere, or is passed on within the network: the time to move the clock to. The present if a packet waits in a port that
    /// is not paused.
    pub fn next_arrival(&self) -> Option<Time> {
        let core = self.0.borrow();
        if core.ready > 0 {
            return Some(core.clock.now());
        }
        core.flight.peek().map(|Reverse(first)| first.at)
    }

    /// How many packets are on their way.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().flight.len()
    }

    /// What the direction `from` to `to` did.
    pub fn link_counters(&self, from: &str, to: &str) -> LinkCounters {
        let (Ok(from), Ok(to)) = (LocalName::new(from), LocalName::new(to)) else { return LinkCounters::default() };
        self.0.borrow().links.get(&(from, to)).map(|link| link.counters).unwrap_or_default()
    }

    fn with_link(&self, from: &str, to: &str, change: impl FnOnce(&mut Link)) -> Result<(), AddressError> {
        let (from, to) = (LocalName::new(from)?, LocalName::new(to)?);
        change(self.0.borrow_mut().link(from, to));
        Ok(())
    }

    fn with_host(&self, name: &str, change: impl FnOnce(&mut Host)) -> Result<(), AddressError> {
        let name = LocalName::new(name)?;
        change(self.0.borrow_mut().hosts.entry(name).or_insert_with(Host::new));
        Ok(())
    }

    fn set_paused(&self, name: &str, paused: bool) -> Result<(), AddressError> {
        let name = LocalName::new(name)?;
        let core = &mut *self.0.borrow_mut();
        let host = core.hosts.entry(name).or_insert_with(Host::new);
        if host.paused != paused {
            host.paused = paused;
            if paused {
                core.ready -= host.inbox.len();
            } else {
                core.ready += host.inbox.len();
            }
        }
        Ok(())
    }

    /// Puts a packet of port `from` on its way. `false` if the host is paused.
    pub(super) fn send(&self, from: LocalName, to: LocalName, bytes: &[u8]) -> bool {
        let core = &mut *self.0.borrow_mut();
        let mut now = core.clock.now();
        if let Some(host) = core.hosts.get_mut(&from) {
            if host.paused {
                return false;
            }
            match host.up.pass(now, bytes.len()) {
                Some(left) => now = left,
                None => {
                    core.link(from, to).counters.queue_dropped += 1;
                    return true;
                }
            }
        }
        core.enter_link(from, to, bytes.to_vec(), now);
        true
    }

    /// Takes the next packet that has arrived for host `name`.
    pub(super) fn arrived(&self, name: LocalName) -> Option<(LocalName, Vec<u8>)> {
        let core = &mut *self.0.borrow_mut();
        let now = core.clock.now();
        core.advance(now);
        let host = core.hosts.get_mut(&name).filter(|host| !host.paused)?;
        let packet = host.inbox.pop_front()?;
        core.ready -= 1;
        Some(packet)
    }

    /// Has something arrived for host `name`?
    pub(super) fn has_arrived(&self, name: LocalName) -> bool {
        let core = &mut *self.0.borrow_mut();
        let now = core.clock.now();
        core.advance(now);
        core.hosts.get(&name).is_some_and(|host| !host.paused && !host.inbox.is_empty())
    }

    /// The port of host `name` was dropped.
    pub(super) fn closed(&self, name: LocalName) {
        let core = &mut *self.0.borrow_mut();
        if let Some(host) = core.hosts.get_mut(&name) {
            if !host.paused {
                core.ready -= host.inbox.len();
            }
            host.inbox.clear();
            host.open = false;
        }
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.try_borrow() {
            Ok(core) => write!(f, "Network(seed {}, {} hosts, {} in flight)", core.seed, core.hosts.len(), core.flight.len()),
            Err(_) => f.write_str("Network(busy)"),
        }
    }
}

type Filter = Box<dyn FnMut(&Passing<'_>) -> Verdict>;

struct Core {
    seed: u64,
    clock: Clock,
    default: LinkConfig,
    links: BTreeMap<(LocalName, LocalName), Link>,
    hosts: BTreeMap<LocalName, Host>,
    flight: BinaryHeap<Reverse<InFlight>>,
    sequence: u64,
    /// Packets in the inboxes of hosts that are not paused.
    ready: usize,
    filter: Option<Filter>,
}

struct Host {
    open: bool,
    paused: bool,
    up: Shaper,
    down: Shaper,
    inbox: VecDeque<(LocalName, Vec<u8>)>,
}

/// How many packets wait for a port that does not receive them, before further ones are lost: a socket buffer of some megabytes.
const INBOX: usize = 4096;

impl Host {
    fn new() -> Host {
        Host { open: false, paused: false, up: Shaper::new(0, 0), down: Shaper::new(0, 0), inbox: VecDeque::new() }
    }
}

/// Ordered by time, and among equals by when it was sent, so that a run repeats.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    at: Time,
    sequence: u64,
    place: Place,
    from: LocalName,
    to: LocalName,
    bytes: Vec<u8>,
}

/// Where a packet comes to next.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The end of its link: the queue before the receiving host's cable.
    Switch,
    /// The receiving host.
    Host,
}

impl Core {
    fn link(&mut self, from: LocalName, to: LocalName) -> &mut Link {
        let (config, seed) = (self.default, self.seed);
        self.links.entry((from, to)).or_insert_with(|| Link::new(config, link_seed(seed, from, to)))
    }

    fn enter_link(&mut self, from: LocalName, to: LocalName, bytes: Vec<u8>, now: Time) {
        if let Some(filter) = &mut self.filter {
            let passing = Passing { from: from.as_str(), to: to.as_str(), bytes: &bytes, now };
            if filter(&passing) == Verdict::Lose {
                let counters = &mut self.link(from, to).counters;
                counters.sent += 1;
                counters.lost += 1;
                return;
            }
        }
        let (config, seed) = (self.default, self.seed);
        let link = self.links.entry((from, to)).or_insert_with(|| Link::new(config, link_seed(seed, from, to)));
        let (flight, sequence) = (&mut self.flight, &mut self.sequence);
        link.carry(bytes, now, &mut |at, bytes| {
            *sequence += 1;
            flight.push(Reverse(InFlight { at, sequence: *sequence, place: Place::Switch, from, to, bytes }));
        });
    }

    /// Moves everything that happens up to `now`.
    fn advance(&mut self, now: Time) {
        while let Some(Reverse(first)) = self.flight.peek()
            && first.at <= now
        {
            let Some(Reverse(packet)) = self.flight.pop() else { return };
            match packet.place {
                Place::Switch => self.through_switch(packet),
                Place::Host => self.deliver(packet),
            }
        }
    }

    fn through_switch(&mut self, mut packet: InFlight) {
        let passed = match self.hosts.get_mut(&packet.to) {
            Some(host) => host.down.pass(packet.at, packet.bytes.len()),
            None => Some(packet.at),
        };
        match passed {
            None => self.link(packet.from, packet.to).counters.queue_dropped += 1,
            Some(at) if at == packet.at => self.deliver(packet),
            Some(at) => {
                (packet.at, packet.place) = (at, Place::Host);
                self.flight.push(Reverse(packet));
            }
        }
    }

    fn deliver(&mut self, packet: InFlight) {
        let (from, to) = (packet.from, packet.to);
        let taken = match self.hosts.get_mut(&to) {
            Some(host) if host.open && host.inbox.len() < INBOX => {
                host.inbox.push_back((from, packet.bytes));
                self.ready += usize::from(!host.paused);
                true
            }
            _ => false,
        };
        let counters = &mut self.link(from, to).counters;
        if taken {
            counters.delivered += 1;
        } else {
            counters.undeliverable += 1;
        }
    }
}

/// FNV-1a over the names, so that a link's generator depends on the network's seed and its own ends only.
fn link_seed(seed: u64, from: LocalName, to: LocalName) -> u64 {
    let names = from.as_str().bytes().chain([0]).chain(to.as_str().bytes());
    names.fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
