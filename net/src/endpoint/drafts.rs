//! Control messages that are written before the moment that they tell of: what is left to do when it comes is to write its time into their
//! packets, and to hand those to the port.

use super::Endpoint;
use super::event::SessionId;
use crate::clock::Time;
use crate::session::Part;
use crate::wire::{DATA_OVERHEAD, Header};

/// Control messages that wait for a moment; see [`Endpoint::drafts`]. Dropped without [`Drafts::send`], none of them leaves.
#[derive(Debug)]
#[must_use = "without `send` nothing leaves"]
pub struct Drafts<'a> {
    endpoint: &'a mut Endpoint,
    now: Time,
}

/// One of them, whose packet lies in the burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    session: SessionId,
    /// The packet's number, and what it carries.
    sent: (u64, Part),
    /// When the acknowledgement was due that it carries along.
    owed: Time,
    /// Where in the message the time goes.
    time_at: usize,
}

/// Bytes of a time.
const TIME: usize = size_of::<u64>();

impl Endpoint {
    /// Begins control messages that will leave together, at a moment which is not known yet and which they tell. `None` if something else must
    /// leave before them.
    pub fn drafts(&mut self, now: Time) -> Option<Drafts<'_>> {
        // Of drafts that were forgotten instead of dropped: they have left without a time, but must not be taken for those that come now.
        self.drafts.clear();
        self.put_down(now);
        self.departures.is_empty().then_some(Drafts { endpoint: self, now })
    }
}

impl Drafts<'_> {
    /// Adds a message as for [`Endpoint::send_control`]; its eight bytes from `time_at` on are for the time. `false`: nothing was done, for the
    /// message could not leave at once, or is not such a message.
    pub fn add(&mut self, session: SessionId, message: &[u8], time_at: usize) -> bool {
        let Endpoint { departures, sessions, port, drafts, .. } = &mut *self.endpoint;
        let fits = message.len() <= super::MAX_CONTROL && message.len().checked_sub(TIME).is_some_and(|last| time_at <= last);
        let Some(entry) = sessions.get_mut(session).filter(|_| fits) else { return false };
        let Some(frame) = departures.control_frame_for_now(port.as_mut()) else { return false };
        let (peer, owed) = (entry.peer, entry.acknowledgement_due());
        let Some(sent) = entry.emit_control(message, departures.begin(frame, &peer), self.now) else {
            departures.take_back_control();
            return false;
        };
        drafts.push(Draft { session, sent, owed, time_at });
        true
    }

    /// Sends them, with the nanoseconds of `at` as their time, little-endian.
    #[inline]
    pub fn send(self, at: Time) {
        let Endpoint { departures, sessions, port, drafts, shared, timers, integrity, .. } = &mut *self.endpoint;
        let time = at.as_nanos().to_le_bytes();
        for (frame, draft) in departures.packets().zip(&*drafts) {
            let place = DATA_OVERHEAD + draft.time_at;
            frame[place..place + TIME].copy_from_slice(&time);
            if !*integrity {
                Header::seal(frame);
            }
        }
        departures.transmit(port.as_mut(), &mut shared.counters);
        // The books, now that they have left.
        for Draft { session, sent, time_at, .. } in drafts.drain(..) {
            if let Some(entry) = sessions.get_mut(session) {
                entry.control_stamped(sent.1, time_at, &time);
                entry.control_sent(sent, self.now);
                timers.set(entry, self.now, shared);
            }
        }
    }
}

impl Drop for Drafts<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.endpoint.drafts.is_empty() {
            self.endpoint.drop_drafts(self.now);
        }
    }
}

