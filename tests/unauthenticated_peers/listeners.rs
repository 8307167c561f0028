//! Addresses at which this process listens, from the tables of the kernel.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns the addresses of all listening TCP sockets of this process.
pub(crate) fn listening_addresses() -> Vec<SocketAddr> {
    let sockets = own_sockets();
    let mut found: Vec<SocketAddr> =
        ["tcp", "tcp6"].into_iter().flat_map(|table| listed(table, &sockets)).collect();
    found.sort_unstable();
    found
}

/// Returns the inode numbers of the sockets of this process.
fn own_sockets() -> HashSet<String> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let target = fds.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.to_str()?.to_owned()));
    target.filter_map(|text| Some(text.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect()
}

fn listed(table: &str, sockets: &HashSet<String>) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default();
    let listens = |line: &str| -> Option<SocketAddr> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_own = sockets.contains(*fields.get(9)?);
        (is_own && fields[3] == TCP_LISTEN).then(|| address(fields[1]))?
    };
    text.lines().skip(1).filter_map(listens).collect()
}

/// Parses an address: words of four bytes in the byte order of the machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words = (0..address.len() / 8).map(|word| u32::from_str_radix(&address[8 * word..][..8], 16));
    let bytes: Vec<u8> = words.flatten().flat_map(u32::to_ne_bytes).collect();
    let ip: IpAddr = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => Ipv4Addr::from(bytes).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?).into(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// `TCP_LISTEN`.
const TCP_LISTEN: &str = "0A";
