//! Byte format of the frames on a connection.

use crate::{Header, Tag};

/// One frame: credit for a lane and, most often, the header of a message on it. The body of the
/// message follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) lane: usize,
    /// Units of credit (see `lane`) for messages consumed since the last frame with credit, up to
    /// [`CREDIT_MAX`].
    pub(super) credit: usize,
    pub(super) header: Option<Header>,
}

/// Length of a frame without the body: kind, credit, lane, length, tag.
pub(super) const HEADER_BYTES: usize = 40;
/// Largest credit that one frame can give.
pub(super) const CREDIT_MAX: usize = u8::MAX as usize;

const MESSAGE: u8 = b'm';
const CREDIT: u8 = b'c';

impl Frame {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = if self.header.is_some() { MESSAGE } else { CREDIT };
        let head = self.header.unwrap_or(Header { tag: Tag::default(), bytes: 0 });
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1]) = (kind, self.credit as u8);
        bytes[2..4].copy_from_slice(&(self.lane as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&(head.bytes as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&head.tag.to_bytes());
        bytes
    }

    /// Decodes a frame header, or returns `None` if no frame begins with these bytes.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Frame> {
        let [kind, credit, l0, l1, n0, n1, n2, n3, tag @ ..] = bytes;
        let head = match *kind {
            MESSAGE => {
                let bytes = u32::from_le_bytes([*n0, *n1, *n2, *n3]) as usize;
                Some(Header { tag: Tag::from_bytes(tag), bytes })
            }
            CREDIT => None,
            _ => return None,
        };
        let lane = u16::from_le_bytes([*l0, *l1]) as usize;
        Some(Frame { lane, credit: usize::from(*credit), header: head })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_round_trip(lane in 0usize..65_536, credit in 0usize..=CREDIT_MAX, bytes in 0usize..1 << 32, words: [u64; 4]) {
            for head in [Some(Header { tag: Tag(words), bytes }), None] {
                let frame = Frame { lane, credit, header: head };
                prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
            }
        }

        #[test]
        fn invalid_bytes_are_rejected(kind: u8, body: [u8; HEADER_BYTES - 1]) {
            let mut bytes = [kind; HEADER_BYTES];
            bytes[1..].copy_from_slice(&body);
            prop_assert_eq!(Frame::decode(&bytes).is_some(), kind == MESSAGE || kind == CREDIT);
        }
    }
}
