//! The endpoint where ranks meet, as an address or as the name of a host.

use crate::config::interface::parse_ip;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::time::Instant;

/// The endpoint where rank 0 listens. A name is looked up again at every attempt to connect,
/// because its address may become known, or may change, after the ranks have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Address(SocketAddr),
    Name { host: String, port: u16 },
}

impl Endpoint {
    /// Returns the endpoint at a host name or an IP address. Returns `None` if `host` can be
    /// neither.
    pub(crate) fn new(host: &str, port: u16) -> Option<Self> {
        let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Some(address) = parse_ip(unbracketed, port) {
            return Some(Self::Address(address));
        }
        let is_of_names = |letter: char| letter.is_alphanumeric() || "-._".contains(letter);
        let is_name = !host.is_empty() && host.chars().all(is_of_names);
        is_name.then(|| Self::Name { host: host.to_owned(), port })
    }

    /// Returns all addresses, in the order in which they should be tried.
    ///
    /// # Errors
    /// The reason why the name has no address, or has none by the deadline.
    pub(crate) fn look_up(&self, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = match self {
            Self::Address(address) => return Ok(vec![*address]),
            Self::Name { host, port } => (host.clone(), *port),
        };
        let (sender, found) = channel();
        // The system's resolver has no deadline, so it runs on a thread. If the deadline passes,
        // the thread goes on until the resolver answers.
        std::thread::Builder::new().name("name lookup".to_owned()).spawn(move || {
            let addresses = (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            let _ = sender.send(addresses);
        })?;
        let left = deadline.saturating_duration_since(Instant::now());
        let addresses = found.recv_timeout(left).map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, "the name servers of this host did not answer in time")
        })??;
        match addresses.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            false => Ok(addresses),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name { port, .. } => *port,
        }
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(self, Self::Name { .. })
    }

    /// Returns a text that is the same on all ranks. It has no scopes, because every host numbers
    /// them differently.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Address(address) => SocketAddr::new(address.ip(), address.port()).to_string(),
            Self::Name { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, port) = text.rsplit_once(':').ok_or(())?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(());
        }
        Self::new(host, port.parse().map_err(drop)?).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_round_trips() {
        for text in ["127.0.0.1:5", "[::1]:5", "[fe80::1%1]:5", "host-0.job_1.svc:5", "localhost:65535"] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), text);
        }
        for text in ["", "host", ":5", "::1:5", "host:x", "http://host:5", "no host:5", "a@b:5"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn lookup_returns_every_address_or_the_reason() {
        let soon = || Instant::now() + std::time::Duration::from_secs(60);
        let here = Endpoint::new("localhost", 5).expect("a name").look_up(soon()).expect("an address");
        assert!(here.iter().all(|address| address.ip().is_loopback() && address.port() == 5));
        let nowhere = Endpoint::new("host.invalid", 5).expect("a name").look_up(soon()).expect_err("no host");
        assert!(nowhere.to_string().contains("failed to lookup address"), "{nowhere}");
    }
}
