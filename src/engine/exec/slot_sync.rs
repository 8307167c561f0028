//! Publication and acknowledgement of eager slots.
//!
//! All ranks count publications in the same way. A rank may reuse a slot when every peer has
//! acknowledged its last contents. Acknowledgements are sent in batches. They are also sent before
//! every wait, because a peer that is ahead may be waiting for them.

use crate::engine::Engine;
use crate::engine::exec::no_window;
use crate::engine::messages::Messages;
use crate::engine::mismatch::tag_mismatch;
use crate::engine::plan::EagerPlans;
use crate::engine::wait::wait_round;
use crate::engine::watchdog::Watchdog;
use crate::error::Result;
use crate::hash::GOLDEN_RATIO;
use crate::schedule::Rank;
use unisono_reducers::{Store, copy_to};
use unisono_transports::{ControlChannel, Fabric, Link, SlotClass, Tag, WaitStrategy, Window};

/// The state of the eager path between operations.
#[derive(Default)]
pub(in crate::engine) struct EagerPath {
    pub(in crate::engine) plans: EagerPlans,
    /// Number of publications so far, equal on all ranks. Includes those that this rank only read.
    pub(in crate::engine) next_sequence: u64,
    /// Number of publications in slots of 16 KiB.
    pub(in crate::engine) k16_published: u64,
    /// For each rank, a number of publications that it has acknowledged at least.
    peer_acked: Vec<u64>,
    /// The least of `peer_acked`.
    acked_by_all: u64,
    /// Number of publications that this rank has acknowledged.
    acked: u64,
    /// Largest number of publications that this rank keeps unacknowledged.
    ack_batch: u64,
}

impl EagerPath {
    pub(in crate::engine) fn new(ranks: usize) -> Self {
        let ack_batch = SlotClass::Inline.slots(ranks) / ACKS_PER_PERIOD;
        Self { peer_acked: vec![0; ranks], ack_batch, ..Self::default() }
    }

    /// Adapts the acknowledgements to a class that has `slots` slots.
    pub(in crate::engine) fn limit_ack_batch(&mut self, slots: u64) {
        self.ack_batch = self.ack_batch.min(slots / ACKS_PER_PERIOD);
    }
}

/// The state that a wait for slots of peers uses.
pub(in crate::engine) struct SlotWait<'e> {
    rank: Rank,
    messages: &'e mut Messages,
    links: &'e mut Vec<Option<Box<dyn Link>>>,
    control: &'e mut Box<dyn ControlChannel>,
    wait_strategy: &'e mut Box<dyn WaitStrategy>,
    watchdog: &'e mut Watchdog,
    peer_acked: &'e mut [u64],
    acked: &'e mut u64,
}

/// Borrows the window, the state of a wait, and the plans.
#[inline]
pub(in crate::engine) fn slot_wait<'e>(
    fabric: &'e mut Fabric,
    watchdog: &'e mut Watchdog,
    eager: &'e mut EagerPath,
    messages: &'e mut Messages,
) -> Result<(&'e mut Window, SlotWait<'e>, &'e EagerPlans)> {
    let Fabric { rank, window, links, control, wait: wait_strategy, .. } = fabric;
    let EagerPath { plans, peer_acked, acked, .. } = eager;
    let window = window.as_mut().ok_or_else(no_window)?;
    let wait = SlotWait { rank: *rank, messages, links, control, wait_strategy, watchdog, peer_acked, acked };
    Ok((window, wait, plans))
}

impl SlotWait<'_> {
    pub(in crate::engine) fn rank(&self) -> Rank {
        self.rank
    }

    /// Waits until `peer` has made publication `sequence`, whose flag is `flag`.
    ///
    /// # Errors
    /// A mismatch if the peer published another operation, and everything that ends a wait.
    pub(in crate::engine) fn wait(
        &mut self,
        window: &mut Window,
        peer: Rank,
        slot_class: SlotClass,
        sequence: u64,
        flag: u64,
        tag: &Tag,
    ) -> Result<()> {
        // A peer that makes this publication has read all earlier ones.
        self.peer_acked[peer] = sequence;
        if window.published(peer, slot_class, sequence) == flag {
            return Ok(());
        }
        send_acks(window, self.acked, sequence);
        loop {
            for _ in 0..POLLS_PER_ROUND {
                std::hint::spin_loop();
                if window.published(peer, slot_class, sequence) == flag {
                    self.watchdog.progressed();
                    return Ok(());
                }
            }
            // Every publication, of whatever class, also sets the flag of an inline slot.
            let other = window.published(peer, SlotClass::Inline, sequence);
            // A peer that has made this publication under another digest runs another operation.
            // Its flag does not become the expected one any more, so the wait ends here.
            if other >> DIGEST_BITS == flag >> DIGEST_BITS && other != flag {
                return Err(tag_mismatch(tag, &window.published_tag(peer, sequence), self.rank, peer));
            }
            let blocked = std::iter::once(peer);
            let movable = (&mut *self.messages, &mut self.links[..]);
            wait_round(movable, self.watchdog, &mut **self.control, &mut **self.wait_strategy, blocked)?;
        }
    }
}

