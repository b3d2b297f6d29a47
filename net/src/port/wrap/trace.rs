//! A port that gives every datagram to `tracing`.

use std::fmt;
use std::io;
use std::sync::Arc;

use tracing::Level;

use crate::frame::Frame;
use crate::port::{Address, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, Purpose};

/// Where the events go: the target of the subscriber's filter.
const TARGET: &str = "tautline::port";

/// Gives every datagram that crosses a port to `tracing`, at level TRACE and target `tautline::port`: direction, both addresses, length and
/// the first bytes. Nothing is formatted while nobody listens.
#[derive(Debug)]
pub struct Trace<P> {
    inner: P,
    local: Address,
}

impl<P: Port> Trace<P> {
    /// Traces `inner`.
    pub fn new(inner: P) -> Trace<P> {
        let local = inner.local_address();
        Trace { inner, local }
    }
}

/// The first bytes of a packet, in hexadecimal.
struct Start<'a>(&'a [u8]);

impl fmt::Display for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(24).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.0.len() > 24 { f.write_str("..") } else { Ok(()) }
    }
}

impl<P: Port> Port for Trace<P> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn local_address(&self) -> Address {
        self.local
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        let before = into.len();
        let count = self.inner.receive(into, max)?;
        if count > 0 && tracing::enabled!(target: TARGET, Level::TRACE) {
            for datagram in &into[before..] {
                let (len, start) = (datagram.frame.len(), Start(&datagram.frame));
                tracing::trace!(target: TARGET, local = %self.local, peer = %datagram.peer, len, start = %start, "received");
            }
        }
        Ok(count)
    }

    fn receive_frames_low(&self) -> bool {
        self.inner.receive_frames_low()
    }

    fn frames_out(&self) -> FramesOut {
        self.inner.frames_out()
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        self.inner.allocate(purpose, into, count)
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        if !burst.is_empty() && tracing::enabled!(target: TARGET, Level::TRACE) {
            for datagram in burst.iter() {
                let (len, start) = (datagram.frame.len(), Start(&datagram.frame));
                tracing::trace!(target: TARGET, local = %self.local, peer = %datagram.peer, len, start = %start, "to send");
            }
        }
        let offered = burst.len();
        let sent = self.inner.transmit(burst)?;
        if !burst.is_empty() {
            let left = burst.len();
            tracing::trace!(target: TARGET, local = %self.local, offered, sent, left, "the device is full");
        }
        Ok(sent)
    }

    fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()> {
        self.inner.attach_wait(registry, token, waker)
    }

    fn prepare_wait(&mut self) -> bool {
        self.inner.prepare_wait()
    }

    fn finish_wait(&mut self) {
        self.inner.finish_wait();
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::field::{Field, Visit};
    use tracing::span;

    use super::*;
    use crate::port::mem::MemPort;

    /// Keeps the text of every event.
    #[derive(Clone, Default)]
    struct Listener(Arc<Mutex<Vec<String>>>);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!("{}={value:?} ", field.name()));
        }
    }

    impl tracing::Subscriber for Listener {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == TARGET
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn both_directions_are_told_with_peer_and_length() {
        let open = |url: &str| Trace::new(MemPort::open(&url.parse().unwrap()).unwrap());
        let listener = Listener::default();
        tracing::subscriber::with_default(listener.clone(), || {
            let (mut a, mut b) = (open("mem://trace-a"), open("mem://trace-b"));
            let mut frames = Vec::new();
            a.allocate(Purpose::Transmit, &mut frames, 1);
            let mut frame = frames.remove(0);
            frame.set_range(0, 3);
            frame.data_mut().copy_from_slice(&[0xab, 0xcd, 0xef]);
            let peer = b.local_address();
            a.transmit(&mut Vec::from([Datagram { frame, peer }])).unwrap();
            b.receive(&mut Vec::new(), 8).unwrap();
        });
        let events = listener.0.lock().unwrap().clone();
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events[0].contains("to send") && events[0].contains("peer=trace-b") && events[0].contains("start=abcdef"));
        assert!(events[1].contains("received") && events[1].contains("peer=trace-a") && events[1].contains("len=3"));
    }
}
