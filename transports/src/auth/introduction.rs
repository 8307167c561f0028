//! The client's half of the handshake, in steps that never wait.

use super::{
    ACCEPTED, CLIENT, Claims, HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, REPLY_BYTES, SERVER, START_BYTES, Terms,
    check_version, disagreed, encode_hello, encryption, random, refused,
};
use crate::noise::{self, Agreement};
use crate::socket::Stream;
use crate::{Error, Result};
use hmac::Mac;

/// The client's half, as far as it has got: for whoever has other things to look after meanwhile.
pub struct Introduction {
    hello: [u8; HELLO_BYTES],
    /// The server's reply, then its verdict, and then, where both encrypt, its part of the keys.
    heard: Vec<u8>,
    /// Whether the reply has been answered.
    answered: bool,
    agreement: Option<Agreement>,
}

impl Introduction {
    /// Says hello on a connection that has just been made.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(stream: &mut Stream, terms: &Terms, claims: &Claims) -> Result<Self> {
        let hello = encode_hello(&random()?, claims, terms.encrypt(stream));
        stream.write_now(&hello)?;
        Ok(Self { hello, heard: Vec::new(), answered: false, agreement: None })
    }

    /// Goes on with what has arrived, without waiting; whether both sides have proved themselves, which is told once.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Refused`] for a wrong secret on either side, [`Error::Encryption`] if only one
    /// side wants it, [`Error::Closed`], the system's.
    pub fn advance(&mut self, stream: &mut Stream, terms: &Terms) -> Result<bool> {
        loop {
            let wanted = match (self.heard.len(), self.answered) {
                (..START_BYTES, _) => START_BYTES,
                (_, false) => REPLY_BYTES,
                (..VERDICT_BYTES, true) => VERDICT_BYTES,
                _ => VERDICT_BYTES + noise::MESSAGE_BYTES,
            };
            if !stream.read_some(&mut self.heard, wanted)? {
                return Ok(false);
            }
            match wanted {
                START_BYTES => check_version(stream, &self.heard)?,
                REPLY_BYTES => self.answer(stream, terms)?,
                VERDICT_BYTES if self.heard[REPLY_BYTES] != ACCEPTED => {
                    return Err(refused(stream, "it refused our proof"));
                }
                VERDICT_BYTES if self.agreement.is_some() => {}
                VERDICT_BYTES => return Ok(true),
                _ => return self.agree(stream).map(|()| true),
            }
        }
    }

    /// Checks the server's proof, and gives this side's.
    fn answer(&mut self, stream: &mut Stream, terms: &Terms) -> Result<()> {
        let (said, proof) = self.heard[START_BYTES..].split_at(REPLY_BYTES - PROOF_BYTES - START_BYTES);
        if terms.secret.prove(SERVER, &self.hello, said).verify_slice(proof).is_err() {
            return Err(refused(stream, "the secret of the other side is another one"));
        }
        let (encrypts, server_encrypts) = (terms.encrypt(stream), said[NONCE_BYTES..] == encryption(true));
        let mut answer = terms.secret.prove(CLIENT, &self.hello, said).finalize().into_bytes().to_vec();
        if encrypts && server_encrypts {
            let transcript: [&[u8]; 3] = [&self.hello, &self.heard, &answer];
            let (agreement, message) = Agreement::begin(&terms.secret, &transcript)?;
            self.agreement = Some(agreement);
            answer.extend(message);
        }
        stream.write_now(&answer)?;
        self.answered = true;
        match server_encrypts == encrypts {
            true => Ok(()),
            false => Err(Error::Encryption { peer: stream.peer(), rank: None, encrypts: server_encrypts }),
        }
    }

    /// Seals the connection with the keys that both sides have agreed on.
    fn agree(&mut self, stream: &mut Stream) -> Result<()> {
        let message = self.heard[VERDICT_BYTES..].try_into().expect("as many bytes as were wanted");
        let keys = self.agreement.take().and_then(|agreement| agreement.finish(message));
        stream.seal(keys.ok_or_else(|| disagreed(stream))?)
    }
}

/// What the server has said once its verdict is here.
const VERDICT_BYTES: usize = REPLY_BYTES + 1;
