//! The address of an interface of this host.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// An IP address of this host, without a port. A link-local IPv6 address includes its scope.
///
/// A link-local address identifies an interface only together with its scope, as in `fe80::1%eth0`.
/// Every host numbers its scopes differently.
///
/// ```
/// use unisono::Interface;
///
/// let loopback: Interface = "127.0.0.1".parse()?;
/// assert_eq!(loopback, std::net::IpAddr::from([127, 0, 0, 1]).into());
/// assert!("host0".parse::<Interface>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interface(SocketAddr);

impl Interface {
    /// Returns the interface of a socket, from the address of its own end.
    pub(crate) fn of(mut address: SocketAddr) -> Self {
        address.set_port(0);
        Self(address)
    }

    /// Returns the IP address, without its scope.
    pub fn ip(self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the address of a port of this interface.
    pub fn at_port(self, port: u16) -> SocketAddr {
        let mut address = self.0;
        address.set_port(port);
        address
    }
}

impl From<IpAddr> for Interface {
    fn from(address: IpAddr) -> Self {
        Self::of((address, 0).into())
    }
}

impl FromStr for Interface {
    type Err = String;

    /// Parses an IP address, which may end with `%` and the name or number of its scope.
    fn from_str(text: &str) -> Result<Self, String> {
        parse_ip(text, 0).map(Self::of).ok_or_else(|| "not an IP address".to_owned())
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V6(address) if address.scope_id() > 0 => {
                write!(f, "{}%{}", address.ip(), address.scope_id())
            }
            address => write!(f, "{}", address.ip()),
        }
    }
}

/// Parses an IP address, which may have a scope, with a port. The result is `None` for host names.
pub(crate) fn parse_ip(text: &str, port: u16) -> Option<SocketAddr> {
    let (ip, scope) = text.split_once('%').map_or((text, None), |(ip, scope)| (ip, Some(scope)));
    let ip: IpAddr = ip.parse().ok()?;
    match scope {
        None => Some((ip, port).into()),
        // The system looks up the name of the scope. It sends no packet for the address.
        Some(_) if ip.is_ipv6() => (text, port).to_socket_addrs().ok()?.next(),
        Some(_) => None,
    }
}

/// Returns an address that another host or rank has sent. If the address and `own_end` are
/// link-local, the result has the scope of `own_end`, because scopes of other hosts mean nothing on
/// this host.
pub(crate) fn on_own_link(address: SocketAddr, own_end: SocketAddr) -> SocketAddr {
    match (address, own_end) {
        (SocketAddr::V6(mut address), SocketAddr::V6(own_end))
            if address.ip().is_unicast_link_local() && own_end.scope_id() > 0 =>
        {
            address.set_scope_id(own_end.scope_id());
            address.into()
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_keeps_the_scope_of_a_link_local_address() {
        for text in ["127.0.0.1", "::1", "fe80::1", "fe80::1%1"] {
            let interface: Interface = text.parse().expect(text);
            assert_eq!(interface.to_string(), text);
            assert_eq!(Interface::of(interface.at_port(7)), interface);
        }
        let named: Interface = "fe80::1%lo".parse().expect("loopback is there");
        assert_eq!(named.to_string(), "fe80::1%1");
        assert_eq!(named.at_port(7).to_string(), "[fe80::1%1]:7");
        for text in ["", "host", "1.2.3.4%1", "1.2.3.4:7", "fe80::1%no-such-link"] {
            assert!(text.parse::<Interface>().is_err(), "{text}");
        }
    }

    #[test]
    fn scope_of_another_host_becomes_the_own_one() {
        let parse = |text: &str| text.parse::<SocketAddr>().expect(text);
        let own_address = parse("[fe80::9%3]:1");
        assert_eq!(on_own_link(parse("[fe80::1%7]:5"), own_address), parse("[fe80::1%3]:5"));
        for other in ["10.0.0.1:5", "[2001:db8::1]:5"] {
            assert_eq!(on_own_link(parse(other), own_address), parse(other));
        }
        assert_eq!(on_own_link(parse("[fe80::1%7]:5"), parse("10.0.0.1:5")), parse("[fe80::1%7]:5"));
    }
}
