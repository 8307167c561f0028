//! The server's half of the handshake, in steps that never wait, so that one thread can serve many
//! connections at once.

use crate::net::handshake::frames::{
    ACCEPTED, CONFIRMATION_BYTES, FIRST_BYTES, PREAMBLE_BYTES, PROLOGUE_BYTES, REFUSED, auth_failed,
    check_preamble, claimed_rank, decode_hello, open_confirmation, preamble, seal_confirmation,
};
use crate::net::handshake::{HandshakeConfig, Hello};
use crate::net::stream::Stream;
use crate::secure::noise::{SessionKeys, respond};
use crate::{Error, Result};

/// State of the server's half of one handshake.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    /// The client's first frame, followed by its confirmation.
    received: Vec<u8>,
    /// The keys of the connection, once the first frame has been answered.
    keys: Option<SessionKeys>,
}

impl ServerHandshake {
    /// Continues with the bytes that have arrived, and returns the hello once the client has
    /// confirmed it.
    ///
    /// A call never waits. After it has returned a hello or an error, the handshake is over.
    ///
    /// # Errors
    /// * [`Error::VersionMismatch`] if the client speaks another version. The client learns this
    ///   side's version.
    /// * [`Error::AuthFailed`] if the client has another secret, or replays a recording.
    /// * [`Error::EncryptionMismatch`] if only one side encrypts.
    /// * [`Error::ConnectionClosed`] and [`Error::System`] if the connection failed.
    pub fn advance(&mut self, stream: &mut Stream, config: &HandshakeConfig) -> Result<Option<Hello>> {
        loop {
            let next = [PREAMBLE_BYTES, FIRST_BYTES].into_iter().find(|&end| self.received.len() < end);
            let wanted = next.unwrap_or(FIRST_BYTES + CONFIRMATION_BYTES);
            if !stream.read_some(&mut self.received, wanted)? {
                return Ok(None);
            }
            match wanted {
                PREAMBLE_BYTES => self.check_version(stream)?,
                FIRST_BYTES => self.reply(stream, config)?,
                _ => return self.finish(stream, config).map(Some),
            }
        }
    }

    /// Tells a client of another version the version of this side.
    fn check_version(&self, stream: &mut Stream) -> Result<()> {
        let checked = check_preamble(stream, &self.received);
        if checked.is_err() {
            let _ = stream.write_now(&preamble());
        }
        checked
    }

    /// Answers the first frame. The frame may be a recording, so nothing in it is trusted yet.
    fn reply(&mut self, stream: &mut Stream, config: &HandshakeConfig) -> Result<()> {
        let (prologue, message) = self.received.split_at(PROLOGUE_BYTES);
        let Some((keys, message)) = respond(&config.secret, prologue, message)? else {
            // The refusal only tells the client the reason, so this side reports its own error in
            // any case.
            let _ = stream.write_now(&[&preamble()[..], &[REFUSED]].concat());
            let rank = claimed_rank(prologue);
            return Err(auth_failed(
                stream,
                &format!("it claims to be rank {rank}, and has another secret or was tampered with"),
            ));
        };
        self.keys = Some(keys);
        stream.write_now(&[&preamble()[..], &[ACCEPTED], &message].concat())
    }

    /// Verifies the client's confirmation, answers it, and encrypts the connection if both sides
    /// do.
    fn finish(&mut self, stream: &mut Stream, config: &HandshakeConfig) -> Result<Hello> {
        let (first, confirmation) = self.received.split_at(FIRST_BYTES);
        // The keys are taken, so a second confirmation finds none and fails.
        let (Some(mut keys), Some(hello)) = (self.keys.take(), decode_hello(first)) else {
            return Err(auth_failed(stream, "its purpose is unknown, or its handshake is over"));
        };
        let (own_encrypts, encrypts) =
            (config.encrypts(stream), open_confirmation(stream, &mut keys, confirmation)?);
        // The answer is sent even if only one side encrypts, because the client learns that from
        // it.
        stream.write_now(&seal_confirmation(&mut keys, own_encrypts)?)?;
        if encrypts != own_encrypts {
            let (peer, rank) = (stream.peer(), Some(hello.rank as usize));
            return Err(Error::EncryptionMismatch { peer, rank, encrypts });
        }
        if encrypts {
            stream.enable_encryption(keys)?;
        }
        Ok(hello)
    }
}
