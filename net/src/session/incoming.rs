//! Messages on their way in: each is put together on its own and delivered at most once, so that a lost or large one holds up no other.

mod budget;
mod places;
mod rest;

use bytes::Bytes;

pub(crate) use self::budget::{Budget, Need};
use self::places::Places;
pub(crate) use self::rest::Rest;
use super::bits::Bits;
use super::buffers::Buffer;
use super::outgoing::Unscheduled;
use crate::class::Class;
use crate::clock::Time;
use crate::endpoint::CONTROL_SLOTS;
use crate::wire::{Fragment, WireError};

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Incoming {
    /// Bytes of a message of one packet at most.
    longest_whole: usize,
    slots: Places,
    /// Bytes of payload in each data packet but a message's last.
    fragment: usize,
    /// Slots that the peer may use, the control ones included.
    limit: u16,
    max_message: u32,
    unscheduled: u32,
    partial: usize,
    /// Bytes of its incomplete messages.
    held: usize,
    /// Whether it finishes the long messages that it begins.
    trust: Trust,
}

/// A session is on probation until it has finished a long message, and again after one stood still: those on probation share half of the memory,
/// so that messages which nobody means to finish never take what is kept for who does.
#[derive(Debug, Default)]
struct Trust {
    /// How many messages it must finish yet; none once it is trusted.
    owed: u32,
    strikes: u32,
    /// How many it finished while it was trusted, since the latest strike came or was forgotten.
    finished: u32,
}

/// So often doubles what a session owes that lets messages stand still. A strike is forgotten when twice as many messages were finished
/// as it made the session owe: now and then a message of an honest peer stands still too.
const STRIKES: u32 = 10;

/// A slot of the peer's: the sequence number of its latest message, and what is there of it.
#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// The message is complete, or given up, or there was none yet.
    #[default]
    Done,
    /// There was no memory for it.
    Deferred {
        class: Class,
        total: u32,
    },
    Partial(Box<Assembly>),
}

struct Assembly {
    buffer: Buffer,
    have: Bits,
    received: u32,
    class: Class,
    granted: u32,
    progress: Time,
    /// The first byte of a grant under way, and when that was given.
    asked: Option<(u32, Time)>,
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes, {} granted", self.received, self.buffer.len(), self.granted)
    }
}

/// What a fragment did.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// It is the whole message: the packet's own payload.
    Single(Class),
    /// It is a whole control message.
    Control,
    /// It completed this message.
    Complete(Class, Bytes),
    /// More is to come. `new`: this message is longer than its sender may send without grants, and was not known before.
    /// `answered`: the first byte of a grant came after so many nanoseconds.
    Partial { new: bool, answered: Option<u64> },
    /// It was there already.
    Duplicate,
    /// There is no memory for it now, so it was not kept and must not be acknowledged. `new`: the sender has not been told so.
    Deferred { new: bool },
}

/// What a whole message is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whole {
    /// A new one.
    Data(Class),
    /// A new control message.
    Control,
    /// It was there already.
    Duplicate,
}

impl Incoming {
    /// So many bytes from the front are needed for every message: its length is looked at, and its place.
    pub(crate) const BUSY: usize = size_of::<usize>() + size_of::<Slot>();

    pub(crate) fn new(fragment: usize, slots: u16, max_message: u32, unscheduled: u32) -> Incoming {
        Incoming {
            fragment,
            limit: slots.saturating_add(CONTROL_SLOTS),
            max_message,
            longest_whole: fragment.min(max_message as usize),
            unscheduled,
            slots: Places::default(),
            partial: 0,
            held: 0,
            trust: Trust { owed: 1, ..Trust::default() },
        }
    }

    /// Takes the session's fragment size, known when the handshake is complete. Nothing was received before.
    pub(crate) fn establish(&mut self, fragment: usize) {
        self.fragment = fragment;
        self.longest_whole = fragment.min(self.max_message as usize);
    }

