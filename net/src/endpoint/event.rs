//! What an endpoint tells its owner, and what it can answer to a request.

use std::time::Duration;

use crate::class::Class;
use crate::payload::Payload;
use crate::port::Address;

/// A session of one endpoint: a slot, and how often that slot was used. An id is never reused, so a stale one is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl SessionId {
    /// The slot: small and dense, fit to index a table.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The id as one number: the slot in the low half.
    pub const fn as_u64(self) -> u64 {
        self.slot as u64 | (self.generation as u64) << 32
    }

    /// The id that [`SessionId::as_u64`] made a number of.
    pub const fn from_u64(id: u64) -> SessionId {
        SessionId { slot: id as u32, generation: (id >> 32) as u32 }
    }
}

/// A message that a session is sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(pub(crate) u64);

impl MessageId {
    /// The id as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The id that [`MessageId::as_u64`] made a number of.
    pub const fn from_u64(id: u64) -> MessageId {
        MessageId(id)
    }
}

/// What happened, from [`Endpoint::next_event`](super::Endpoint::next_event).
#[derive(Debug)]
pub enum Event {
    /// A session's handshake is complete.
    Established {
        /// The session.
        session: SessionId,
        /// The other side's address, proven.
        peer: Address,
        /// Whether the other side opened it.
        incoming: bool,
    },
    /// A message arrived, whole, at most once.
    Message {
        /// The session.
        session: SessionId,
        /// The class that its sender gave it.
        class: Class,
        /// The bytes.
        payload: Payload,
    },
    /// A control message arrived, at most once.
    Control {
        /// The session.
        session: SessionId,
        /// The bytes.
        payload: Payload,
    },
    /// Before `Closed`, for each message that the other side did not acknowledge.
    Undelivered {
        /// The session.
        session: SessionId,
        /// The token given to `send`.
        token: u64,
        /// Whether any of it left this endpoint: `false` means that the other side can't have seen it.
        transmitted: bool,
    },
    /// A session is over. It is the last event of its session.
    Closed {
        /// The session.
        session: SessionId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed here")]
    Local,
    /// The other side closed it.
    #[error("closed by the peer")]
    Remote,
    /// Nothing was heard from the other side for the peer time-out.
    #[error("the peer went silent")]
    PeerDead,
    /// The other side restarted and no longer knows the session.
    #[error("the peer restarted")]
    PeerRestarted,
    /// The other side has no room for another session.
    #[error("refused: the peer has as many sessions as it may")]
    Refused,
    /// The other side speaks another version of the packet format.
    #[error("refused: the peer speaks version {0} of the protocol, and this is version {ours}", ours = crate::wire::VERSION)]
    Version(u8),
    /// The handshake got no answer.
    #[error("no answer: nothing is listening there, or nothing gets through")]
    TimedOut,
    /// The other side broke the protocol.
    #[error("the peer broke the protocol")]
    Protocol,
}

/// Why a message could not be taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The session has ended, or never was.
    #[error("the session has ended")]
    UnknownSession,
    /// The message is longer than one side accepts.
    #[error("message of {len} bytes: the limit is {limit}")]
    TooLarge {
        /// Its length in bytes.
        len: usize,
        /// The smaller of both sides' limits.
        limit: usize,
    },
    /// The session's queue is full: wait for replies, then try again.
    #[error("the session's send queue is full")]
    Full,
}

/// Why a session could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// As many sessions as the configuration allows.
    #[error("{limit} sessions are open, the most that `max_sessions` allows")]
    TooManySessions {
        /// The limit.
        limit: usize,
    },
    /// The address is of another kind than the port's, or an IPv6 address where that is IPv4.
    #[error("{peer} can't be reached from a port of this kind and address family")]
    WrongKind {
        /// The address asked for.
        peer: Address,
    },
}

/// A session's measured round trip (RFC 6298's smoothing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// Smoothed mean.
    pub smoothed: Duration,
    /// Smoothed mean deviation.
    pub variation: Duration,
    /// Smallest seen.
    pub minimum: Duration,
}

/// What an endpoint counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Packets received and taken.
    pub packets_received: u64,
    /// Packets built and handed to the port.
    pub packets_sent: u64,
    /// Whole messages delivered to the owner.
    pub messages_received: u64,
    /// Messages accepted for sending.
    pub messages_sent: u64,
    /// Dropped: cut short, unknown version or kind, wrong checksum, impossible fields.
    pub malformed: u64,
    /// Dropped: for a session that is not known here, or from another address than the session's.
    pub stray: u64,
    /// Dropped: a packet number seen before, or too old to tell.
    pub duplicate_packets: u64,
    /// Ignored: data that was there already, sent again.
    pub duplicate_data: u64,
    /// Fragments dropped for want of reassembly memory; their messages were told to wait.
    pub deferred: u64,
    /// Fragments sent again.
    pub retransmitted: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Probe time-outs.
    pub probes: u64,
    /// Handshakes refused.
    pub refused: u64,
    /// Resets sent for unknown sessions.
    pub resets: u64,
    /// Hellos that carried no valid token and were answered by a challenge.
    pub challenges: u64,
    /// Failures of the port's calls.
    pub port_errors: u64,
}
