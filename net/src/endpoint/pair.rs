//! Two endpoints with a session between them, for tests.

use super::{Endpoint, EndpointConfig, SessionId};
use crate::clock::{Clock, Time};
use crate::port;

pub(super) struct Pair {
    pub(super) clock: Clock,
    pub(super) here: Endpoint,
    pub(super) there: Endpoint,
    pub(super) session: SessionId,
}

impl Pair {
    /// Two endpoints with a session from `here` to `there`; `options` are those of the first one's port.
    pub(super) fn open(name: &str, options: &str) -> Pair {
        Pair::open_both(name, [options, ""])
    }

    /// The same, with the options of each one's port.
    pub(super) fn open_both(name: &str, options: [&str; 2]) -> Pair {
        let clock = Clock::virtual_at(Time::from_nanos(1_000_000));
        let endpoint = |url: String| {
            let config = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
            Endpoint::new(port::open(&url.parse().unwrap(), &clock).unwrap(), config, clock.now())
        };
        let mut here = endpoint(format!("mem://pair-{name}-here{}", options[0]));
        let there = endpoint(format!("mem://pair-{name}-there{}", options[1]));
        let session = here.connect(there.local_address(), clock.now()).unwrap();
        let mut pair = Pair { clock, here, there, session };
        while !pair.here.is_established(session) {
            pair.turn();
            pair.there.poll(pair.clock.now());
        }
        pair.turn();
        pair
    }

    pub(super) fn turn(&mut self) {
        self.clock.advance_to(self.clock.now().plus_nanos(1_000_000));
        let now = self.clock.now();
        self.here.poll(now);
        self.here.flush(now);
        self.there.flush(now);
    }
}
