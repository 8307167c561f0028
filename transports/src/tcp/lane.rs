//! One lane of a link, with its credit for sending and the buffers of arrived messages.
//!
//! A message that is as long as a slot needs one slot. Shorter messages need less, so more of them
//! can be in flight. The sender then seldom yields, and the receiver reads many messages at once.
//! Credit is counted in units. A longer message costs more units, up to [`CREDITS_PER_SLOT`].

use super::frame::CREDIT_MAX;
use crate::tcp::zeroed_pages::ZeroedPages;
use crate::{Header, Result};
use std::collections::VecDeque;

/// State of one lane.
pub(super) struct Lane {
    /// Units that may still be sent.
    credit: usize,
    /// Units consumed since credit was last returned.
    pending_credit: usize,
    /// Units of the whole lane.
    credit_max: usize,
    /// Messages that have arrived, with the buffer of each.
    ready: VecDeque<(Header, usize)>,
    /// Size classes, from the shortest messages to those as long as slots.
    classes: [SizeClass; SMALL_CLASSES.len() + 1],
}

/// Buffers of one size, for messages up to that size.
struct SizeClass {
    /// Units that a message costs.
    cost: usize,
    count: usize,
    bytes: usize,
    /// All buffers of the class. There are none until they are needed.
    buffers: ZeroedPages,
    free: Vec<usize>,
}

impl Lane {
    /// Creates a lane with `slots` slots of `slot_bytes` bytes.
    pub(super) fn new(slots: usize, slot_bytes: usize) -> Self {
        let units = slots * CREDITS_PER_SLOT;
        let class = |(bytes, cost)| SizeClass::new(cost, units / cost, bytes);
        // No message is longer than a slot.
        let shorter = SMALL_CLASSES.map(|(bytes, cost)| (if bytes < slot_bytes { bytes } else { 0 }, cost));
        let [first, second] = shorter.map(class);
        let shelves = [first, second, class((slot_bytes, CREDITS_PER_SLOT))];
        Self { credit: units, pending_credit: 0, credit_max: units, ready: VecDeque::new(), classes: shelves }
    }

    /// Returns the index of the class to which a message belongs.
    fn class_index(&self, bytes: usize) -> usize {
        let fits = |class: &SizeClass| class.bytes > 0 && bytes <= class.bytes;
        self.classes.iter().position(fits).unwrap_or(SMALL_CLASSES.len())
    }

    fn class(&self, bytes: usize) -> &SizeClass {
        &self.classes[self.class_index(bytes)]
    }

    fn class_mut(&mut self, bytes: usize) -> &mut SizeClass {
        &mut self.classes[self.class_index(bytes)]
    }

    /// Returns the units that a message costs.
    fn cost(&self, bytes: usize) -> usize {
        self.class(bytes).cost
    }

    /// Returns `true` if there is credit to send the message.
    pub(super) fn has_credit(&self, bytes: usize) -> bool {
        self.credit >= self.cost(bytes)
    }

    /// Consumes the credit of a message that is sent. Returns the credit for the peer to send with
    /// it.
    pub(super) fn consume(&mut self, bytes: usize) -> usize {
        self.credit -= self.cost(bytes);
        self.take_pending_credit()
    }

    /// Takes the credit to write into the next frame.
    pub(super) fn take_pending_credit(&mut self) -> usize {
        let credit = self.pending_credit.min(CREDIT_MAX);
        self.pending_credit -= credit;
        credit
    }

    /// Adds credit from the peer. Returns `false` if the lane then has more than its maximum.
    pub(super) fn add_credit(&mut self, credit: usize) -> bool {
        self.credit += credit;
        self.credit <= self.credit_max
    }

    /// Takes a buffer for an arriving message, or returns `None` if the peer had no credit for it.
    ///
    /// # Errors
    /// Returns the system's error, if it has no memory for the first buffer.
    pub(super) fn slot(&mut self, bytes: usize) -> Result<Option<usize>> {
        self.class_mut(bytes).alloc()
    }

    /// Returns the buffer at `place`, given to a message of `bytes` bytes.
    pub(super) fn buffer(&self, bytes: usize, place: usize) -> &[u8] {
        let class = self.class(bytes);
        &class.buffers[place * class.bytes..][..bytes]
    }

    /// Returns the buffer at `place` for filling.
    pub(super) fn buffer_mut(&mut self, bytes: usize, place: usize) -> &mut [u8] {
        let class = self.class_mut(bytes);
        &mut class.buffers[place * class.bytes..][..bytes]
    }

    /// Records that all of a message is in its buffer.
    pub(super) fn push(&mut self, head: Header, place: usize) {
        if self.ready.capacity() == 0 {
            // Reserve for all messages at once, so that a lane in use never allocates again.
            self.ready.reserve(self.credit_max);
        }
        self.ready.push_back((head, place));
    }

    /// Returns the oldest message that has arrived.
    pub(super) fn front(&self) -> Option<(Header, usize)> {
        self.ready.front().copied()
    }

