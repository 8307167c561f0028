//! Two ends of a connection agree on keys that nobody else can have: Noise's pattern `NNpsk0`, by the `snow` crate.
//!
//! Each side makes a key pair for this connection alone and forgets it (forward secrecy); the job's secret is mixed in,
//! so that only those who know it agree; and so is everything that both have said before.

use crate::secure::resolver::Resolver;
use crate::secure::secret::Secret;
use crate::{Error, Result};
use snow::{Builder, HandshakeState, TransportState};

/// The client's side, once it has sent its message.
pub(crate) struct NoiseHandshake(HandshakeState);

/// The keys of one connection, one for each direction: what is sealed is opened in the same order, once.
pub(crate) struct SessionKeys(TransportState);

impl NoiseHandshake {
    /// The client's message, after both sides have said this.
    pub(crate) fn start(secret: &Secret, transcript: &[&[u8]]) -> Result<(Self, [u8; MESSAGE_BYTES])> {
        let mut state = handshake_state(secret, transcript, |builder| builder.build_initiator())?;
        let mut message = [0; MESSAGE_BYTES];
        state.write_message(&[], &mut message).map_err(failed)?;
        Ok((Self(state), message))
    }

    /// The keys, from the server's message; none if that is not the answer of somebody who knows the secret.
    pub(crate) fn finish(mut self, message: &[u8; MESSAGE_BYTES]) -> Option<SessionKeys> {
        self.0.read_message(message, &mut []).ok()?;
        self.0.into_transport_mode().ok().map(SessionKeys)
    }
}

/// The server's side: the keys and its message, as an answer to the client's; none if nobody who knows the secret
/// sent that, or both have not said the same before.
pub(crate) fn respond(
    secret: &Secret,
    transcript: &[&[u8]],
    message: &[u8],
) -> Result<Option<(SessionKeys, [u8; MESSAGE_BYTES])>> {
    let mut state = handshake_state(secret, transcript, |builder| builder.build_responder())?;
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
    transcript: &[&[u8]],
    build: fn(Builder<'_>) -> std::result::Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState> {
    let (psk, prologue) = (secret.derive(PSK_LABEL), transcript.concat());
    let pattern = PATTERN.parse().map_err(failed)?;
    let builder = Builder::with_resolver(pattern, Box::new(Resolver));
    let builder = builder.prologue(&prologue).and_then(|builder| builder.psk(0, psk.bytes()));
    builder.and_then(build).map_err(failed)
}

impl SessionKeys {
    /// Seals the next record, [`TAG_BYTES`] longer than what is in it; its length.
    pub(crate) fn seal(&mut self, plain: &[u8], record: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.0.write_message(plain, record).map_err(std::io::Error::other)?;
        if self.0.sending_nonce().is_multiple_of(REKEY_RECORDS) {
            self.0.rekey_outgoing();
        }
        Ok(bytes)
    }

    /// Opens the next record; the length of what was in it. None if it is not the one that the peer sealed next.
    pub(crate) fn open(&mut self, record: &[u8], plain: &mut [u8]) -> Option<usize> {
        let bytes = self.0.read_message(record, plain).ok()?;
        if self.0.receiving_nonce().is_multiple_of(REKEY_RECORDS) {
            self.0.rekey_incoming();
        }
        Some(bytes)
    }

    /// From now on, opens what the peer seals next, whatever it has sealed before.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn skip_to(&mut self, peer: &SessionKeys) {
        self.0.set_receiving_nonce(peer.0.sending_nonce());
    }
}

impl std::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

fn failed(error: snow::Error) -> Error {
    let what = "cannot agree on keys".to_owned();
    Error::System { what, source: std::io::Error::other(error) }
}

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const PSK_LABEL: &[u8] = b"unisono noise";
/// Either side's message: a public key, and the code that it came from somebody with the secret.
pub(crate) const MESSAGE_BYTES: usize = 48;
/// What sealing adds.
pub(crate) const TAG_BYTES: usize = 16;
/// Records under one key. AES-GCM is sound for 2^24.5 of 16 KiB (RFC 8446, 5.5); these are fewer blocks, and the next
/// key follows from the last one (Noise, 11.3).
const REKEY_RECORDS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (SessionKeys, SessionKeys) {
        let secret = Secret::random().unwrap();
        let (client, message) = NoiseHandshake::start(&secret, &[b"said"]).unwrap();
        let (server, answer) = respond(&secret, &[b"said"], &message).unwrap().unwrap();
        (client.finish(&answer).unwrap(), server)
    }

    #[test]
    fn key_exchange_needs_same_secret_and_transcript() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let (client, message) = NoiseHandshake::start(&secret, &[b"hello", b"reply"]).unwrap();
        assert!(respond(&other, &[b"hello", b"reply"], &message).unwrap().is_none());
        assert!(respond(&secret, &[b"hello", b"rePly"], &message).unwrap().is_none());
        for index in 0..MESSAGE_BYTES {
            let mut damaged = message;
            damaged[index] ^= 1;
            assert!(respond(&secret, &[b"hello", b"reply"], &damaged).unwrap().is_none(), "byte {index}");
        }
        let (_, mut answer) = respond(&secret, &[b"hello", b"reply"], &message).unwrap().unwrap();
        answer[40] ^= 1;
        assert!(client.finish(&answer).is_none());
    }

    #[test]
    fn records_open_once_in_order_by_peer_only() {
        let (mut near, mut far) = pair();
        let seal = |near: &mut SessionKeys, text: &[u8]| {
            let mut record = vec![0; text.len() + TAG_BYTES];
            assert_eq!(near.seal(text, &mut record).unwrap(), record.len());
            record
        };
        let (first, second) = (seal(&mut near, b"first"), seal(&mut near, b"second"));
        let mut plain = [0; 64];
        assert_eq!(far.open(&second, &mut plain), None, "out of order");
        assert_eq!(near.open(&first, &mut plain), None, "sent back");
        assert_eq!(far.open(&first, &mut plain), Some(5));
        assert_eq!(&plain[..5], b"first");
        assert_eq!(far.open(&first, &mut plain), None, "a second time");
        assert_eq!(far.open(&second[..second.len() - 1], &mut plain), None, "cut short");
        assert_eq!(far.open(&second, &mut plain), Some(6));
    }

    #[test]
    fn both_sides_rekey_in_step() {
        let (mut near, mut far) = pair();
        let (mut record, mut plain) = ([0; 1 + TAG_BYTES], [0]);
        for number in 0..REKEY_RECORDS + 2 {
            near.seal(&[number as u8], &mut record).unwrap();
            assert_eq!(far.open(&record, &mut plain), Some(1), "record {number}");
            assert_eq!(plain, [number as u8]);
        }
    }
}
