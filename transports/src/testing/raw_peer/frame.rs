//! Frames that a peer makes or changes.

use super::State;
use crate::Tag;

/// A frame to be sent.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) lane: usize,
    pub(super) tag: Tag,
    pub(super) body: Vec<u8>,
}

impl State {
    /// Returns the frame to change: the one to be sent, or one like those before.
    pub(super) fn frame_like(&mut self, frame: Option<Frame>) -> Frame {
        let kept = frame.or_else(|| self.sent.get(self.random.below(self.sent.len())).cloned());
        kept.unwrap_or_else(|| self.answer())
    }

    /// Returns a frame with the tag of one that has arrived, as if it were the answer.
    fn answer(&mut self) -> Frame {
        let arrived = self.arrived.get(self.random.below(self.arrived.len())).cloned();
        let bytes = self.random.choose(&[0, 4, 4 + self.slot_bytes / 2, self.slot_bytes]);
        let lane = arrived.as_ref().map_or_else(|| self.random.below(self.lanes), |frame| frame.lane);
        Frame { lane, tag: arrived.map_or_else(|| self.tag(), |frame| frame.tag), body: vec![3; bytes] }
    }

    /// Gives a frame another length.
    pub(super) fn change_length(&mut self, frame: &mut Frame, bytes_max: usize) {
        let (now, slot_bytes) = (frame.body.len(), self.slot_bytes);
        let any = self.random.below(bytes_max + 1);
        let lengths = [0, 1, now.wrapping_sub(1), now + 1, now + 4, now / 2, slot_bytes, slot_bytes + 1, any];
        let bytes = self.random.choose(&lengths).min(bytes_max);
        frame.body.resize(bytes, 1);
    }

    /// Changes some words of a frame's contents.
    pub(super) fn change_contents(&mut self, frame: &mut Frame) {
        for _ in 0..1 + self.random.below(6) {
            let value = self.number().to_le_bytes();
            // Lengths come first.
            let end = frame.body.len().min(self.random.choose(&[4, 16, 256]));
            let start = self.random.below(end) / 4 * 4;
            let bytes = self.random.choose(&[1, 4, 8]);
            let place = frame.body.iter_mut().skip(start).take(bytes);
            place.zip(value).for_each(|(place, byte)| *place = byte);
        }
    }

    /// Returns frames of messages with tags, which nobody expects, and how often each comes.
    pub(super) fn messages(&mut self) -> Vec<(Frame, usize)> {
        let lane = if self.random.one_in(8) { self.random.below(self.lanes) } else { self.lanes - 1 };
        let kind = self.random.below(7) as u64;
        let (frames, times) = self.random.choose(&[(1, 1), (2, 1), (5, 1), (1, 100), (1, 40_000)]);
        let message = |_| {
            let tag = self.message_tag(kind);
            let bytes = match kind {
                1 | 4 => self.random.choose(&[0, 1, 4, self.slot_bytes]),
                _ => usize::from(self.random.one_in(64)),
            };
            (Frame { lane, tag, body: vec![5; bytes] }, times)
        };
        (0..frames).map(message).collect()
    }

    /// Returns the tag of a message of a kind, of which some do not exist.
    pub(super) fn message_tag(&mut self, kind: u64) -> Tag {
        let [first, second, third] = [self.word(), self.word(), self.word()];
        Tag(match kind {
            0 => [MESSAGE, first, second, third],
            1 => [MESSAGE | 1, first, 0, 0],
            2 => [MESSAGE | 2, first, second, third],
            3 => [MESSAGE | 3, first, second, 0],
            4 => [MESSAGE | 4, first, second, 0],
            5 => [MESSAGE | 5, first, 0, 0],
            _ => [MESSAGE | first & 7, second, third, first],
        })
    }
}

/// First word of the tags of messages, without their kind: `engine/messages/frame.rs`.
const MESSAGE: u64 = 0x756e_6973_6f6e_0000;