    /// Takes a whole message of one packet.
    #[inline(always)]
    pub(crate) fn receive_whole(
        &mut self,
        header: &Fragment,
        payload: &[u8],
        now: Time,
        budget: &mut Budget,
    ) -> Result<Whole, WireError> {
        let (number, sequence) = (header.slot.get(), header.sequence.get());
        // The common case: a slot that was used before, whose last message is complete.
        if let Some(slot) = self.slots.get_mut(usize::from(number))
            && sequence.wrapping_sub(slot.sequence) as i32 > 0
            && matches!(slot.state, State::Done)
            && payload.len() <= self.longest_whole
            && number >= CONTROL_SLOTS
            && let Some(class) = Class::from_index(header.class)
        {
            slot.sequence = sequence;
            return Ok(Whole::Data(class));
        }
        self.receive_whole_anywhere(header, payload, now, budget)
    }

    /// The same in any slot, whatever its state.
    #[inline(never)]
    fn receive_whole_anywhere(
        &mut self,
        header: &Fragment,
        payload: &[u8],
        now: Time,
        budget: &mut Budget,
    ) -> Result<Whole, WireError> {
        match self.receive(header, payload, now, budget)? {
            Arrival::Single(class) => Ok(Whole::Data(class)),
            Arrival::Control => Ok(Whole::Control),
            Arrival::Duplicate => Ok(Whole::Duplicate),
            _ => Err(WireError::Field("fragment")),
        }
    }

    /// Whether a fragment is of a control message that has not come before.
    pub(crate) fn awaits_control(&self, header: &Fragment) -> bool {
        let (number, latest) = (header.slot.get(), self.slots.get(usize::from(header.slot.get())).map_or(0, |slot| slot.sequence));
        let ahead = header.sequence.get().wrapping_sub(latest) as i32;
        number < CONTROL_SLOTS && header.class == Fragment::CONTROL && ahead > 0
    }

    /// Takes one fragment.
    pub(crate) fn receive(
        &mut self,
        header: &Fragment,
        payload: &[u8],
        now: Time,
        budget: &mut Budget,
    ) -> Result<Arrival, WireError> {
        let number = header.slot.get();
        let (total, offset) = (header.total.get(), header.offset.get());
        if number >= self.limit {
            return Err(WireError::Field("message slot"));
        }
        if total > self.max_message {
            return Err(WireError::Field("message length"));
        }
        let is_control = number < CONTROL_SLOTS;
        let class = match (is_control, header.class) {
            (true, Fragment::CONTROL) => None,
            (false, class) => Some(Class::from_index(class).ok_or(WireError::Field("class"))?),
            _ => return Err(WireError::Field("class")),
        };
        let at = usize::from(number);
        let slot = self.slots.make(at);
        let ahead = header.sequence.get().wrapping_sub(slot.sequence) as i32;
        if ahead <= 0 {
            match slot.state {
                State::Deferred { .. } if ahead == 0 => return Ok(Arrival::Deferred { new: false }),
                State::Partial(_) if ahead == 0 => {}
                _ => return Ok(Arrival::Duplicate),
            }
        }
        let bundle = header.shift == Fragment::BUNDLE && class.is_some();
        let single = (offset == 0 || bundle) && payload.len() == total as usize && payload.len() <= self.fragment;
        if single {
            if ahead == 0 {
                return Err(WireError::Field("message length"));
            }
            self.discard(at, budget);
            self.slots[at].sequence = header.sequence.get();
            return Ok(class.map_or(Arrival::Control, Arrival::Single));
        }
        let Some(class) = class else { return Err(WireError::Field("control message")) };
        self.receive_part(header, payload, class, ahead > 0, now, budget)
    }

