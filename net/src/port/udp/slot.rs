//! One message of a receiving call: the frames that the kernel writes it into, and how it is read out of them.

use super::pieces::Pieces;
use crate::frame::{Frame, Pool, Run};
use crate::port::Address;

/// A message, or room for one.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) frame: Option<Frame>,
    /// Frames in which the message continues.
    pub(super) more: Option<Run>,
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

    /// How many frames there are for a message to continue in.
    pub(super) fn more_len(&self) -> usize {
        self.more.as_ref().map_or(0, Run::len)
    }

    /// Takes `wanted` frames for a message to continue in, unless there are as many; none, if no so many lie together.
    pub(super) fn take_more(&mut self, pool: &Pool, wanted: usize) {
        if self.more_len() < wanted {
            // All anew: with the old ones back, the lowest that lie together.
            self.more = None;
            self.more = pool.take_run(wanted);
        }
    }

    /// Takes the first of the frames in which the message continues.
    #[inline]
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        self.more.as_mut()?.pop()
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
        let Some(more) = &mut self.more else { return };
        self.room += posted * more.len();
        if posted == more.stride() {
            if let Some(first) = more.buffer_mut(0) {
                pieces.push(first.as_mut_ptr(), posted * more.len());
            }
        } else {
            for n in 0..more.len() {
                let Some(buffer) = more.buffer_mut(n) else { break };
                pieces.push(buffer[..posted].as_mut_ptr(), posted);
            }
        }
    }

    /// Copies the bytes from `offset` on of what is in the frames followed by `spare`.
    pub(super) fn gather(&mut self, spare: &[u8], mut offset: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let from = if offset < self.room {
                let (at, within) = (offset / self.posted, offset % self.posted);
                let buffer = match at.checked_sub(1) {
                    None => self.frame.as_mut().map(Frame::buffer_mut),
                    Some(n) => self.more.as_mut().and_then(|more| more.buffer_mut(n)),
                };
                buffer.map_or(&[][..], |buffer| &buffer[within..self.posted])
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
    slots.iter_mut().rev().find_map(|slot| slot.next_frame().or_else(|| slot.frame.take()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PoolConfig;

    #[test]
    fn bytes_are_gathered_across_the_ends_of_frames() {
        let pool = Pool::new(PoolConfig { frames: 3, frame_size: 8 });
        for (frames, spare) in
            [(3, &[10, 11, 12][..]), (1, &[4, 5, 6, 7, 8, 9, 10, 11, 12]), (0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])]
        {
            let mut slot = Slot { posted: 3, room: 3 * frames, ..Slot::default() };
            if frames > 0 {
                let mut frame = pool.take().unwrap();
                frame.buffer_mut()[..3].copy_from_slice(&[1, 2, 3]);
                slot.frame = Some(frame);
                slot.take_more(&pool, frames - 1);
                for (n, bytes) in [[4, 5, 6], [7, 8, 9]].iter().take(frames - 1).enumerate() {
                    slot.more.as_mut().unwrap().buffer_mut(n).unwrap()[..3].copy_from_slice(bytes);
                }
            }
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
