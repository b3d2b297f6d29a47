//! Which frames of a pool are free: a bit for each, and the lowest number goes first.
//!
//! Frames that were used last are in the cache, and those at the front are used all the time. Besides, what is taken together then mostly lies
//! together, however frames come and go: a run of full packets is one piece of memory, which costs the kernel less than as many small
//! ones. (A stack gives them in the order in which they came back, and that gets more mixed the longer it runs.)

use std::num::NonZeroU64;

const BITS: usize = u64::BITS as usize;

/// The longest run that [`Free::take_run`] finds.
pub(super) const RUN: usize = BITS;

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

    /// Takes out the lowest `count` that follow each other, and gives the first. At most [`RUN`].
    pub(super) fn take_run(&mut self, count: usize) -> Option<u32> {
        debug_assert!((1..=RUN).contains(&count));
        if self.len < count {
            return None;
        }
        // A run begins in some word and ends in the next one at the latest.
        let (at, bit) = (self.lowest..self.words.len()).find_map(|at| {
            let starts = starts(self.pair(at), count) as u64;
            (starts != 0).then_some((at, starts.trailing_zeros()))
        })?;
        let rest = self.pair(at) & !(u128::MAX >> (128 - count) << bit);
        self.words[at] = rest as u64;
        if let Some(next) = self.words.get_mut(at + 1) {
            *next = (rest >> BITS) as u64;
        }
        self.len -= count;
        Some((at * BITS) as u32 + bit)
    }

    /// A word, and the next one above it.
    fn pair(&self, at: usize) -> u128 {
        u128::from(self.words[at]) | u128::from(self.words.get(at + 1).copied().unwrap_or(0)) << BITS
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

/// The bits that begin a run of `count` set ones.
fn starts(bits: u128, count: usize) -> u128 {
    let (mut starts, mut length) = (bits, 1);
    while length < count {
        let more = length.min(count - length);
        starts &= starts >> more;
        length += more;
    }
    starts
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

    #[test]
    fn the_lowest_run_is_found_wherever_it_begins_and_none_where_there_is_none() {
        for count in [1, 40, 64, 65, 127, 128, 300] {
            let mut random = fastrand::Rng::with_seed(count as u64);
            let mut free = Free::all(count);
            let mut model: BTreeSet<u32> = (0..count as u32).collect();
            let mut out: Vec<u32> = Vec::new();
            for step in 0..3_000 {
                let length = random.usize(1..=RUN);
                let follow = |first: &u32| (*first..*first + length as u32).all(|number| model.contains(&number));
                let expected = model.iter().copied().find(follow);
                let taken = if random.bool() { None } else { free.take_run(length) };
                if let Some(first) = taken {
                    let run = first..first + length as u32;
                    model.retain(|number| !run.contains(number));
                    out.extend(run);
                    assert_eq!(taken, expected, "{count}, step {step}");
                } else {
                    // In twos and threes, so that some lie together again.
                    for _ in 0..random.usize(..1 + out.len().min(100)) {
                        let back = out.swap_remove(random.usize(..out.len()));
                        free.put(back);
                        model.insert(back);
                    }
                }
                assert_eq!(free.len(), model.len());
            }
        }
    }
}
