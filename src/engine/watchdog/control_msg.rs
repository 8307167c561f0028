//! Control messages between ranks: waits, failures, goodbyes and membership views.

use crate::engine::membership::agreement::{Phase, View};
use crate::error::{AbortCause, ErrorKind};
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::time::Duration;
use unisono_transports::text::printable;
use unisono_transports::{MAX_CONTROL_MSG_BYTES, Tag};

/// One control message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ControlMsg {
    /// The sender has been waiting in this operation for a while.
    Waiting(OpDesc),
    /// The sender has been waiting in this operation of another communicator for a while.
    WaitingElsewhere(OpDesc),
    /// The sender called this operation, and a later one that fails because earlier ones differ.
    Called(OpDesc),
    /// The sender is done with this communicator.
    Finalized {
        /// The failure of a related communicator because of which the sender leaves, if there was
        /// one.
        reason: Option<String>,
    },
    /// The sender failed, and the communicator with it.
    Failed {
        /// The rank that failed.
        by: Rank,
        /// The error.
        kind: ErrorKind,
    },
    /// The sender shrinks this communicator and is at this point.
    Membership(View),
}

impl ControlMsg {
    /// Encodes the message in at most [`MAX_CONTROL_MSG_BYTES`] bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            ControlMsg::Waiting(op) => encode_op(WAITING, op),
            ControlMsg::WaitingElsewhere(op) => encode_op(WAITING_ELSEWHERE, op),
            ControlMsg::Called(op) => encode_op(CALLED, op),
            ControlMsg::Finalized { reason } => encode_goodbye(reason.as_deref().unwrap_or_default()),
            ControlMsg::Failed { by, kind } => encode_failure(*by, kind),
            ControlMsg::Membership(view) => encode_view(view),
        }
    }

    /// Decodes a message of a peer of a communicator of `ranks` ranks. `None` if it is malformed,
    /// or names a rank that the communicator does not have, because errors show these numbers.
    pub(crate) fn decode(bytes: &[u8], ranks: usize) -> Option<ControlMsg> {
        let (&kind, mut body) = bytes.split_first()?;
        match kind {
            WAITING => Some(ControlMsg::Waiting(take_op(&mut body)?)),
            WAITING_ELSEWHERE => Some(ControlMsg::WaitingElsewhere(take_op(&mut body)?)),
            CALLED => Some(ControlMsg::Called(take_op(&mut body)?)),
            FINALIZED => {
                Some(ControlMsg::Finalized { reason: Some(text_of(body)).filter(|text| !text.is_empty()) })
            }
            FAILED => decode_failure(&mut body, ranks),
            MEMBERSHIP => decode_view(&mut body, ranks).map(ControlMsg::Membership),
            _ => None,
        }
    }
}

const WAITING: u8 = 1;
const FINALIZED: u8 = 2;
const FAILED: u8 = 3;
const MEMBERSHIP: u8 = 4;
const WAITING_ELSEWHERE: u8 = 5;
const CALLED: u8 = 6;

const MISMATCH: u8 = 1;
const COUNT_MISMATCH: u8 = 2;
const PEER_FAILED: u8 = 3;
const PEER_FINALIZED: u8 = 4;
const PROTOCOL_VIOLATION: u8 = 5;
const ABORTED: u8 = 6;
const NOT_FINITE: u8 = 7;
const BARRIER_TIMEOUT: u8 = 8;
const TIMEOUT: u8 = 9;
const MESSAGE_TIMEOUT: u8 = 10;
const EXCLUDED: u8 = 11;
const SYSTEM: u8 = 12;
const GPU: u8 = 13;
const BUG: u8 = 14;

const BY_REQUEST: u64 = 0;
const BY_SHRINK: u64 = 1;
const BY_FAILURE: u64 = 2;

fn encode_op(kind: u8, op: &OpDesc) -> Vec<u8> {
    std::iter::once(kind).chain(op.tag(0).to_bytes()).collect()
}

/// Encodes a goodbye: FINALIZED, then the reason.
fn encode_goodbye(reason: &str) -> Vec<u8> {
    let text_bytes = utf8_prefix_len(reason, MAX_CONTROL_MSG_BYTES - 1);
    std::iter::once(FINALIZED).chain(reason.bytes().take(text_bytes)).collect()
}

