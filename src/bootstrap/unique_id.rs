//! The address where ranks meet, and the secret that they share.

use crate::bootstrap::endpoint::Endpoint;
use crate::config::Interface;
use crate::config::interface::on_own_link;
use crate::error::{Error, Result};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use unisono_transports::net::handshake::Secret;
use unisono_transports::net::listener::PortReservation;

/// An address and a 256-bit secret, with which a rank finds the others.
///
/// The text form (`Display`, `FromStr`) contains the secret. So give it only to the ranks of the
/// job, in a way that nobody else can read or change. The address in it can be the name of a host,
/// which each rank looks up when it connects. `Debug` shows only the address.
///
/// The port stays reserved while the process that made the id keeps the id or a clone of it. Rank 0
/// can listen at this port in any process.
#[derive(Clone)]
pub struct UniqueId {
    endpoint: Endpoint,
    secret: Secret,
    /// The address at which this rank has met the other ranks.
    reached: Option<SocketAddr>,
    /// True if ranks are known to be on several hosts.
    spans_hosts: bool,
    /// The place from which the secret comes, if the user has not set it. The error of a rank with
    /// another secret shows it.
    secret_origin: Option<Arc<str>>,
    /// Keeps the port reserved. The text form does not include this.
    _reservation: Option<Arc<PortReservation>>,
}

impl UniqueId {
    /// Makes an id with a free port of `interface`, where rank 0 will listen, and a random secret.
    ///
    /// # Errors
    /// Fails if no port is free or the system has no random numbers.
    pub fn new(interface: IpAddr) -> Result<Self> {
        Self::on(interface.into())
    }

    /// Makes an id as [`UniqueId::new`] does, but also supports a link-local interface with its
    /// scope.
    ///
    /// # Errors
    /// As [`UniqueId::new`].
    pub fn on(interface: Interface) -> Result<Self> {
        let reservation = PortReservation::new(interface.at_port(0))
            .map_err(|error| Error::system(format_args!("no port is free on {interface}"), error))?;
        let (address, secret) = (reservation.address(), Secret::random()?);
        Ok(Self { _reservation: Some(Arc::new(reservation)), ..Self::from_parts(address, secret) })
    }

    /// Returns the text form. The port stays reserved until a rank of this process has joined with
    /// the id, or this process ends. Bindings to other languages use this method, because their ids
    /// are texts.
    ///
    /// If a process makes ids for other processes, only the ports of its latest 256 ids stay
    /// reserved.
    ///
    /// ```
    /// use unisono::UniqueId;
    ///
    /// let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?;
    /// let text = id.into_reserved_text();
    /// assert!(text.starts_with("127.0.0.1:"));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn into_reserved_text(self) -> String {
        let text = self.to_string();
        let mut kept = kept_ids();
        kept.truncate(KEPT_MAX - 1);
        kept.insert(0, self);
        text
    }

    /// Ends the reservation of [`UniqueId::into_reserved_text`] for this id, whose ranks have met.
    pub(crate) fn release(&self) {
        kept_ids().retain(|kept| kept.endpoint != self.endpoint);
    }

    /// Makes an id from an address and a secret that the ranks got in another way.
    pub fn from_parts(address: SocketAddr, secret: Secret) -> Self {
        Self::at(Endpoint::Address(address), secret)
    }

    pub(crate) fn at(endpoint: Endpoint, secret: Secret) -> Self {
        Self { endpoint, secret, reached: None, spans_hosts: false, secret_origin: None, _reservation: None }
    }

    /// Makes an id at `bind`, or at this host's interface toward the address of `other`.
    pub(crate) fn new_near(other: &Self, bind: Option<Interface>) -> Result<Self> {
        Self::on(bind.map_or_else(|| local_address_toward(other.address()), Ok)?)
    }

    /// Returns the id for a later regroup of some of these ranks. The new secret is derived from
    /// this secret and `label`.
    pub(crate) fn derive(&self, address: SocketAddr, label: &[u8]) -> Self {
        Self::from_parts(on_own_link(address, self.address()), self.secret.derive(label))
    }

    /// Returns this id with another secret. The port stays reserved.
    pub(crate) fn with_secret(self, secret: Secret) -> Self {
        Self { secret, ..self }
    }

    /// Returns this id, which another rank made from the id `parent`. If its address is link-local,
    /// it gets the scope that it has on this host.
    pub(crate) fn seen_by(mut self, parent: &Self) -> Self {
        if let Endpoint::Address(address) = &mut self.endpoint {
            *address = on_own_link(*address, parent.address());
        }
        self
    }

    /// Returns this id after the ranks have met at `address`.
    pub(crate) fn reached_at(self, address: SocketAddr) -> Self {
        Self { reached: Some(address), ..self }
    }

    /// Returns this id with the fact that ranks are on several hosts, or that they are not.
    pub(crate) fn with_hosts(self, spans_hosts: bool) -> Self {
        Self { spans_hosts, ..self }
    }

    /// Returns this id with a text that says where its secret comes from.
    pub(crate) fn with_secret_origin(self, origin: Option<String>) -> Self {
        Self { secret_origin: origin.map(Arc::from), ..self }
    }

    pub(crate) fn secret_origin(&self) -> Option<&str> {
        self.secret_origin.as_deref()
    }

    pub(crate) fn spans_hosts(&self) -> bool {
        self.spans_hosts
    }

    /// Returns a number that is equal on all ranks with this id and does not reveal the secret.
    pub(crate) fn group_id(&self) -> u64 {
        let name = self.secret.derive(format!("name {}", self.endpoint.name()).as_bytes()).to_hex();
        u64::from_str_radix(&name[..16], 16).unwrap_or_default()
    }

    /// Returns the address where rank 0 listens. A host name is looked up. If the name has no
    /// address yet, returns address 0 with port 0.
    pub fn address(&self) -> SocketAddr {
        let looked_up = || self.look_up(Instant::now() + LOOKUP_TIME).ok()?.first().copied();
        self.reached.or_else(looked_up).unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Returns all addresses at which rank 0 may listen.
    ///
    /// # Errors
    /// The reason why the lookup gave no address.
    pub(crate) fn look_up(&self, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        self.endpoint.look_up(deadline)
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// Returns the ids whose texts were returned to callers. The latest id comes first.
fn kept_ids() -> MutexGuard<'static, Vec<UniqueId>> {
    static KEPT: Mutex<Vec<UniqueId>> = Mutex::new(Vec::new());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of ids that are kept. It is limited because each id takes a descriptor.
const KEPT_MAX: usize = 256;

impl std::fmt::Display for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.endpoint, self.secret.to_hex())
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({})", self.endpoint)
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text
            .split_once('/')
            .and_then(|(endpoint, secret)| Some(Self::at(endpoint.parse().ok()?, Secret::from_hex(secret)?)));
        parts.ok_or_else(|| {
            Error::invalid_usage("a unique id is an address and 64 hexadecimal digits, `ADDRESS:PORT/DIGITS`")
        })
    }
}

