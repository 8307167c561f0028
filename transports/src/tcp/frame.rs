//! What travels on a connection, as bytes.

use crate::{Head, Tag};

/// One frame. A message's head is followed by its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Message { lane: usize, head: Head },
    Credit { lane: usize, count: usize },
    Unknown,
}

/// Length of a frame's head: kind, lane, length or count, tag.
pub(super) const HEAD_BYTES: usize = 40;

const MESSAGE: u16 = 0x756d;
const CREDIT: u16 = 0x7563;

impl Frame {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let (kind, lane, number, tag) = match self {
            Frame::Message { lane, head } => (MESSAGE, lane, head.bytes, head.tag),
            Frame::Credit { lane, count } => (CREDIT, lane, count, Tag::default()),
            Frame::Unknown => (0, 0, 0, Tag::default()),
        };
        let mut bytes = [0; HEAD_BYTES];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[2..4].copy_from_slice(&(lane as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&(number as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&tag.to_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> Frame {
        let [k0, k1, l0, l1, n0, n1, n2, n3, tag @ ..] = bytes;
        let lane = u16::from_le_bytes([*l0, *l1]) as usize;
        let number = u32::from_le_bytes([*n0, *n1, *n2, *n3]) as usize;
        match u16::from_le_bytes([*k0, *k1]) {
            MESSAGE => Frame::Message { lane, head: Head { tag: Tag::from_bytes(tag), bytes: number } },
            CREDIT => Frame::Credit { lane, count: number },
            _ => Frame::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_the_wire(lane in 0usize..65_536, number in 0usize..1 << 32, words: [u64; 4]) {
            let message = Frame::Message { lane, head: Head { tag: Tag(words), bytes: number } };
            prop_assert_eq!(Frame::decode(&message.encode()), message);
            let credit = Frame::Credit { lane, count: number };
            prop_assert_eq!(Frame::decode(&credit.encode()), credit);
        }
    }
}
