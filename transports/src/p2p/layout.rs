//! Where things lie in the memory of a rank that its peers reach: its *arena*.
//!
//! Pure arithmetic: every rank computes the places in everybody's arena for itself, so that nothing
//! that a peer says is ever used as an address but the arena's beginning.

use crate::{Error, Result};
use std::ops::Range;

/// Sizes on which all GPU ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Number of ranks.
    pub ranks: usize,
    /// Independent FIFOs in each direction between two ranks.
    pub lanes: usize,
    /// Messages that one FIFO holds; at least two, as a message may be received and sent on at once.
    pub slots: usize,
    /// Largest message, in bytes: whole lines.
    pub slot_bytes: usize,
    /// Bytes of a rank's window: whole lines.
    pub window_bytes: usize,
}

/// The places in an arena, as offsets in bytes.
///
/// Behind one another: the counters, one to a line; the inbox of signals; the window; the slots of
/// the FIFOs into this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    sizes: Sizes,
    inbox: usize,
    window: usize,
    slots: usize,
    bytes: usize,
}

impl Layout {
    /// The arena of each rank.
    ///
    /// # Errors
    /// If a size makes no sense or the whole is larger than memory can be.
    pub fn new(sizes: Sizes) -> Result<Self> {
        let whole = |bytes: usize| bytes.is_multiple_of(LINE_BYTES);
        let sound = sizes.ranks > 0 && sizes.lanes > 0 && sizes.slots >= SLOTS_MIN && sizes.slot_bytes > 0;
        if !sound || !whole(sizes.slot_bytes) || !whole(sizes.window_bytes) {
            return Err(Error::Misuse(format!("{sizes:?} are no sizes of an arena")));
        }
        Self::laid_out(sizes).ok_or_else(|| Error::Misuse(format!("{sizes:?} are too large")))
    }

    fn laid_out(sizes: Sizes) -> Option<Self> {
        let ports = sizes.lanes.checked_mul(sizes.ranks)?;
        let inbox = ports.checked_mul(2 * LINE_BYTES)?;
        let window =
            inbox.checked_add(ports.checked_mul(2 * WORD_BYTES)?.checked_next_multiple_of(LINE_BYTES)?)?;
        let slots = window.checked_add(sizes.window_bytes)?;
        let fifo = sizes.slots.checked_mul(sizes.slot_bytes.checked_add(HEAD_BYTES)?)?;
        let fifos = sizes.lanes.checked_mul(sizes.ranks - 1)?.checked_mul(fifo)?;
        let bytes = slots.checked_add(fifos)?;
        (bytes <= isize::MAX as usize).then_some(Self { sizes, inbox, window, slots, bytes })
    }

    /// The sizes that it was made for.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Bytes of an arena.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Count of messages that have come from `peer` on `lane`; `peer` writes it.
    pub fn tail(&self, lane: usize, peer: usize) -> Range<usize> {
        self.counter(2 * self.port(lane, peer))
    }

    /// Count of messages to `peer` on `lane` that it has taken; `peer` writes it.
    pub fn head(&self, lane: usize, peer: usize) -> Range<usize> {
        self.counter(2 * self.port(lane, peer) + 1)
    }

    /// Words that tell what peers have signalled, by lane and rank; behind them those that tell what they have
    /// finished.
    pub fn inbox(&self) -> Range<usize> {
        self.inbox..self.inbox + 2 * WORD_BYTES * self.sizes.lanes * self.sizes.ranks
    }

    /// The window.
    pub fn window(&self) -> Range<usize> {
        self.window..self.slots
    }

    /// In the arena of `rank`: the slots of messages from `peer` on `lane`, each with its head.
    ///
    /// # Panics
    /// If the two are one, or there is no such rank or lane.
    pub fn slots(&self, rank: usize, lane: usize, peer: usize) -> Range<usize> {
        assert!(
            peer != rank && peer < self.sizes.ranks && lane < self.sizes.lanes,
            "FIFO {lane} from {peer}"
        );
        let bytes = self.sizes.slots * (HEAD_BYTES + self.sizes.slot_bytes);
        let start = self.slots + (lane * (self.sizes.ranks - 1) + peer - usize::from(peer > rank)) * bytes;
        start..start + bytes
    }

    /// Number of what goes between this rank and `peer` on `lane`.
    ///
    /// # Panics
    /// If there is no such rank or lane.
    pub fn port(&self, lane: usize, peer: usize) -> usize {
        assert!(peer < self.sizes.ranks && lane < self.sizes.lanes, "lane {lane} to {peer}");
        lane * self.sizes.ranks + peer
    }

    fn counter(&self, index: usize) -> Range<usize> {
        index * LINE_BYTES..index * LINE_BYTES + WORD_BYTES
    }
}

/// Everything begins on one of these.
pub const LINE_BYTES: usize = 64;
/// Of a slot, before its data: what the message is.
pub const HEAD_BYTES: usize = LINE_BYTES;
const WORD_BYTES: usize = 8;
const SLOTS_MIN: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places(layout: &Layout, rank: usize) -> Vec<Range<usize>> {
        let Sizes { ranks, lanes, .. } = *layout.sizes();
        let ports = (0..lanes).flat_map(|lane| (0..ranks).map(move |peer| (lane, peer)));
        let counters =
            ports.clone().flat_map(|(lane, peer)| [layout.tail(lane, peer), layout.head(lane, peer)]);
        let slots =
            ports.filter(|&(_, peer)| peer != rank).map(|(lane, peer)| layout.slots(rank, lane, peer));
        counters.chain([layout.inbox(), layout.window()]).chain(slots).collect()
    }

    proptest! {
        #[test]
        fn places_are_apart_and_inside(
            ranks in 1usize..9, lanes in 1usize..9, slots in 2usize..5, lines in 1usize..9, window in 0usize..9
        ) {
            let sizes = Sizes { ranks, lanes, slots, slot_bytes: lines * LINE_BYTES, window_bytes: window * LINE_BYTES };
            let layout = Layout::new(sizes).unwrap();
            for rank in 0..ranks {
                let mut found = places(&layout, rank);
                found.sort_by_key(|place| (place.start, place.end));
                prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start));
                prop_assert!(found.iter().all(|place| place.start % LINE_BYTES == 0));
                prop_assert_eq!(found.last().unwrap().end.next_multiple_of(LINE_BYTES), layout.bytes());
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let sizes = Sizes { ranks: 2, lanes: 1, slots: 2, slot_bytes: 64, window_bytes: 0 };
        assert!(Layout::new(sizes).is_ok());
        for wrong in [
            Sizes { ranks: 0, ..sizes },
            Sizes { lanes: 0, ..sizes },
            Sizes { slots: 1, ..sizes },
            Sizes { slot_bytes: 96, ..sizes },
            Sizes { window_bytes: 8, ..sizes },
            Sizes { slot_bytes: 1 << 60, lanes: 1 << 30, ..sizes },
        ] {
            assert!(Layout::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
