//! Agreement of two ends on keys that nobody else can have. It uses Noise's pattern `NNpsk0` from
//! the `snow` crate.
//!
//! Each side makes a key pair for this connection only and then forgets it (forward secrecy). The
//! job's secret is mixed in, so that only its owners can agree. The prologue is mixed in, too, so
//! both ends must have the same prologue.

use crate::secure::Secret;
use crate::secure::resolver::{CIPHER_BYTES, Resolver};
use crate::{Error, Result};
use snow::{Builder, HandshakeState, TransportState};

/// The client's side of an agreement, after message 1.
pub(crate) struct NoiseHandshake(HandshakeState);

/// The keys of one connection, one for each direction. Records open once, in the order in which
/// they were sealed.
pub(crate) struct SessionKeys(TransportState);

impl NoiseHandshake {
    /// Begins an agreement, and returns it with message 1.
    pub(crate) fn start(secret: &Secret, prologue: &[u8]) -> Result<(Self, [u8; MESSAGE_BYTES])> {
        let mut state = handshake_state(secret, prologue, |builder| builder.build_initiator())?;
        let mut message = [0; MESSAGE_BYTES];
        state.write_message(&[], &mut message).map_err(failed)?;
        Ok((Self(state), message))
    }

    /// Returns the keys, or `None` if message 2 does not come from an owner of the secret who
    /// answered message 1.
    pub(crate) fn finish(mut self, message: &[u8; MESSAGE_BYTES]) -> Option<SessionKeys> {
        self.0.read_message(message, &mut []).ok()?;
        self.0.into_transport_mode().ok().map(SessionKeys)
    }
}

/// Answers message 1 as the server, and returns the keys with message 2.
///
/// The result is `None` if message 1 does not come from an owner of the secret with the same
/// prologue. Message 1 may be a recording, so only a record that opens with the keys proves that
/// the client is there.
pub(crate) fn respond(
    secret: &Secret,
    prologue: &[u8],
    message: &[u8],
) -> Result<Option<(SessionKeys, [u8; MESSAGE_BYTES])>> {
    let mut state = handshake_state(secret, prologue, |builder| builder.build_responder())?;
    if state.read_message(message, &mut []).is_err() {
        return Ok(None);
    }
    let mut answer = [0; MESSAGE_BYTES];
    state.write_message(&[], &mut answer).map_err(failed)?;
    let keys = SessionKeys(state.into_transport_mode().map_err(failed)?);
    Ok(Some((keys, answer)))
}

fn handshake_state(
    secret: &Secret,
    prologue: &[u8],
    build: fn(Builder<'_>) -> std::result::Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState> {
    let psk = secret.derive(PSK_LABEL);
    let pattern = PATTERN.parse().map_err(failed)?;
    let builder = Builder::with_resolver(pattern, Box::new(Resolver));
    let builder = builder.prologue(prologue).and_then(|builder| builder.psk(0, psk.bytes()));
    builder.and_then(build).map_err(failed)
}

impl SessionKeys {
    /// Seals `plain` into the next record, and returns its length: [`TAG_BYTES`] more than that of
    /// `plain`.
    pub(crate) fn seal(&mut self, plain: &[u8], record: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.0.write_message(plain, record).map_err(std::io::Error::other)?;
        // Both ends count the same records, so they change the key at the same one without a
        // message.
        if self.0.sending_nonce().is_multiple_of(REKEY_RECORDS) {
            self.0.rekey_outgoing();
        }
        Ok(bytes)
    }

    /// Opens the next record, and returns the length of its content; `None` if the peer did not
    /// seal it next.
    pub(crate) fn open(&mut self, record: &[u8], plain: &mut [u8]) -> Option<usize> {
        let bytes = self.0.read_message(record, plain).ok()?;
        if self.0.receiving_nonce().is_multiple_of(REKEY_RECORDS) {
            self.0.rekey_incoming();
        }
        Some(bytes)
    }

    /// Skips the records that the peer has sealed so far.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn skip_to(&mut self, peer: &SessionKeys) {
        self.0.set_receiving_nonce(peer.0.sending_nonce());
    }
}

impl std::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

fn failed(error: snow::Error) -> Error {
    let what = "cannot agree on keys".to_owned();
    Error::System { what, source: std::io::Error::other(error) }
}

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const PSK_LABEL: &[u8] = b"unisono noise";
/// Bytes of either message: a public key, and a code that only an owner of the secret can make.
pub(crate) const MESSAGE_BYTES: usize = 48;
/// Bytes that sealing adds to a record.
pub(crate) const TAG_BYTES: usize = 16;
/// Records under one key. AES-GCM is sound for 2^24.5 records of 16 KiB (RFC 8446, 5.5), which are
/// more blocks than these. The next key is derived from the last one (Noise, 11.3).
const REKEY_RECORDS: u64 = 1 << 20;
/// Memory of the keys of one connection.
pub(crate) const KEYS_BYTES: usize = size_of::<SessionKeys>() + 2 * CIPHER_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (SessionKeys, SessionKeys) {
        let secret = Secret::random().unwrap();
        let (client, message) = NoiseHandshake::start(&secret, b"said").unwrap();
        let (server, answer) = respond(&secret, b"said", &message).unwrap().unwrap();
        (client.finish(&answer).unwrap(), server)
    }

    #[test]
    fn key_exchange_needs_same_secret_and_prologue() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let (client, message) = NoiseHandshake::start(&secret, b"hello").unwrap();
        assert!(respond(&other, b"hello", &message).unwrap().is_none());
        assert!(respond(&secret, b"heLlo", &message).unwrap().is_none());
        for index in 0..MESSAGE_BYTES {
            let mut damaged = message;
            damaged[index] ^= 1;
            assert!(respond(&secret, b"hello", &damaged).unwrap().is_none(), "byte {index}");
        }
        let (_, mut answer) = respond(&secret, b"hello", &message).unwrap().unwrap();
        answer[40] ^= 1;
        assert!(client.finish(&answer).is_none());
    }

    #[test]
    fn records_open_once_in_order_by_peer_only() {
        let (mut local, mut remote) = pair();
        let seal = |keys: &mut SessionKeys, text: &[u8]| {
            let mut record = vec![0; text.len() + TAG_BYTES];
            assert_eq!(keys.seal(text, &mut record).unwrap(), record.len());
            record
        };
        let (first, second) = (seal(&mut local, b"first"), seal(&mut local, b"second"));
        let mut plain = [0; 64];
        assert_eq!(remote.open(&second, &mut plain), None, "out of order");
        assert_eq!(local.open(&first, &mut plain), None, "sent back");
        assert_eq!(remote.open(&first, &mut plain), Some(5));
        assert_eq!(&plain[..5], b"first");
        assert_eq!(remote.open(&first, &mut plain), None, "a second time");
        assert_eq!(remote.open(&second[..second.len() - 1], &mut plain), None, "cut short");
        assert_eq!(remote.open(&second, &mut plain), Some(6));
    }

    #[test]
    fn both_sides_rekey_in_step() {
        let (mut local, mut remote) = pair();
        let (mut record, mut plain) = ([0; 1 + TAG_BYTES], [0]);
        for number in 0..REKEY_RECORDS + 2 {
            local.seal(&[number as u8], &mut record).unwrap();
            assert_eq!(remote.open(&record, &mut plain), Some(1), "record {number}");
            assert_eq!(plain, [number as u8]);
        }
    }
}
