//! Which frames of a pool are free: a bit for each, and the lowest number goes first.
//!
//! Frames that were used last are in the cache, and those at the front are used all the time. Besides, what is taken together then mostly lies
//! together, however frames come and go: a run of full packets is one piece of memory, which costs the kernel less than as many small
//! ones. (A stack gives them in the order in which they came back, and that gets more mixed the longer it runs.)

use std::num::NonZeroU64;

const BITS: usize = u64::BITS as usize;

/// The numbers of free frames.
#[derive(Debug)]
pub(super) struct Free {
    /// Bit b of word w: frame 64 w + b is free.
    words: Box<[u64]>,
    /// Words below this one are zero. (A pool of 2,048 frames has 32 of them.)
    lowest: usize,
    len: usize,
}

impl Free {
    /// All of so many.
    pub(super) fn all(count: usize) -> Free {
        Free { words: ones(count), lowest: 0, len: count }
    }

    /// How many there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes the lowest out.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        let word = match NonZeroU64::new(*self.words.get(self.lowest)?) {
            Some(word) => word,
            None => self.go_up()?,
        };
        self.words[self.lowest] = word.get() & (word.get() - 1);
        self.len -= 1;
        Some((self.lowest * BITS) as u32 + word.trailing_zeros())
    }

    /// Goes to the lowest word that is not zero.
    #[cold]
    fn go_up(&mut self) -> Option<NonZeroU64> {
        let above = self.words[self.lowest..].iter().position(|word| *word != 0)?;
        self.lowest += above;
        NonZeroU64::new(self.words[self.lowest])
    }

    /// Puts one in that is not there.
    #[inline]
    pub(super) fn put(&mut self, number: u32) {
        let (at, bit) = (number as usize / BITS, 1 << (number as usize % BITS));
        debug_assert_eq!(self.words[at] & bit, 0, "frame {number} came back twice");
        self.words[at] |= bit;
        self.lowest = self.lowest.min(at);
        self.len += 1;
    }
}

/// Words with their first `count` bits set.
fn ones(count: usize) -> Box<[u64]> {
    let mut words = vec![u64::MAX; count / BITS];
    if !count.is_multiple_of(BITS) {
        words.push((1 << (count % BITS)) - 1);
    }
    words.into()
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_lowest_goes_first_whatever_came_back_in_between() {
        for count in [0, 1, 63, 64, 65, 4096, 5000, 10_000] {
            let mut random = fastrand::Rng::with_seed(count as u64);
            let mut free = Free::all(count);
            let (mut model, mut out): (BTreeSet<u32>, Vec<u32>) = ((0..count as u32).collect(), Vec::new());
            for step in 0..4 * count + 10 {
                // Mostly taken at first, mostly put back later.
                let take = random.usize(..4 * count + 10) > step || random.bool();
                if take || out.is_empty() {
                    let taken = free.take();
                    assert_eq!(taken, model.pop_first(), "{count}, step {step}");
                    out.extend(taken);
                } else {
                    let back = out.swap_remove(random.usize(..out.len()));
                    free.put(back);
                    model.insert(back);
                }
                assert_eq!(free.len(), model.len());
            }
        }
    }
}
