//! The address where ranks meet, and their secret.

use crate::error::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unisono_transports::secure::handshake::Secret;
use unisono_transports::sys::listener::PortReservation;

/// An address and a 256-bit secret, with which a rank finds the others.
///
/// The text form (`Display`, `FromStr`) contains the secret: give it to the ranks of the job only.
/// `Debug` shows the address only.
///
/// The port stays reserved while the process that made the id keeps it or a clone. Rank 0 can
/// listen there in any process.
#[derive(Clone)]
pub struct UniqueId {
    address: SocketAddr,
    secret: Secret,
    /// Keeps the port reserved; the text form does not.
    _reservation: Option<Arc<PortReservation>>,
}

impl UniqueId {
    /// Makes an id with a free port of `interface`, where rank 0 will listen, and a random secret.
    ///
    /// # Errors
    /// If no port is free or the system has no random numbers.
    pub fn new(interface: IpAddr) -> Result<Self> {
        let reservation = PortReservation::new(interface)
            .map_err(|error| Error::system(format_args!("no port is free on {interface}"), error))?;
        let (address, secret) = (reservation.address(), Secret::random()?);
        Ok(Self { address, secret, _reservation: Some(Arc::new(reservation)) })
    }

    /// Returns the text form. The port stays reserved until a rank of this process has joined with
    /// the id, or this process ends; bindings, whose ids are texts, use it.
    ///
    /// A process that makes ids for others keeps the latest 256 ports.
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
        kept_ids().retain(|kept| kept.address != self.address);
    }

    /// Makes an id from an address and a secret that the ranks got in another way.
    pub fn from_parts(address: SocketAddr, secret: Secret) -> Self {
        Self { address, secret, _reservation: None }
    }

    /// Makes an id at `bind`, or at the interface of `other`, which must be one of this host.
    pub(crate) fn new_near(other: &Self, bind: Option<IpAddr>) -> Result<Self> {
        let interface = bind.unwrap_or(other.address.ip());
        Self::new(interface)
    }

    /// The id of a later regroup of some of these ranks. This secret and `label` give its secret.
    pub(crate) fn derive(&self, address: SocketAddr, label: &[u8]) -> Self {
        Self::from_parts(address, self.secret.derive(label))
    }

    /// A number that is equal on all ranks with this id and does not reveal the secret.
    pub(crate) fn group_id(&self) -> u64 {
        let name = self.secret.derive(format!("name {}", self.address).as_bytes()).to_hex();
        u64::from_str_radix(&name[..16], 16).unwrap_or_default()
    }

    /// The address where rank 0 listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// Returns the ids whose texts were given out, the latest first.
fn kept_ids() -> MutexGuard<'static, Vec<UniqueId>> {
    static KEPT: Mutex<Vec<UniqueId>> = Mutex::new(Vec::new());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each takes a descriptor.
const KEPT_MAX: usize = 256;

impl std::fmt::Display for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.secret.to_hex())
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({})", self.address)
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/').and_then(|(address, secret)| {
            Some(Self::from_parts(address.parse().ok()?, Secret::from_hex(secret)?))
        });
        parts.ok_or_else(|| {
            Error::invalid_usage("a unique id is an address and 64 hexadecimal digits, `ADDRESS:PORT/DIGITS`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_a_text_stays_reserved_until_its_ranks_have_met() {
        let interface = IpAddr::from([127, 0, 0, 1]);
        let id: UniqueId = UniqueId::new(interface).unwrap().into_reserved_text().parse().unwrap();
        let is_kept = || kept_ids().iter().any(|kept| kept.address == id.address);
        assert!(is_kept());
        let others: Vec<_> = (0..500).map(|_| UniqueId::new(interface).unwrap()).collect();
        assert!(others.iter().all(|other| other.address != id.address));
        id.release();
        assert!(!is_kept());
    }

    #[test]
    fn unique_id_round_trips_and_debug_hides_secret() {
        let id = UniqueId::new(IpAddr::from([127, 0, 0, 1])).unwrap();
        let again: UniqueId = id.to_string().parse().unwrap();
        assert_eq!((again.address, again.secret.to_hex()), (id.address, id.secret.to_hex()));
        assert!(!format!("{id:?}").contains(&id.secret.to_hex()));
        assert!("127.0.0.1:1/zz".parse::<UniqueId>().is_err());
    }
}
