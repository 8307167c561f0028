//! The secret that the ranks of a job share, and random bytes.

use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// A secret of 256 bits that the ranks of a job share.
///
/// Only [`Secret::to_hex`] prints it. Dropping it zeroes its memory.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Makes a new secret from random bytes of the system.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self(random()?))
    }

    /// Makes a secret of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Derives a key from public text. It keeps jobs apart, and keeps nobody out.
    pub fn from_public(text: &str) -> Self {
        use sha2::Digest;
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Parses 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Derives another secret from this one and `label`. The result does not reveal this secret.
    pub fn derive(&self, label: &[u8]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(DERIVE_ROLE);
        mac.update(label);
        Self(mac.finalize().into_bytes().into())
    }

    /// Returns 64 hexadecimal digits, to hand to another process of the job.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
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

/// Returns random bytes of the system.
///
/// # Errors
/// [`Error::System`] if the system has no random bytes.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let system =
            |source: rustix::io::Errno| Error::System { what: "getrandom".to_owned(), source: source.into() };
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).map_err(system)?;
    }
    Ok(bytes)
}

const DERIVE_ROLE: &[u8] = b"unisono derive";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_secrets_are_distinct() {
        let secret = Secret::from_public("one");
        let hex = |label: &[u8]| secret.derive(label).to_hex();
        assert_eq!(hex(b"a"), hex(b"a"));
        let all = [
            secret.to_hex(),
            hex(b""),
            hex(b"a"),
            hex(b"b"),
            Secret::from_public("two").derive(b"a").to_hex(),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
