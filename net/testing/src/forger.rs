//! Somebody on the network who is nobody's peer: it sends copies of packets that it saw, under their own source, another's or a stranger's, and
//! packets of its own making under the sources of others.
//!
//! It does not write new packets for sessions whose ids it has seen: without authentication nothing stops that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tautline_net::port::sim::{Network, Verdict};
use tautline_net::wire::{Header, Hello, Kind, Welcome};
use zerocopy::IntoBytes;

/// How many packets it remembers; long enough to reach back over a restart.
const REMEMBERED: usize = 512;

/// The forger of one network.
#[derive(Debug)]
pub struct Forger {
    network: Network,
    random: fastrand::Rng,
    seen: Rc<RefCell<VecDeque<Seen>>>,
}

#[derive(Clone, Debug)]
struct Seen {
    from: String,
    to: String,
    bytes: Vec<u8>,
}

impl Forger {
    /// Watches every packet of `network` from now on, by its filter.
    pub fn watch(network: &Network, seed: u64) -> Forger {
        let seen: Rc<RefCell<VecDeque<Seen>>> = Rc::default();
        let remember = seen.clone();
        network.set_filter(move |passing| {
            let mut seen = remember.borrow_mut();
            if seen.len() == REMEMBERED {
                seen.pop_front();
            }
            seen.push_back(Seen { from: passing.from.to_owned(), to: passing.to.to_owned(), bytes: passing.bytes.to_vec() });
            Verdict::Pass
        });
        Forger { network: network.clone(), random: fastrand::Rng::with_seed(seed), seen }
    }

    /// Sends something to `victim`, as if from `claimed` where the source is made up.
    pub fn forge(&mut self, victim: &str, claimed: &str) {
        let old = self.remembered();
        let stranger = format!("stranger{}", self.random.u32(0..10));
        match (self.random.u32(0..8), old) {
            // A copy of something old, as it was: late, or sent to who restarted meanwhile.
            (0 | 1, Some(old)) => self.inject(&old.from, &old.to, &old.bytes),
            // From an address that has nothing to do with it.
            (2, Some(old)) => self.inject(&stranger, &old.to, &old.bytes),
            // To the wrong host, or back to its sender.
            (3, Some(old)) => self.inject(claimed, victim, &old.bytes),
            (4, _) => {
                let mut bytes = vec![0; self.random.usize(0..200)];
                self.random.fill(&mut bytes);
                self.inject(claimed, victim, &bytes);
            }
            (5, _) => {
                let hello = self.packet(Kind::Hello, Hello::PACKET);
                self.inject(claimed, victim, &hello);
            }
            _ => {
                let kinds =
                    [Kind::Challenge, Kind::Welcome, Kind::Refuse, Kind::Reset, Kind::Data, Kind::Control, Kind::Ack, Kind::Acks];
                let kind = kinds[self.random.usize(0..kinds.len())];
                let len = Header::LEN + [0, 8, 16, 24, 100][self.random.usize(0..5)];
                let answer = matches!(kind, Kind::Challenge | Kind::Welcome);
                let packet = self.packet(kind, if answer { Welcome::PACKET } else { len });
                self.inject(claimed, victim, &packet);
            }
        }
    }

    fn remembered(&mut self) -> Option<Seen> {
        let seen = self.seen.borrow();
        (!seen.is_empty()).then(|| seen[self.random.usize(0..seen.len())].clone())
    }

    /// A well-formed packet of numbers that were not seen anywhere, sealed.
    fn packet(&mut self, kind: Kind, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        self.random.fill(&mut packet[Header::LEN..]);
        let mut header = Header::new(kind);
        // Small slots exist; their generations are not to be guessed.
        let session = self.random.u64(..) << 32 | u64::from(self.random.u32(0..4));
        (header.session, header.number) = (session.into(), self.random.u32(0..1000).into());
        (header.ack_largest, header.ack_bits) = (self.random.u32(0..1000).into(), self.random.u64(..).into());
        packet[..Header::LEN].copy_from_slice(header.as_bytes());
        Header::seal(&mut packet);
        packet
    }

    fn inject(&self, from: &str, to: &str, bytes: &[u8]) {
        self.network.inject(from, to, bytes).expect("names of hosts, or like them");
    }
}
