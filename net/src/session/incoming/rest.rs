//! The fragments that follow one of a long message: where there is nothing more to do about them than to keep their bytes.

use super::{Assembly, Incoming, State};
use crate::clock::Time;
use crate::wire::Fragment;

/// What follows a fragment of a message, in order.
pub(crate) struct Rest<'a> {
    assembly: &'a mut Assembly,
    fragment: usize,
    /// The next fragment, and where it lies.
    number: u32,
    offset: usize,
    /// Where there is more to do than to keep the bytes.
    end: usize,
    /// So many fragments do not complete the message.
    most: u32,
    count: u32,
}

impl Rest<'_> {
    /// Bytes of a fragment.
    pub(crate) fn fragment(&self) -> usize {
        self.fragment
    }

    /// Takes the next fragment. `false`: there is more to do about it, and nothing was done.
    #[inline(always)]
    pub(crate) fn take(&mut self, payload: &[u8]) -> bool {
        let end = self.offset + self.fragment;
        let inside = end <= self.assembly.buffer.len() && self.offset < self.end && self.count < self.most;
        if !inside || payload.len() != self.fragment || !self.assembly.have.insert(self.number) {
            return false;
        }
        self.assembly.buffer.write(self.offset, payload);
        self.count += 1;
        self.number += 1;
        self.offset = end;
        true
    }

    /// Ends it: how many fragments were taken, with how many bytes.
    pub(crate) fn end(self, now: Time) -> (u32, usize) {
        let bytes = self.count as usize * self.fragment;
        if bytes > 0 {
            self.assembly.received += bytes as u32;
            self.assembly.progress = now;
        }
        (self.count, bytes)
    }
}

impl Incoming {
    /// Begins to take what follows a fragment, which was taken, or not, whatever it was: `None` if the message that it names is not one of which
    /// a fragment was taken and more is to come.
    pub(crate) fn rest(&mut self, header: &Fragment) -> Option<Rest<'_>> {
        let fragment = self.fragment;
        let slot = self.slots.get_mut(usize::from(header.slot.get())).filter(|slot| slot.sequence == header.sequence.get())?;
        let State::Partial(assembly) = &mut slot.state else { return None };
        let offset = header.offset.get() as usize;
        let same = assembly.buffer.len() == header.total.get() as usize && assembly.class.index() == usize::from(header.class);
        if !same || !offset.is_multiple_of(fragment) {
            return None;
        }
        // Where something is to be done but to keep the bytes: where the answer to a grant is looked for, or what was not granted begins, or
        // the last bytes that are missing.
        let asked = assembly.asked.map_or(u32::MAX, |(first, _)| first);
        let end = (assembly.granted.min(asked) as usize).min(assembly.buffer.len());
        let most = (assembly.buffer.len() as u32 - assembly.received - 1) / fragment as u32;
        Some(Rest { assembly, fragment, number: (offset / fragment) as u32 + 1, offset: offset + fragment, end, most, count: 0 })
    }
}
