//! Wrappers: ports around other ports, for tests and for looking at what happens (after smoltcp's `phy`).
//!
//! Any port's URL takes their options:
//!
//! | option | meaning |
//! |---|---|
//! | `pcap=FILE` | writes every datagram to FILE, for Wireshark or tcpdump ([`Pcap`]) |
//! | `trace=1` | gives every datagram to `tracing`, at level TRACE ([`Trace`]) |
//! | `loss=P`, `dup=P`, `reorder=P`, `corrupt=P` | injects faults with probability P, each way ([`Fault`]) |
//! | `seed=N` | the faults' seed; 0 by default |
//!
//! The capture is next to the device and shows what the wire carries; faults come after it; the trace is next to the protocol and
//! shows what that sends and gets.

use super::{Port, PortError, PortUrl, Scheme};
use crate::clock::Clock;

mod fault;
mod pcap;
mod trace;

pub use fault::{Fault, FaultConfig, FaultCounters};
pub use pcap::Pcap;
pub use trace::Trace;

const OPTIONS: &[&str] = &["pcap", "trace", "loss", "dup", "reorder", "corrupt", "seed"];

/// The wrappers that a URL asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wrappers {
    pcap: Option<String>,
    trace: bool,
    fault: Option<FaultConfig>,
}

/// Parts a URL into the device's own and the wrappers around it. Refuses options that neither knows.
pub(super) fn split(url: &PortUrl) -> Result<(PortUrl, Wrappers), PortError> {
    let own = match url.scheme {
        Scheme::Udp => super::udp::OPTIONS,
        Scheme::Mem => super::mem::OPTIONS,
        Scheme::Sim => super::sim::OPTIONS,
        // That there is no such port comes before what its options would be.
        Scheme::Xdp | Scheme::Dpdk | Scheme::Rdma => return Err(PortError::NotBuilt { scheme: url.scheme.name().to_owned() }),
    };
    url.only_options(&[own, OPTIONS].concat())?;
    let fault = FaultConfig {
        seed: seed(url)?,
        loss: probability(url, "loss")?,
        duplicate: probability(url, "dup")?,
        reorder: probability(url, "reorder")?,
        corrupt: probability(url, "corrupt")?,
    };
    let wrappers = Wrappers {
        pcap: url.options.iter().find(|(key, _)| key == "pcap").map(|(_, path)| path.clone()),
        trace: switch(url, "trace", false)?,
        fault: fault.is_active().then_some(fault),
    };
    let mut device = url.clone();
    device.options.retain(|(key, _)| own.contains(&key.as_str()));
    Ok((device, wrappers))
}

impl Wrappers {
    /// Puts the wrappers around `port`.
    pub(super) fn apply(self, mut port: Box<dyn Port>, clock: &Clock) -> Result<Box<dyn Port>, PortError> {
        if let Some(path) = &self.pcap {
            port = Box::new(Pcap::create(port, path, clock.clone())?);
        }
        if let Some(fault) = self.fault {
            port = Box::new(Fault::new(port, fault));
        }
        if self.trace {
            port = Box::new(Trace::new(port));
        }
        Ok(port)
    }
}

/// Reads a yes-or-no option: `1`, `true`, `on` or `0`, `false`, `off`.
pub(super) fn switch(url: &PortUrl, name: &str, default: bool) -> Result<bool, PortError> {
    let value: String = url.option(name, if default { "1" } else { "0" }.to_owned())?;
    match value.as_str() {
        "1" | "true" | "on" => Ok(true),
        "0" | "false" | "off" => Ok(false),
        _ => Err(refused(name, value, "use 1, true or on, or 0, false or off")),
    }
}

fn probability(url: &PortUrl, name: &str) -> Result<f64, PortError> {
    let value: String = url.option(name, "0".to_owned())?;
    match value.parse() {
        Ok(probability) if (0.0..=1.0).contains(&probability) => Ok(probability),
        _ => Err(refused(name, value, "use a probability, 0 to 1")),
    }
}

fn seed(url: &PortUrl) -> Result<u64, PortError> {
    let value: String = url.option("seed", "0".to_owned())?;
    value.parse().map_err(|_| refused("seed", value, "use a whole number of up to 64 bits"))
}

fn refused(option: &str, value: String, reason: &str) -> PortError {
    PortError::Option { option: option.to_owned(), value, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(url: &str) -> Result<(PortUrl, Wrappers), PortError> {
        split(&url.parse().unwrap())
    }

    #[test]
    fn a_url_is_parted_into_device_and_wrappers() {
        let (device, wrappers) = parts("mem://a?mtu=512&loss=0.25&pcap=x.pcap&seed=9&trace=on").unwrap();
        assert_eq!(device.to_string(), "mem://a?mtu=512");
        assert_eq!(wrappers.pcap.as_deref(), Some("x.pcap"));
        assert!(wrappers.trace);
        assert_eq!(wrappers.fault.map(|fault| (fault.loss, fault.seed)), Some((0.25, 9)));
        let (_, plain) = parts("mem://a").unwrap();
        assert_eq!(plain, Wrappers { pcap: None, trace: false, fault: None });
    }

    #[test]
    fn options_that_nobody_knows_and_values_that_make_no_sense_are_refused() {
        for (url, expected) in [
            ("mem://a?gso=1", "mem ports have no option `gso` (known: mtu, slots, peers, frames, pcap"),
            ("mem://a?loss=2", "loss=2: use a probability, 0 to 1"),
            ("mem://a?loss=NaN", "use a probability"),
            ("mem://a?loss=often", "loss=often: use a probability"),
            ("mem://a?trace=maybe", "trace=maybe: use 1, true or on"),
            ("mem://a?seed=x", "seed=x: use a whole number"),
        ] {
            let error = parts(url).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }
}
