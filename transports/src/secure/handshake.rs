//! Proof that both ends of a socket know the job's secret, before a byte of it is trusted; and the agreement on
//! keys, where the job encrypts what travels over TCP.
//!
//! Mutual challenge and response with HMAC-SHA256: each side proves the secret
//! over both nonces, the client's claims, what each wants of encryption, and its
//! own role, so that nothing recorded can be replayed, nothing sent can be sent back,
//! and nobody in between can talk the two out of encrypting. Frames have
//! fixed sizes and a common deadline.
//!
//! ```text
//! client                                              server
//!   magic, version, nonce, claims, terms          →
//!                                                 ←   magic, version, nonce, terms, HMAC("server", …)
//!   HMAC("client", …) [, Noise message]           →
//!                                                 ←   accepted / refused [, Noise message]
//! ```
//!
//! What is in brackets travels where both encrypt; from then on there are only [sealed records](crate::secure::record).

pub(crate) mod client;
#[cfg(test)]
mod tests;

pub use crate::secure::handshake::client::ClientHandshake;
pub use crate::secure::secret::{Secret, random};

use crate::secure::noise;
use crate::sys::socket::Stream;
use crate::{Error, Result};
use hmac::Mac;
use rustix::event::PollFlags;
use std::time::Instant;

/// What a job asks of its connections.
#[derive(Clone, Debug)]
pub struct HandshakeConfig {
    /// Which both ends prove that they know.
    pub secret: Secret,
    /// Whether what travels over TCP is encrypted. What does not leave the host never is.
    pub encrypt: bool,
}

/// What a client says it is. Believed only after its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The rank it comes from.
    pub rank: u32,
    /// How many ranks it thinks there are.
    pub ranks: u32,
    /// Which of several connections of the pair it is.
    pub index: u32,
    /// Number of the meeting; zero before there is one.
    pub session: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// To meet the other ranks.
    Join = 1,
    /// Notes, and shared memory where there is any.
    Control = 2,
    /// Messages.
    Data = 3,
    /// To ask what a rank is doing.
    Status = 4,
    /// To ask whether a rank is still there, after its connection for notes was reset.
    Probe = 5,
}

impl HandshakeConfig {
    fn encrypts(&self, stream: &Stream) -> bool {
        self.encrypt && stream.tcp().is_some()
    }
}

/// The client's half: proves the secret and checks that the server knows it.
///
/// # Errors
/// As [`ClientHandshake::advance`], and [`Error::Timeout`].
pub fn connect(
    stream: &mut Stream,
    terms: &HandshakeConfig,
    claims: &Hello,
    deadline: Instant,
) -> Result<()> {
    let mut introduction = ClientHandshake::start(stream, terms, claims)?;
    while !introduction.advance(stream, terms)? {
        stream.wait(PollFlags::IN, deadline)?;
    }
    Ok(())
}

/// The server's half: checks the client's proof; what it claims may then be believed.
///
/// # Errors
/// As [`connect`].
pub fn accept(stream: &mut Stream, terms: &HandshakeConfig, deadline: Instant) -> Result<Hello> {
    let mut hearing = ServerHandshake::default();
    loop {
        if let Some(claims) = hearing.advance(stream, terms)? {
            return Ok(claims);
        }
        stream.wait(PollFlags::IN, deadline)?;
    }
}

/// The server's half, as far as it has got: for one thread that hears many at once.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    /// The client's hello, then its proof, and then, where both encrypt, its part of the keys.
    received: Vec<u8>,
    /// Ours, once the hello has been answered.
    reply: Option<[u8; REPLY_BYTES]>,
}