/// Encodes a failure: FAILED, sender, then its kind.
fn encode_failure(rank: Rank, kind: &ErrorKind) -> Vec<u8> {
    let mut bytes = vec![FAILED];
    bytes.extend((rank as u32).to_le_bytes());
    encode_kind(&mut bytes, kind, MAX_CONTROL_MSG_BYTES);
    bytes
}

/// Encodes a kind of error: code, two ranks, two tags or lengths, text. Every field is always
/// present. The failure that caused an abort follows its text. `bytes` has at most `bytes_max`
/// bytes then.
fn encode_kind(bytes: &mut Vec<u8>, kind: &ErrorKind, bytes_max: usize) {
    let none = Tag::default();
    let list = listed(kind);
    let (code, first_rank, other, tags, text) = match kind {
        ErrorKind::Mismatch { rank, op, other, other_op } => {
            (MISMATCH, *rank, *other, [op.tag(0), other_op.tag(0)], "")
        }
        ErrorKind::CountMismatch { sender, sent, receiver, expected } => {
            let lengths = [Tag([*sent, 0, 0, 0]), Tag([*expected, 0, 0, 0])];
            (COUNT_MISMATCH, *sender, *receiver, lengths, "")
        }
        ErrorKind::PeerFailed { peer, what } => (PEER_FAILED, *peer, 0, [none; 2], what.as_str()),
        ErrorKind::PeerFinalized { peer } => (PEER_FINALIZED, *peer, 0, [none; 2], ""),
        ErrorKind::ProtocolViolation { peer, what } => {
            (PROTOCOL_VIOLATION, *peer, 0, [none; 2], what.as_str())
        }
        ErrorKind::Aborted { by, reason, cause } => {
            (ABORTED, *by, 0, [Tag([cause_code(cause), 0, 0, 0]), none], reason.as_str())
        }
        ErrorKind::NotFinite { rank, index, what } => {
            (NOT_FINITE, *rank, 0, [Tag([*index, 0, 0, 0]), none], what.as_str())
        }
        ErrorKind::BarrierTimeout { after, .. } => (BARRIER_TIMEOUT, 0, 0, [millis(*after), none], &*list),
        ErrorKind::Timeout { after, .. } => (TIMEOUT, 0, 0, [millis(*after), none], &*list),
        ErrorKind::MessageTimeout { what, peer, after } => {
            (MESSAGE_TIMEOUT, peer.unwrap_or(NO_RANK), 0, [millis(*after), none], what.as_str())
        }
        ErrorKind::Excluded { by } => (EXCLUDED, *by, 0, [none; 2], ""),
        ErrorKind::System(text) => (SYSTEM, 0, 0, [none; 2], text.as_str()),
        ErrorKind::Gpu(text) => (GPU, 0, 0, [none; 2], text.as_str()),
        other => (BUG, 0, 0, [none; 2], &*other.to_string()),
    };
    let failure = match kind {
        ErrorKind::Aborted { cause, .. } => cause.failure(),
        _ => None,
    };
    let room = bytes_max - bytes.len() - KIND_BYTES;
    // An abort carries its cause as well, so a long reason must leave room for it.
    let text_bytes = utf8_prefix_len(text, if failure.is_some() { room / 2 } else { room });
    bytes.push(code);
    bytes.extend((first_rank as u32).to_le_bytes());
    bytes.extend((if failure.is_some() { text_bytes } else { other } as u32).to_le_bytes());
    bytes.extend(tags[0].to_bytes());
    bytes.extend(tags[1].to_bytes());
    bytes.extend(&text.as_bytes()[..text_bytes]);
    // Causes have no cause of their own, and one that had would not fit.
    if let Some(failure) = failure.filter(|_| bytes.len() + KIND_BYTES <= bytes_max) {
        encode_kind(bytes, failure, bytes_max);
    }
}

/// Bytes of an encoded kind without its text.
const KIND_BYTES: usize = 1 + 4 + 4 + 32 + 32;
/// Stands for no rank.
const NO_RANK: Rank = u32::MAX as Rank;

