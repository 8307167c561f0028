//! Proof that both ends of a socket know the job's secret, before a byte of it is trusted.
//!
//! Mutual challenge and response with HMAC-SHA256: each side proves the secret
//! over both nonces, the client's claims and its own role, so that nothing
//! recorded can be replayed and nothing sent can be sent back. Frames have
//! fixed sizes and a common deadline.
//!
//! ```text
//! client                                              server
//!   magic, version, nonce, claims                 →
//!                                                 ←   magic, version, nonce, HMAC("server", …)
//!   HMAC("client", …)                             →
//!                                                 ←   accepted / refused
//! ```

use crate::socket::Stream;
use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use rustix::event::PollFlags;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::time::Instant;

/// 256 bits that the ranks of a job share. Never printed but by [`Secret::to_hex`]; zeroed when dropped.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// What a client says it is. Believed only after its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
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
}

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
        Self(self.prove(DERIVE, label, &[]).finalize().into_bytes().into())
    }

    /// As 64 hexadecimal digits, to hand to another process of the job.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn prove(&self, role: &[u8], hello: &[u8], reply_nonce: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(role);
        mac.update(hello);
        mac.update(reply_nonce);
        mac
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

/// The client's half: proves the secret and checks that the server knows it.
///
/// # Errors
/// [`Error::Version`], [`Error::Refused`] for a wrong secret on either side, [`Error::Timeout`], the system's.
pub fn connect(stream: &mut Stream, secret: &Secret, claims: &Claims, deadline: Instant) -> Result<()> {
    let hello = encode_hello(&random()?, claims);
    stream.write_all(&hello, deadline)?;
    let mut reply = [0; REPLY_BYTES];
    stream.read_exact(&mut reply[..START_BYTES], deadline)?;
    check_version(stream, &reply[..START_BYTES])?;
    stream.read_exact(&mut reply[START_BYTES..], deadline)?;
    let (nonce, proof) = (&reply[12..44], &reply[44..]);
    if secret.prove(SERVER, &hello, nonce).verify_slice(proof).is_err() {
        return Err(refused(stream, "the secret of the other side is another one"));
    }
    let proof = secret.prove(CLIENT, &hello, nonce).finalize().into_bytes();
    stream.write_all(&proof, deadline)?;
    let mut accepted = [0];
    stream.read_exact(&mut accepted, deadline)?;
    if accepted[0] == ACCEPTED { Ok(()) } else { Err(refused(stream, "it refused our proof")) }
}

/// The server's half: checks the client's proof; what it claims may then be believed.
///
/// # Errors
/// As [`connect`].
pub fn accept(stream: &mut Stream, secret: &Secret, deadline: Instant) -> Result<Claims> {
    let mut hearing = Hearing::default();
    loop {
        if let Some(claims) = hearing.advance(stream, secret)? {
            return Ok(claims);
        }
        stream.wait(PollFlags::IN, deadline)?;
    }
}

/// The server's half, as far as it has got: for one thread that hears many at once.
#[derive(Debug, Default)]
pub struct Hearing {
    /// The client's hello, and then its proof.
    heard: Vec<u8>,
    /// Ours, once the hello has been answered.
    nonce: Option<[u8; 32]>,
}

