//! Frames on the message lane of a link. The tag of a frame says its kind and its fields.
//!
//! A short message travels in one `Eager` frame. A long message is announced by a `Request`, and
//! its data follows when the receiver has granted a place. So a message without a receive costs its
//! receiver at most the bytes of the eager limit.

use unisono_transports::Tag;

/// One frame. The body of `Eager` and `Data` follows the tag; the others have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole message.
    Eager { tag: u64 },
    /// The announcement of a message: the sender keeps it under `send`.
    Request { tag: u64, bytes: u64, send: u64 },
    /// Permission to send message `send` as data for `recv`.
    Grant { send: u64, recv: u64 },
    /// Bytes of a granted message, in order.
    Data { recv: u64, offset: u64 },
    /// Eager bytes that the receiver no longer stores.
    Credit { bytes: u64 },
}

impl Frame {
    pub(super) fn encode(self) -> Tag {
        Tag(match self {
            Frame::Eager { tag } => [EAGER, tag, 0, 0],
            Frame::Request { tag, bytes, send } => [REQUEST, tag, bytes, send],
            Frame::Grant { send, recv } => [GRANT, send, recv, 0],
            Frame::Data { recv, offset } => [DATA, recv, offset, 0],
            Frame::Credit { bytes } => [CREDIT, bytes, 0, 0],
        })
    }

    pub(super) fn decode(tag: &Tag) -> Option<Self> {
        Some(match tag.0 {
            [EAGER, tag, 0, 0] => Frame::Eager { tag },
            [REQUEST, tag, bytes, send] => Frame::Request { tag, bytes, send },
            [GRANT, send, recv, 0] => Frame::Grant { send, recv },
            [DATA, recv, offset, 0] => Frame::Data { recv, offset },
            [CREDIT, bytes, 0, 0] => Frame::Credit { bytes },
            _ => return None,
        })
    }

    /// Returns whether a body follows the tag.
    pub(super) fn has_body(self) -> bool {
        matches!(self, Frame::Eager { .. } | Frame::Data { .. })
    }
}

/// The first word of a tag: a number that no operation's tag begins with, and the kind.
const KIND: u64 = 0x756e_6973_6f6e_0000;
const EAGER: u64 = KIND | 1;
const REQUEST: u64 = KIND | 2;
const GRANT: u64 = KIND | 3;
const DATA: u64 = KIND | 4;
const CREDIT: u64 = KIND | 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_through_tags() {
        let frames = [
            Frame::Eager { tag: u64::MAX },
            Frame::Request { tag: 1, bytes: 2, send: 3 },
            Frame::Grant { send: 4, recv: 5 },
            Frame::Data { recv: 6, offset: 7 },
            Frame::Credit { bytes: 8 },
        ];
        for frame in frames {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
        assert_eq!(Frame::decode(&Tag([0, 0, 0, 0])), None);
        assert_eq!(Frame::decode(&Tag([CREDIT, 8, 1, 0])), None);
    }
}
