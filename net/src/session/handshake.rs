//! The client's half of the handshake: hello, challenge, hello with token, welcome. Each is repeated with doubling pauses until answered.

use zerocopy::little_endian::U64;

use super::{Handled, Session, Shared};
use crate::clock::Time;
use crate::endpoint::{CloseReason, SessionId};
use crate::frame::Frame;
use crate::port::Address;
use crate::wire::{Header, Hello, Kind, Parameters, Refusal, RefuseReason, Welcome, WireError};

/// First pause before a hello is repeated, in nanoseconds; nothing is known of the path yet.
pub(crate) const FIRST_PAUSE: u64 = 5_000_000;
/// Longest pause.
const LONGEST_PAUSE: u64 = 640_000_000;

/// A client whose hello carried a good token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proven {
    pub(crate) peer: Address,
    /// Its id for the session.
    pub(crate) session: u64,
    pub(crate) incarnation: u64,
    pub(crate) parameters: Parameters,
    /// When its challenge was made.
    pub(crate) made: Time,
    /// From the challenge to its answer, in nanoseconds; `None` where a repeated hello may have stretched it.
    pub(crate) round_trip: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Opening {
    deadline: Time,
    /// When the next hello leaves.
    next: Time,
    pause: u64,
    /// When the latest hello left, if it was the first of its kind (so that its answer measures the round trip).
    sent: Option<Time>,
    hellos: u32,
    token: u64,
    token_time: u64,
}

impl Opening {
    pub(super) fn new(now: Time, shared: &Shared) -> Opening {
        let deadline = now + shared.config.connect_timeout;
        Opening { deadline, next: now, pause: FIRST_PAUSE, sent: None, hellos: 0, token: 0, token_time: 0 }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.next <= now
    }

    pub(super) fn due(&self) -> Time {
        self.next.min(self.deadline)
    }

    pub(super) fn expired(&self, now: Time) -> bool {
        now >= self.deadline
    }

    pub(super) fn emit(&mut self, now: Time, frame: &mut Frame, id: SessionId, shared: &Shared) -> bool {
        if !self.is_due(now) {
            return false;
        }
        self.next = now.plus_nanos(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.sent = (self.hellos == 0).then_some(now);
        self.hellos += 1;
        let buffer = frame.buffer_mut();
        buffer[..Hello::PACKET].fill(0);
        Header::new(Kind::Hello).emit(buffer);
        let hello = Hello {
            session: U64::new(id.as_u64()),
            incarnation: U64::new(shared.incarnation),
            parameters: shared.parameters,
            token: U64::new(self.token),
            token_time: U64::new(self.token_time),
        };
        hello.emit(buffer);
        frame.set_range(0, Hello::PACKET);
        true
    }

    fn challenged(&mut self, now: Time, challenge: &Welcome) {
        self.token = challenge.token.get();
        self.token_time = challenge.token_time.get();
        self.next = now;
        self.pause = FIRST_PAUSE;
        self.hellos = 0;
    }
}

impl Session {
    /// Takes an answer to a hello.
    pub(crate) fn receive_answer(
        &mut self,
        now: Time,
        kind: Kind,
        packet: &[u8],
        shared: &mut Shared,
    ) -> Result<Handled, WireError> {
        let Some(opening) = &mut self.opening else {
            // A second welcome: the first one's hello had been repeated.
            shared.counters.duplicate_packets += 1;
            return Ok(Handled::Open);
        };
        match kind {
            Kind::Challenge => {
                let challenge = Welcome::parse(packet)?;
                // A second one with another token: the first was too old, or its server restarted.
                if opening.token != challenge.token.get() {
                    opening.challenged(now, &challenge);
                    self.last_heard = now;
                }
                Ok(Handled::Open)
            }
            Kind::Welcome => {
                let welcome = Welcome::parse(packet)?;
                let parameters = welcome.checked_parameters()?;
                if opening.token == 0 || welcome.session.get() == 0 {
                    return Err(WireError::Field("welcome"));
                }
                let round_trip = opening.sent.map(|sent| now.nanos_since(sent));
                self.last_heard = now;
                self.proven = now;
                self.establish(welcome.session.get(), welcome.incarnation.get(), &parameters, round_trip, shared);
                Ok(Handled::Open)
            }
            Kind::Refuse => {
                let refusal = Refusal::parse(packet)?;
                if refusal.incarnation.get() != shared.incarnation {
                    return Err(WireError::Field("refusal"));
                }
                let reason = match refusal.reason() {
                    Some(RefuseReason::Version) => CloseReason::Version(refusal.version),
                    Some(RefuseReason::Full) => CloseReason::Refused,
                    Some(RefuseReason::Parameters) | None => CloseReason::Protocol,
                };
                Ok(self.finish(reason, shared))
            }
            _ => Err(WireError::Kind(kind as u8)),
        }
    }
}
