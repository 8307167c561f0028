//! One lane of a link: what may still be sent on it, and where what has arrived waits.
//!
//! A message as long as a slot needs one. A shorter one needs less, so more of them may be under way: the sender
//! then gives way seldom, and the receiver reads many at once. Credit is counted in units, of which a message costs
//! the more the longer it is, up to [`UNITS_OF_SLOT`].

use super::frame::CREDIT_MAX;
use crate::zeros::Zeros;
use crate::{Head, Result};
use std::collections::VecDeque;

/// What is known of one lane.
pub(super) struct Lane {
    /// Units that may still be sent.
    credit: usize,
    /// Units taken since credit was last given back.
    taken: usize,
    /// Units of the whole lane.
    units: usize,
    /// Messages that are here, with the buffer each is in.
    ready: VecDeque<(Head, usize)>,
    /// From the shortest to those of slots.
    shelves: [Shelf; SHORTER.len() + 1],
}

/// Buffers of one size, for messages up to that.
struct Shelf {
    /// Units that a message costs.
    cost: usize,
    count: usize,
    bytes: usize,
    /// All of them; none until needed.
    staging: Zeros,
    free: Vec<usize>,
}

impl Lane {
    /// With `slots` of `slot_bytes`.
    pub(super) fn new(slots: usize, slot_bytes: usize) -> Self {
        let units = slots * UNITS_OF_SLOT;
        let shelf = |(bytes, cost)| Shelf::new(cost, units / cost, bytes);
        // No message is longer than a slot.
        let shorter = SHORTER.map(|(bytes, cost)| (if bytes < slot_bytes { bytes } else { 0 }, cost));
        let [first, second] = shorter.map(shelf);
        let shelves = [first, second, shelf((slot_bytes, UNITS_OF_SLOT))];
        Self { credit: units, taken: 0, units, ready: VecDeque::new(), shelves }
    }

    /// Which shelf a message goes to.
    fn place_of(&self, bytes: usize) -> usize {
        let fits = |shelf: &Shelf| shelf.bytes > 0 && bytes <= shelf.bytes;
        self.shelves.iter().position(fits).unwrap_or(SHORTER.len())
    }

    fn shelf(&self, bytes: usize) -> &Shelf {
        &self.shelves[self.place_of(bytes)]
    }

    fn shelf_mut(&mut self, bytes: usize) -> &mut Shelf {
        &mut self.shelves[self.place_of(bytes)]
    }

    /// What a message costs.
    fn cost(&self, bytes: usize) -> usize {
        self.shelf(bytes).cost
    }

    /// Whether a message may be sent now.
    pub(super) fn has_credit(&self, bytes: usize) -> bool {
        self.credit >= self.cost(bytes)
    }

    /// A message is sent: it takes its credit, and with it goes credit for the peer.
    pub(super) fn spend(&mut self, bytes: usize) -> usize {
        self.credit -= self.cost(bytes);
        self.give_credit()
    }

    /// Credit to write into the next frame.
    pub(super) fn give_credit(&mut self) -> usize {
        let credit = self.taken.min(CREDIT_MAX);
        self.taken -= credit;
        credit
    }

    /// The peer gives credit; false if that is more than there is.
    pub(super) fn earn(&mut self, credit: usize) -> bool {
        self.credit += credit;
        self.credit <= self.units
    }

    /// A buffer for a message that arrives; none if the peer had no credit for it.
    ///
    /// # Errors
    /// The system's, if it has no memory for the first.
    pub(super) fn place(&mut self, bytes: usize) -> Result<Option<usize>> {
        self.shelf_mut(bytes).take()
    }

    /// The buffer of a message that was given this place.
    pub(super) fn buffer(&self, bytes: usize, place: usize) -> &[u8] {
        let shelf = self.shelf(bytes);
        &shelf.staging[place * shelf.bytes..][..bytes]
    }

    /// The same, to fill it.
    pub(super) fn buffer_mut(&mut self, bytes: usize, place: usize) -> &mut [u8] {
        let shelf = self.shelf_mut(bytes);
        &mut shelf.staging[place * shelf.bytes..][..bytes]
    }

    /// All of a message is in its buffer.
    pub(super) fn arrived(&mut self, head: Head, place: usize) {
        if self.ready.capacity() == 0 {
            // All at once, so that a lane in use never allocates again.
            self.ready.reserve(self.units);
        }
        self.ready.push_back((head, place));
    }

    /// The oldest message that is here.
    pub(super) fn front(&self) -> Option<(Head, usize)> {
        self.ready.front().copied()
    }

    /// The same, which is taken now.
    pub(super) fn pop(&mut self) -> Option<(Head, usize)> {
        self.ready.pop_front()
    }

