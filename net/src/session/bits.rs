//! A set of fragment numbers: one word for messages of up to 64 fragments, the heap beyond.

#[derive(Debug, Default)]
pub(crate) struct Bits {
    first: u64,
    rest: Vec<u64>,
}

impl Bits {
    /// Empties the set and makes room for the numbers below `count`.
    #[inline]
    pub(crate) fn reset(&mut self, count: u32) {
        self.first = 0;
        if count > 64 || !self.rest.is_empty() {
            self.rest.clear();
            self.rest.resize((count.saturating_sub(1) / 64) as usize, 0);
        }
    }

    /// Adds `number`, which must be below the count; `false` if it was there.
    #[inline]
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let word = if number < 64 { &mut self.first } else { &mut self.rest[number as usize / 64 - 1] };
        let bit = 1 << (number % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether `number` is in the set.
    #[inline]
    pub(crate) fn contains(&self, number: u32) -> bool {
        let word = if number < 64 { Some(&self.first) } else { self.rest.get(number as usize / 64 - 1) };
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_both_sides_of_the_first_word_are_kept_apart_and_forgotten_by_a_reset() {
        for count in [1, 64, 65, 128, 129, 1000] {
            let mut bits = Bits::default();
            bits.reset(count);
            for number in (0..count).step_by(3) {
                assert!(bits.insert(number) && !bits.insert(number));
            }
            assert!((0..count).all(|number| bits.contains(number) == (number % 3 == 0)));
            bits.reset(count);
            assert!((0..count).all(|number| !bits.contains(number)));
        }
    }
}
