//! What may be done about packets after the answers to them have left: their senders wait for those, and for nothing else.
//!
//! Of a data packet that came alone what it brought is taken at once; what it acknowledges, and when its session must be looked at again, is put
//! off until what the owner sends next was handed to the port. Where several came in a burst only the look at their sessions is put off: most
//! that owed an acknowledgement have sent it with an answer by then.

use super::Endpoint;
use super::depart::TOUCHED;
use super::event::SessionId;
use crate::clock::Time;
use crate::session::Handled;
use crate::wire::Header;

/// What is still to be done.
#[derive(Debug)]
pub(super) struct Late {
    /// The packet that came alone.
    lone: Option<Lone>,
    /// Sessions that packets of a burst came for, [`TOUCHED`], by their slots.
    touched: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Lone {
    pub(super) id: SessionId,
    pub(super) header: Header,
    pub(super) arrived: Time,
}

impl Late {
    /// Nothing, and room for the sessions of so many packets.
    pub(super) fn new(burst: usize) -> Late {
        Late { lone: None, touched: Vec::with_capacity(burst) }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.lone.is_none() && self.touched.is_empty()
    }

    #[inline(always)]
    pub(super) fn came_alone(&mut self, lone: Lone) {
        self.lone = Some(lone);
    }

    /// A packet came for the session in this slot, the first since it was looked at.
    #[inline(always)]
    pub(super) fn touch(&mut self, slot: u32) {
        self.touched.push(slot);
    }
}

impl Endpoint {
    /// Does what was put off. `false`: there was nothing.
    #[inline]
    pub(super) fn catch_up(&mut self, now: Time) -> bool {
        if self.late.is_empty() {
            return false;
        }
        self.take_lone(now);
        self.look_at_touched(now);
        true
    }

    /// Takes what a packet that came alone acknowledges.
    #[inline]
    pub(super) fn take_lone(&mut self, now: Time) {
        if self.late.lone.is_some() {
            self.take_late(now);
        }
    }

    #[inline(never)]
    fn take_late(&mut self, now: Time) {
        let Some(lone) = self.late.lone.take() else { return };
        let Some(session) = self.sessions.get_mut(lone.id) else { return };
        match session.receive_acknowledgement(lone.arrived, &lone.header, &mut self.shared) {
            Ok(Handled::Closed) => return self.forget(lone.id.slot, now),
            Ok(Handled::Open | Handled::Later) => {}
            Err(error) => self.malformed(&error),
        }
        self.heard(lone.id.slot, lone.arrived, now);
    }

