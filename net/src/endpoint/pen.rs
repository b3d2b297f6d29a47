//! The packet that is being written: small messages to one session, sent one after the other, are bundled in it without a look at the
//! session for each. It is put down, which tells the session, before anything else is done with the endpoint.

use super::depart::Departures;
use super::event::{MessageId, SessionId};
use super::table::Table;
use crate::class::Class;
use crate::clock::Time;
use crate::frame::Frame;
use crate::session::{BUNDLE_MOST, Part, Session, Shared};

pub(super) struct Pen {
    /// Whose packet it is; meaningless without a frame.
    session: SessionId,
    class: Class,
    frame: Option<Frame>,
    /// The message that the bundle begins with, as the session knows it.
    part: Part,
    first: MessageId,
    /// Where that ends in the packet, and where the next message begins.
    start: usize,
    at: usize,
    /// Where the packet must end.
    limit: usize,
    /// How many messages were added.
    count: usize,
    tokens: [u64; BUNDLE_MOST],
}

impl Pen {
    pub(super) fn new() -> Pen {
        let part = Part { slot: 0, sequence: 0, fragment: 0 };
        Pen {
            session: SessionId { slot: u32::MAX, generation: 0 },
            class: Class::Normal,
            frame: None,
            part,
            first: MessageId(0),
            start: 0,
            at: 0,
            limit: 0,
            count: 0,
            tokens: [0; BUNDLE_MOST],
        }
    }

    /// Takes a frame to write a packet into, which may be given back as it is, and gives its memory.
    #[inline(always)]
    pub(super) fn take_up(&mut self, frame: Frame) -> &mut [u8] {
        if !self.is_down() {
            self.discard();
        }
        // There is none: to look for one to drop would be more code than all of this.
        std::mem::forget(self.frame.replace(frame));
        self.frame.as_mut().map_or(&mut [], Frame::buffer_mut)
    }

    /// Drops a packet that was being written, which nobody begins another over.
    #[cold]
    fn discard(&mut self) {
        self.frame = None;
    }

    /// Gives it back: nothing was written.
    #[cold]
    pub(super) fn give_back(&mut self) -> Option<Frame> {
        self.frame.take()
    }

    /// The frame has a packet of `len` bytes in it, with one message that the session has accepted.
    #[inline(always)]
    pub(super) fn begin(&mut self, session: &Session, class: Class, first: MessageId, part: Part, len: usize, shared: &Shared) {
        let room = self.frame.as_ref().map_or(0, Frame::capacity);
        (self.session, self.class, self.part, self.first) = (session.id, class, part, first);
        (self.start, self.at, self.limit, self.count) = (len, len, session.longest_bundle(shared).min(room), 0);
    }

    /// Whether a packet is being written.
    #[inline(always)]
    pub(super) fn is_down(&self) -> bool {
        self.frame.is_none()
    }

    /// Messages that the session does not know of yet.
    pub(super) fn messages(&self) -> usize {
        if self.is_down() { 0 } else { self.count }
    }

    /// Bytes that the session does not know of yet.
    pub(super) fn bytes(&self) -> usize {
        if self.is_down() { 0 } else { self.at - self.start }
    }

    /// Adds a message of `len` bytes, its length included: the caller writes it to the place given. `None`: the packet is not this session's
    /// and class's, or there is no room; nothing was done.
    #[inline(always)]
    pub(super) fn add(&mut self, session: SessionId, class: Class, token: u64, len: usize) -> Option<(MessageId, &mut [u8])> {
        let frame = self.frame.as_mut().filter(|_| self.session == session && self.class == class)?;
        let (start, end) = (self.at, self.at + len);
        if end > self.limit {
            return None;
        }
        let place = frame.buffer_mut().get_mut(start..end)?;
        *self.tokens.get_mut(self.count)? = token;
        self.count += 1;
        self.at = end;
        Some((MessageId(self.first.0 + self.count as u64), place))
    }

    /// The packet is as it will leave, and its session learns what is in it.
    #[inline]
    pub(super) fn put_down(&mut self, sessions: &mut Table, departures: &mut Departures, now: Time, shared: &mut Shared) {
        let Some(frame) = self.frame.take() else { return };
        let Some(session) = sessions.get_mut(self.session) else { return };
        let frame = departures.begin_messages(frame, &session.peer, 1 + self.count);
        frame.set_range(0, self.at);
        if self.count > 0 {
            session.joined(self.part, &self.tokens[..self.count], frame.data_mut(), self.start, now, shared);
        }
        departures.finish();
    }
}
