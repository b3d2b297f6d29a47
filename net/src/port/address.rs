//! How ports and peers are named: URLs for people, `Address` for packets.

use std::cmp::Ordering;
use std::fmt;
use std::net::{SocketAddr, SocketAddrV6};
use std::str::FromStr;

use zerocopy::{Immutable, IntoBytes};

/// Where a datagram comes from or goes to. Small and `Copy`: it is compared for every packet.
#[derive(Clone, Copy, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::derived_hash_with_manual_eq, reason = "what is equal is the same as if that were derived too")]
pub enum Address {
    /// A UDP address: `udp`, and every Ethernet port.
    Inet(SocketAddr),
    /// A name within this process: `mem` and `sim`.
    Local(LocalName),
}

impl PartialEq for Address {
    /// As a derived one would. That of IPv6 addresses is not part of its callers: what of them is run for every packet is little then.
    #[inline]
    fn eq(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Local(one), Address::Local(other)) => one == other,
            (Address::Inet(SocketAddr::V4(one)), Address::Inet(SocketAddr::V4(other))) => one == other,
            (Address::Inet(SocketAddr::V6(one)), Address::Inet(SocketAddr::V6(other))) => same_v6(one, other),
            _ => false,
        }
    }
}

#[inline(never)]
fn same_v6(one: &SocketAddrV6, other: &SocketAddrV6) -> bool {
    one == other
}

impl Address {
    /// Whether a port at this address can send to `peer`: it is of the same kind, and an IPv4 port reaches no IPv6 address.
    pub fn reaches(self, peer: Address) -> bool {
        match (self, peer) {
            (Address::Inet(SocketAddr::V4(_)), Address::Inet(SocketAddr::V6(_))) => false,
            (Address::Inet(_), Address::Inet(_)) | (Address::Local(_), Address::Local(_)) => true,
            (Address::Inet(_), Address::Local(_)) | (Address::Local(_), Address::Inet(_)) => false,
        }
    }
}

/// A name of 1 to 22 bytes of ASCII letters, digits, `-`, `_` or `.`.
///
/// It is three words, zero after the name's end: it is copied and compared for every packet, and bytes would be slower at both.
#[derive(Clone, Copy, Eq, Hash, IntoBytes, Immutable)]
#[allow(clippy::derived_hash_with_manual_eq, reason = "what is equal is the same as if that were derived too")]
#[repr(C)]
pub struct LocalName([u64; 3]);

impl PartialEq for LocalName {
    /// As a derived one would, but word by word: a name that was just stored as words can't be loaded as more at once.
    #[inline(always)]
    fn eq(&self, other: &LocalName) -> bool {
        let ([a, b, c], [x, y, z]) = (self.0, other.0);
        (a ^ x) | (b ^ y) | (c ^ z) == 0
    }
}

impl LocalName {
    /// Longest name in bytes.
    pub const MAX: usize = 22;

    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<LocalName, AddressError> {
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > Self::MAX || !name.bytes().all(good) {
            return Err(AddressError::Name(name.to_owned()));
        }
        let mut words = [0; 3];
        words.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        Ok(LocalName(words))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let bytes = self.0.as_bytes();
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..len]).unwrap_or("?")
    }
}

impl Ord for LocalName {
    fn cmp(&self, other: &LocalName) -> Ordering {
        self.0.as_bytes().cmp(other.0.as_bytes())
    }
}

impl PartialOrd for LocalName {
    fn partial_cmp(&self, other: &LocalName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The device behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Kernel UDP sockets.
    Udp,
    /// AF_XDP; reserved, there is no such port yet.
    Xdp,
    /// DPDK poll-mode drivers; reserved likewise.
    Dpdk,
    /// RDMA verbs; reserved likewise.
    Rdma,
    /// Rings in one process.
    Mem,
    /// The simulated network.
    Sim,
}

impl Scheme {
    /// The scheme's name in a URL.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Udp => "udp",
            Scheme::Xdp => "xdp",
            Scheme::Dpdk => "dpdk",
            Scheme::Rdma => "rdma",
            Scheme::Mem => "mem",
            Scheme::Sim => "sim",
        }
    }

    fn is_local(self) -> bool {
        matches!(self, Scheme::Mem | Scheme::Sim)
    }
}

/// A port or a peer, as people write it: `udp://10.0.0.1:7000?mtu=1400`, `mem://a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortUrl {
    /// The kind of port.
    pub scheme: Scheme,
    /// The device, where the scheme has one.
    pub device: Option<String>,
    /// The address.
    pub address: Address,
    /// The query's options, in order.
    pub options: Vec<(String, String)>,
}

impl PortUrl {
    /// The value of option `name`, parsed; `default` where it is absent.
    pub fn option<T: FromStr>(&self, name: &str, default: T) -> Result<T, AddressError> {
        match self.options.iter().find(|(key, _)| key == name) {
            None => Ok(default),
            Some((_, value)) => value.parse().map_err(|_| AddressError::Option { option: name.to_owned(), value: value.clone() }),
        }
    }

    /// Refuses options that are not in `known`, so that a misspelt one is not ignored.
    pub fn only_options(&self, known: &[&str]) -> Result<(), AddressError> {
        match self.options.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => Err(AddressError::UnknownOption {
                option: key.clone(),
                scheme: self.scheme.name(),
                known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
            }),
        }
    }
}

