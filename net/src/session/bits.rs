//! A set of fragment numbers: one word for messages of up to 64 fragments, the heap beyond.

use smallvec::SmallVec;

#[derive(Debug, Default)]
pub(crate) struct Bits {
    words: SmallVec<[u64; 1]>,
}

impl Bits {
    /// Empties the set and makes room for the numbers below `count`.
    pub(crate) fn reset(&mut self, count: u32) {
        self.words.clear();
        self.words.resize(count.div_ceil(64).max(1) as usize, 0);
    }

    /// Adds `number`, which must be below the count; `false` if it was there.
    #[inline]
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let word = &mut self.words[number as usize / 64];
        let bit = 1 << (number % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether `number` is in the set.
    #[inline]
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}
