//! When sessions must be looked at. Almost every packet is acknowledged before its time-out: a timer of its own for each session with something under
//! way would be set and moved with every message, and fire for nothing. So such a session is looked at once, [`LOOK`] after it began to have something
//! under way, and gets its timer then, if it still has. Only what is rare (silence, messages that stand still, losses to find) goes to the
//! wheel at once.

use super::lineup::Lineup;
use crate::clock::Time;
use crate::session::{Session, Shared};
use crate::timer::Wheel;

/// In nanoseconds. A time-out that is shorter than that (a peer that holds back acknowledgements for less than usual) is noticed so late.
const LOOK: u64 = 200_000;
/// Those that are looked at within so many nanoseconds are looked at together: a power of two.
const TOGETHER: u64 = 1 << 15;

/// So many timers fire at once without an allocation.
const FIRED: usize = 64;

pub(super) struct Timers {
    wheel: Wheel,
    /// Sessions that had something under way.
    watched: Lineup,
    /// What is known of each slot: [`WATCHED`], [`UNDER_WAY`]. A look at a session where nothing is under way any more ends here.
    known: Vec<u8>,
    fired: Vec<u32>,
}

/// It stands in the line of those that are looked at.
const WATCHED: u8 = 1;
/// Its session had something under way when it was seen last.
const UNDER_WAY: u8 = 2;

impl Timers {
    /// Timers that begin at `now`.
    pub(super) fn new(now: Time) -> Timers {
        let mut timers =
            Timers { wheel: Wheel::new(), watched: Lineup::new(), known: Vec::new(), fired: Vec::with_capacity(FIRED) };
        timers.wheel.expire(now, &mut timers.fired);
        timers
    }

    /// Sees to it that a session is looked at when its time has come.
    #[inline]
    pub(super) fn set(&mut self, session: &mut Session, now: Time, shared: &Shared) {
        if session.is_hasty() {
            return self.set_exactly(session, shared);
        }
        self.follow(session, now);
        // One that is set too early costs one look; moving it each time would cost more.
        let due = session.patience(shared);
        if due < session.armed {
            self.arm(session, due);
        }
    }

    /// Takes note of whether a session has something under way: all there is to do about one that is [calm](Session::is_calm).
    #[inline(always)]
    pub(super) fn follow(&mut self, session: &Session, now: Time) {
        if session.has_under_way() {
            self.sent(session, now);
        } else {
            self.acknowledged(session);
        }
    }

    /// A session sent something: it must be looked at.
    #[inline(always)]
    pub(super) fn sent(&mut self, session: &Session, now: Time) {
        let slot = session.id.slot;
        let Some(known) = self.known.get_mut(slot as usize) else { return self.meet(session, now) };
        if std::mem::replace(known, WATCHED | UNDER_WAY) & WATCHED == 0 {
            let due = (now.as_nanos() + LOOK).next_multiple_of(TOGETHER);
            self.watched.add(slot, Time::from_nanos(due));
        }
    }

    /// A session sends for the first time.
    #[cold]
    fn meet(&mut self, session: &Session, now: Time) {
        self.known.resize(session.id.slot as usize + 1, 0);
        self.sent(session, now);
    }

    /// A session's acknowledgement has come.
    #[inline(always)]
    pub(super) fn acknowledged(&mut self, session: &Session) {
        if !session.has_under_way()
            && let Some(known) = self.known.get_mut(session.id.slot as usize)
        {
            *known &= !UNDER_WAY;
        }
    }

    fn set_exactly(&mut self, session: &mut Session, shared: &Shared) {
        let due = session.timeout(shared);
        if due < session.armed {
            self.arm(session, due);
        }
    }

    #[cold]
    fn arm(&mut self, session: &mut Session, due: Time) {
        session.armed = due;
        self.wheel.insert(session.id.slot, due);
    }

    /// Takes the timer off a slot.
    pub(super) fn cancel(&mut self, slot: u32) {
        self.wheel.cancel(slot);
    }

    /// When [`Timers::expire`] must be called at the latest.
    pub(super) fn next(&self) -> Option<Time> {
        let watched = Some(self.watched.soonest()).filter(|due| *due != Time::NEVER);
        self.wheel.next().into_iter().chain(watched).min()
    }

    /// Whether [`Timers::expire`] may have something to do.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.wheel.is_due(now) || self.watched.soonest() <= now
    }

    /// The slots whose timers have fired; to be given back with [`Timers::fired`].
    pub(super) fn expire(&mut self, now: Time) -> Vec<u32> {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.expire(now, &mut fired);
        fired
    }

    /// Takes back the list of those that have fired, to be used again.
    pub(super) fn fired(&mut self, mut list: Vec<u32>) {
        list.clear();
        self.fired = list;
    }

    /// The next slot whose session must be looked at now, because something was under way when it was seen last.
    #[inline]
    pub(super) fn take_watched(&mut self, now: Time) -> Option<u32> {
        while let Some((_, slot)) = self.watched.take(now) {
            let Some(known) = self.known.get_mut(slot as usize) else { continue };
            *known &= !WATCHED;
            if *known & UNDER_WAY != 0 {
                return Some(slot);
            }
        }
        None
    }

    /// A session was looked at. `true`: it is time. Else it gets a timer, if it has something under way.
    #[inline]
    pub(super) fn looked_at(&mut self, session: &mut Session, now: Time, shared: &Shared) -> bool {
        if !session.has_under_way() {
            return false;
        }
        let due = session.timeout(shared);
        if due > now && due < session.armed {
            self.arm(session, due);
        }
        due <= now
    }
}
