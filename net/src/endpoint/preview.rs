//! A look ahead at what arrived: control messages are shown to whoever waits for one before anything else is done about their burst.
//! Acknowledgements, timers and events take longer than what such a message is about may have time for.

use super::event::SessionId;
use super::table::Table;
use crate::port::Address;
use crate::wire::{DATA_OVERHEAD, Fragment, Header, Kind};

/// Who looks ahead.
pub(super) struct Preview<'a> {
    pub(super) sessions: &'a Table,
    /// Whether the port protects datagrams from damage.
    pub(super) integrity: bool,
    pub(super) watch: &'a mut dyn FnMut(SessionId, &[u8]),
}

impl Preview<'_> {
    /// Shows a datagram that came if it is a new control message.
    #[inline]
    pub(super) fn look_at(&mut self, peer: &Address, datagram: &[u8]) {
        if may_be_control(datagram) {
            self.look_closer(peer, datagram);
        }
    }

    /// A datagram that is not what it should be is passed over here: it is refused where it is taken.
    fn look_closer(&mut self, peer: &Address, datagram: &[u8]) {
        let Ok((header, Kind::Data)) = Header::parse(datagram) else { return };
        let id = SessionId::from_u64(header.session.get());
        let Some(session) = self.sessions.get(id).filter(|session| session.peer == *peer) else { return };
        if let Some(payload) = session.new_control(header, datagram)
            && (self.integrity || Header::verify(datagram).is_ok())
        {
            (self.watch)(id, payload);
        }
    }
}

/// Whether a datagram begins like one with a control message: two bytes tell.
#[inline]
fn may_be_control(datagram: &[u8]) -> bool {
    const CLASS: usize = Header::LEN + std::mem::offset_of!(Fragment, class);
    const KIND: usize = std::mem::offset_of!(Header, kind);
    datagram.len() > DATA_OVERHEAD && datagram[CLASS] == Fragment::CONTROL && datagram[KIND] == Kind::Data as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::endpoint::Event;
    use crate::endpoint::pair::Pair;

    impl Pair {
        /// What is shown there, and what comes as an event.
        fn seen(&mut self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
            let (mut shown, mut came) = (Vec::new(), Vec::new());
            self.there.poll_watching(self.clock.now(), &mut |_, message| shown.push(message.to_vec()));
            while let Some(event) = self.there.next_event() {
                if let Event::Control { payload, .. } | Event::Message { payload, .. } = event {
                    came.push(payload.to_vec());
                }
            }
            (shown, came)
        }
    }

    #[test]
    fn a_control_message_is_shown_when_it_comes_and_data_is_not() {
        let mut pair = Pair::open("once", "");
        let (session, now) = (pair.session, pair.clock.now());
        pair.here.send(session, Class::Normal, &[], b"data".as_slice().into(), 0, now).unwrap();
        pair.here.flush(now);
        pair.here.send_control_at_once(session, b"word", now).unwrap();
        assert_eq!(pair.seen(), (vec![b"word".to_vec()], vec![b"data".to_vec(), b"word".to_vec()]));
        pair.turn();
        assert_eq!(pair.seen(), (vec![], vec![]));
    }

    #[test]
    fn a_message_that_came_before_is_not_shown_again() {
        let mut pair = Pair::open("again", "?dup=1&reorder=1&seed=7");
        let mut shown = Vec::new();
        let now = pair.clock.now();
        pair.here.send_control_at_once(pair.session, b"word", now).unwrap();
        for _ in 0..20 {
            let (again, came) = pair.seen();
            assert!(again.is_empty() || shown.is_empty(), "shown in two bursts");
            assert!(again.is_empty() || came.len() == 1, "shown, and did not come");
            shown.extend(again);
            pair.turn();
        }
        assert!(!shown.is_empty() && shown.iter().all(|message| message == b"word"));
    }

    #[test]
    fn a_message_at_once_waits_for_the_handshake_and_is_refused_where_any_is() {
        let mut pair = Pair::open("refused", "");
        let now = pair.clock.now();
        let second = pair.here.connect(pair.there.local_address(), now).unwrap();
        pair.here.send_control_at_once(second, b"early", now).unwrap();
        let mut came = Vec::new();
        for _ in 0..10 {
            came.extend(pair.seen().1);
            pair.turn();
        }
        assert_eq!(came, [b"early"]);
        let (long, most) = (vec![0; crate::endpoint::MAX_CONTROL + 1], vec![0; crate::endpoint::MAX_CONTROL]);
        assert!(pair.here.send_control_at_once(second, &long, now).is_err());
        assert!(pair.here.send_control_at_once(second, &most, now).is_ok());
        assert!(pair.here.send_control_at_once(SessionId::from_u64(u64::MAX), b"x", now).is_err());
    }
}
