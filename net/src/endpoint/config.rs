//! An endpoint's limits. Every queue and pool has one.

use std::time::Duration;

use crate::session::SOONEST;

/// The limits of an [`Endpoint`](super::Endpoint). Start from the default and change what you must.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Largest message accepted, in bytes; larger ones are refused by the sender's `send`. Default 64 MiB.
    pub max_message: usize,
    /// Sessions at once, both directions together. Default 65,536.
    pub max_sessions: usize,
    /// Sessions at once with one peer address. Default 64.
    pub max_sessions_per_peer: usize,
    /// Messages under way at once in a session and direction; small ones that share a packet count as one. Default 1,024.
    pub message_slots: u16,
    /// Messages that wait in a session for a slot, beyond which `send` answers `Full`. Default 16,384.
    pub send_queue: usize,
    /// Bytes of large messages that a session holds for sending, beyond which `send` answers `Full`. One message of any allowed size is
    /// always accepted. Default 256 MiB.
    pub send_bytes: usize,
    /// The same for all sessions together. A session whose peer has not taken a long message promptly of late is refused from half of it on, others
    /// from three quarters; who holds little (4 KiB with the defaults) finds room. So make it
    /// twice [`max_message`](EndpointConfig::max_message) at least, or the largest go only while nobody holds anything. Default 1 GiB.
    pub send_bytes_total: usize,
    /// Bytes of a message that its sender may send before it is granted more. When many peers begin messages at once, all of that may meet in
    /// one switch's queue: then each is told to send less, so that they send about as much together. Default 16 KiB.
    pub unscheduled: usize,
    /// How far grants run ahead of what was received at most, a message. That far they run while one peer sends alone; beside others an eighth of
    /// it, and further where the round trip at the rate of what arrives needs it. While small messages compete with several peers' long ones,
    /// all messages together have a sixteenth of it, or more where the path holds more, and less where the path's delay shows a queue. Default
    /// 256 KiB.
    pub grant_window: usize,
    /// Incoming messages that hold grants at once ("overcommitment", Homa section 3.5). Default 2.
    pub overcommit: usize,
    /// Bytes of incomplete incoming messages held at once, all sessions together. Messages that do not fit are told to
    /// wait until others are complete, and one session has a quarter of it at most. Sessions that have not finished a long message yet, or let
    /// one stand still, share half of it. Default 512 MiB, at least one message.
    pub reassembly_bytes: usize,
    /// Bytes of data in flight in a session and direction, up to 512 MiB. Default 512 KiB.
    pub window: usize,
    /// Longest that an acknowledgement waits for a packet to ride on, 50 us to 10 ms. Default 100 us.
    pub ack_delay: Duration,
    /// Silence after which a peer counts as dead. Default 3 s.
    pub peer_timeout: Duration,
    /// How long a handshake may take. Default 5 s.
    pub connect_timeout: Duration,
    /// Most packets taken from the port by one `poll`. Default 64.
    pub burst: usize,
    /// Seed of session ids, incarnation and tokens, for tests that repeat; `None` (the default) draws them from the operating system.
    pub seed: Option<u64>,
}

impl Default for EndpointConfig {
    fn default() -> EndpointConfig {
        EndpointConfig {
            max_message: 64 << 20,
            max_sessions: 65_536,
            max_sessions_per_peer: 64,
            message_slots: 1024,
            send_queue: 16_384,
            send_bytes: 256 << 20,
            send_bytes_total: 1 << 30,
            unscheduled: 16 << 10,
            grant_window: 256 << 10,
            overcommit: 2,
            reassembly_bytes: 512 << 20,
            window: 512 << 10,
            ack_delay: Duration::from_micros(100),
            peer_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            burst: 64,
            seed: None,
        }
    }
}

impl EndpointConfig {
    /// The configuration with every value inside the range that works; the protocol's fields are 32 bits wide.
    pub(crate) fn clamped(mut self) -> EndpointConfig {
        self.max_message = self.max_message.clamp(1, u32::MAX as usize);
        self.max_sessions = self.max_sessions.clamp(1, 1 << 24);
        self.message_slots = self.message_slots.clamp(CONTROL_SLOTS + 1, u16::MAX - CONTROL_SLOTS);
        self.unscheduled = self.unscheduled.clamp(1, u32::MAX as usize);
        self.grant_window = self.grant_window.max(64 << 10);
        self.overcommit = self.overcommit.max(1);
        self.reassembly_bytes = self.reassembly_bytes.max(self.max_message);
        self.window = self.window.max(16 << 10);
        self.ack_delay = self.ack_delay.clamp(Duration::from_nanos(SOONEST), Duration::from_millis(10));
        self.peer_timeout = self.peer_timeout.clamp(Duration::from_millis(1), Duration::from_secs(86_400));
        self.connect_timeout = self.connect_timeout.clamp(Duration::from_millis(1), Duration::from_secs(86_400));
        self.burst = self.burst.clamp(1, 1024);
        self
    }
}

/// Message slots of every session that only control messages use, so that data never holds them up.
pub(crate) const CONTROL_SLOTS: u16 = 64;