impl Endpoint {
    /// The moment did not come.
    #[cold]
    fn drop_drafts(&mut self, now: Time) {
        // The latest first: each takes back what the next one would have followed.
        while let Some(draft) = self.drafts.pop() {
            self.departures.take_back_control();
            if let Some(entry) = self.sessions.get_mut(draft.session) {
                entry.control_dropped(draft.sent, draft.owed);
                self.schedule(draft.session.slot, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::endpoint::Event;
    use crate::endpoint::pair::Pair;

    impl Pair {
        /// The control messages that have come there.
        fn words(&mut self) -> Vec<Vec<u8>> {
            self.there.poll(self.clock.now());
            let events = std::iter::from_fn(|| self.there.next_event());
            let words = events.filter_map(|event| match event {
                Event::Control { payload, .. } => Some(payload.to_vec()),
                _ => None,
            });
            words.collect()
        }
    }

    const AT: Time = Time::from_nanos(0x0102_0304_0506_0708);

    fn stamped(word: &[u8; 3]) -> Vec<u8> {
        [&word[..], &AT.as_nanos().to_le_bytes(), b"end"].concat()
    }

    #[test]
    fn drafts_leave_when_they_are_sent_and_tell_that_time() {
        let mut pair = Pair::open("drafts", "");
        let now = pair.clock.now();
        let mut drafts = pair.here.drafts(now).unwrap();
        assert!(drafts.add(pair.session, b"one........end", 3) && drafts.add(pair.session, b"two........end", 3));
        drafts.send(AT);
        assert_eq!(pair.words(), [stamped(b"one"), stamped(b"two")]);
        pair.turn();
        pair.turn();
        assert_eq!((pair.here.usage().sending, pair.here.counters().retransmitted, pair.here.counters().lost), (0, 0, 0));
    }

    #[test]
    fn drafts_that_are_not_sent_leave_no_trace() {
        let mut pair = Pair::open("unsent", "");
        let (now, session) = (pair.clock.now(), pair.session);
        let frames = pair.here.usage().frames;
        pair.there.connect(pair.here.local_address(), now).unwrap();
        let sent = pair.here.counters().packets_sent;
        for _ in 0..100 {
            let mut drafts = pair.here.drafts(now).unwrap();
            assert!(drafts.add(session, b"one........end", 3) && drafts.add(session, b"two........end", 3));
        }
        assert_eq!((pair.here.counters().packets_sent, pair.here.usage().frames), (sent, frames));
        assert!(pair.words().is_empty());
        // What comes next has the number and the place that they had.
        pair.here.send(session, Class::Normal, &[], b"data".as_slice().into(), 0, now).unwrap();
        pair.here.flush(now);
        pair.here.send_control_at_once(session, b"three", now).unwrap();
        assert_eq!(pair.words(), [b"three"]);
        for _ in 0..5 {
            pair.turn();
            pair.there.poll(pair.clock.now());
        }
        assert_eq!((pair.here.usage().sending, pair.here.counters().retransmitted, pair.here.counters().lost), (0, 0, 0));
    }

    #[test]
    fn an_acknowledgement_that_a_draft_would_have_carried_is_told_without_it() {
        let mut pair = Pair::open("unsent-acks", "");
        let (now, session) = (pair.clock.now(), pair.session);
        pair.here.send(session, Class::Normal, &[], b"data".as_slice().into(), 0, now).unwrap();
        pair.here.flush(now);
        pair.there.poll(now);
        let Some(Event::Message { session: back, .. }) =
            std::iter::from_fn(|| pair.there.next_event()).find(|event| matches!(event, Event::Message { .. }))
        else {
            panic!("the data came");
        };
        let mut drafts = pair.there.drafts(now).unwrap();
        assert!(drafts.add(back, b"one........end", 3));
        drop(drafts);
        pair.turn();
        let now = pair.clock.now();
        pair.there.poll(now);
        pair.there.flush(now);
        pair.here.poll(now);
        pair.here.flush(now);
        assert_eq!(pair.here.usage().sending, 0, "the data was not acknowledged");
    }

    #[test]
    fn a_draft_whose_packet_is_lost_comes_later_and_tells_the_same_time() {
        for seed in 0..10 {
            let mut pair = Pair::open(&format!("lost{seed}"), &format!("?loss=0.3&seed={seed}"));
            let now = pair.clock.now();
            let mut drafts = pair.here.drafts(now).unwrap();
            assert!(drafts.add(pair.session, b"one........end", 3), "seed {seed}");
            drafts.send(AT);
            let mut came = pair.words();
            for _ in 0..1_000 {
                pair.turn();
                came.extend(pair.words());
            }
            assert_eq!(came, [stamped(b"one")], "seed {seed}");
        }
    }

    #[test]
    fn a_damaged_draft_is_noticed_where_packets_get_damaged() {
        // The check is of the packet as it leaves, with its time.
        let mut pair = Pair::open_both("sealed", ["?corrupt=0.000001&seed=1"; 2]);
        let now = pair.clock.now();
        let mut drafts = pair.here.drafts(now).unwrap();
        assert!(drafts.add(pair.session, b"one........end", 3));
        drafts.send(AT);
        let malformed = pair.there.counters().malformed;
        let came = pair.words();
        assert_eq!((came, pair.there.counters().malformed), (vec![stamped(b"one")], malformed));
    }

    #[test]
    fn what_can_not_leave_at_once_or_is_no_such_message_is_not_drafted() {
        let mut pair = Pair::open("undrafted", "");
        let (now, session) = (pair.clock.now(), pair.session);
        let opening = pair.here.connect(pair.there.local_address(), now).unwrap();
        pair.here.flush(now);
        let mut drafts = pair.here.drafts(now).unwrap();
        let (long, most) = (vec![0; crate::endpoint::MAX_CONTROL + 1], vec![0; crate::endpoint::MAX_CONTROL]);
        assert!(!drafts.add(session, &long, 0), "too long");
        assert!(!drafts.add(session, b"one........end", 7) && !drafts.add(session, b"one", 0), "no room for the time");
        assert!(!drafts.add(session, b"one........end", usize::MAX));
        assert!(!drafts.add(SessionId::from_u64(u64::MAX), b"one........end", 3), "no such session");
        assert!(!drafts.add(opening, b"one........end", 3), "the session is not open yet");
        assert!(drafts.add(session, &most, most.len() - 8));
        let mut drafted = 1;
        while drafts.add(session, b"one........end", 3) {
            drafted += 1;
        }
        assert!((2..1_000).contains(&drafted), "{drafted} places for control messages");
        drafts.send(AT);
        let came = pair.words().len() + pair.words().len();
        assert_eq!(came, drafted);
    }

    #[test]
    fn a_draft_that_is_not_sent_causes_no_packet_where_nothing_was_owed() {
        let mut pair = Pair::open("unowed", "");
        for _ in 0..5 {
            pair.turn();
            pair.there.poll(pair.clock.now());
            pair.there.flush(pair.clock.now());
        }
        let (now, session) = (pair.clock.now(), pair.session);
        while pair.here.poll(now) > 0 {
            while pair.here.next_event().is_some() {}
            pair.here.flush(now);
        }
        while pair.here.next_event().is_some() {}
        pair.here.flush(now);
        assert!(!pair.here.has_work());
        let sent = pair.here.counters().packets_sent;
        let mut drafts = pair.here.drafts(now).unwrap();
        assert!(drafts.add(session, b"one........end", 3));
        drop(drafts);
        pair.here.flush(now);
        assert_eq!(pair.here.counters().packets_sent, sent, "an acknowledgement of nothing");
    }

    #[test]
    fn drafts_that_were_forgotten_do_not_spoil_what_follows() {
        let mut pair = Pair::open("forgotten", "");
        let (now, session) = (pair.clock.now(), pair.session);
        let mut drafts = pair.here.drafts(now).unwrap();
        assert!(drafts.add(session, b"one........end", 3));
        std::mem::forget(drafts);
        pair.here.flush(now);
        pair.words();
        let mut drafts = pair.here.drafts(now).unwrap();
        assert!(drafts.add(session, b"........twoend", 0));
        drafts.send(AT);
        let expected = [&AT.as_nanos().to_le_bytes()[..], b"twoend"].concat();
        assert_eq!(pair.words(), [expected]);
    }

    #[test]
    fn drafts_that_a_full_port_keeps_leave_later() {
        let mut pair = Pair::open_both("full-port", ["", "?slots=2"]);
        let (now, session) = (pair.clock.now(), pair.session);
        pair.there.poll(now);
        while pair.there.next_event().is_some() {}
        let mut drafts = pair.here.drafts(now).unwrap();
        for n in 0..6u8 {
            assert!(drafts.add(session, &[n, 0, 0, 0, 0, 0, 0, 0, 0], 1));
        }
        drafts.send(AT);
        assert!(pair.here.drafts(now).is_none());
        let mut came = pair.words();
        for _ in 0..50 {
            pair.turn();
            came.extend(pair.words());
        }
        let expected: Vec<Vec<u8>> = (0..6u8).map(|n| [&[n][..], &AT.as_nanos().to_le_bytes()].concat()).collect();
        came.sort();
        assert_eq!(came, expected);
        assert_eq!(pair.here.usage().sending, 0);
    }

    #[test]
    fn drafts_that_are_sent_come_once_and_others_not_whatever_is_lost_beside_them() {
        for seed in 0..20 {
            let mut pair = Pair::open_both(
                &format!("mixed{seed}"),
                [&format!("?loss=0.2&seed={seed}")[..], &format!("?loss=0.2&reorder=0.3&dup=0.2&seed={}", seed + 100)],
            );
            let session = pair.session;
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut expected = Vec::new();
            let mut came = Vec::new();
            let mut next = 0u8;
            for _ in 0..400 {
                let now = pair.clock.now();
                if rng.bool() {
                    let _ = pair.here.send(session, Class::Normal, &[], vec![1; rng.usize(1..9000)].into(), 0, now);
                }
                if rng.bool() {
                    pair.here.flush(now);
                }
                if let Some(mut drafts) = pair.here.drafts(now) {
                    let count = rng.usize(0..4);
                    let keep = rng.bool();
                    let mut these = Vec::new();
                    for _ in 0..count {
                        if drafts.add(session, &[next, 0, 0, 0, 0, 0, 0, 0, 0], 1) {
                            these.push([&[next][..], &AT.as_nanos().to_le_bytes()].concat());
                            next = next.wrapping_add(1);
                        }
                    }
                    if keep {
                        drafts.send(AT);
                        expected.extend(these);
                    } else {
                        drop(drafts);
                    }
                }
                if rng.bool() {
                    pair.turn();
                }
                if rng.bool() {
                    came.extend(pair.words());
                }
                if rng.bool() {
                    pair.there.flush(now);
                }
            }
            for _ in 0..30_000 {
                pair.turn();
                came.extend(pair.words());
                if pair.here.usage().sending == 0 {
                    break;
                }
            }
            for _ in 0..3 {
                pair.turn();
                came.extend(pair.words());
            }
            came.sort();
            expected.sort();
            assert_eq!(came.len(), expected.len(), "seed {seed}");
            assert_eq!(came, expected, "seed {seed}");
            assert_eq!(pair.here.usage().sending, 0, "seed {seed}");
        }
    }
}
