//! Layout of the handshake's frames, and the errors that a frame can cause.
//!
//! Numbers are little-endian.
//!
//! ```text
//! first frame    preamble (12)   hello (24)        Noise message 1 (48)
//! reply          preamble (12)   status (1)        Noise message 2 (48)
//! confirmation   sealed: 1 if the sender encrypts, else 0 (17)
//! ```

use crate::net::handshake::{Hello, Purpose};
use crate::net::stream::Stream;
use crate::secure::noise::{self, SessionKeys, TAG_BYTES};
use crate::{Error, Result};

/// Magic and version, with which both sides begin.
pub(super) fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..8].copy_from_slice(MAGIC);
    preamble[8..].copy_from_slice(&VERSION.to_le_bytes());
    preamble
}

/// Fails unless `received` begins with the preamble of this version.
pub(super) fn check_preamble(stream: &Stream, received: &[u8]) -> Result<()> {
    if &received[..8] != MAGIC {
        return Err(auth_failed(stream, "it does not speak unisono"));
    }
    match word(received, 8) {
        VERSION => Ok(()),
        theirs => Err(Error::VersionMismatch { peer: stream.peer(), theirs, ours: VERSION }),
    }
}

/// The preamble and the hello: the prologue of the Noise handshake.
pub(super) fn encode_prologue(hello: &Hello) -> [u8; PROLOGUE_BYTES] {
    let mut bytes = [0; PROLOGUE_BYTES];
    bytes[..PREAMBLE_BYTES].copy_from_slice(&preamble());
    bytes[12..16].copy_from_slice(&(hello.purpose as u32).to_le_bytes());
    bytes[16..20].copy_from_slice(&hello.rank.to_le_bytes());
    bytes[20..24].copy_from_slice(&hello.ranks.to_le_bytes());
    bytes[24..28].copy_from_slice(&hello.index.to_le_bytes());
    bytes[28..].copy_from_slice(&hello.session.to_le_bytes());
    bytes
}

/// The hello in a prologue; `None` if its purpose is unknown.
pub(super) fn decode_hello(prologue: &[u8]) -> Option<Hello> {
    let purpose = match word(prologue, 12) {
        1 => Purpose::Join,
        2 => Purpose::Control,
        3 => Purpose::Data,
        4 => Purpose::Status,
        5 => Purpose::Probe,
        _ => return None,
    };
    let session = u64::from_le_bytes(prologue[28..36].try_into().expect("eight bytes"));
    let (ranks, index) = (word(prologue, 20), word(prologue, 24));
    Some(Hello { purpose, rank: claimed_rank(prologue), ranks, index, session })
}

/// The rank that a prologue claims.
pub(super) fn claimed_rank(prologue: &[u8]) -> u32 {
    word(prologue, 16)
}

/// The record that proves the possession of the connection's keys, and says whether its sender
/// encrypts.
pub(super) fn seal_confirmation(keys: &mut SessionKeys, encrypts: bool) -> Result<[u8; CONFIRMATION_BYTES]> {
    let mut record = [0; CONFIRMATION_BYTES];
    let sealed = keys.seal(&[u8::from(encrypts)], &mut record);
    sealed.map_err(|source| Error::System { what: "cannot seal a confirmation".to_owned(), source })?;
    Ok(record)
}

/// Opens the peer's confirmation, and returns whether the peer encrypts.
pub(super) fn open_confirmation(stream: &Stream, keys: &mut SessionKeys, record: &[u8]) -> Result<bool> {
    let mut plain = [0];
    match (keys.open(record, &mut plain), plain) {
        (Some(1), [encrypts @ 0..=1]) => Ok(encrypts == 1),
        _ => Err(auth_failed(stream, "its confirmation was recorded, damaged, or made with another secret")),
    }
}

pub(super) fn auth_failed(stream: &Stream, what: &str) -> Error {
    Error::AuthFailed { peer: stream.peer(), what: what.to_owned() }
}

fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

const MAGIC: &[u8; 8] = b"unisono\0";
/// Version of the handshake and of all that follows it.
pub(crate) const VERSION: u32 = 10;
/// Bytes of magic and version.
pub(super) const PREAMBLE_BYTES: usize = 12;
/// Bytes of preamble and hello.
pub(super) const PROLOGUE_BYTES: usize = 36;
/// Bytes of the client's first frame.
pub(super) const FIRST_BYTES: usize = PROLOGUE_BYTES + noise::MESSAGE_BYTES;
/// Bytes of the reply up to its status.
pub(super) const STATUS_BYTES: usize = PREAMBLE_BYTES + 1;
/// Bytes of a reply that accepts the client's secret. A refusal ends after the status.
pub(super) const REPLY_BYTES: usize = STATUS_BYTES + noise::MESSAGE_BYTES;
/// Bytes of a confirmation.
pub(super) const CONFIRMATION_BYTES: usize = 1 + TAG_BYTES;
/// Status of a reply to a client that knows the secret.
pub(super) const ACCEPTED: u8 = 1;
/// Status of a reply to a client with another secret.
pub(super) const REFUSED: u8 = 0;