    fn receive_part(
        &mut self,
        header: &Fragment,
        payload: &[u8],
        class: Class,
        new: bool,
        now: Time,
        budget: &mut Budget,
    ) -> Result<Arrival, WireError> {
        let (total, offset) = (header.total.get() as usize, header.offset.get() as usize);
        let expected = total.saturating_sub(offset).min(self.fragment);
        if !offset.is_multiple_of(self.fragment) || payload.is_empty() || payload.len() != expected || total <= self.fragment {
            return Err(WireError::Field("fragment"));
        }
        let at = usize::from(header.slot.get());
        if new {
            self.discard(at, budget);
            self.slots[at].sequence = header.sequence.get();
            let crowded = self.is_crowded(total, budget);
            let waiting = usize::from(!self.is_trusted());
            if crowded || budget.waiting[waiting] > 0 || !self.fits(total, budget) {
                budget.waiting[waiting] += usize::from(!crowded);
                self.slots[at].state = State::Deferred { class, total: total as u32 };
                return Ok(Arrival::Deferred { new: true });
            }
            let unscheduled = Unscheduled { most: self.unscheduled, shift: header.shift };
            self.begin(at, class, total, unscheduled.bytes().min(total as u32), now, budget);
        }
        let slot = &mut self.slots[at];
        let State::Partial(assembly) = &mut slot.state else {
            return Err(WireError::Field("fragment"));
        };
        if assembly.buffer.len() != total || assembly.class != class {
            return Err(WireError::Field("message length"));
        }
        if offset > 0 && offset >= assembly.granted as usize {
            // Sent before its message was deferred; or without a grant.
            return Ok(Arrival::Deferred { new: false });
        }
        if !assembly.have.insert((offset / self.fragment) as u32) {
            return Ok(Arrival::Duplicate);
        }
        assembly.buffer.write(offset, payload);
        assembly.received += payload.len() as u32;
        assembly.progress = now;
        let asked = assembly.asked.take_if(|(first, _)| offset >= *first as usize);
        if assembly.received as usize == total {
            let State::Partial(assembly) = std::mem::take(&mut slot.state) else { unreachable!("matched above") };
            self.give_back(total, budget);
            self.finished(budget);
            return Ok(Arrival::Complete(class, assembly.buffer.into_bytes()));
        }
        let new = new && (assembly.granted as usize) < total;
        Ok(Arrival::Partial { new, answered: asked.map(|(_, given)| now.nanos_since(given)) })
    }

    fn begin(&mut self, at: usize, class: Class, total: usize, granted: u32, now: Time, budget: &mut Budget) {
        budget.used += total;
        budget.probation += if self.is_trusted() { 0 } else { total };
        self.held += total;
        self.partial += 1;
        let mut have = Bits::default();
        have.reset(total.div_ceil(self.fragment) as u32);
        let assembly =
            Assembly { buffer: budget.buffers.take(total), have, received: 0, class, granted, progress: now, asked: None };
        self.slots[at].state = State::Partial(Box::new(assembly));
    }

    /// Makes room for a deferred message; `false` if there is none.
    pub(crate) fn admit(&mut self, number: u16, sequence: u32, now: Time, budget: &mut Budget) -> bool {
        let at = usize::from(number);
        let Some(slot) = self.slots.get(at).filter(|slot| slot.sequence == sequence) else { return false };
        let State::Deferred { class, total } = slot.state else { return false };
        if self.is_crowded(total as usize, budget) || !self.fits(total as usize, budget) {
            return false;
        }
        self.begin(at, class, total as usize, 0, now, budget);
        true
    }

    /// The peer gave this message up.
    pub(crate) fn abandoned(&mut self, number: u16, sequence: u32, budget: &mut Budget) {
        let at = usize::from(number);
        if self.slots.get(at).is_some_and(|slot| slot.sequence == sequence) {
            self.discard(at, budget);
        }
    }

    /// How far the message is; `None` once it is complete or gone.
    pub(crate) fn need(&self, number: u16, sequence: u32, budget: &Budget) -> Option<Need> {
        let slot = self.slots.get(usize::from(number)).filter(|slot| slot.sequence == sequence)?;
        match &slot.state {
            State::Done => None,
            State::Deferred { class, total } => Some(Need {
                class: *class,
                total: *total,
                received: 0,
                granted: 0,
                progress: Time::ZERO,
                deferred: true,
                crowded: self.is_crowded(*total as usize, budget),
            }),
            State::Partial(assembly) => Some(Need {
                class: assembly.class,
                total: assembly.buffer.len() as u32,
                received: assembly.received,
                granted: assembly.granted,
                progress: assembly.progress,
                deferred: false,
                crowded: false,
            }),
        }
    }

