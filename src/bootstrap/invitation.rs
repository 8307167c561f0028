//! Invitations, by which ranks that already share a secret meet.

use crate::bootstrap::UniqueId;
use crate::bootstrap::endpoint::Endpoint;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use unisono_transports::net::handshake::Secret;
use unisono_transports::sys::random::random;
use unisono_transports::text::{from_hex, to_hex};

/// An address and a nonce. Ranks that share a secret derive the secret of one meeting from it.
///
/// Everybody may read the text form, because no secret can be derived from it without the shared
/// one. Somebody who changes it can only lead the ranks to a place where nobody proves the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invitation {
    endpoint: Endpoint,
    nonce: [u8; 32],
}

impl Invitation {
    /// Returns the invitation to the address of `place`, and the id that the ranks with `secret`
    /// and `label` derive from it. The id keeps the reservation of the port.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn new(place: UniqueId, secret: &Secret, label: &[u8]) -> Result<(Self, UniqueId)> {
        let invitation = Self { endpoint: place.endpoint().clone(), nonce: random()? };
        let id = place.with_secret(invitation.derive(secret, label));
        Ok((invitation, id))
    }

    /// Returns the id of the meeting. `label` is equal on all ranks that meet, so ranks with
    /// another label derive another secret.
    pub(crate) fn accept(&self, secret: &Secret, label: &[u8]) -> UniqueId {
        UniqueId::at(self.endpoint.clone(), self.derive(secret, label))
    }

    fn derive(&self, secret: &Secret, label: &[u8]) -> Secret {
        secret.derive(&[ROLE, &self.nonce, label].concat())
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{MARK}{}", self.endpoint, to_hex(&self.nonce))
    }
}

impl FromStr for Invitation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invitation = text.split_once(MARK).and_then(|(endpoint, nonce)| {
            Some(Self { endpoint: endpoint.parse().ok()?, nonce: from_hex(nonce)? })
        });
        invitation.ok_or_else(|| Error::invalid_usage("this is no address with a nonce"))
    }
}

/// The character between address and nonce. In a unique id, a slash stands before the secret.
const MARK: char = '#';
/// Distinguishes these secrets from others that are derived from the same secret.
const ROLE: &[u8] = b"meeting ";

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn invitation_round_trips_and_holds_no_secret() {
        let secret = Secret::random().unwrap();
        let place = UniqueId::new(Ipv4Addr::LOCALHOST.into()).unwrap();
        let (invitation, id) = Invitation::new(place, &secret, b"label").unwrap();
        let text = invitation.to_string();
        let parsed: Invitation = text.parse().unwrap();
        assert_eq!(parsed, invitation);
        assert_eq!(parsed.accept(&secret, b"label").to_string(), id.to_string());
        for hidden in [&secret, id.secret()] {
            assert!(!text.contains(&hidden.to_hex()), "{text}");
        }
        for wrong in
            ["", "127.0.0.1:1", "127.0.0.1:1#5a", &text.replace('#', "/"), &text[1..].replace(':', "")]
        {
            assert!(wrong.parse::<Invitation>().is_err(), "{wrong}");
        }
        assert!(text.parse::<UniqueId>().is_err() && id.to_string().parse::<Invitation>().is_err());
    }

    #[test]
    fn meetings_differ_by_secret_nonce_and_label() {
        let (job_secret, other_secret) = (Secret::from_public("one"), Secret::from_public("other"));
        let place = |_| UniqueId::new(Ipv4Addr::LOCALHOST.into()).unwrap();
        let [first, second] =
            [0, 1].map(place).map(|place| Invitation::new(place, &job_secret, b"a").unwrap().0);
        let secrets = [
            first.accept(&job_secret, b"a"),
            first.accept(&job_secret, b"b"),
            first.accept(&other_secret, b"a"),
            second.accept(&job_secret, b"a"),
        ];
        let distinct: std::collections::HashSet<_> = secrets.iter().map(|id| id.secret().to_hex()).collect();
        assert_eq!(distinct.len(), secrets.len());
    }
}