impl Hearing {
    /// Goes on with what has arrived, without waiting; the claims, once they are proved.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn advance(&mut self, stream: &mut Stream, secret: &Secret) -> Result<Option<Claims>> {
        loop {
            let wanted = match (self.heard.len(), self.nonce) {
                (..START_BYTES, _) => START_BYTES,
                (_, None) => HELLO_BYTES,
                (_, Some(_)) => HELLO_BYTES + PROOF_BYTES,
            };
            if !stream.read_some(&mut self.heard, wanted)? {
                return Ok(None);
            }
            match wanted {
                START_BYTES => self.check_start(stream)?,
                HELLO_BYTES => self.answer(stream, secret)?,
                _ => return self.judge(stream, secret).map(Some),
            }
        }
    }

    /// Somebody of another version hears of ours.
    fn check_start(&self, stream: &mut Stream) -> Result<()> {
        let checked = check_version(stream, &self.heard);
        if checked.is_err() {
            let _ = stream.write_now(&start());
        }
        checked
    }

    fn answer(&mut self, stream: &mut Stream, secret: &Secret) -> Result<()> {
        let nonce: [u8; 32] = random()?;
        let mut reply = [0; REPLY_BYTES];
        reply[..START_BYTES].copy_from_slice(&start());
        reply[12..44].copy_from_slice(&nonce);
        reply[44..].copy_from_slice(&secret.prove(SERVER, &self.heard, &nonce).finalize().into_bytes());
        self.nonce = Some(nonce);
        stream.write_now(&reply)
    }

    fn judge(&self, stream: &mut Stream, secret: &Secret) -> Result<Claims> {
        let (hello, proof) = self.heard.split_at(HELLO_BYTES);
        let nonce = self.nonce.unwrap_or_default();
        let verified = secret.prove(CLIENT, hello, &nonce).verify_slice(proof).is_ok();
        match decode_claims(hello) {
            Some(claims) if verified => {
                stream.write_now(&[ACCEPTED])?;
                Ok(claims)
            }
            _ => {
                let _ = stream.write_now(&[REFUSED]);
                let rank = u32::from_le_bytes(hello[48..52].try_into().expect("four bytes"));
                Err(refused(stream, &format!("it says that it is rank {rank}, and its proof is wrong")))
            }
        }
    }
}

/// How hello and reply begin.
fn start() -> [u8; START_BYTES] {
    let mut start = [0; START_BYTES];
    start[..8].copy_from_slice(MAGIC);
    start[8..].copy_from_slice(&VERSION.to_le_bytes());
    start
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

fn encode_hello(nonce: &[u8; 32], claims: &Claims) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..START_BYTES].copy_from_slice(&start());
    hello[12..44].copy_from_slice(nonce);
    hello[44..48].copy_from_slice(&(claims.purpose as u32).to_le_bytes());
    hello[48..52].copy_from_slice(&claims.rank.to_le_bytes());
    hello[52..56].copy_from_slice(&claims.ranks.to_le_bytes());
    hello[56..60].copy_from_slice(&claims.index.to_le_bytes());
    hello[60..].copy_from_slice(&claims.session.to_le_bytes());
    hello
}

fn decode_claims(hello: &[u8]) -> Option<Claims> {
    let word = |at: usize| u32::from_le_bytes(hello[at..at + 4].try_into().expect("four bytes"));
    let purpose = match word(44) {
        1 => Purpose::Join,
        2 => Purpose::Control,
        3 => Purpose::Data,
        4 => Purpose::Status,
        _ => return None,
    };
    let session = u64::from_le_bytes(hello[60..].try_into().expect("eight bytes"));
    Some(Claims { purpose, rank: word(48), ranks: word(52), index: word(56), session })
}

fn check_version(stream: &Stream, start: &[u8]) -> Result<()> {
    if &start[..8] != MAGIC {
        return Err(refused(stream, "it does not speak unisono"));
    }
    let theirs = u32::from_le_bytes(start[8..12].try_into().expect("four bytes"));
    match theirs == VERSION {
        true => Ok(()),
        false => Err(Error::Version { peer: stream.peer(), theirs, ours: VERSION }),
    }
}

fn refused(stream: &Stream, what: &str) -> Error {
    Error::Refused { peer: stream.peer(), what: what.to_owned() }
}

