//! The secret that the ranks of a job share.

use crate::Result;
use crate::sys::random::random;
use crate::text::{from_hex, to_hex};
use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256};

/// A secret of 256 bits that the ranks of a job share.
///
/// Only [`Secret::to_hex`] prints it. Dropping it zeroes its memory.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Makes a new secret from random bytes of the system.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the system has no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self(random()?))
    }

    /// Makes a secret of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Derives a key from public text. It keeps jobs apart, and keeps nobody out.
    pub fn from_public(text: &str) -> Self {
        Self(array(digest(&SHA256, text.as_bytes()).as_ref()))
    }

    /// Parses 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text).map(Self)
    }

    /// Derives another secret from this one and `label`. The result does not reveal this secret.
    pub fn derive(&self, label: &[u8]) -> Self {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(HMAC_SHA256, &self.0));
        mac.update(DERIVE_ROLE);
        mac.update(label);
        Self(array(mac.sign().as_ref()))
    }

    /// Returns 64 hexadecimal digits, to hand to another process of the job.
    pub fn to_hex(&self) -> String {
        to_hex(&self.0)
    }

    /// Returns the bytes, for a key agreement.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&mut self.0);
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Returns the 32 bytes of a SHA-256 digest as an array.
fn array(digest: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest);
    bytes
}

const DERIVE_ROLE: &[u8] = b"unisono derive";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_text_becomes_its_published_digest() {
        let hex = Secret::from_public("abc").to_hex();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn derived_secrets_are_distinct() {
        let secret = Secret::from_public("one");
        let hex = |label: &[u8]| secret.derive(label).to_hex();
        assert_eq!(hex(b"a"), hex(b"a"));
        let keys = [
            secret.to_hex(),
            hex(b""),
            hex(b"a"),
            hex(b"b"),
            Secret::from_public("two").derive(b"a").to_hex(),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