fn millis(time: Duration) -> Tag {
    Tag([time.as_millis() as u64, 0, 0, 0])
}

fn cause_code(cause: &AbortCause) -> u64 {
    match cause {
        AbortCause::Request => BY_REQUEST,
        AbortCause::Shrink => BY_SHRINK,
        AbortCause::Failure(_) => BY_FAILURE,
    }
}

/// Returns the missing ranks of a barrier, or the silent ones of a timeout, each with a comma.
fn listed(kind: &ErrorKind) -> String {
    let list = |ranks: &mut dyn Iterator<Item = Rank>| ranks.map(|rank| format!("{rank},")).collect();
    match kind {
        ErrorKind::BarrierTimeout { missing, .. } => list(&mut missing.iter().copied()),
        ErrorKind::Timeout { waiting_for, .. } => {
            list(&mut waiting_for.iter().filter(|(_, op)| op.is_none()).map(|&(rank, _)| rank))
        }
        _ => String::new(),
    }
}

/// Reads a list of ranks. A number without its comma was cut off. `None` if a number is no rank.
fn unlisted(text: &str, ranks: usize) -> Option<Vec<Rank>> {
    let numbers = text.split_inclusive(',').filter_map(|number| number.strip_suffix(','));
    numbers.map(|number| number.parse().ok().filter(|&rank| rank < ranks)).collect()
}

/// Encodes a view: MEMBERSHIP, attempt, phase, length of the endpoint, endpoint, settings, value,
/// number of ranks, one bit for each.
fn encode_view(View { attempt, phase, failed, endpoint, settings, value }: &View) -> Vec<u8> {
    let endpoint = &endpoint.as_bytes()[..utf8_prefix_len(endpoint, ENDPOINT_BYTES_MAX)];
    let mut bytes = vec![MEMBERSHIP];
    bytes.extend(attempt.to_le_bytes());
    bytes.push(*phase as u8);
    bytes.push(endpoint.len() as u8);
    bytes.extend(endpoint);
    bytes.extend(settings.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes.extend((failed.len() as u32).to_le_bytes());
    bytes.extend(pack_bits(failed));
    bytes
}

/// Packs flags into bytes, the first flag in the lowest bit.
pub(crate) fn pack_bits(flags: &[bool]) -> impl Iterator<Item = u8> + '_ {
    let byte = |flags: &[bool]| (0..).zip(flags).fold(0, |byte, (bit, flag)| byte | u8::from(*flag) << bit);
    flags.chunks(8).map(byte)
}

fn decode_view(input: &mut &[u8], ranks: usize) -> Option<View> {
    // The next attempt must have a number, too.
    let attempt = take_u32(input).filter(|&attempt| attempt < u32::MAX)?;
    let (&[phase, length], tail) = input.split_first_chunk::<2>()?;
    let phase = *[Phase::Proposing, Phase::Connected, Phase::Committed].get(phase as usize)?;
    let (endpoint, tail) = tail.split_at_checked(length as usize)?;
    let (settings, tail) = tail.split_first_chunk::<8>()?;
    let (value, tail) = tail.split_first_chunk::<8>()?;
    *input = tail;
    let [settings, value] = [settings, value].map(|word| u64::from_le_bytes(*word));
    if take_u32(input)? as usize != ranks || input.len() != ranks.div_ceil(8) {
        return None;
    }
    let failed = (0..ranks).map(|rank| input[rank / 8] >> (rank % 8) & 1 == 1).collect();
    let endpoint = text_of(endpoint);
    Some(View { attempt, phase, failed, endpoint, settings, value })
}

/// Largest number of ranks in one view.
// The 27 bytes are the fields of `encode_view` without the endpoint and the bits.
pub(crate) const VIEW_RANKS_MAX: usize = 8 * (MAX_CONTROL_MSG_BYTES - 27 - ENDPOINT_BYTES_MAX);
/// Longest endpoint in bytes.
pub(crate) const ENDPOINT_BYTES_MAX: usize = 64;

