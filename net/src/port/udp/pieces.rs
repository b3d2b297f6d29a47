//! Lists of pieces of memory for the kernel to read from or write into, one list a message. What lies together in memory becomes one piece:
//! the kernel takes each piece of a list into its own memory first, and copies for each on its own.

/// The lists of the messages of one call, after each other.
#[derive(Default)]
pub(super) struct Pieces {
    all: Vec<libc::iovec>,
    /// Where the list that is being made begins.
    first: usize,
}

impl Pieces {
    pub(super) fn with_capacity(count: usize) -> Pieces {
        Pieces { all: Vec::with_capacity(count), first: 0 }
    }

    /// Drops all lists, and begins the first.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.first = 0;
    }

    /// Adds memory to the list.
    #[inline]
    pub(super) fn push(&mut self, start: *const u8, len: usize) {
        if self.all.len() > self.first
            && let Some(last) = self.all.last_mut()
            && last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == start
        {
            last.iov_len += len;
        } else {
            self.all.push(libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len });
        }
    }

    /// Ends the list, and begins the next: how many pieces it has.
    #[inline]
    pub(super) fn end(&mut self) -> usize {
        let count = self.all.len() - self.first;
        self.first = self.all.len();
        count
    }

    /// All lists.
    #[inline]
    pub(super) fn lists(&mut self) -> &mut [libc::iovec] {
        &mut self.all
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pieces", self.all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_lies_together_is_one_piece_but_never_of_two_messages() {
        let memory = [0u8; 100];
        let mut pieces = Pieces::default();
        let add = |pieces: &mut Pieces, range: std::ops::Range<usize>| pieces.push(memory[range.start..].as_ptr(), range.len());
        add(&mut pieces, 0..10);
        add(&mut pieces, 10..30);
        add(&mut pieces, 40..50);
        add(&mut pieces, 30..40);
        assert_eq!(pieces.end(), 3);
        add(&mut pieces, 40..41);
        assert_eq!(pieces.end(), 1);
        assert_eq!(pieces.end(), 0);
        let lens: Vec<usize> = pieces.lists().iter().map(|piece| piece.iov_len).collect();
        assert_eq!(lens, [30, 10, 10, 1]);
        pieces.clear();
        add(&mut pieces, 41..42);
        assert_eq!((pieces.end(), pieces.lists()[0].iov_len), (1, 1));
    }
}
