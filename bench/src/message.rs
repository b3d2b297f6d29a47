//! The messages under the calls, as a ping-pong: shows how much of a call's time is the session's and how much the call's.

use tautline_net::class::Class;
use tautline_net::clock::Clock;
use tautline_net::endpoint::{Endpoint, EndpointConfig, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::{Address, PortUrl, open};

use crate::duo::{Serve, Stage};
use crate::error::BenchError;
use crate::floor::{PAYLOAD, PingPong, spin_for};

/// One end that sends messages and one that returns them.
fn endpoint(url: &PortUrl, clock: &Clock, config: EndpointConfig) -> Result<Endpoint, BenchError> {
    let port = open(url, clock).map_err(BenchError::product("opening a port"))?;
    Ok(Endpoint::new(port, config, clock.now()))
}

/// The client's end.
pub struct MessageClient {
    endpoint: Endpoint,
    session: SessionId,
    clock: Clock,
}

impl MessageClient {
    /// A client at `url` of the echo at `server`. The session opens with the first ping.
    pub fn connect(url: &PortUrl, server: Address, clock: Clock) -> Result<MessageClient, BenchError> {
        let mut endpoint = endpoint(url, &clock, EndpointConfig::default())?;
        let session = endpoint.connect(server, clock.now()).map_err(BenchError::product("opening a session"))?;
        Ok(MessageClient { endpoint, session, clock })
    }
}

impl PingPong for MessageClient {
    fn ping(&mut self) -> Result<(), BenchError> {
        let ping = Payload::copy_from(&[7; PAYLOAD]);
        let now = self.clock.now();
        let sent = self.endpoint.send(self.session, Class::Normal, &[], ping, 0, now);
        sent.map_err(BenchError::product("sending a message"))?;
        self.endpoint.flush(now);
        spin_for("the message echo", &self.clock, || {
            let now = self.clock.now();
            self.endpoint.poll(now);
            let mut answered = None;
            while let Some(event) = self.endpoint.next_event() {
                match event {
                    Event::Message { payload, .. } if payload.len() == PAYLOAD => answered = Some(()),
                    Event::Closed { reason, .. } => {
                        return Err(BenchError::Product { action: "the message session ended", why: format!("{reason:?}") });
                    }
                    _ => {}
                }
            }
            self.endpoint.flush(now);
            Ok(answered)
        })
    }
}

/// The server's end: sends back what it receives.
pub struct MessageEcho {
    endpoint: Endpoint,
    clock: Clock,
}

impl MessageEcho {
    /// An echo at `url`.
    pub fn open(url: &PortUrl, clock: Clock) -> Result<MessageEcho, BenchError> {
        MessageEcho::with(url, clock, EndpointConfig::default())
    }

    /// An echo with limits of its own.
    pub fn with(url: &PortUrl, clock: Clock, config: EndpointConfig) -> Result<MessageEcho, BenchError> {
        Ok(MessageEcho { endpoint: endpoint(url, &clock, config)?, clock })
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        self.endpoint.local_address()
    }
}

impl Serve for MessageEcho {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        while !stage.over() {
            let now = self.clock.now();
            self.endpoint.poll(now);
            while let Some(event) = self.endpoint.next_event() {
                if let Event::Message { session, class, payload } = event {
                    let sent = self.endpoint.send(session, class, &[], payload, 0, now);
                    sent.map_err(BenchError::product("returning a message"))?;
                }
            }
            self.endpoint.flush(now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duo::Duo;
    use crate::floor::sample;

    #[test]
    fn every_message_comes_back() {
        let clock = Clock::tsc();
        let core = crate::pin::allowed().unwrap()[0];
        let theirs = clock.clone();
        let (mut duo, address) = Duo::start(core, move || {
            let echo = MessageEcho::open(&"mem://bench-message-echo".parse().expect("a literal URL"), theirs)?;
            let address = echo.address();
            Ok((vec![Box::new(echo) as Box<dyn Serve>], address))
        })
        .unwrap();
        let url = "mem://bench-message-client".parse().unwrap();
        let mut client = MessageClient::connect(&url, address, clock.clone()).unwrap();
        let samples = duo.during(0, || sample(&clock, 1, 20, &mut client)).unwrap();
        assert_eq!(samples.count(), 20);
    }
}
