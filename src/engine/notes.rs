//! What ranks tell each other beside the data.

use super::roll::{Count, Stage};
use crate::call::Call;
use crate::error::ErrorKind;
use crate::schedule::Rank;
use unisono_transports::{MAX_NOTE_BYTES, Tag};

/// One note.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Note {
    /// "I have been waiting in this operation for a while."
    Waiting(Call),
    /// "I have been waiting in this operation of another communicator for a while."
    Elsewhere(Call),
    /// "I am done with this communicator."
    Goodbye,
    /// "I failed, and so will you."
    Failed {
        /// Who says so.
        by: Rank,
        /// What happened.
        kind: ErrorKind,
    },
    /// "I shrink this communicator, and am so far."
    Count(Count),
}

impl Note {
    /// As bytes, at most [`MAX_NOTE_BYTES`].
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Note::Waiting(call) => encode_wait(WAITING, call),
            Note::Elsewhere(call) => encode_wait(ELSEWHERE, call),
            Note::Goodbye => vec![GOODBYE],
            Note::Failed { by, kind } => encode_failure(*by, kind),
            Note::Count(count) => encode_count(count),
        }
    }

    /// From bytes that a peer sent; none if they make no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Note> {
        let (&kind, mut rest) = bytes.split_first()?;
        match kind {
            WAITING => Some(Note::Waiting(take_call(&mut rest)?)),
            ELSEWHERE => Some(Note::Elsewhere(take_call(&mut rest)?)),
            GOODBYE => Some(Note::Goodbye),
            FAILED => decode_failure(&mut rest),
            COUNT => decode_count(&mut rest).map(Note::Count),
            _ => None,
        }
    }
}

const WAITING: u8 = 1;
const GOODBYE: u8 = 2;
const FAILED: u8 = 3;
const COUNT: u8 = 4;
const ELSEWHERE: u8 = 5;

const MISMATCH: u8 = 1;
const LENGTH: u8 = 2;
const PEER_LOST: u8 = 3;
const PEER_LEFT: u8 = 4;
const CORRUPT: u8 = 5;
const ABORTED: u8 = 6;
const NOT_FINITE: u8 = 7;

fn encode_wait(kind: u8, call: &Call) -> Vec<u8> {
    std::iter::once(kind).chain(call.tag(0).to_bytes()).collect()
}

/// FAILED, by, what happened, two numbers, two calls or lengths, text: every field in its place.
fn encode_failure(by: Rank, kind: &ErrorKind) -> Vec<u8> {
    let none = Tag::default();
    let (code, one, other, tags, text) = match kind {
        ErrorKind::Mismatch { rank, call, other, other_call } => {
            (MISMATCH, *rank, *other, [call.tag(0), other_call.tag(0)], "")
        }
        ErrorKind::Length { sender, sent, receiver, expected } => {
            let lengths = [Tag([*sent, 0, 0, 0]), Tag([*expected, 0, 0, 0])];
            (LENGTH, *sender, *receiver, lengths, "")
        }
        ErrorKind::PeerLost { peer, what } => (PEER_LOST, *peer, 0, [none; 2], what.as_str()),
        ErrorKind::PeerLeft { peer } => (PEER_LEFT, *peer, 0, [none; 2], ""),
        ErrorKind::Corrupt { peer, what } => (CORRUPT, *peer, 0, [none; 2], what.as_str()),
        ErrorKind::Aborted { by, reason } => (ABORTED, *by, 0, [none; 2], reason.as_str()),
        ErrorKind::NotFinite { rank, index, what } => {
            (NOT_FINITE, *rank, 0, [Tag([*index, 0, 0, 0]), none], what.as_str())
        }
        other => (ABORTED, by, 0, [none; 2], &*other.to_string()),
    };
    let mut bytes = vec![FAILED];
    bytes.extend((by as u32).to_le_bytes());
    bytes.push(code);
    bytes.extend((one as u32).to_le_bytes());
    bytes.extend((other as u32).to_le_bytes());
    bytes.extend(tags[0].to_bytes());
    bytes.extend(tags[1].to_bytes());
    let room = MAX_NOTE_BYTES - bytes.len();
    bytes.extend(&text.as_bytes()[..whole_characters(text, room)]);
    bytes
}

/// COUNT, attempt, stage, the length of the place and the place, how many ranks there are, and a bit for each.
fn encode_count(Count { attempt, stage, gone, place }: &Count) -> Vec<u8> {
    let place = &place.as_bytes()[..whole_characters(place, PLACE_BYTES_MAX)];
    let mut bytes = vec![COUNT];
    bytes.extend(attempt.to_le_bytes());
    bytes.push(*stage as u8);
    bytes.push(place.len() as u8);
    bytes.extend(place);
    bytes.extend((gone.len() as u32).to_le_bytes());
    bytes.extend(bits(gone));
    bytes
}

/// Eight to a byte.
pub(crate) fn bits(flags: &[bool]) -> impl Iterator<Item = u8> + '_ {
    let byte = |flags: &[bool]| (0..).zip(flags).fold(0, |byte, (at, flag)| byte | u8::from(*flag) << at);
    flags.chunks(8).map(byte)
}