impl FromStr for PortUrl {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<PortUrl, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| AddressError::Shape(url.to_owned()))?;
        let scheme = match scheme {
            "udp" => Scheme::Udp,
            "xdp" => Scheme::Xdp,
            "dpdk" => Scheme::Dpdk,
            "rdma" => Scheme::Rdma,
            "mem" => Scheme::Mem,
            "sim" => Scheme::Sim,
            other => return Err(AddressError::Scheme(other.to_owned())),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| AddressError::Shape(url.to_owned()))?;
            if options.iter().any(|(known, _)| known == key) {
                return Err(AddressError::Repeated(key.to_owned()));
            }
            options.push((key.to_owned(), value.to_owned()));
        }
        let (device, host) = match place.rsplit_once('/') {
            Some((device, host)) if !device.is_empty() => (Some(device.to_owned()), host),
            Some(_) => return Err(AddressError::Shape(url.to_owned())),
            None => (None, place),
        };
        let wants_device = matches!(scheme, Scheme::Xdp | Scheme::Dpdk | Scheme::Rdma);
        if device.is_some() && !wants_device {
            return Err(AddressError::Shape(url.to_owned()));
        }
        let address = if scheme.is_local() {
            Address::Local(LocalName::new(host)?)
        } else {
            Address::Inet(host.parse().map_err(|_| AddressError::Socket(host.to_owned()))?)
        };
        Ok(PortUrl { scheme, device, address, options })
    }
}

impl fmt::Display for PortUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme.name())?;
        if let Some(device) = &self.device {
            write!(f, "{device}/")?;
        }
        write!(f, "{}", self.address)?;
        for (n, (key, value)) in self.options.iter().enumerate() {
            write!(f, "{}{key}={value}", if n == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Inet(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.fmt(f),
            Address::Local(name) => f.write_str(name.as_str()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for LocalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is wrong with a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Not `scheme://place?option=value`.
    #[error("`{0}` is not a port URL: write scheme://address, like udp://127.0.0.1:7000 or mem://a")]
    Shape(String),
    /// A scheme that does not exist.
    #[error("`{0}` is not a kind of port: use udp, mem or sim")]
    Scheme(String),
    /// Not an IP address with a port number. Host names are not looked up.
    #[error("`{0}` is not an IP address and port: write it like 10.0.0.1:7000 or [::1]:7000 (host names are not looked up)")]
    Socket(String),
    /// Not a name for a port in this process.
    #[error("`{0}` is not a name: use 1 to 22 letters, digits, `-`, `_` or `.`")]
    Name(String),
    /// An option's value does not parse.
    #[error("option {option}={value} has a value that can't be read")]
    Option {
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// An option is given more than once.
    #[error("option `{0}` is given twice: keep one")]
    Repeated(String),
    /// The address of a peer has port number 0, which nobody can be reached at.
    #[error("{0} can't be a peer: port 0 is for binding to any free port; use the one that the peer says it has")]
    PortZero(SocketAddr),
    /// The address of a peer is the wildcard that a server binds to, from which no packet comes.
    #[error("{0} can't be a peer: it stands for every address of a machine; name the one that the peer is to be called at")]
    Wildcard(SocketAddr),
    /// The URL of a peer has options, which would do nothing.
    #[error("{0} can't be a peer: options belong to the URL that a node is built with; name a peer without any")]
    PeerOptions(Box<PortUrl>),
    /// An option that this kind of port does not have.
    #[error("{scheme} ports have no option `{option}` (known: {known})")]
    UnknownOption {
        /// The option.
        option: String,
        /// The URL's scheme.
        scheme: &'static str,
        /// The options it has.
        known: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_port_reaches_no_ipv6_address_and_no_port_reaches_another_kind() {
        let [four, six, name] =
            ["udp://127.0.0.1:1", "udp://[::1]:1", "mem://a"].map(|url| url.parse::<PortUrl>().unwrap().address);
        assert!(four.reaches(four) && six.reaches(six) && six.reaches(four) && name.reaches(name));
        assert!(!four.reaches(six) && !four.reaches(name) && !name.reaches(four));
    }

    #[test]
    fn urls_of_every_scheme_survive_a_round_trip() {
        for url in [
            "udp://10.0.0.1:7000",
            "udp://[::1]:0?mtu=1400&gso=false",
            "xdp://eth1/10.0.0.1:7000",
            "dpdk://0000:3b:00.0/10.0.0.1:7000?queues=2",
            "rdma://rxe0/10.0.0.1:7000",
            "sim://a",
            "mem://server-1",
        ] {
            assert_eq!(url.parse::<PortUrl>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn each_malformed_url_says_what_to_write() {
        for (url, expected) in [
            ("10.0.0.1:7000", "scheme://address"),
            ("tcp://10.0.0.1:7000", "use udp, mem or sim"),
            ("udp://10.0.0.1", "IP address and port"),
            ("udp://eth0/10.0.0.1:1", "scheme://address"),
            ("mem://", "letters"),
            ("mem://a-name-that-is-far-too-long", "letters"),
            ("udp://10.0.0.1:7000?mtu", "scheme://address"),
            ("udp://10.0.0.1:7000?mtu=1400&gso=1&mtu=9000", "`mtu` is given twice"),
        ] {
            let error = url.parse::<PortUrl>().unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    #[test]
    fn names_keep_their_text_and_sort_by_it() {
        let name = |text: &str| LocalName::new(text).unwrap();
        let longest = "abcdefghijklmnopqrstuv";
        assert_eq!(name(longest).as_str(), longest);
        assert_eq!(name("a"), name("a"));
        let mut names = ["b", "ab", "a.c", "a", "b1"].map(name);
        names.sort();
        assert_eq!(names.map(|name| name.as_str().to_owned()), ["a", "a.c", "ab", "b", "b1"]);
        assert_eq!(size_of::<Address>(), 32);
    }

    #[test]
    fn a_misspelt_option_is_refused() {
        let url: PortUrl = "udp://127.0.0.1:0?mtuu=9".parse().unwrap();
        assert!(url.only_options(&["mtu"]).unwrap_err().to_string().contains("no option `mtuu` (known: mtu)"));
    }
}