/// Returns the length of the longest prefix of `text` with at most `bytes_max` bytes that cuts no
/// character.
fn utf8_prefix_len(text: &str, bytes_max: usize) -> usize {
    (0..=bytes_max.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

fn decode_failure(input: &mut &[u8], ranks: usize) -> Option<ControlMsg> {
    let sender = Some(take_u32(input)? as Rank).filter(|&sender| sender < ranks)?;
    Some(ControlMsg::Failed { by: sender, kind: decode_kind(input, ranks, true)? })
}

/// Decodes a kind of error. Only the outermost kind may have a cause.
fn decode_kind(input: &mut &[u8], ranks: usize, may_have_cause: bool) -> Option<ErrorKind> {
    let (&code, tail) = input.split_first()?;
    *input = tail;
    let (first_rank, other) = (take_u32(input)? as usize, take_u32(input)? as usize);
    let names_none = code == MESSAGE_TIMEOUT && first_rank == NO_RANK;
    let has_length = code == ABORTED;
    if (first_rank >= ranks && !names_none) || (other >= ranks && !has_length) {
        return None;
    }
    let tags = [take_tag(input)?, take_tag(input)?];
    let text = text_of(input);
    let waited = Duration::from_millis(tags[0].0[0]);
    let kind = match code {
        MISMATCH => ErrorKind::Mismatch {
            rank: first_rank,
            op: OpDesc::from_tag(&tags[0]),
            other,
            other_op: OpDesc::from_tag(&tags[1]),
        },
        COUNT_MISMATCH => ErrorKind::CountMismatch {
            sender: first_rank,
            sent: tags[0].0[0],
            receiver: other,
            expected: tags[1].0[0],
        },
        PEER_FAILED => ErrorKind::PeerFailed { peer: first_rank, what: text },
        PEER_FINALIZED => ErrorKind::PeerFinalized { peer: first_rank },
        PROTOCOL_VIOLATION => ErrorKind::ProtocolViolation { peer: first_rank, what: text },
        ABORTED => {
            let (reason, cause) = match tags[0].0[0] {
                BY_REQUEST => (text, AbortCause::Request),
                BY_SHRINK => (text, AbortCause::Shrink),
                BY_FAILURE if may_have_cause => {
                    let (reason, mut failure) = input.split_at_checked(other)?;
                    let failure = decode_kind(&mut failure, ranks, false)?;
                    (text_of(reason), AbortCause::Failure(Box::new(failure)))
                }
                _ => return None,
            };
            ErrorKind::Aborted { by: first_rank, reason, cause }
        }
        BARRIER_TIMEOUT => ErrorKind::BarrierTimeout { missing: unlisted(&text, ranks)?, after: waited },
        TIMEOUT => {
            let waiting_for = unlisted(&text, ranks)?.into_iter().map(|rank| (rank, None)).collect();
            ErrorKind::Timeout { waiting_for, elsewhere: Vec::new(), after: waited }
        }
        MESSAGE_TIMEOUT => ErrorKind::MessageTimeout {
            what: text,
            peer: (first_rank != NO_RANK).then_some(first_rank),
            after: waited,
        },
        EXCLUDED => ErrorKind::Excluded { by: first_rank },
        SYSTEM => ErrorKind::System(text),
        GPU => ErrorKind::Gpu(text),
        BUG => ErrorKind::Bug(text),
        NOT_FINITE => ErrorKind::NotFinite { rank: first_rank, index: tags[0].0[0], what: text },
        _ => return None,
    };
    Some(kind)
}

/// Returns a text of a peer, which errors show.
fn text_of(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes)).into_owned()
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    let (bytes, tail) = input.split_first_chunk::<4>()?;
    *input = tail;
    Some(u32::from_le_bytes(*bytes))
}

fn take_tag(input: &mut &[u8]) -> Option<Tag> {
    let (bytes, tail) = input.split_first_chunk::<32>()?;
    *input = tail;
    Some(Tag::from_bytes(bytes))
}

fn take_op(input: &mut &[u8]) -> Option<OpDesc> {
    take_tag(input).map(|tag| OpDesc::from_tag(&tag))
}