fn decode_count(rest: &mut &[u8]) -> Option<Count> {
    // The next one must have a number, too.
    let attempt = u32::try_from(take_rank(rest)?).ok().filter(|&attempt| attempt < u32::MAX)?;
    let (&[stage, length], tail) = rest.split_first_chunk::<2>()?;
    let stage = *[Stage::Counting, Stage::Met, Stage::Decided].get(stage as usize)?;
    let (place, tail) = tail.split_at_checked(length as usize)?;
    *rest = tail;
    let ranks = take_rank(rest)?;
    if ranks > COUNTED_MAX || rest.len() != ranks.div_ceil(8) {
        return None;
    }
    let gone = (0..ranks).map(|rank| rest[rank / 8] >> (rank % 8) & 1 == 1).collect();
    Some(Count { attempt, stage, gone, place: String::from_utf8_lossy(place).into_owned() })
}

/// Ranks that one note can count.
pub(super) const COUNTED_MAX: usize = 8 * (MAX_NOTE_BYTES - 11 - PLACE_BYTES_MAX);
/// Bytes of the place where ranks meet.
pub(crate) const PLACE_BYTES_MAX: usize = 64;

/// The longest start of `text` of at most `bytes_max` bytes that cuts no character.
fn whole_characters(text: &str, bytes_max: usize) -> usize {
    (0..=bytes_max.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

fn decode_failure(rest: &mut &[u8]) -> Option<Note> {
    let by = take_rank(rest)?;
    let (&code, tail) = rest.split_first()?;
    *rest = tail;
    let (one, other) = (take_rank(rest)?, take_rank(rest)?);
    let tags = [take_tag(rest)?, take_tag(rest)?];
    let text = String::from_utf8_lossy(rest).into_owned();
    let kind = match code {
        MISMATCH => ErrorKind::Mismatch {
            rank: one,
            call: Call::from_tag(&tags[0]),
            other,
            other_call: Call::from_tag(&tags[1]),
        },
        LENGTH => {
            ErrorKind::Length { sender: one, sent: tags[0].0[0], receiver: other, expected: tags[1].0[0] }
        }
        PEER_LOST => ErrorKind::PeerLost { peer: one, what: text },
        PEER_LEFT => ErrorKind::PeerLeft { peer: one },
        CORRUPT => ErrorKind::Corrupt { peer: one, what: text },
        ABORTED => ErrorKind::Aborted { by: one, reason: text },
        NOT_FINITE => ErrorKind::NotFinite { rank: one, index: tags[0].0[0], what: text },
        _ => return None,
    };
    Some(Note::Failed { by, kind })
}

fn take_rank(rest: &mut &[u8]) -> Option<Rank> {
    let (bytes, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(u32::from_le_bytes(*bytes) as Rank)
}

fn take_tag(rest: &mut &[u8]) -> Option<Tag> {
    let (bytes, tail) = rest.split_first_chunk::<32>()?;
    *rest = tail;
    Some(Tag::from_bytes(bytes))
}

fn take_call(rest: &mut &[u8]) -> Option<Call> {
    take_tag(rest).map(|tag| Call::from_tag(&tag))
}

/// What comes as a note.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(note) = Note::decode(bytes) {
        let again = note.encode();
        assert!(again.len() <= MAX_NOTE_BYTES && Note::decode(&again).is_some(), "{note:?}");
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::call::Kind;
    use proptest::prelude::*;
    use unisono_cuda::DType;

    fn call(count: u64) -> Call {
        Call::new(4, Kind::SendRecv, DType::F32, None, 0, count)
    }

    #[test]
    fn notes_survive_the_wire() {
        let what = || "gone".to_owned();
        let kinds = [
            ErrorKind::Mismatch { rank: 1, call: call(3), other: 2, other_call: call(4) },
            ErrorKind::Length { sender: 3, sent: 8, receiver: 1, expected: 1 << 50 },
            ErrorKind::PeerLost { peer: 3, what: what() },
            ErrorKind::PeerLeft { peer: 9 },
            ErrorKind::Corrupt { peer: 0, what: what() },
            ErrorKind::Aborted { by: 5, reason: what() },
            ErrorKind::NotFinite { rank: 2, index: 1 << 40, what: what() },
        ];
        let failures = kinds.into_iter().map(|kind| Note::Failed { by: 7, kind });
        let gone = (0..COUNTED_MAX).map(|rank| rank % 3 == 1).collect();
        let count = Count { attempt: 7, stage: Stage::Met, gone, place: "[::1]:80".to_owned() };
        assert!(Note::Count(count.clone()).encode().len() <= MAX_NOTE_BYTES);
        let waits = [Note::Waiting(call(1)), Note::Elsewhere(call(2))];
        for note in failures.chain(waits).chain([Note::Goodbye, Note::Count(count)]) {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let kind = ErrorKind::Aborted { by: 0, reason: "é".repeat(2000) };
        let bytes = Note::Failed { by: 0, kind }.encode();
        assert!(bytes.len() <= MAX_NOTE_BYTES);
        assert!(matches!(Note::decode(&bytes), Some(Note::Failed { .. })));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Note::decode(&bytes);
        }
    }
}