    /// Removes and returns the oldest message that has arrived.
    pub(super) fn pop(&mut self) -> Option<(Header, usize)> {
        self.ready.pop_front()
    }

    /// Frees the buffer of a consumed message. Returns `true` if the peer should get its credit
    /// without waiting for this rank's next message.
    ///
    /// While the peer has half of its credit left, the next message can carry the credit.
    pub(super) fn release(&mut self, bytes: usize, place: usize) -> bool {
        self.class_mut(bytes).free.push(place);
        self.pending_credit += self.cost(bytes);
        self.pending_credit * 2 >= self.credit_max
    }

    /// Returns the bytes of the lane's buffers.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.buffers.len()).sum()
    }
}

impl SizeClass {
    fn new(cost: usize, count: usize, bytes: usize) -> Self {
        Self { cost, count, bytes, buffers: ZeroedPages::default(), free: Vec::new() }
    }

    fn alloc(&mut self) -> Result<Option<usize>> {
        if self.free.capacity() == 0 {
            // Allocate all buffers at once. Untouched pages cost nothing, and the place used last
            // is used next.
            self.buffers = ZeroedPages::new(self.count * self.bytes)?;
            self.free = (0..self.count).rev().collect();
        }
        Ok(self.free.pop())
    }
}

/// Classes of messages that cost less than a slot: largest number of bytes, and units.
const SMALL_CLASSES: [(usize, usize); 2] = [(1 << 10, 1), (16 << 10, 4)];
/// Units that a slot costs.
const CREDITS_PER_SLOT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;

    const SLOTS: usize = 3;
    const SHORT: usize = SMALL_CLASSES[0].0;
    const MIDDLE: usize = SMALL_CLASSES[1].0;
    const LONG: usize = 4 * MIDDLE;

    /// Spends credit on messages of these lengths in turn until there is none. Returns the number
    /// of each.
    fn send_all(lane: &mut Lane, lengths: &[usize]) -> Vec<usize> {
        let mut sent = vec![0; lengths.len()];
        for index in (0..lengths.len()).cycle() {
            if !lane.has_credit(lengths[index]) {
                break;
            }
            lane.consume(lengths[index]);
            sent[index] += 1;
        }
        sent
    }

    #[test]
    fn short_messages_use_less_credit() {
        let sent = |lengths: &[usize]| send_all(&mut Lane::new(SLOTS, LONG), lengths);
        assert_eq!(sent(&[8]), [SLOTS * CREDITS_PER_SLOT]);
        assert_eq!(sent(&[SHORT + 1]), [SLOTS * CREDITS_PER_SLOT / 4]);
        assert_eq!(sent(&[MIDDLE + 1]), [SLOTS]);
        assert_eq!(sent(&[LONG, SHORT]), [SLOTS - 1, SLOTS - 1]);
        assert_eq!(send_all(&mut Lane::new(SLOTS, SHORT), &[8]), [SLOTS]);
        assert_eq!(send_all(&mut Lane::new(SLOTS, MIDDLE), &[MIDDLE]), [SLOTS]);
    }

    #[test]
    fn credit_guarantees_a_slot_and_is_returned() {
        for lengths in [&[8][..], &[LONG], &[0, LONG, SHORT, MIDDLE], &[SHORT + 1, 1], &[MIDDLE + 1, MIDDLE]]
        {
            let (mut sender, mut receiver) = (Lane::new(SLOTS, LONG), Lane::new(SLOTS, LONG));
            let counts = send_all(&mut sender, lengths);
            let arriving = counts.iter().zip(lengths).flat_map(|(&count, &bytes)| vec![bytes; count]);
            for bytes in arriving {
                let place = receiver.slot(bytes).unwrap().expect("a place");
                receiver.buffer_mut(bytes, place).fill(1);
                receiver.push(Header { tag: Tag::default(), bytes }, place);
            }
            while let Some((head, place)) = receiver.pop() {
                assert_eq!(receiver.buffer(head.bytes, place).len(), head.bytes);
                if receiver.release(head.bytes, place) {
                    assert!(sender.add_credit(receiver.take_pending_credit()));
                }
            }
            while receiver.pending_credit > 0 {
                assert!(sender.add_credit(receiver.take_pending_credit()));
            }
            assert_eq!(sender.credit, sender.credit_max);
            assert!(!sender.add_credit(1), "more than there is");
        }
    }

    #[test]
    fn message_without_credit_gets_no_slot() {
        let mut lane = Lane::new(SLOTS, LONG);
        for (bytes, most) in
            [(LONG, SLOTS), (8, SLOTS * CREDITS_PER_SLOT), (MIDDLE, SLOTS * CREDITS_PER_SLOT / 4)]
        {
            let placed = (0..most + 1).map(|_| lane.slot(bytes).unwrap().is_some());
            assert_eq!(placed.collect::<Vec<_>>(), [vec![true; most], vec![false]].concat());
        }
    }
}
