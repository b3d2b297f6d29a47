//! Results of submitted calls, until they are fetched: a queue that is filled in one turn and emptied before the next.

use super::submit::Completion;

/// The results, oldest first. How many there may be is for the caller to see to.
///
/// Two stacks and not a ring: each is only touched at its end, which takes half the instructions. What came is turned round when what
/// goes is used up, once for all that came together.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    /// Latest last.
    came: Vec<Completion>,
    /// Oldest last.
    going: Vec<Completion>,
}

impl Completions {
    #[inline(always)]
    pub(crate) fn push(&mut self, completion: Completion) {
        self.came.push(completion);
    }

    /// The oldest.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        if self.going.is_empty() {
            if self.came.is_empty() {
                return None;
            }
            self.turn_round();
        }
        self.going.pop()
    }

    #[inline(never)]
    fn turn_round(&mut self) {
        std::mem::swap(&mut self.came, &mut self.going);
        self.going.reverse();
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.came.len() + self.going.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use tautline_net::payload::Payload;

    #[test]
    fn they_leave_in_the_order_in_which_they_came() {
        let (mut completions, mut model) = (Completions::default(), VecDeque::new());
        let mut random = fastrand::Rng::with_seed(1);
        for tag in 0..10_000 {
            if random.u8(..5) < 3 {
                completions.push(Completion { tag, result: Ok(Payload::empty()) });
                model.push_back(tag);
            } else {
                assert_eq!(completions.pop().map(|completion| completion.tag), model.pop_front());
            }
            assert_eq!((completions.len(), completions.is_empty()), (model.len(), model.is_empty()));
        }
        while let Some(tag) = model.pop_front() {
            assert_eq!(completions.pop().map(|completion| completion.tag), Some(tag));
        }
        assert!(completions.pop().is_none() && completions.is_empty());
    }
}
