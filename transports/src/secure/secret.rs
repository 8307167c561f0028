//! What the ranks of a job have in common and nobody else knows.

use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// 256 bits that the ranks of a job share. Never printed but by [`Secret::to_hex`]; zeroed when dropped.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A fresh one.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn random() -> Result<Self> {
        Ok(Self(random()?))
    }

    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// One that follows from public text: no secret at all, and only good among mutual friends.
    pub fn from_public(text: &str) -> Self {
        use sha2::Digest;
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// From 64 hexadecimal digits.
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

    /// Another one, which follows from this one and `label`, and from which nobody learns this one.
    pub fn derive(&self, label: &[u8]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(DERIVE_ROLE);
        mac.update(label);
        Self(mac.finalize().into_bytes().into())
    }

    /// As 64 hexadecimal digits, to hand to another process of the job.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Its bytes, for a key agreement.
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

/// Random bytes from the system.
///
/// # Errors
/// The system's.
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