const MAGIC: &[u8; 8] = b"unisono\0";
/// Of the handshake and of everything after it.
const VERSION: u32 = 1;
/// Magic and version.
const START_BYTES: usize = 12;
const HELLO_BYTES: usize = 68;
const PROOF_BYTES: usize = 32;
const REPLY_BYTES: usize = 76;
const SERVER: &[u8] = b"unisono server";
const CLIENT: &[u8] = b"unisono client";
const DERIVE: &[u8] = b"unisono derive";
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(300)
    }

    fn pair() -> (Stream, Stream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Stream::Unix(one), Stream::Unix(other))
    }

    const CLAIMS: Claims = Claims { purpose: Purpose::Data, rank: 3, ranks: 4, index: 1, session: 99 };

    fn meet(client: Secret, server: Secret) -> (Result<()>, Result<Claims>) {
        let (mut near, mut far) = pair();
        let thread = std::thread::spawn(move || accept(&mut far, &server, soon()));
        let ended = connect(&mut near, &client, &CLAIMS, soon());
        drop(near);
        (ended, thread.join().unwrap())
    }

    #[test]
    fn the_right_secret_is_believed() {
        let secret = Secret::random().unwrap();
        let again = Secret::from_hex(&secret.to_hex()).unwrap();
        let (client, server) = meet(secret, again);
        client.unwrap();
        assert_eq!(server.unwrap(), CLAIMS);
    }

    #[test]
    fn secrets_that_follow_from_one_are_all_different() {
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

    #[test]
    fn a_wrong_secret_is_noticed_on_both_sides() {
        let begun = Instant::now();
        let (client, server) = meet(Secret::random().unwrap(), Secret::random().unwrap());
        assert!(matches!(client.unwrap_err(), Error::Refused { .. }));
        assert!(server.is_err());
        assert!(begun.elapsed() < Duration::from_millis(100));
    }

    #[test]
    fn another_version_is_named() {
        let (mut near, mut far) = pair();
        let thread = std::thread::spawn(move || accept(&mut far, &Secret::random().unwrap(), soon()));
        let mut hello = encode_hello(&[0; 32], &CLAIMS);
        hello[8] = 7;
        near.write_all(&hello, soon()).unwrap();
        assert!(matches!(
            thread.join().unwrap().unwrap_err(),
            Error::Version { theirs: 7, ours: VERSION, .. }
        ));
    }

    #[test]
    fn silence_and_garbage_end_at_the_deadline_or_before() {
        for bytes in [&b""[..], b"GET / HTTP/1.1\r\nHost: nobody at all, really\r\n\r\n", &[0xff; 400]] {
            let (mut near, mut far) = pair();
            let thread = std::thread::spawn(move || accept(&mut far, &Secret::random().unwrap(), soon()));
            near.write_all(bytes, soon()).unwrap();
            assert!(thread.join().unwrap().is_err());
        }
    }

    #[test]
    fn a_recorded_handshake_does_not_work_again() {
        let secret = Secret::random().unwrap();
        let hello = encode_hello(&[5; 32], &CLAIMS);
        let recorded = secret.prove(CLIENT, &hello, &[9; 32]).finalize().into_bytes();
        let (mut near, mut far) = pair();
        let thread = std::thread::spawn(move || accept(&mut far, &secret, soon()));
        near.write_all(&hello, soon()).unwrap();
        near.write_all(&recorded, soon()).unwrap();
        assert!(matches!(thread.join().unwrap().unwrap_err(), Error::Refused { .. }));
    }

    #[test]
    fn a_servers_proof_sent_back_is_no_clients_proof() {
        let secret = Secret::random().unwrap();
        let (mut near, mut far) = pair();
        let thread = std::thread::spawn(move || accept(&mut far, &secret, soon()));
        near.write_all(&encode_hello(&[5; 32], &CLAIMS), soon()).unwrap();
        let mut reply = [0; REPLY_BYTES];
        near.read_exact(&mut reply, soon()).unwrap();
        near.write_all(&reply[44..], soon()).unwrap();
        assert!(matches!(thread.join().unwrap().unwrap_err(), Error::Refused { .. }));
    }
}