impl ServerHandshake {
    /// Goes on with what has arrived, without waiting; the claims, once they are proved.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn advance(&mut self, stream: &mut Stream, terms: &HandshakeConfig) -> Result<Option<Hello>> {
        loop {
            let wanted = match (self.received.len(), self.reply) {
                (..PREAMBLE_BYTES, _) => PREAMBLE_BYTES,
                (_, None) => HELLO_BYTES,
                (_, Some(_)) if terms.encrypts(stream) && self.client_encrypts() => {
                    HELLO_BYTES + PROOF_BYTES + noise::MESSAGE_BYTES
                }
                (_, Some(_)) => HELLO_BYTES + PROOF_BYTES,
            };
            let all = stream.read_some(&mut self.received, wanted).map_err(|error| match error {
                Error::ConnectionClosed { .. } if self.reply.is_some() => auth_failed(stream, CLOSED_BY_PEER),
                other => other,
            });
            if !all? {
                return Ok(None);
            }
            match wanted {
                PREAMBLE_BYTES => self.check_preamble(stream)?,
                HELLO_BYTES => self.send_reply(stream, terms)?,
                _ => return self.verify(stream, terms).map(Some),
            }
        }
    }

    /// Somebody of another version hears of ours.
    fn check_preamble(&self, stream: &mut Stream) -> Result<()> {
        let checked = check_version(stream, &self.received);
        if checked.is_err() {
            let _ = stream.write_now(&preamble());
        }
        checked
    }

    fn client_encrypts(&self) -> bool {
        self.received[HELLO_BYTES - ENCRYPTION_FLAG_BYTES..HELLO_BYTES] == encryption_flag(true)
    }

    fn send_reply(&mut self, stream: &mut Stream, terms: &HandshakeConfig) -> Result<()> {
        let mut reply = [0; REPLY_BYTES];
        reply[..PREAMBLE_BYTES].copy_from_slice(&preamble());
        reply[12..44].copy_from_slice(&random::<NONCE_BYTES>()?);
        reply[44..48].copy_from_slice(&encryption_flag(terms.encrypts(stream)));
        let proof = terms
            .secret
            .hmac(SERVER_ROLE, &self.received, &reply[PREAMBLE_BYTES..48])
            .finalize()
            .into_bytes();
        reply[48..].copy_from_slice(&proof);
        self.reply = Some(reply);
        stream.write_now(&reply)
    }

    fn verify(&self, stream: &mut Stream, terms: &HandshakeConfig) -> Result<Hello> {
        let (hello, rest) = self.received.split_at(HELLO_BYTES);
        let (proof, message) = rest.split_at(PROOF_BYTES);
        let reply = self.reply.unwrap_or([0; REPLY_BYTES]);
        let said = &reply[PREAMBLE_BYTES..REPLY_BYTES - PROOF_BYTES];
        let verified = terms.secret.hmac(CLIENT_ROLE, hello, said).verify_slice(proof).is_ok();
        let Some(claims) = decode_hello(hello).filter(|_| verified) else {
            let _ = stream.write_now(&[REFUSED]);
            let rank = u32::from_le_bytes(hello[48..52].try_into().expect("four bytes"));
            return Err(auth_failed(
                stream,
                &format!("it says that it is rank {rank}, and its proof is wrong"),
            ));
        };
        let encrypts = self.client_encrypts();
        if encrypts != terms.encrypts(stream) {
            // It has seen so in our reply.
            let (peer, rank) = (stream.peer(), Some(claims.rank as usize));
            return Err(Error::EncryptionMismatch { peer, rank, encrypts });
        }
        if !encrypts {
            stream.write_now(&[ACCEPTED])?;
            return Ok(claims);
        }
        let transcript: [&[u8]; 3] = [hello, &reply, proof];
        let agreed = noise::respond(&terms.secret, &transcript, message)?;
        let (keys, message) = agreed.ok_or_else(|| key_exchange_failed(stream))?;
        stream.write_now(&[&[ACCEPTED][..], &message].concat())?;
        stream.enable_encryption(keys)?;
        Ok(claims)
    }
}

/// How hello and reply begin.
fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut start = [0; PREAMBLE_BYTES];
    start[..8].copy_from_slice(MAGIC);
    start[8..].copy_from_slice(&VERSION.to_le_bytes());
    start
}

/// How each side says whether it encrypts.
fn encryption_flag(on: bool) -> [u8; ENCRYPTION_FLAG_BYTES] {
    u32::from(on).to_le_bytes()
}

fn encode_hello(nonce: &[u8; NONCE_BYTES], claims: &Hello, encrypts: bool) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..PREAMBLE_BYTES].copy_from_slice(&preamble());
    hello[12..44].copy_from_slice(nonce);
    hello[44..48].copy_from_slice(&(claims.purpose as u32).to_le_bytes());
    hello[48..52].copy_from_slice(&claims.rank.to_le_bytes());
    hello[52..56].copy_from_slice(&claims.ranks.to_le_bytes());
    hello[56..60].copy_from_slice(&claims.index.to_le_bytes());
    hello[60..68].copy_from_slice(&claims.session.to_le_bytes());
    hello[68..].copy_from_slice(&encryption_flag(encrypts));
    hello
}

fn decode_hello(hello: &[u8]) -> Option<Hello> {
    let word = |at: usize| u32::from_le_bytes(hello[at..at + 4].try_into().expect("four bytes"));
    let purpose = match word(44) {
        1 => Purpose::Join,
        2 => Purpose::Control,
        3 => Purpose::Data,
        4 => Purpose::Status,
        5 => Purpose::Probe,
        _ => return None,
    };
    let session = u64::from_le_bytes(hello[60..68].try_into().expect("eight bytes"));
    Some(Hello { purpose, rank: word(48), ranks: word(52), index: word(56), session })
}

fn check_version(stream: &Stream, start: &[u8]) -> Result<()> {
    if &start[..8] != MAGIC {
        return Err(auth_failed(stream, "it does not speak unisono"));
    }
    let theirs = u32::from_le_bytes(start[8..12].try_into().expect("four bytes"));
    match theirs == VERSION {
        true => Ok(()),
        false => Err(Error::VersionMismatch { peer: stream.peer(), theirs, ours: VERSION }),
    }
}

fn key_exchange_failed(stream: &Stream) -> Error {
    auth_failed(stream, "its part of the keys was damaged on the way")
}

fn auth_failed(stream: &Stream, what: &str) -> Error {
    Error::AuthFailed { peer: stream.peer(), what: what.to_owned() }
}

/// What is said of a client that has seen this side's proof, and left: its secret is another, or it had to go.
pub(crate) const CLOSED_BY_PEER: &str = "it closed the connection";
const MAGIC: &[u8; 8] = b"unisono\0";
/// Of the handshake and of everything after it.
pub(crate) const VERSION: u32 = 6;
/// Magic and version.
const PREAMBLE_BYTES: usize = 12;
const NONCE_BYTES: usize = 32;
/// Whether a side encrypts.
const ENCRYPTION_FLAG_BYTES: usize = 4;
const HELLO_BYTES: usize = 72;
const PROOF_BYTES: usize = 32;
const REPLY_BYTES: usize = 80;
const SERVER_ROLE: &[u8] = b"unisono server";
const CLIENT_ROLE: &[u8] = b"unisono client";
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;
