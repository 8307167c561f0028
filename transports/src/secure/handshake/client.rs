//! The client's half of the handshake, in steps that never wait.

use crate::secure::handshake::{
    ACCEPTED, CLIENT_ROLE, HELLO_BYTES, HandshakeConfig, Hello, NONCE_BYTES, PREAMBLE_BYTES, PROOF_BYTES,
    REPLY_BYTES, SERVER_ROLE, auth_failed, check_version, encode_hello, encryption_flag, key_exchange_failed,
    random,
};
use crate::secure::noise;
use crate::secure::noise::NoiseHandshake;
use crate::sys::socket::Stream;
use crate::{Error, Result};
use hmac::Mac;

/// The client's half, as far as it has got: for whoever has other things to look after meanwhile.
pub struct ClientHandshake {
    hello: [u8; HELLO_BYTES],
    /// The server's reply, then its verdict, and then, where both encrypt, its part of the keys.
    received: Vec<u8>,
    /// Whether the reply has been answered.
    proof_sent: bool,
    noise: Option<NoiseHandshake>,
}

impl ClientHandshake {
    /// Says hello on a connection that has just been made.
    ///
    /// # Errors
    /// The system's.
    pub fn start(stream: &mut Stream, terms: &HandshakeConfig, claims: &Hello) -> Result<Self> {
        let hello = encode_hello(&random()?, claims, terms.encrypts(stream));
        stream.write_now(&hello)?;
        Ok(Self { hello, received: Vec::new(), proof_sent: false, noise: None })
    }

    /// Goes on with what has arrived, without waiting; whether both sides have proved themselves, which is told once.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Refused`] for a wrong secret on either side, [`Error::Encryption`] if only one
    /// side wants it, [`Error::Closed`], the system's.
    pub fn advance(&mut self, stream: &mut Stream, terms: &HandshakeConfig) -> Result<bool> {
        loop {
            let wanted = match (self.received.len(), self.proof_sent) {
                (..PREAMBLE_BYTES, _) => PREAMBLE_BYTES,
                (_, false) => REPLY_BYTES,
                (..REPLY_AND_STATUS_BYTES, true) => REPLY_AND_STATUS_BYTES,
                _ => REPLY_AND_STATUS_BYTES + noise::MESSAGE_BYTES,
            };
            if !stream.read_some(&mut self.received, wanted)? {
                return Ok(false);
            }
            match wanted {
                PREAMBLE_BYTES => check_version(stream, &self.received)?,
                REPLY_BYTES => self.send_proof(stream, terms)?,
                REPLY_AND_STATUS_BYTES if self.received[REPLY_BYTES] != ACCEPTED => {
                    return Err(auth_failed(stream, "it refused our proof"));
                }
                REPLY_AND_STATUS_BYTES if self.noise.is_some() => {}
                REPLY_AND_STATUS_BYTES => return Ok(true),
                _ => return self.finish_key_exchange(stream).map(|()| true),
            }
        }
    }

    /// Checks the server's proof, and gives this side's.
    fn send_proof(&mut self, stream: &mut Stream, terms: &HandshakeConfig) -> Result<()> {
        let (said, proof) =
            self.received[PREAMBLE_BYTES..].split_at(REPLY_BYTES - PROOF_BYTES - PREAMBLE_BYTES);
        if terms.secret.hmac(SERVER_ROLE, &self.hello, said).verify_slice(proof).is_err() {
            return Err(auth_failed(stream, "the secret of the other side is another one"));
        }
        let (encrypts, server_encrypts) =
            (terms.encrypts(stream), said[NONCE_BYTES..] == encryption_flag(true));
        let mut answer = terms.secret.hmac(CLIENT_ROLE, &self.hello, said).finalize().into_bytes().to_vec();
        if encrypts && server_encrypts {
            let transcript: [&[u8]; 3] = [&self.hello, &self.received, &answer];
            let (agreement, message) = NoiseHandshake::start(&terms.secret, &transcript)?;
            self.noise = Some(agreement);
            answer.extend(message);
        }
        stream.write_now(&answer)?;
        self.proof_sent = true;
        match server_encrypts == encrypts {
            true => Ok(()),
            false => {
                Err(Error::EncryptionMismatch { peer: stream.peer(), rank: None, encrypts: server_encrypts })
            }
        }
    }

    /// Seals the connection with the keys that both sides have agreed on.
    fn finish_key_exchange(&mut self, stream: &mut Stream) -> Result<()> {
        let message =
            self.received[REPLY_AND_STATUS_BYTES..].try_into().expect("as many bytes as were wanted");
        let keys = self.noise.take().and_then(|agreement| agreement.finish(message));
        stream.enable_encryption(keys.ok_or_else(|| key_exchange_failed(stream))?)
    }
}

/// What the server has said once its verdict is here.
const REPLY_AND_STATUS_BYTES: usize = REPLY_BYTES + 1;
