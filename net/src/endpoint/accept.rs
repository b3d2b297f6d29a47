//! How sessions are accepted: nothing is kept of a stranger until it has proven its address, and no answer is longer than its question.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::Endpoint;
use crate::clock::Time;
use crate::port::Address;
use crate::session::{FIRST_PAUSE, Proven, Session};
use crate::wire::{Header, Hello, Kind, MIN_MTU, Parameters, Refusal, RefuseReason, VERSION, Welcome, WireError};

impl Endpoint {
    /// Answers a hello.
    pub(super) fn accept(&mut self, now: Time, packet: &[u8], peer: Address) -> Result<(), WireError> {
        let hello = Hello::parse(packet)?;
        let (session, incarnation) = (hello.session.get(), hello.incarnation.get());
        if session == 0 || incarnation == 0 {
            return Err(WireError::Field("hello"));
        }
        let made = Time::from_nanos(hello.token_time.get());
        let proven = hello.token.get() != 0 && self.tokens.verify(hello.token.get(), peer, session, incarnation, made, now);
        if !proven {
            self.shared.counters.challenges += 1;
            let answer = Welcome {
                token: U64::new(self.tokens.make(peer, session, incarnation, now)),
                token_time: U64::new(now.as_nanos()),
                ..blank()
            };
            self.answer(Kind::Challenge, session, peer, |buffer| {
                answer.emit(buffer);
                Welcome::PACKET
            });
            return Ok(());
        }
        // A repeated hello gets the same session again; a second use of the id by another incarnation is a restart.
        if let Some(known) = self.sessions.by_remote(peer, session)
            && let Some(entry) = self.sessions.get(known)
            && entry.remote_incarnation == incarnation
        {
            self.welcome(known.as_u64(), session, peer);
            return Ok(());
        }
        let known = self.sessions.by_peer(peer);
        // A late copy of a hello from before the peer restarted must not end the session with what runs there now.
        let is_newer = |session: &Session| {
            session.remote_incarnation != 0 && session.remote_incarnation != incarnation && session.proven >= made
        };
        let newer =
            !self.sessions.is_only(peer, incarnation) && known.iter().filter_map(|slot| self.sessions.at(*slot)).any(is_newer);
        if newer {
            self.shared.counters.stray += 1;
            return Ok(());
        }
        if known.len() >= self.shared.config.max_sessions_per_peer {
            self.refuse(RefuseReason::Full, session, incarnation, peer);
            return Ok(());
        }
        let Some(id) = self.sessions.reserve() else {
            self.refuse(RefuseReason::Full, session, incarnation, peer);
            return Ok(());
        };
        let round_trip = Some(now.nanos_since(made).max(1)).filter(|measured| *measured < FIRST_PAUSE);
        let client = Proven { peer, session, incarnation, parameters: hello.parameters, made, round_trip };
        let entry = Session::server(id, &client, now, &mut self.shared);
        self.sessions.fill(id, entry);
        self.supersede(id.slot, now);
        self.welcome(id.as_u64(), session, peer);
        self.schedule(id.slot, now);
        Ok(())
    }

    /// A packet of another version: a hello's sender is told which one is spoken here.
    pub(super) fn refuse_version(&mut self, version: u8, packet: &[u8], peer: Address) {
        // Only what all versions agree on is read: the kind, and where a hello has its session and incarnation.
        if version == 0 || packet.len() < Hello::PACKET || packet[1] != Kind::Hello as u8 {
            return;
        }
        let word =
            |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().expect("eight bytes of a packet longer than a hello"));
        self.refuse(RefuseReason::Version, word(Header::LEN), word(Header::LEN + 8), peer);
    }

    fn welcome(&mut self, own: u64, session: u64, peer: Address) {
        let answer = Welcome {
            session: U64::new(own),
            incarnation: U64::new(self.shared.incarnation),
            parameters: self.shared.parameters,
            ..blank()
        };
        self.answer(Kind::Welcome, session, peer, |buffer| {
            answer.emit(buffer);
            Welcome::PACKET
        });
    }

    fn refuse(&mut self, reason: RefuseReason, session: u64, incarnation: u64, peer: Address) {
        self.shared.counters.refused += 1;
        let refusal = Refusal { reason: reason as u8, version: VERSION, reserved: [0; 6], incarnation: U64::new(incarnation) };
        self.answer(Kind::Refuse, session, peer, |buffer| {
            refusal.emit(buffer);
            Refusal::PACKET
        });
    }

    /// Tells the sender of a packet for an unknown session so, by the packet's own session and number. Never longer than the packet.
    pub(super) fn reset(&mut self, header: &Header, len: usize, peer: Address) {
        if header.session.get() == 0 || len < Header::LEN {
            return;
        }
        self.shared.counters.resets += 1;
        let number = header.number;
        self.answer_with(Header { number, session: header.session, ..Header::new(Kind::Reset) }, peer, |_| Header::LEN);
    }

    fn answer(&mut self, kind: Kind, session: u64, peer: Address, write: impl FnOnce(&mut [u8]) -> usize) {
        self.answer_with(Header { session: U64::new(session), ..Header::new(kind) }, peer, write);
    }

    /// Queues one stateless packet. Without a control frame it is lost, as on the way.
    fn answer_with(&mut self, header: Header, peer: Address, write: impl FnOnce(&mut [u8]) -> usize) {
        let Some(mut frame) = self.departures.control_frame(self.port.as_mut()) else { return };
        let buffer = frame.buffer_mut();
        buffer[..MIN_MTU].fill(0);
        buffer[..Header::LEN].copy_from_slice(header.as_bytes());
        let len = write(buffer);
        frame.set_range(0, len);
        self.departures.push(frame, peer);
    }
}

fn blank() -> Welcome {
    let parameters = Parameters {
        mtu: U32::ZERO,
        max_message: U32::ZERO,
        unscheduled: U32::ZERO,
        slots: 0.into(),
        reserved: 0.into(),
        ack_delay: U32::ZERO,
        peer_timeout: U32::ZERO,
    };
    Welcome { session: U64::ZERO, incarnation: U64::ZERO, parameters, token: U64::ZERO, token_time: U64::ZERO }
}
