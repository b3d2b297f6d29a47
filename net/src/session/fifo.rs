//! A queue in one piece of memory, whose values are written where they stay.
//!
//! The standard `VecDeque` is given its values by address: the caller puts one together on its stack, and the queue copies it with wide loads, which
//! wait until all the narrow writes before them have left the processor's store buffer. For queues that every packet passes through that is
//! as long as the rest of the work. [`Fifo::begin`] gives the place to write to instead.

/// Places made first; a power of two.
const FEW: usize = 4;

/// What was put in first comes out first. A place that holds nothing holds a value that needs no dropping: the default one, or what was there before if
/// that is `Copy`.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    /// A power of two, or none.
    places: Box<[T]>,
    first: u32,
    len: u32,
}

impl<T: Default> Fifo<T> {
    pub(crate) fn new() -> Fifo<T> {
        Fifo { places: Box::default(), first: 0, len: 0 }
    }

    /// An empty one with this many places, a power of two.
    pub(crate) fn with_places(count: usize) -> Fifo<T> {
        debug_assert!(count.is_power_of_two());
        Fifo::reusing(std::iter::repeat_with(T::default).take(count).collect())
    }

    /// An empty one that uses the places of another.
    #[inline(always)]
    pub(crate) fn reusing(places: Box<[T]>) -> Fifo<T> {
        Fifo { places, first: 0, len: 0 }
    }

    /// Leaves it empty and without memory, which it gives. What was in it comes along, and must not matter any more.
    #[inline(always)]
    pub(crate) fn take_places(&mut self) -> Box<[T]> {
        (self.first, self.len) = (0, 0);
        std::mem::take(&mut self.places)
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the `n`th.
    #[inline(always)]
    fn place(&self, n: u32) -> usize {
        (self.first.wrapping_add(n) as usize) & self.places.len().wrapping_sub(1)
    }

    /// Puts one more at the end, and gives its place, for the value that is put together there. Whatever is in it needs no dropping.
    #[inline(always)]
    pub(crate) fn begin(&mut self) -> &mut T {
        if self.len as usize == self.places.len() {
            self.grow();
        }
        let at = self.place(self.len);
        self.len += 1;
        &mut self.places[at]
    }

    /// Puts a value at the end.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        // Nothing is there: to look for something to drop would be more code than all of this.
        std::mem::forget(std::mem::replace(self.begin(), value));
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut places = std::mem::take(&mut self.places).into_vec();
        places.rotate_left(self.first as usize);
        self.first = 0;
        let more = places.len().max(FEW);
        places.reserve_exact(more);
        places.extend(std::iter::repeat_with(T::default).take(more));
        self.places = places.into_boxed_slice();
    }

    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        if self.is_empty() { None } else { self.places.get(self.place(0)) }
    }

    #[inline(always)]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        let at = self.place(0);
        if self.is_empty() { None } else { self.places.get_mut(at) }
    }

    #[inline(always)]
    pub(crate) fn back_mut(&mut self) -> Option<&mut T> {
        let at = self.place(self.len.wrapping_sub(1));
        if self.is_empty() { None } else { self.places.get_mut(at) }
    }

    /// Takes the first; a default value where there is none.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> T {
        let at = self.place(0);
        if self.is_empty() {
            return T::default();
        }
        self.advance();
        std::mem::take(&mut self.places[at])
    }

    /// Takes the last; a default value where there is none.
    #[inline(always)]
    pub(crate) fn pop_back(&mut self) -> T {
        if self.is_empty() {
            return T::default();
        }
        self.len -= 1;
        let at = self.place(self.len);
        std::mem::take(&mut self.places[at])
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.first = self.first.wrapping_add(1) & (self.places.len() as u32).wrapping_sub(1);
        self.len -= 1;
    }

    /// All of them, the first first, to change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let (wrapped, ahead) = self.places.split_at_mut(self.first as usize);
        ahead.iter_mut().chain(wrapped).take(self.len as usize)
    }
}

impl<T: Copy + Default> Fifo<T> {
    /// Drops the first, which needs no dropping.
    #[inline(always)]
    pub(crate) fn remove_front(&mut self) {
        if !self.is_empty() {
            self.advance();
        }
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn it_does_as_the_standard_queue_does() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut ours, mut theirs) = (Fifo::<Option<Box<u32>>>::new(), VecDeque::new());
        for n in 0..10_000u32 {
            // Longer and longer, and now and then empty.
            if random.u32(..1000) == 0 {
                while let Some(one) = theirs.pop_front() {
                    assert_eq!(ours.pop(), Some(one));
                }
            } else if random.u32(..5) < 3 {
                ours.push(Some(Box::new(n)));
                theirs.push_back(Box::new(n));
            } else if random.bool() {
                assert_eq!(ours.pop(), theirs.pop_front());
            } else {
                assert_eq!(ours.pop_back(), theirs.pop_back());
            }
            assert_eq!(ours.len(), theirs.len());
            assert_eq!(ours.front(), theirs.front().cloned().map(Some).as_ref());
            assert_eq!(ours.front_mut(), theirs.front().cloned().map(Some).as_mut());
            assert_eq!(ours.back_mut(), theirs.back().cloned().map(Some).as_mut());
            if n % 16 == 0 {
                assert!(ours.iter_mut().map(|one| one.as_ref()).eq(theirs.iter().map(Some)));
            }
        }
        assert!(ours.places.len().is_power_of_two());
    }

    #[test]
    fn the_places_of_one_serve_another() {
        let mut one = Fifo::<u32>::new();
        for n in 0..6 {
            one.push(n);
        }
        one.remove_front();
        assert_eq!(one.front(), Some(&1));
        let places = one.take_places();
        assert!(one.is_empty() && places.len() == 8);
        let mut other = Fifo::reusing(places);
        assert!(other.is_empty() && other.iter_mut().next().is_none());
        other.push(9);
        assert_eq!((other.front().copied(), other.pop(), other.pop()), (Some(9), 9, 0));
        other.remove_front();
        assert_eq!(other.len(), 0);
    }
}