    #[inline(never)]
    fn look_at_touched(&mut self, now: Time) {
        while let Some(slot) = self.late.touched.pop() {
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            session.ready &= !TOUCHED;
            self.schedule(slot, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::class::Class;
    use crate::clock::Time;
    use crate::endpoint::Event;
    use crate::endpoint::pair::Pair;

    /// Sends a message there, and gives the session there when it has come.
    fn ask(pair: &mut Pair) -> crate::endpoint::SessionId {
        let now = pair.clock.now();
        pair.here.send(pair.session, Class::Normal, &[], b"question".as_slice().into(), 0, now).unwrap();
        pair.here.flush(now);
        pair.there.poll(now);
        loop {
            match pair.there.next_event().expect("the question comes") {
                Event::Message { session, .. } => return session,
                _ => continue,
            }
        }
    }

    #[test]
    fn an_answer_leaves_before_what_its_question_acknowledged_is_looked_at() {
        let mut pair = Pair::open("late", "");
        let now = pair.clock.now();
        let session = ask(&mut pair);
        pair.there.send(session, Class::Normal, &[], b"answer".as_slice().into(), 0, now).unwrap();
        pair.there.flush(now);
        pair.here.poll(now);
        assert!(pair.here.next_event().is_some());
        // The answer has acknowledged the question.
        assert_eq!(pair.here.usage().sending, 1, "it was looked at too early");
        assert_eq!(pair.here.next_timeout(now), Some(now), "it would not be looked at before something else happens");
        pair.here.send(pair.session, Class::Normal, &[], b"next".as_slice().into(), 0, now).unwrap();
        pair.here.flush_answers(now);
        assert_eq!(pair.here.usage().sending, 2);
        assert_eq!(pair.there.poll(now), 1, "the next question has left");
        pair.here.flush(now);
        assert_eq!(pair.here.usage().sending, 1, "the first question was acknowledged");
    }

    #[test]
    fn what_waits_beside_an_answer_leaves_with_it() {
        let mut pair = Pair::open("late-long", "");
        let now = pair.clock.now();
        let session = ask(&mut pair);
        pair.there.send(session, Class::Normal, &[], b"answer".as_slice().into(), 0, now).unwrap();
        pair.there.flush(now);
        pair.here.poll(now);
        pair.here.send(pair.session, Class::Normal, &[], vec![0; 10_000].into(), 0, now).unwrap();
        let sent = pair.here.counters().packets_sent;
        pair.here.flush_answers(now);
        assert!(pair.here.counters().packets_sent > sent, "a message of several packets waits for the next flush");
        assert_eq!(pair.here.usage().sending, 1, "the question was acknowledged");
    }

    #[test]
    fn nothing_passes_for_lost_whose_acknowledgement_came_with_the_time_to_send_it_again() {
        let mut pair = Pair::open("late-timer", "");
        let session = ask(&mut pair);
        let now = pair.clock.now();
        pair.there.send(session, Class::Normal, &[], b"answer".as_slice().into(), 0, now).unwrap();
        pair.there.flush(now);
        let much_later = now.plus_nanos(2_000_000_000);
        assert_eq!(pair.here.poll(much_later), 1);
        pair.here.flush(much_later);
        assert_eq!((pair.here.counters().retransmitted, pair.here.counters().lost), (0, 0));
        assert_eq!(pair.here.usage().sending, 0);
    }

    #[test]
    fn a_close_that_comes_with_the_acknowledgement_of_a_message_leaves_that_delivered() {
        let mut pair = Pair::open("late-end", "");
        let session = ask(&mut pair);
        let now = pair.clock.now();
        pair.there.close(session, now);
        pair.there.flush(now);
        while pair.here.next_event().is_some() {}
        assert_eq!(pair.here.poll(now), 1, "both in one packet");
        let events: Vec<Event> = std::iter::from_fn(|| pair.here.next_event()).collect();
        assert!(matches!(events[..], [Event::Closed { .. }]), "{events:?}");
    }

    /// A packet with a message comes to `here`, and acknowledges all that was sent before.
    fn answer(pair: &mut Pair, session: crate::endpoint::SessionId) {
        let now = pair.clock.now();
        while pair.there.poll(now) > 0 {
            while pair.there.next_event().is_some() {}
        }
        pair.there.send(session, Class::Normal, &[], b"answer".as_slice().into(), 0, now).unwrap();
        pair.there.transmit(now);
        assert_eq!(pair.here.poll(now), 1, "it comes alone");
        assert!(pair.here.next_event().is_some());
    }

    #[test]
    fn control_messages_have_the_places_that_a_lone_packet_acknowledged() {
        let mut pair = Pair::open("late-ctl", "");
        let session = ask(&mut pair);
        let now = pair.clock.now();
        while pair.here.send_control(pair.session, b"control", now).is_ok() {}
        pair.here.transmit(now);
        answer(&mut pair, session);
        assert_eq!(pair.here.send_control(pair.session, b"control", now), Ok(()));
    }

    #[test]
    fn what_a_lone_packet_acknowledged_makes_room_for_what_is_sent_next() {
        let mut pair = Pair::open("late-room", "");
        let now = pair.clock.now();
        let fill = |pair: &mut Pair| {
            let mut sent = 0;
            while pair.here.send(pair.session, Class::Normal, &[], vec![0; 1_000].into(), 0, now).is_ok() {
                pair.here.transmit(now);
                sent += 1;
            }
            sent
        };
        let first = fill(&mut pair);
        while pair.there.poll(now) > 0 {
            while pair.there.next_event().is_some() {}
        }
        let later = now.plus_nanos(10_000_000);
        pair.there.poll(later);
        pair.there.flush(later);
        assert_eq!(pair.here.poll(later), 1, "one acknowledgement for all");
        assert!(first > 0 && fill(&mut pair) > 0, "{first} and no more");
    }

    #[test]
    fn a_burst_that_was_answered_leaves_no_acknowledgement_to_wait_for_and_one_that_was_not_does() {
        let mut pair = Pair::open("late-burst", "");
        let now = pair.clock.now();
        for answered in [true, false] {
            for _ in 0..3 {
                pair.here.send(pair.session, Class::Normal, &[], b"question".as_slice().into(), 0, now).unwrap();
                pair.here.flush(now);
            }
            assert_eq!(pair.there.poll(now), 3);
            assert!(pair.there.has_work(), "its session is still to be looked at");
            while let Some(event) = pair.there.next_event() {
                if let Event::Message { session, .. } = event
                    && answered
                {
                    pair.there.send(session, Class::Normal, &[], b"answer".as_slice().into(), 0, now).unwrap();
                }
            }
            pair.there.flush(now);
            assert_eq!(pair.there.departures.next_owing() == Time::NEVER, answered);
            assert!(!pair.there.has_work());
            pair.here.poll(now);
            pair.here.flush(now);
            assert_eq!(pair.here.usage().sending, if answered { 0 } else { 3 });
        }
    }
}