    /// A message has been taken, and its place is free; true when the peer should hear of it without waiting for this
    /// rank's next message: while it has half of its credit left, that can bring more.
    pub(super) fn give_back(&mut self, bytes: usize, place: usize) -> bool {
        self.shelf_mut(bytes).free.push(place);
        self.taken += self.cost(bytes);
        self.taken * 2 >= self.units
    }

    /// Bytes of its buffers.
    pub(super) fn staging(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.staging.len()).sum()
    }
}

impl Shelf {
    fn new(cost: usize, count: usize, bytes: usize) -> Self {
        Self { cost, count, bytes, staging: Zeros::default(), free: Vec::new() }
    }

    fn take(&mut self) -> Result<Option<usize>> {
        if self.free.capacity() == 0 {
            // All at once, too; untouched pages cost nothing, and the place used last is used next.
            self.staging = Zeros::new(self.count * self.bytes)?;
            self.free = (0..self.count).rev().collect();
        }
        Ok(self.free.pop())
    }
}

/// Messages that cost less than a slot: up to how many bytes, and how many units.
const SHORTER: [(usize, usize); 2] = [(1 << 10, 1), (16 << 10, 4)];
/// What a slot costs.
const UNITS_OF_SLOT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;

    const SLOTS: usize = 3;
    const SHORT: usize = SHORTER[0].0;
    const MIDDLE: usize = SHORTER[1].0;
    const LONG: usize = 4 * MIDDLE;

    /// Spends credit on messages of these lengths in turn until there is none; how many of each.
    fn send_all(lane: &mut Lane, lengths: &[usize]) -> Vec<usize> {
        let mut sent = vec![0; lengths.len()];
        for index in (0..lengths.len()).cycle() {
            if !lane.has_credit(lengths[index]) {
                break;
            }
            lane.spend(lengths[index]);
            sent[index] += 1;
        }
        sent
    }

    #[test]
    fn short_messages_are_many_and_others_as_many_as_slots() {
        let sent = |lengths: &[usize]| send_all(&mut Lane::new(SLOTS, LONG), lengths);
        assert_eq!(sent(&[8]), [SLOTS * UNITS_OF_SLOT]);
        assert_eq!(sent(&[SHORT + 1]), [SLOTS * UNITS_OF_SLOT / 4]);
        assert_eq!(sent(&[MIDDLE + 1]), [SLOTS]);
        assert_eq!(sent(&[LONG, SHORT]), [SLOTS - 1, SLOTS - 1]);
        assert_eq!(send_all(&mut Lane::new(SLOTS, SHORT), &[8]), [SLOTS]);
        assert_eq!(send_all(&mut Lane::new(SLOTS, MIDDLE), &[MIDDLE]), [SLOTS]);
    }

    #[test]
    fn whatever_was_sent_with_credit_has_a_place_and_credit_comes_back() {
        for lengths in [&[8][..], &[LONG], &[0, LONG, SHORT, MIDDLE], &[SHORT + 1, 1], &[MIDDLE + 1, MIDDLE]]
        {
            let (mut sender, mut receiver) = (Lane::new(SLOTS, LONG), Lane::new(SLOTS, LONG));
            let counts = send_all(&mut sender, lengths);
            let arriving = counts.iter().zip(lengths).flat_map(|(&count, &bytes)| vec![bytes; count]);
            for bytes in arriving {
                let place = receiver.place(bytes).unwrap().expect("a place");
                receiver.buffer_mut(bytes, place).fill(1);
                receiver.arrived(Head { tag: Tag::default(), bytes }, place);
            }
            while let Some((head, place)) = receiver.pop() {
                assert_eq!(receiver.buffer(head.bytes, place).len(), head.bytes);
                if receiver.give_back(head.bytes, place) {
                    assert!(sender.earn(receiver.give_credit()));
                }
            }
            while receiver.taken > 0 {
                assert!(sender.earn(receiver.give_credit()));
            }
            assert_eq!(sender.credit, sender.units);
            assert!(!sender.earn(1), "more than there is");
        }
    }

    #[test]
    fn messages_without_credit_have_no_place() {
        let mut lane = Lane::new(SLOTS, LONG);
        for (bytes, most) in [(LONG, SLOTS), (8, SLOTS * UNITS_OF_SLOT), (MIDDLE, SLOTS * UNITS_OF_SLOT / 4)]
        {
            let placed = (0..most + 1).map(|_| lane.place(bytes).unwrap().is_some());
            assert_eq!(placed.collect::<Vec<_>>(), [vec![true; most], vec![false]].concat());
        }
    }
}
