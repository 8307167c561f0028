//! Where ranks meet, and what they share.

use crate::error::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use unisono_transports::secure::handshake::Secret;
use unisono_transports::sys::listener::PortReservation;

/// An address and a 256-bit secret: all that a rank needs to find the others.
///
/// Its text form (`Display`, `FromStr`) contains the secret: hand it to the
/// ranks of the job and to nobody else. `Debug` shows the address only.
///
/// While the process that made it keeps it (or a clone), nobody else is given its port, and rank 0 can
/// listen there, whichever process that is.
#[derive(Clone)]
pub struct UniqueId {
    address: SocketAddr,
    secret: Secret,
    /// Keeps the port; text does not.
    _reservation: Option<Arc<PortReservation>>,
}

impl UniqueId {
    /// A fresh one with a free port of `interface`, where rank 0 will listen.
    ///
    /// # Errors
    /// If no port is free or the system has no randomness.
    pub fn new(interface: IpAddr) -> Result<Self> {
        let reservation = PortReservation::new(interface).map_err(|error| {
            Error::new(ErrorKind::System(format!("no port is free on {interface}: {error}")))
        })?;
        let (address, secret) = (reservation.address(), Secret::random()?);
        Ok(Self { address, secret, _reservation: Some(Arc::new(reservation)) })
    }

    /// From an address and a secret that the ranks were given otherwise.
    pub fn from_parts(address: SocketAddr, secret: Secret) -> Self {
        Self { address, secret, _reservation: None }
    }

    /// A fresh one at the interface of `other`: on this rank, which must be on the host that listens there,
    /// or else at the interface that this host is bound to.
    pub(crate) fn new_near(other: &Self, bind: Option<IpAddr>) -> Result<Self> {
        let interface = bind.unwrap_or(other.address.ip());
        Self::new(interface)
    }

    /// Of a later meeting of some of the ranks of this one: its secret follows from this one's and `label`.
    pub(crate) fn derive(&self, address: SocketAddr, label: &[u8]) -> Self {
        Self::from_parts(address, self.secret.derive(label))
    }

    /// A number that is the same for all who have this id, and tells nobody the secret.
    pub(crate) fn group_id(&self) -> u64 {
        let name = self.secret.derive(format!("name {}", self.address).as_bytes()).to_hex();
        u64::from_str_radix(&name[..16], 16).unwrap_or_default()
    }

    /// Where rank 0 listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

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
    fn unique_id_round_trips_and_debug_hides_secret() {
        let id = UniqueId::new(IpAddr::from([127, 0, 0, 1])).unwrap();
        let again: UniqueId = id.to_string().parse().unwrap();
        assert_eq!((again.address, again.secret.to_hex()), (id.address, id.secret.to_hex()));
        assert!(!format!("{id:?}").contains(&id.secret.to_hex()));
        assert!("127.0.0.1:1/zz".parse::<UniqueId>().is_err());
    }
}
