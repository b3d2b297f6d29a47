//! The sending side of a `mem` port: the rings to its peers, made at the first packet to each.

use std::collections::HashMap;
use std::sync::Arc;

use super::registry::{Hub, changes};
use crate::port::LocalName;
use crate::sync::slot_ring::{SlotProducer, SlotPushError};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is in the peer's ring.
    Yes,
    /// The ring is full, and its reader is alive: try later.
    Later,
    /// Nobody takes it.
    Lost,
}

/// How many bursts may find a ring full, and its reader without progress, before packets to it are lost as at a full
/// switch: a peer that stopped must not stop the traffic to others.
const PATIENCE: u32 = 256;

/// How many links a port keeps before it looks for those that lead to nobody.
const FORGET_AT: usize = 64;

/// The rings to the peers.
#[derive(Debug)]
pub(super) struct Outbound {
    own: LocalName,
    links: Vec<Link>,
    by_name: HashMap<LocalName, usize>,
    /// The link used last: most bursts are to one peer.
    last: usize,
    /// Links pushed to since the last [`Outbound::finish`].
    touched: Vec<usize>,
    /// Counts bursts.
    bursts: u64,
    /// How many links there may be before those to nobody are dropped.
    forget_at: usize,
}

#[derive(Debug)]
struct Link {
    to: LocalName,
    /// `None`: nobody was there at registry change `looked_up`.
    open: Option<(Arc<Hub>, SlotProducer)>,
    looked_up: u64,
    touched: bool,
    /// How many bursts have found the ring full while the reader stood at this position; the last of them.
    refusals: u32,
    refused_at: u32,
    refused_in: u64,
}

impl Outbound {
    pub(super) fn new(own: LocalName) -> Outbound {
        Outbound { own, links: Vec::new(), by_name: HashMap::new(), last: 0, touched: Vec::new(), bursts: 1, forget_at: FORGET_AT }
    }

    /// Sends a packet; the peers are told by [`Outbound::finish`].
    #[inline]
    pub(super) fn send(&mut self, to: LocalName, bytes: &[u8]) -> Sent {
        let index = match self.links.get(self.last) {
            Some(link) if link.to == to => self.last,
            _ => self.find(to),
        };
        self.last = index;
        let own = self.own;
        let link = &mut self.links[index];
        if !link.touched {
            // Looked at once a burst: a peer that goes meanwhile loses the rest of the burst, as on a network.
            if link.open.as_ref().is_none_or(|(_, ring)| ring.is_orphaned()) && !link.reconnect(own) {
                return Sent::Lost;
            }
            link.touched = true;
            self.touched.push(index);
        }
        let Some((_, ring)) = &mut link.open else { return Sent::Lost };
        match ring.push(bytes) {
            Ok(()) => Sent::Yes,
            Err(SlotPushError::TooLong) => Sent::Lost,
            Err(SlotPushError::Full) => link.full(self.bursts),
        }
    }

    /// Ends a burst: wakes the peers that got something and sleep.
    #[inline]
    pub(super) fn finish(&mut self) {
        self.bursts += 1;
        for &index in &self.touched {
            let link = &mut self.links[index];
            link.touched = false;
            if let Some((hub, _)) = &link.open {
                hub.wake.wake();
            }
        }
        self.touched.clear();
        if self.links.len() > self.forget_at {
            self.forget_the_gone();
        }
    }

    #[cold]
    fn find(&mut self, to: LocalName) -> usize {
        if let Some(&index) = self.by_name.get(&to) {
            return index;
        }
        let index = self.links.len();
        self.by_name.insert(to, index);
        self.links.push(Link { to, open: None, looked_up: u64::MAX, touched: false, refusals: 0, refused_at: 0, refused_in: 0 });
        index
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Names that nobody has are not kept for ever.
    #[cold]
    fn forget_the_gone(&mut self) {
        self.links.retain(|link| link.open.as_ref().is_some_and(|(_, ring)| !ring.is_orphaned()));
        self.by_name = self.links.iter().enumerate().map(|(index, link)| (link.to, index)).collect();
        self.forget_at = (self.links.len() * 2).max(FORGET_AT);
    }
}

impl Link {
    /// Looks the name up again, if anything has changed since the last time.
    #[cold]
    fn reconnect(&mut self, own: LocalName) -> bool {
        self.open = None;
        self.refusals = 0;
        let changes = changes();
        if changes == self.looked_up {
            return false;
        }
        self.looked_up = changes;
        self.open = Hub::connect(own, self.to);
        self.open.is_some()
    }

    #[cold]
    fn full(&mut self, burst: u64) -> Sent {
        let Some((_, ring)) = &self.open else { return Sent::Lost };
        let position = ring.consumer_position();
        if position != self.refused_at {
            (self.refused_at, self.refusals) = (position, 0);
        }
        if burst != self.refused_in {
            self.refused_in = burst;
            self.refusals = self.refusals.saturating_add(1);
        }
        if self.refusals > PATIENCE { Sent::Lost } else { Sent::Later }
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        for link in self.links.drain(..) {
            if let Some((hub, ring)) = link.open {
                drop(ring);
                hub.tell();
            }
        }
    }
}