    /// Records that the message may now be sent up to here.
    pub(crate) fn grant(&mut self, number: u16, sequence: u32, upto: u32, now: Time) {
        if let Some(slot) = self.slots.get_mut(usize::from(number))
            && slot.sequence == sequence
            && let State::Partial(assembly) = &mut slot.state
        {
            if assembly.granted <= assembly.received {
                // It stood still because it had to.
                assembly.progress = now;
            }
            assembly.asked.get_or_insert((assembly.granted.max(assembly.received), now));
            assembly.granted = assembly.granted.max(upto);
        }
    }

    /// Whether a message stands still although its sender may send, since before `deadline`.
    pub(crate) fn is_stalled(&self, deadline: Time) -> bool {
        self.partial > 0
            && self
                .slots
                .iter()
                .any(|slot| matches!(&slot.state, State::Partial(part) if part.received < part.granted && part.progress < deadline))
    }

    /// Messages that are not complete, those that wait for memory included.
    pub(crate) fn incomplete(&self) -> usize {
        self.slots.iter().filter(|slot| !matches!(slot.state, State::Done)).count()
    }

    /// Whether no message is incomplete.
    pub(crate) fn is_empty(&self) -> bool {
        self.partial == 0
    }

    /// Whether the session holds its share of the memory already: a quarter, or one message.
    fn is_crowded(&self, total: usize, budget: &Budget) -> bool {
        self.held > 0 && self.held + total > budget.limit / 4
    }

    /// Gives all memory back.
    pub(crate) fn clear(&mut self, budget: &mut Budget) {
        for at in self.slots.numbers() {
            self.discard(at, budget);
        }
    }

    /// Forgets what is there of the message in a slot.
    #[inline]
    fn discard(&mut self, at: usize, budget: &mut Budget) {
        if !matches!(self.slots[at].state, State::Done) {
            self.discard_part(at, budget);
        }
    }

    #[cold]
    fn discard_part(&mut self, at: usize, budget: &mut Budget) {
        match std::mem::take(&mut self.slots[at].state) {
            State::Done | State::Deferred { .. } => {}
            State::Partial(assembly) => {
                self.give_back(assembly.buffer.len(), budget);
            }
        }
    }

    fn give_back(&mut self, total: usize, budget: &mut Budget) {
        budget.used -= total;
        budget.probation -= if self.is_trusted() { 0 } else { total };
        self.held -= total;
        self.partial -= 1;
    }

    /// Whether the session finishes the long messages that it begins, as far as is known.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trust.owed == 0
    }

    /// Whether there is memory for a message: of all, and of the half that those on probation share, which one message may exceed.
    fn fits(&self, total: usize, budget: &Budget) -> bool {
        let probation = self.is_trusted() || budget.probation == 0 || budget.probation + total <= budget.limit / 2;
        probation && budget.used + total <= budget.limit
    }

    /// It finished a long message.
    fn finished(&mut self, budget: &mut Budget) {
        if !self.is_trusted() {
            self.trust.owed -= 1;
            if self.is_trusted() {
                budget.probation -= self.held;
            }
        } else if self.trust.strikes > 0 {
            self.trust.finished += 1;
            if self.trust.finished >= 1 << self.trust.strikes {
                self.trust.finished = 0;
                self.trust.strikes -= 1;
            }
        }
    }

    /// A message stood still although its sender may go on.
    pub(crate) fn distrust(&mut self, budget: &mut Budget) {
        if self.is_trusted() {
            self.trust.strikes = (self.trust.strikes + 1).min(STRIKES);
            self.trust.owed = 1 << (self.trust.strikes - 1);
            self.trust.finished = 0;
            budget.probation += self.held;
        }
    }
}

#[cfg(test)]
mod tests;
