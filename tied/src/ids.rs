//! Tie ids that cannot be guessed: a counter through SipHash under a key from the operating system. Whoever sees some learns nothing
//! of the next (SipHash is a pseudorandom function: Aumasson and Bernstein, INDOCRYPT 2012), and none repeats within a client.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::header::TieId;

/// A client's source of tie ids.
#[derive(Clone)]
pub struct TieIds {
    key: [u8; 16],
    next: u64,
}

impl TieIds {
    /// Under a key from the operating system.
    pub fn random() -> TieIds {
        let mut key = [0; 16];
        if getrandom::fill(&mut key).is_err() {
            // The standard library has a secret of its own, which it got from the operating system earlier or by other means.
            let secret = RandomState::new();
            for (n, half) in key.chunks_exact_mut(8).enumerate() {
                let mut hasher = secret.build_hasher();
                hasher.write_usize(n);
                half.copy_from_slice(&hasher.finish().to_le_bytes());
            }
        }
        TieIds { key, next: 0 }
    }

    /// The same ids for the same seed: for tests, which can repeat a run by it.
    pub fn seeded(seed: u64) -> TieIds {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        TieIds { key, next: 0 }
    }

    /// Draws a new id.
    pub fn draw(&mut self) -> TieId {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(self.next);
        self.next += 1;
        TieId(hasher.finish128().as_u128())
    }
}

impl std::fmt::Debug for TieIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("TieIds").field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat_and_differ_between_clients() {
        let (mut a, mut b) = (TieIds::random(), TieIds::random());
        let ids: HashSet<TieId> = (0..2000).map(|n| if n % 2 == 0 { a.draw() } else { b.draw() }).collect();
        assert_eq!(ids.len(), 2000);
    }

    #[test]
    fn a_seed_repeats_its_ids() {
        assert_eq!(TieIds::seeded(3).draw(), TieIds::seeded(3).draw());
        assert_ne!(TieIds::seeded(3).draw(), TieIds::seeded(4).draw());
    }

    #[test]
    fn the_key_is_not_printed() {
        assert_eq!(format!("{:?}", TieIds::seeded(1)), "TieIds { next: 0, .. }");
    }
}
