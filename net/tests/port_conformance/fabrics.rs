//! The kinds of port that the suite runs on.

use std::net::UdpSocket;

/// A kind of port.
pub(crate) struct Fabric {
    /// Its name in the output.
    pub(crate) name: &'static str,
    /// Scheme of its URLs.
    pub(crate) scheme: &'static str,
    /// What follows the scheme, where that is an address that any number of ports can be opened on; empty: each gets a name.
    pub(crate) address: &'static str,
    /// Options of every port.
    pub(crate) options: &'static str,
    /// Options that make a port able to hold few packets only.
    pub(crate) shallow: &'static str,
    /// Whether a thread can sleep until a packet arrives.
    pub(crate) sleeps: bool,
    /// Whether the machine has it; if not, why not.
    pub(crate) check: fn() -> Result<(), String>,
}

/// Every kind. Ports with devices of their own join here.
pub(crate) const ALL: &[Fabric] = &[
    Fabric { name: "udp (IPv4)", ..UDP },
    Fabric { name: "udp (IPv6)", address: "[::1]:0", check: ipv6, ..UDP },
    Fabric { name: "udp (no segmentation)", options: "gso=0&gro=0", ..UDP },
    Fabric { name: "udp (large datagrams)", options: "mtu=65507&frames=256", ..UDP },
    Fabric { name: "udp (traced, captured)", options: "trace=1&pcap=/dev/null", ..UDP },
    Fabric { name: "mem", ..MEM },
    Fabric { name: "mem (captured)", options: "pcap=/dev/null", ..MEM },
    Fabric { name: "mem (reordering)", options: "reorder=0.2&seed=7", ..MEM },
    Fabric { name: "sim", ..SIM },
    Fabric { name: "sim (traced)", options: "trace=1", ..SIM },
];

const UDP: Fabric = Fabric {
    name: "",
    scheme: "udp",
    address: "127.0.0.1:0",
    options: "",
    shallow: "rcvbuf=65536",
    sleeps: true,
    check: || bindable("127.0.0.1:0"),
};

const MEM: Fabric =
    Fabric { name: "", scheme: "mem", address: "", options: "", shallow: "slots=16", sleeps: true, check: || Ok(()) };

const SIM: Fabric = Fabric { name: "", scheme: "sim", address: "", options: "", shallow: "", sleeps: false, check: || Ok(()) };

fn ipv6() -> Result<(), String> {
    bindable("[::1]:0")
}

fn bindable(address: &str) -> Result<(), String> {
    UdpSocket::bind(address).map(drop).map_err(|error| format!("{address} can't be bound: {error}"))
}