impl Engine {
    /// Publishes `words`, at most seven, to all peers under `tag`. Returns the number of the
    /// publication.
    pub(in crate::engine) fn publish(&mut self, tag: &Tag, words: &[u64]) -> Result<u64> {
        self.wait_free_slot(SlotClass::Inline.slots(self.fabric.ranks))?;
        let sequence = self.eager.next_sequence;
        let window = self.fabric.window.as_mut().ok_or_else(no_window)?;
        for (index, word) in words.iter().enumerate() {
            let target = window.own_slot(SlotClass::Inline, sequence, index * 8, 8);
            copy_to(Store::Cached, target, word.to_ne_bytes()[..].into());
        }
        window.publish(SlotClass::Inline, sequence, flag_value(sequence, tag), tag);
        Ok(sequence)
    }

    /// Waits for publication `sequence` of `peer` and returns its words.
    pub(in crate::engine) fn wait_published<const WORDS: usize>(
        &mut self,
        peer: Rank,
        sequence: u64,
        tag: &Tag,
    ) -> Result<[u64; WORDS]> {
        let (window, mut wait, _) =
            slot_wait(&mut self.fabric, &mut self.watchdog, &mut self.eager, &mut self.messages)?;
        wait.wait(window, peer, SlotClass::Inline, sequence, flag_value(sequence, tag), tag)?;
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            let source = window.slot(peer, SlotClass::Inline, sequence, index * 8, 8);
            copy_to(Store::Cached, bytes[..].as_mut().into(), source);
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(words)
    }

    /// Marks publication `sequence` as read by this rank, and acknowledges a full batch.
    ///
    /// A peer that writes faster than this rank reads would fetch the counter each time. The
    /// batches avoid this.
    #[inline]
    pub(in crate::engine) fn finish_publish(&mut self, sequence: u64) {
        self.eager.next_sequence = sequence + 1;
        if sequence + 1 - self.eager.acked >= self.eager.ack_batch {
            self.send_acks();
        }
    }

    /// Acknowledges all publications that this rank has read. Called before every wait.
    pub(in crate::engine) fn send_acks(&mut self) {
        if let Some(window) = self.fabric.window.as_mut() {
            send_acks(window, &mut self.eager.acked, self.eager.next_sequence);
        }
    }

    /// Waits until all peers have acknowledged the last contents of the next slot, in a class with
    /// `slots` slots.
    #[inline(always)]
    pub(in crate::engine) fn wait_free_slot(&mut self, slots: u64) -> Result<()> {
        let free = self.eager.acked_by_all + slots > self.eager.next_sequence;
        if free { Ok(()) } else { self.wait_for_acks(slots) }
    }

    fn wait_for_acks(&mut self, slots: u64) -> Result<()> {
        self.send_acks();
        let sequence = self.eager.next_sequence;
        let rank = self.fabric.rank;
        for peer in (0..self.fabric.ranks).filter(|&peer| peer != rank) {
            while self.eager.peer_acked[peer].saturating_add(slots) <= sequence {
                let acked = self.fabric.window.as_ref().map_or(u64::MAX, |window| window.acked(peer));
                // The counter of the peer lags behind, because it acknowledges in batches. A
                // publication of the peer may already have told more, so the greater number counts.
                self.eager.peer_acked[peer] = acked.max(self.eager.peer_acked[peer]);
                if acked.saturating_add(slots) <= sequence {
                    let blocked = std::iter::once(peer);
                    self.wait_round(blocked)?;
                }
            }
        }
        // This rank does not acknowledge its own slots, so its entry must not be the minimum.
        self.eager.peer_acked[self.fabric.rank] = sequence;
        self.eager.acked_by_all = self.eager.peer_acked.iter().copied().min().unwrap_or(sequence);
        self.watchdog.progressed();
        Ok(())
    }
}

/// Acknowledges publications up to `count`, unless `acked` says that the peers know.
fn send_acks(window: &mut Window, acked: &mut u64, count: u64) {
    if *acked < count {
        window.set_acked(count);
        *acked = count;
    }
}

/// Returns the flag of a publication. The upper half is its number, and the lower half is a digest
/// of the operation.
///
/// The flags of two ranks are equal if both run the same operation.
pub(in crate::engine) fn flag_value(sequence: u64, tag: &Tag) -> u64 {
    let [op_sequence, packed, count, _] = tag.0;
    let mixed = (op_sequence ^ packed.rotate_left(32)).wrapping_mul(GOLDEN_RATIO) ^ count;
    // The memory of slots begins as zeros, so the first publication must not have the number zero.
    ((sequence + 1) << DIGEST_BITS) | mixed.wrapping_mul(GOLDEN_RATIO) >> DIGEST_BITS
}

/// Acknowledgements in the time in which all slots of the class with the fewest are read once.
const ACKS_PER_PERIOD: u64 = 4;
const DIGEST_BITS: u32 = 32;
/// Readings of a flag between two checks of the clock, the abort flag and the control messages.
const POLLS_PER_ROUND: u32 = 2;
