//! Socket addresses as the kernel writes them, to and from [`Address`] without allocation.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::port::Address;

/// Room for a socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// A socket address and its length.
#[derive(Clone, Copy)]
pub(super) struct SocketAddress {
    pub(super) raw: RawAddress,
    pub(super) len: libc::socklen_t,
}

/// Bytes that an address takes at most.
pub(super) const RAW_LEN: libc::socklen_t = size_of::<RawAddress>() as libc::socklen_t;

impl RawAddress {
    /// No address.
    pub(super) const ZERO: RawAddress = RawAddress {
        v6: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    /// What the kernel wrote, `len` bytes of it. IPv4 addresses that an IPv6 socket sees as mapped ones come back as IPv4.
    #[inline]
    pub(super) fn decode(&self, len: libc::socklen_t) -> Option<Address> {
        // SAFETY: both variants begin with the family, and every bit pattern is a valid value of either.
        let family = i32::from(unsafe { self.v4.sin_family });
        match family {
            libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
                // SAFETY: every bit pattern is a valid value, and the family says that it is this variant.
                let raw = unsafe { self.v4 };
                let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                Some(Address::Inet(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)))))
            }
            libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
                // SAFETY: as above.
                let raw = unsafe { self.v6 };
                let (ip, port) = (Ipv6Addr::from(raw.sin6_addr.s6_addr), u16::from_be(raw.sin6_port));
                Some(Address::Inet(match ip.to_ipv4_mapped() {
                    Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
                    // The flow label is the sender's whim, and would make one peer look like many.
                    None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id)),
                }))
            }
            _ => None,
        }
    }
}

impl SocketAddress {
    /// No address: to whom the socket is connected.
    pub(super) const CONNECTED: SocketAddress = SocketAddress { raw: RawAddress::ZERO, len: 0 };

    /// Where the kernel reads it. Null if there is none: to be given one makes it look up the route again.
    #[inline]
    pub(super) fn pointer(&self) -> *const libc::c_void {
        if self.len == 0 { std::ptr::null() } else { (&raw const self.raw).cast() }
    }

    /// The address as a socket of the given family sends to it. `None` if it can't: another family, port 0, or no IP address at all.
    #[inline]
    pub(super) fn encode(address: Address, socket_is_v6: bool) -> Option<SocketAddress> {
        let Address::Inet(address) = address else { return None };
        if address.port() == 0 {
            return None;
        }
        match address {
            SocketAddr::V4(address) if socket_is_v6 => {
                Some(SocketAddress::v6(&SocketAddrV6::new(address.ip().to_ipv6_mapped(), address.port(), 0, 0)))
            }
            SocketAddr::V4(address) => Some(SocketAddress {
                raw: RawAddress {
                    v4: libc::sockaddr_in {
                        sin_family: libc::AF_INET as libc::sa_family_t,
                        sin_port: address.port().to_be(),
                        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                        sin_zero: [0; 8],
                    },
                },
                len: size_of::<libc::sockaddr_in>() as libc::socklen_t,
            }),
            SocketAddr::V6(address) if socket_is_v6 => Some(SocketAddress::v6(&address)),
            SocketAddr::V6(_) => None,
        }
    }

    fn v6(address: &SocketAddrV6) -> SocketAddress {
        SocketAddress {
            raw: RawAddress {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                },
            },
            len: size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::LocalName;

    fn inet(text: &str) -> Address {
        Address::Inet(text.parse().unwrap())
    }

    #[test]
    fn addresses_survive_the_kernels_form() {
        for (address, v6) in [("10.1.2.3:7000", false), ("10.1.2.3:7000", true), ("[fd00::7]:65535", true)] {
            let encoded = SocketAddress::encode(inet(address), v6).unwrap();
            assert_eq!(encoded.raw.decode(encoded.len), Some(inet(address)));
        }
    }

    #[test]
    fn what_a_socket_can_not_send_to_is_refused() {
        assert!(SocketAddress::encode(inet("[::1]:7000"), false).is_none());
        assert!(SocketAddress::encode(inet("10.0.0.1:0"), false).is_none());
        assert!(SocketAddress::encode(Address::Local(LocalName::new("a").unwrap()), true).is_none());
    }

    #[test]
    fn an_address_cut_short_is_none() {
        let encoded = SocketAddress::encode(inet("[fd00::7]:1"), true).unwrap();
        assert_eq!(encoded.raw.decode(encoded.len - 1), None);
        assert_eq!(RawAddress::ZERO.decode(RAW_LEN), None);
    }
}