/// Checks that whatever decodes also encodes and decodes again.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    const RANKS: usize = 8;
    if let Some(message) = ControlMsg::decode(bytes, RANKS) {
        let again = message.encode();
        let is_read = ControlMsg::decode(&again, RANKS).is_some();
        assert!(again.len() <= MAX_CONTROL_MSG_BYTES && is_read, "{message:?}");
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::op_desc::OpKind;
    use proptest::prelude::*;
    use unisono_reducers::DType;

    const RANKS: usize = 3;

    fn call(count: u64) -> OpDesc {
        OpDesc::new(4, OpKind::SendRecv, DType::F32, None, 0, count)
    }

    #[test]
    fn control_msg_round_trips() {
        let what = || "gone".to_owned();
        let kinds = [
            ErrorKind::Mismatch { rank: 1, op: call(3), other: 2, other_op: call(4) },
            ErrorKind::CountMismatch { sender: 3, sent: 8, receiver: 1, expected: 1 << 50 },
            ErrorKind::PeerFailed { peer: 3, what: what() },
            ErrorKind::PeerFinalized { peer: 9 },
            ErrorKind::ProtocolViolation { peer: 0, what: what() },
            ErrorKind::abort_request(5, what()),
            ErrorKind::shrunk(5, &[]),
            ErrorKind::shrunk(5, &[1, 2]),
            ErrorKind::panicked(5, "it panicked"),
            ErrorKind::Excluded { by: 2 }.for_peers(5, None),
            ErrorKind::System(what()).for_peers(5, None),
            ErrorKind::Gpu(what()).for_peers(5, None),
            ErrorKind::Bug(what()).for_peers(5, None),
            ErrorKind::MessageTimeout { what: what(), peer: None, after: Duration::from_secs(2) }
                .for_peers(5, None),
            ErrorKind::Timeout {
                waiting_for: vec![(3, None), (4, None)],
                elsewhere: Vec::new(),
                after: Duration::from_secs(3),
            }
            .for_peers(5, Some(&call(3))),
            ErrorKind::NotFinite { rank: 2, index: 1 << 40, what: what() },
        ];
        let failures = kinds.into_iter().map(|kind| ControlMsg::Failed { by: 7, kind });
        let failed = (0..VIEW_RANKS_MAX).map(|rank| rank % 3 == 1).collect();
        let (attempt, phase, endpoint) = (7, Phase::Connected, "[::1]:80".to_owned());
        let view = View { attempt, phase, failed, endpoint, settings: 1 << 60, value: 1 << 61 };
        assert!(ControlMsg::Membership(view.clone()).encode().len() <= MAX_CONTROL_MSG_BYTES);
        let waits = [
            ControlMsg::Waiting(call(1)),
            ControlMsg::WaitingElsewhere(call(2)),
            ControlMsg::Called(call(3)),
        ];
        let goodbyes = [None, Some(what())].map(|reason| ControlMsg::Finalized { reason });
        for message in failures.chain(waits).chain(goodbyes).chain([ControlMsg::Membership(view)]) {
            assert_eq!(ControlMsg::decode(&message.encode(), VIEW_RANKS_MAX), Some(message));
        }
    }

    /// A peer with the secret and with faults may write any number.
    #[test]
    fn ranks_that_a_communicator_lacks_are_refused() {
        let last = RANKS - 1;
        let what = || "gone".to_owned();
        let elapsed = Duration::from_secs(1);
        let kinds: [fn(Rank) -> ErrorKind; 13] = [
            |rank| ErrorKind::Mismatch { rank, op: call(3), other: 0, other_op: call(4) },
            |rank| ErrorKind::Mismatch { rank: 0, op: call(3), other: rank, other_op: call(4) },
            |rank| ErrorKind::CountMismatch { sender: rank, sent: 8, receiver: 0, expected: 9 },
            |rank| ErrorKind::CountMismatch { sender: 0, sent: 8, receiver: rank, expected: 9 },
            |rank| ErrorKind::PeerFailed { peer: rank, what: String::new() },
            |rank| ErrorKind::PeerFinalized { peer: rank },
            |rank| ErrorKind::ProtocolViolation { peer: rank, what: String::new() },
            |rank| ErrorKind::abort_request(rank, "enough"),
            |rank| ErrorKind::PeerFinalized { peer: rank }.for_peers(0, None),
            |rank| ErrorKind::NotFinite { rank, index: 0, what: String::new() },
            |rank| ErrorKind::BarrierTimeout { missing: vec![0, rank], after: Duration::ZERO },
            |rank| ErrorKind::Excluded { by: rank },
            |rank| ErrorKind::Timeout {
                waiting_for: vec![(rank, None)],
                elsewhere: Vec::new(),
                after: Duration::ZERO,
            },
        ];
        let read =
            |sender, kind| ControlMsg::decode(&ControlMsg::Failed { by: sender, kind }.encode(), RANKS);
        for kind in kinds {
            assert!(read(0, kind(last)).is_some(), "{:?}", kind(last));
            assert_eq!(read(0, kind(RANKS)), None);
        }
        let message = |peer| ErrorKind::MessageTimeout { what: what(), peer, after: elapsed };
        assert!(read(0, message(None)).is_some() && read(0, message(Some(last))).is_some());
        assert_eq!((read(0, message(Some(RANKS))), read(RANKS, message(None))), (None, None));
        let (attempt, phase, endpoint) = (7, Phase::Connected, String::new());
        for (ranks, is_read) in [(RANKS - 1, false), (RANKS, true), (RANKS + 1, false)] {
            let (failed, endpoint) = (vec![false; ranks], endpoint.clone());
            let view =
                ControlMsg::Membership(View { attempt, phase, failed, endpoint, settings: 0, value: 0 });
            assert_eq!(ControlMsg::decode(&view.encode(), RANKS).is_some(), is_read, "{ranks} ranks");
        }
    }

    #[test]
    fn reasons_of_peers_steer_no_terminal() {
        for kind in [
            ErrorKind::abort_request(0, "\x1b[2J"),
            ErrorKind::System("\x1b[2J".to_owned()).for_peers(0, None),
            ErrorKind::PeerFailed { peer: 1, what: "\x1b[2J".to_owned() },
        ] {
            let bytes = ControlMsg::Failed { by: 0, kind }.encode();
            let Some(ControlMsg::Failed { kind, .. }) = ControlMsg::decode(&bytes, RANKS) else {
                panic!("a failure")
            };
            let shown = format!("{kind} {kind:?}");
            assert!(kind.to_string().contains("\\u{1b}[2J") && !shown.contains('\x1b'), "{shown}");
        }
        let goodbye = ControlMsg::Finalized { reason: Some("\x1b[2J".to_owned()) }.encode();
        let reason = Some("\\u{1b}[2J".to_owned());
        assert_eq!(ControlMsg::decode(&goodbye, RANKS), Some(ControlMsg::Finalized { reason }));
    }

    #[test]
    fn control_msg_truncates_reason_at_char_boundary() {
        let long = "é".repeat(2000);
        for kind in [ErrorKind::abort_request(0, &*long), ErrorKind::Gpu(long.clone()).for_peers(0, None)] {
            let failed = matches!(kind, ErrorKind::Aborted { cause: AbortCause::Failure(_), .. });
            let bytes = ControlMsg::Failed { by: 0, kind }.encode();
            assert!(bytes.len() <= MAX_CONTROL_MSG_BYTES);
            let Some(ControlMsg::Failed { kind: ErrorKind::Aborted { reason, cause, .. }, .. }) =
                ControlMsg::decode(&bytes, RANKS)
            else {
                panic!("an abort");
            };
            assert!(reason.len() > 400 && long.starts_with(&reason), "{reason}");
            assert_eq!(cause.failure().is_some(), failed);
        }
        let goodbye = ControlMsg::Finalized { reason: Some(long) }.encode();
        assert_eq!(goodbye.len(), MAX_CONTROL_MSG_BYTES - 1, "a character of two bytes does not fit");
        assert!(ControlMsg::decode(&goodbye, RANKS).is_some());
    }

    proptest! {
        #[test]
        fn control_msg_decode_rejects_garbage_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ControlMsg::decode(&bytes, RANKS);
        }
    }
}
