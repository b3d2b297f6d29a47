//! Who is there: the names of this process's `mem` ports, and the hub by which each is found.
//!
//! The lock is taken when a port appears or vanishes and when a ring is made, and not for packets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::port::{Address, LocalName};
use crate::sync::slot_ring::{SlotConsumer, SlotProducer, slot_ring};
use crate::sync::wake::WakeSlot;

static REGISTRY: LazyLock<Mutex<HashMap<LocalName, Arc<Hub>>>> = LazyLock::new(Mutex::default);

/// Moves each time a look-up that failed might now succeed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How often the registry has changed. A sender to a name that is not there asks again only after a change.
pub(super) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

fn registry() -> MutexGuard<'static, HashMap<LocalName, Arc<Hub>>> {
    // The map is whole between any two statements here, so a panic elsewhere under the lock has not broken it.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One incarnation of a port, as its peers reach it.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) name: LocalName,
    pub(super) mtu: usize,
    slots: usize,
    max_peers: usize,
    /// Set when something for the owner's slow path has happened: a new ring, or a peer that left.
    news: AtomicBool,
    pub(super) wake: WakeSlot,
    mailbox: Mutex<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    /// Rings that the owner has not taken yet.
    new: Vec<Inbound>,
    /// Rings that lead to this port, taken or not.
    rings: usize,
    closed: bool,
}

/// The receiving end of a ring from one peer.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) from: Address,
    pub(super) ring: SlotConsumer,
}

impl Hub {
    /// Registers a port. `None`: the name is taken.
    pub(super) fn register(name: LocalName, mtu: usize, slots: usize, max_peers: usize) -> Option<Arc<Hub>> {
        let mut registry = registry();
        if registry.contains_key(&name) {
            return None;
        }
        let hub = Arc::new(Hub {
            name,
            mtu,
            slots,
            max_peers,
            news: AtomicBool::new(false),
            wake: WakeSlot::new(),
            mailbox: Mutex::default(),
        });
        registry.insert(name, Arc::clone(&hub));
        CHANGES.fetch_add(1, Ordering::Release);
        Some(hub)
    }

    /// The port has gone; its name is free again.
    pub(super) fn unregister(&self) {
        registry().remove(&self.name);
        let mut mailbox = self.mailbox();
        mailbox.closed = true;
        mailbox.new.clear();
        drop(mailbox);
        CHANGES.fetch_add(1, Ordering::Release);
    }

    /// Makes a ring from port `from` to the port now named `to`. `None`: there is none, or it has no room for another peer.
    pub(super) fn connect(from: LocalName, to: LocalName) -> Option<(Arc<Hub>, SlotProducer)> {
        let hub = registry().get(&to).map(Arc::clone)?;
        let mut mailbox = hub.mailbox();
        if mailbox.closed || mailbox.rings == hub.max_peers {
            return None;
        }
        let (producer, ring) = slot_ring(hub.slots, hub.mtu);
        mailbox.rings += 1;
        mailbox.new.push(Inbound { from: Address::Local(from), ring });
        drop(mailbox);
        hub.tell();
        Some((hub, producer))
    }

    /// Tells the owner that there is news, and wakes it.
    pub(super) fn tell(&self) {
        self.news.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Is there news? One load of a line that hardly ever changes.
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// The owner takes the news: `rings` gets what is new, and loses those that are finished.
    pub(super) fn take_news(&self, rings: &mut Vec<Inbound>) {
        // Before the look at what it told of, so that news told meanwhile is not forgotten.
        self.news.swap(false, Ordering::AcqRel);
        let before = rings.len();
        rings.retain(|inbound| !inbound.ring.is_finished());
        let finished = before - rings.len();
        let mut mailbox = self.mailbox();
        let was_full = mailbox.rings == self.max_peers;
        mailbox.rings -= finished;
        rings.append(&mut mailbox.new);
        drop(mailbox);
        if rings.iter().any(|inbound| inbound.ring.is_abandoned()) {
            // Its last datagrams are still to be read: come again.
            self.news.store(true, Ordering::Relaxed);
        }
        if was_full && finished > 0 {
            CHANGES.fetch_add(1, Ordering::Release);
        }
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::class::Class;
    use crate::clock::Clock;
    use crate::endpoint::{Endpoint, EndpointConfig, Event, SessionId};
    use crate::payload::Payload;
    use crate::port::mem::MemPort;

    /// Two endpoints, and a message that goes back and forth.
    struct PingPong {
        clock: Clock,
        ends: [(Endpoint, Option<SessionId>); 2],
    }

    impl PingPong {
        fn open(names: [&str; 2]) -> PingPong {
            let clock = Clock::tsc();
            let now = clock.now();
            // However long the machine looks elsewhere, nobody is declared dead.
            let config = EndpointConfig { peer_timeout: Duration::from_secs(600), ..EndpointConfig::default() };
            let ends = names.map(|name| {
                let port = MemPort::open(&format!("mem://{name}").parse().unwrap()).unwrap();
                (Endpoint::new(Box::new(port), config.clone(), now), None)
            });
            let mut pair = PingPong { clock, ends };
            let there = pair.ends[1].0.local_address();
            pair.ends[0].1 = Some(pair.ends[0].0.connect(there, now).unwrap());
            pair
        }

        fn play(&mut self, rounds: u64) {
            let now = self.clock.now();
            let (end, session) = &mut self.ends[0];
            end.send(session.unwrap(), Class::Normal, b"", Payload::copy_from(&[7; 32]), 0, now).unwrap();
            let mut hits = 0;
            while hits < 2 * rounds {
                for (end, own) in &mut self.ends {
                    let now = self.clock.now();
                    end.flush(now);
                    end.poll(now);
                    while let Some(event) = end.next_event() {
                        match event {
                            Event::Established { session, .. } => *own = Some(session),
                            Event::Message { session, class, payload } => {
                                hits += 1;
                                if hits < 2 * rounds {
                                    end.send(session, class, b"", payload, 0, now).unwrap();
                                }
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                    end.flush(now);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_holds_every_lock_of_the_ports_holds_up_no_message() {
        let (tell, told) = mpsc::channel();
        let (go, begin) = mpsc::channel();
        let player = std::thread::spawn(move || {
            let mut pair = PingPong::open(["locks-a", "locks-b"]);
            // Rings are made on the first packet, and taken by their owner when it next looks.
            pair.play(100);
            tell.send(()).unwrap();
            begin.recv().unwrap();
            pair.play(10_000);
            tell.send(()).unwrap();
            // Closing takes the locks again.
            begin.recv().unwrap();
        });
        told.recv().unwrap();
        let done = {
            let registry = registry();
            let hubs: Vec<Arc<Hub>> = registry.values().filter(|hub| hub.name.as_str().starts_with("locks-")).cloned().collect();
            let mailboxes: Vec<_> = hubs.iter().map(|hub| hub.mailbox()).collect();
            assert_eq!(mailboxes.len(), 2);
            go.send(()).unwrap();
            told.recv_timeout(Duration::from_secs(60))
        };
        assert!(done.is_ok(), "the messages wait for a lock");
        go.send(()).unwrap();
        player.join().unwrap();
    }
}