/// Returns the address at which other hosts can reach this one, which is the source address of
/// packets to `address`. No packet is sent.
pub(super) fn local_address_toward(address: SocketAddr) -> Result<Interface> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends no packet.
    let socket = UdpSocket::bind((any, 0));
    let local = socket.and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()));
    let failed = |error| Error::system(format_args!("no route to {address}"), error);
    local.map(Interface::of).map_err(failed)
}

/// The limit of a lookup outside of a meeting.
pub(super) const LOOKUP_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_transports::testing::has_ipv6;

    #[test]
    fn port_of_a_text_stays_reserved_until_its_ranks_have_met() {
        let interface = IpAddr::from([127, 0, 0, 1]);
        let id: UniqueId = UniqueId::new(interface).unwrap().into_reserved_text().parse().unwrap();
        let is_kept = || kept_ids().iter().any(|kept| kept.endpoint == id.endpoint);
        assert!(is_kept());
        let others: Vec<_> = (0..500).map(|_| UniqueId::new(interface).unwrap()).collect();
        assert!(others.iter().all(|other| other.endpoint != id.endpoint));
        id.release();
        assert!(!is_kept());
    }

    #[test]
    fn unique_id_round_trips_and_debug_hides_secret() {
        let id = UniqueId::new(IpAddr::from([127, 0, 0, 1])).unwrap();
        let again: UniqueId = id.to_string().parse().unwrap();
        assert_eq!((again.address(), again.secret.to_hex()), (id.address(), id.secret.to_hex()));
        assert!(!format!("{id:?}").contains(&id.secret.to_hex()));
        assert!("127.0.0.1:1/zz".parse::<UniqueId>().is_err());
    }

    #[test]
    fn ids_of_one_name_have_one_group_whatever_its_address() {
        let id = |text: &str| format!("{text}/{}", "5a".repeat(32)).parse::<UniqueId>().unwrap();
        let group = id("host:5").reached_at(([127, 0, 1, 1], 5).into()).group_id();
        assert_eq!(id("host:5").reached_at(([10, 0, 0, 1], 5).into()).group_id(), group);
        assert_eq!(id("[fe80::1%1]:5").group_id(), id("[fe80::1%2]:5").group_id());
        assert_ne!(id("host:6").group_id(), group);
    }

    #[test]
    fn local_address_toward_loopback_is_loopback() {
        let ipv6 = has_ipv6("an address toward a peer").then_some("[::1]:9");
        for address in ["127.0.0.1:9"].into_iter().chain(ipv6) {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(local_address_toward(address).unwrap().ip(), address.ip());
        }
    }
}
