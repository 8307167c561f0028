//! Primitives of the Noise protocol: AES-256-GCM and SHA-256 by `ring`, X25519 by
//! `curve25519-dalek`.
//!
//! Every server processor has instructions for AES-GCM, and `ring` uses them. Without them, `ring`
//! has no branch and no table that depends on a key. One suite is therefore enough, and nothing is
//! negotiated.

use crate::secure::Secret;
use crate::secure::noise::TAG_BYTES;
use crate::sys::random::random;
use curve25519_dalek::MontgomeryPoint;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::digest::{Context, SHA256};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use std::mem::MaybeUninit;

/// Provides the primitives to `snow`.
pub(crate) struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SystemRng))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let pair = || {
            Box::new(X25519KeyPair { private: Secret::from_bytes([0; KEY_BYTES]), public: [0; KEY_BYTES] })
        };
        matches!(choice, DHChoice::Curve25519).then(|| pair() as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256)
            .then(|| Box::new(Sha256Hash(Context::new(&SHA256))) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM)
            .then(|| Box::new(Aes256Gcm::new(&[0; KEY_BYTES])) as Box<dyn Cipher>)
    }
}

/// Random numbers of the system.
struct SystemRng;

impl Random for SystemRng {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        for chunk in bytes.chunks_mut(KEY_BYTES) {
            chunk.copy_from_slice(&random::<KEY_BYTES>().map_err(|_| Error::Rng)?[..chunk.len()]);
        }
        Ok(())
    }
}

/// A key pair of X25519. Dropping it zeroes the private key.
struct X25519KeyPair {
    private: Secret,
    public: [u8; KEY_BYTES],
}

impl Dh for X25519KeyPair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, private: &[u8]) {
        self.private = Secret::from_bytes(private.try_into().expect("a key of the right length"));
        self.public = MontgomeryPoint::mul_base_clamped(*self.private.bytes()).to_bytes();
    }

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        let private = Secret::random().map_err(|_| Error::Rng)?;
        self.set(private.bytes());
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.private.bytes()
    }

    fn dh(&self, theirs: &[u8], shared: &mut [u8]) -> Result<(), Error> {
        let theirs = theirs.get(..KEY_BYTES).and_then(|key| key.try_into().ok()).ok_or(Error::Dh)?;
        let point = MontgomeryPoint(theirs).mul_clamped(*self.private.bytes());
        shared[..KEY_BYTES].copy_from_slice(point.as_bytes());
        Ok(())
    }
}

/// SHA-256.
struct Sha256Hash(Context);

impl Hash for Sha256Hash {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Context::new(&SHA256);
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let full = std::mem::replace(&mut self.0, Context::new(&SHA256));
        out[..32].copy_from_slice(full.finish().as_ref());
    }
}

/// AES-256-GCM as Noise uses it.
///
/// Dropping it zeroes the expanded key, which `ring` does not do. A new key overwrites the old one.
struct Aes256Gcm(MaybeUninit<LessSafeKey>);

impl Aes256Gcm {
    fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(MaybeUninit::new(aead_key(key)))
    }

    fn key(&self) -> &LessSafeKey {
        // SAFETY: `new` initialized the key, and only `drop` ends its life.
        unsafe { self.0.assume_init_ref() }
    }
}

impl Drop for Aes256Gcm {
    fn drop(&mut self) {
        const { assert!(!std::mem::needs_drop::<LessSafeKey>(), "a key that owns something must be dropped") };
        let first = self.0.as_mut_ptr().cast::<u8>();
        for offset in 0..size_of::<LessSafeKey>() {
            // SAFETY: the byte belongs to a value that `self` owns, that has no destructor and is
            // not used again. The write is volatile, so that it happens although nothing reads the
            // byte.
            unsafe { first.add(offset).write_volatile(0) };
        }
    }
}

impl Cipher for Aes256Gcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.0.write(aead_key(key));
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, tail) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let tag = self.key().seal_in_place_separate_tag(nonce_for(nonce), Aad::from(authtext), text);
        tail[..TAG_BYTES].copy_from_slice(tag.expect("far below the limit of 64 GiB").as_ref());
        plaintext.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let (text, tag) = ciphertext.split_last_chunk::<TAG_BYTES>().ok_or(Error::Decrypt)?;
        let out = out.get_mut(..text.len()).ok_or(Error::Decrypt)?;
        out.copy_from_slice(text);
        let opened = self.key().open_in_place_separate_tag(
            nonce_for(nonce),
            Aad::from(authtext),
            Tag::from(*tag),
            out,
            0..,
        );
        opened.map(|plain| plain.len()).map_err(|_| Error::Decrypt)
    }
}

fn aead_key(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of the right length"))
}

/// Returns the nonce that Noise defines for AES-GCM: 32 zero bits, and the record number in
/// big-endian.
fn nonce_for(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Memory of one cipher with its expanded key.
pub(crate) const CIPHER_BYTES: usize = size_of::<Aes256Gcm>();
const KEY_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::ManuallyDrop;

    /// Test case 14 of the AES-256 vectors in the GCM specification: key, nonce and text are zeros.
    #[test]
    fn aes_gcm_matches_test_vector() {
        let mut sealed = [0; 32];
        assert_eq!(Aes256Gcm::new(&[0; 32]).encrypt(0, &[], &[0; 16], &mut sealed), 32);
        let expected = "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919";
        assert_eq!(sealed.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn dropped_key_is_zeroed() {
        let mut key = ManuallyDrop::new(Aes256Gcm::new(&[7; 32]));
        // SAFETY: the value is dropped once, and not used as a key again.
        unsafe { ManuallyDrop::drop(&mut key) };
        let first = key.0.as_ptr().cast::<u8>();
        // SAFETY: the memory of the value still exists, and `drop` has written every byte of it.
        assert!((0..size_of::<LessSafeKey>()).all(|offset| unsafe { first.add(offset).read() } == 0));
    }
}
