//! The bodies of handshake packets.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, MIN_MTU, WireError};

/// What each side tells the other of its limits; each obeys the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Parameters {
    /// Largest datagram it can receive, in bytes. The session uses the smaller of the two.
    pub mtu: U32,
    /// Largest message it accepts, in bytes.
    pub max_message: U32,
    /// Bytes of a message that may be sent without a grant.
    pub unscheduled: U32,
    /// Message slots that the other side may use.
    pub slots: U16,
    /// Zero.
    pub reserved: U16,
    /// Longest it holds back an acknowledgement, in microseconds.
    pub ack_delay: U32,
    /// After how many milliseconds of silence it considers the other side dead.
    pub peer_timeout: U32,
}

impl Parameters {
    fn checked(self) -> Result<Parameters, WireError> {
        if (self.mtu.get() as usize) < MIN_MTU {
            return Err(WireError::Field("MTU"));
        }
        if self.max_message.get() == 0 || self.slots.get() == 0 || self.peer_timeout.get() == 0 {
            return Err(WireError::Field("parameters"));
        }
        Ok(self)
    }
}

/// Client to server. Padded to at least the size of every answer, so that a forged source gains nothing.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// The client's id for the session.
    pub session: U64,
    /// A number that the client's endpoint drew when it started.
    pub incarnation: U64,
    /// The client's limits.
    pub parameters: Parameters,
    /// The challenge's token; 0 in the first hello.
    pub token: U64,
    /// The challenge's time, in the server's own reckoning; 0 in the first hello.
    pub token_time: U64,
}

/// Server to client, as the body of `Welcome` packets; in `Challenge` packets only the token and its time are set.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Welcome {
    /// The server's id for the session.
    pub session: U64,
    /// A number that the server's endpoint drew when it started.
    pub incarnation: U64,
    /// The server's limits.
    pub parameters: Parameters,
    /// Challenge: the token to send back.
    pub token: U64,
    /// Challenge: the time to send back. Welcome: 0.
    pub token_time: U64,
}

/// Why a server refuses a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefuseReason {
    /// Another version of the format; the refusal says which one is spoken here.
    Version = 1,
    /// As many sessions as it may have.
    Full = 2,
    /// Limits that no session can work with.
    Parameters = 3,
}

/// Server to client: the body of `Refuse` packets.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Refusal {
    /// A [`RefuseReason`].
    pub reason: u8,
    /// The version of the format that the server speaks.
    pub version: u8,
    /// Zero.
    pub reserved: [u8; 6],
    /// The client's incarnation, which only who saw the hello knows.
    pub incarnation: U64,
}

impl Refusal {
    /// The reason, `None` for an unknown value.
    pub fn reason(&self) -> Option<RefuseReason> {
        match self.reason {
            1 => Some(RefuseReason::Version),
            2 => Some(RefuseReason::Full),
            3 => Some(RefuseReason::Parameters),
            _ => None,
        }
    }
}

macro_rules! body {
    ($name:ident, $check:expr) => {
        impl $name {
            /// Bytes of a whole packet of this kind.
            pub const PACKET: usize = Header::LEN + size_of::<$name>();

            /// Reads the body of a packet.
            pub fn parse(datagram: &[u8]) -> Result<$name, WireError> {
                let body = datagram.get(Header::LEN..).ok_or(WireError::Short)?;
                let (body, _) = $name::ref_from_prefix(body).map_err(|_| WireError::Short)?;
                let check: fn(&$name) -> Result<(), WireError> = $check;
                check(body)?;
                Ok(*body)
            }

            /// Writes the body to its place in a packet, which must have room for it.
            pub fn emit(&self, datagram: &mut [u8]) {
                datagram[Header::LEN..Self::PACKET].copy_from_slice(self.as_bytes());
            }
        }
    };
}

body!(Hello, |hello| hello.parameters.checked().map(|_| ()));
body!(Welcome, |_| Ok(()));
body!(Refusal, |_| Ok(()));

impl Welcome {
    /// The parameters of a welcome, checked (a challenge's are blank).
    pub fn checked_parameters(&self) -> Result<Parameters, WireError> {
        self.parameters.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_is_longer_than_the_hello_that_causes_it() {
        const { assert!(Hello::PACKET >= Welcome::PACKET && Hello::PACKET >= Refusal::PACKET && Hello::PACKET <= MIN_MTU) }
    }

    #[test]
    fn limits_that_no_session_can_work_with_are_refused() {
        let good = Parameters {
            mtu: U32::new(1400),
            max_message: U32::new(1),
            unscheduled: U32::ZERO,
            slots: U16::new(1),
            reserved: U16::ZERO,
            ack_delay: U32::ZERO,
            peer_timeout: U32::new(1),
        };
        assert!(good.checked().is_ok());
        assert!(Parameters { mtu: U32::new(100), ..good }.checked().is_err());
        assert!(Parameters { slots: U16::ZERO, ..good }.checked().is_err());
        assert!(Parameters { peer_timeout: U32::ZERO, ..good }.checked().is_err());
    }
}
