//! The client's half of the handshake, in steps that never wait.

use crate::net::handshake::frames::{
    ACCEPTED, CONFIRMATION_BYTES, PREAMBLE_BYTES, REPLY_BYTES, STATUS_BYTES, auth_failed, check_preamble,
    encode_prologue, open_confirmation, seal_confirmation,
};
use crate::net::handshake::{HandshakeConfig, Hello};
use crate::net::stream::Stream;
use crate::secure::noise::{NoiseHandshake, SessionKeys};
use crate::{Error, Result};

/// State of the client's half of one handshake.
pub struct ClientHandshake {
    /// The server's reply, followed by its confirmation.
    received: Vec<u8>,
    state: State,
}

enum State {
    AwaitReply(Box<NoiseHandshake>),
    AwaitConfirmation(SessionKeys),
    /// The handshake is complete or has failed.
    Ended,
}

impl ClientHandshake {
    /// Sends the first frame on a new connection.
    ///
    /// # Errors
    /// [`Error::System`] if the operating system refuses random numbers or the write.
    pub fn start(stream: &mut Stream, config: &HandshakeConfig, hello: &Hello) -> Result<Self> {
        let prologue = encode_prologue(hello);
        let (noise, message) = NoiseHandshake::start(&config.secret, &prologue)?;
        stream.write_now(&[&prologue[..], &message].concat())?;
        Ok(Self { received: Vec::new(), state: State::AwaitReply(Box::new(noise)) })
    }

    /// Continues with the bytes that have arrived, and returns true once both sides are
    /// authenticated.
    ///
    /// A call never waits. After it has returned true or an error, the handshake is over.
    ///
    /// # Errors
    /// * [`Error::VersionMismatch`] if the server speaks another version.
    /// * [`Error::AuthFailed`] if either side has another secret.
    /// * [`Error::EncryptionMismatch`] if only one side encrypts.
    /// * [`Error::ConnectionClosed`] and [`Error::System`] if the connection failed.
    pub fn advance(&mut self, stream: &mut Stream, config: &HandshakeConfig) -> Result<bool> {
        loop {
            let ends = [PREAMBLE_BYTES, STATUS_BYTES, REPLY_BYTES];
            let next = ends.into_iter().find(|&end| self.received.len() < end);
            let wanted = next.unwrap_or(REPLY_BYTES + CONFIRMATION_BYTES);
            if !stream.read_some(&mut self.received, wanted)? {
                return Ok(false);
            }
            match wanted {
                PREAMBLE_BYTES => check_preamble(stream, &self.received)?,
                STATUS_BYTES if self.received[PREAMBLE_BYTES] != ACCEPTED => {
                    return Err(auth_failed(stream, "it has another secret, and refused this rank's"));
                }
                STATUS_BYTES => {}
                REPLY_BYTES => self.confirm(stream, config)?,
                _ => return self.finish(stream, config).map(|()| true),
            }
        }
    }

    /// Verifies the server's Noise message, and sends this side's confirmation.
    fn confirm(&mut self, stream: &mut Stream, config: &HandshakeConfig) -> Result<()> {
        let message = self.received[STATUS_BYTES..].try_into().expect("as many bytes as were wanted");
        // An error below leaves this state, so no later bytes continue a handshake that has failed.
        let keys = match std::mem::replace(&mut self.state, State::Ended) {
            State::AwaitReply(noise) => noise.finish(message),
            State::AwaitConfirmation(_) | State::Ended => None,
        };
        let mut keys =
            keys.ok_or_else(|| auth_failed(stream, "it has another secret, or its reply was damaged"))?;
        stream.write_now(&seal_confirmation(&mut keys, config.encrypts(stream))?)?;
        self.state = State::AwaitConfirmation(keys);
        Ok(())
    }

    /// Verifies the server's confirmation, and encrypts the connection if both sides do.
    fn finish(&mut self, stream: &mut Stream, config: &HandshakeConfig) -> Result<()> {
        let State::AwaitConfirmation(mut keys) = std::mem::replace(&mut self.state, State::Ended) else {
            return Err(auth_failed(stream, "its handshake is over"));
        };
        let encrypts = open_confirmation(stream, &mut keys, &self.received[REPLY_BYTES..])?;
        match (encrypts == config.encrypts(stream), encrypts) {
            (false, _) => Err(Error::EncryptionMismatch { peer: stream.peer(), rank: None, encrypts }),
            (true, true) => stream.enable_encryption(keys),
            (true, false) => Ok(()),
        }
    }
}
