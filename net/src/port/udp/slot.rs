//! One message of a receiving call: the frames that the kernel writes it into, and how it is read out of them.

use super::pieces::Pieces;
use crate::frame::{Frame, Pool};
use crate::port::Address;

/// A message, or room for one.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) frame: Option<Frame>,
    /// Frames in which the message continues, the first one last: in the order of their numbers, so that they mostly lie together.
    pub(super) more: Vec<Frame>,
    /// Bytes of the message. The first `room` are in the frames, `posted` in each.
    pub(super) len: usize,
    pub(super) posted: usize,
    pub(super) room: usize,
    /// Length of the datagrams that it is made of.
    pub(super) segment: usize,
    pub(super) truncated: bool,
    pub(super) from: Option<Address>,
}

impl Slot {
    /// Whether the message is of more than one datagram.
    pub(super) fn is_train(&self) -> bool {
        self.segment < self.len
    }

    /// Takes frames for a message to continue in, up to `wanted`, unless there are as many.
    pub(super) fn take_more(&mut self, pool: &Pool, wanted: usize) {
        if self.more.len() < wanted {
            // All anew: the lowest that are free, which mostly lie together.
            self.more.clear();
            pool.take_burst(&mut self.more, wanted);
            self.more.reverse();
        }
    }

    /// Has the kernel write the message into the slot's frame, if there is one: up to `posted` bytes.
    #[inline]
    pub(super) fn list_one(&mut self, posted: usize, pieces: &mut Pieces) {
        self.posted = if self.frame.is_some() { posted } else { 0 };
        self.room = self.posted;
        if let Some(frame) = &mut self.frame {
            pieces.push(frame.buffer_mut()[..posted].as_mut_ptr(), posted);
        }
    }

    /// Has the kernel write the message into all of the slot's frames, of which there is one at least: `posted` bytes into each.
    pub(super) fn list_all(&mut self, posted: usize, pieces: &mut Pieces) {
        self.list_one(posted, pieces);
        self.room += posted * self.more.len();
        let start = |frame: &mut Frame| frame.buffer_mut()[..posted].as_mut_ptr();
        let [last, .., first] = &mut self.more[..] else {
            return self.more.iter_mut().for_each(|frame| pieces.push(start(frame), posted));
        };
        // They are in order, so if the last lies where it does when all are together, they are.
        let (first, last) = (start(first), start(last));
        if first.wrapping_add(posted * (self.more.len() - 1)) == last {
            pieces.push(first, posted * self.more.len());
        } else {
            self.more.iter_mut().rev().for_each(|frame| pieces.push(start(frame), posted));
        }
    }

    /// Copies the bytes from `offset` on of what is in the frames followed by `spare`.
    pub(super) fn gather(&mut self, spare: &[u8], mut offset: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let from = if offset < self.room {
                let (at, within) = (offset / self.posted, offset % self.posted);
                let frame = if at == 0 { self.frame.as_mut() } else { self.more.iter_mut().nth_back(at - 1) };
                frame.map_or(&[][..], |frame| &frame.buffer_mut()[within..self.posted])
            } else {
                &spare[offset - self.room..]
            };
            let count = from.len().min(into.len());
            if count == 0 {
                return;
            }
            let (now, rest) = into.split_at_mut(count);
            now.copy_from_slice(&from[..count]);
            (into, offset) = (rest, offset + count);
        }
    }
}

/// A frame that an earlier call had no use for, of the last slot that has one.
#[cold]
pub(super) fn parked(slots: &mut [Slot]) -> Option<Frame> {
    slots.iter_mut().rev().find_map(|slot| slot.more.pop().or_else(|| slot.frame.take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_gathered_across_the_ends_of_frames() {
        let framed = |bytes: &[u8]| {
            let mut frame = Frame::detached(8);
            frame.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
            frame
        };
        for (frames, spare) in
            [(3, &[10, 11, 12][..]), (1, &[4, 5, 6, 7, 8, 9, 10, 11, 12]), (0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])]
        {
            let mut all = [[1, 2, 3], [4, 5, 6], [7, 8, 9]].iter().take(frames).map(|bytes| framed(bytes));
            let mut slot = Slot { frame: all.next(), posted: 3, room: 3 * frames, ..Slot::default() };
            slot.more = all.rev().collect();
            for offset in 0..=12 {
                for len in 0..=12 - offset {
                    let mut into = vec![0; len];
                    slot.gather(spare, offset, &mut into);
                    let expected: Vec<u8> = (1..=12).skip(offset).take(len).collect();
                    assert_eq!(into, expected, "{frames} frames, from {offset}");
                }
            }
        }
    }
}
