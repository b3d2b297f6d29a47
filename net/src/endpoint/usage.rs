//! What an endpoint has in use: gauges to watch, and to find at rest what was not given back.

use super::Endpoint;
use crate::port::FramesOut;

/// What an endpoint has in use now. With nobody sending, all but sessions, kept memory and frames comes back to zero; of
/// frames, port and endpoint keep some at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointUsage {
    /// Sessions, those opening and closing included.
    pub sessions: usize,
    /// Messages accepted for sending and not acknowledged: control messages, and those that wait for a slot, included.
    pub sending: usize,
    /// Incoming messages that are not complete, those told to wait included.
    pub receiving: usize,
    /// Bytes held for sending.
    pub send_bytes: usize,
    /// Bytes held for incoming messages that are not complete.
    pub reassembly_bytes: usize,
    /// Bytes of memory kept for incoming messages to come, of messages that are over: at most 32 MiB. At rest it stays.
    pub kept_bytes: usize,
    /// Frames of the port's pools that are out.
    pub frames: FramesOut,
}

impl Endpoint {
    /// What is in use now. It looks at every session.
    pub fn usage(&self) -> EndpointUsage {
        let mut usage = EndpointUsage {
            sessions: self.session_count(),
            send_bytes: self.send_bytes(),
            reassembly_bytes: self.reassembly_bytes(),
            kept_bytes: self.shared.budget.kept(),
            frames: self.port.frames_out(),
            sending: self.pen.messages(),
            ..EndpointUsage::default()
        };
        for session in self.sessions.iter() {
            let (sending, receiving) = session.messages();
            usage.sending += sending;
            usage.receiving += receiving;
        }
        usage
    }
}
