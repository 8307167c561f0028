//! Protocol of the eager slots. Small messages go to all ranks, with the flag and the data in one
//! cache line.
//!
//! A slot consists of a *seq* and the data after it. A reader that polls the seq of a short slot
//! gets all 56 bytes with the same cache line. A rank owns many slots of each class and uses them
//! in turn. Publication `n` goes into slot `n mod c` of the `c` slots of its class.
//!
//! All classes have their seqs in short slots. So a reader that expects a publication of another
//! size detects there that the ranks disagree. No reader accesses a long slot before it holds data.
//! A slot of half a page also has its seq before its data.
//!
//! Every rank counts the same publications, including those that it only reads. From time to time
//! it publishes how many it has *acknowledged*. Before the owner writes publication `n` into one of
//! `c` slots, it checks that all ranks have acknowledged all publications up to `n - c`.
//!
//! There is no data race for the following reasons. The data of publication `n` is written before
//! its seq (release), and read after the seq was seen (acquire). The reads of a reader precede its
//! acknowledgement (release). Before the owner writes that slot again, it has read the
//! acknowledgement (acquire), or learned it from a later seq of that reader.

use crate::Tag;
use crate::sync::{AtomicU64, Ordering};

/// Size class of an eager slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotClass {
    /// Data in the line of the seq.
    Inline,
    /// Data in half a page.
    HalfPage,
    /// Data in four pages.
    K16,
    /// Data in eight pages.
    K32,
    /// Data in sixteen pages.
    K64,
    /// Data in thirty-two pages.
    K128,
}

impl SlotClass {
    /// All classes, the smallest first.
    pub const ALL: [Self; 6] = [
        SlotClass::Inline,
        SlotClass::HalfPage,
        SlotClass::K16,
        SlotClass::K32,
        SlotClass::K64,
        SlotClass::K128,
    ];

    /// Largest number of slots of a class.
    pub const MAX_SLOTS: u64 = 128;

    /// Smallest useful number of slots. With fewer slots, ranks wait for each other for longer than
    /// they save.
    const MIN_SLOTS: u64 = 8;

    /// Returns the number of slots of this class that each of `ranks` ranks uses, a power of two.
    ///
    /// This is the number of publications that may be in flight before a reader reads them. For
    /// long slots, it depends on the number of ranks.
    ///
    /// With two ranks, a slot should be written again only after the reader's own cache no longer
    /// holds it. Writing it earlier takes several times as long.
    ///
    /// With more ranks, each rank uses fewer slots, and the total number stays the same. The slots
    /// should stay in the cache that the ranks share, and every rank's first access to a page costs
    /// time.
    ///
    /// All slots of one class fill 4 MiB at most, and programs seldom use many classes in turn.
    pub const fn slots(self, ranks: usize) -> u64 {
        match (self, ranks) {
            (SlotClass::Inline, _) => Self::MAX_SLOTS,
            (_, ..=2) => self.size_and_slots().1,
            (_, 3..=4) => self.size_and_slots().1 / 2,
            _ => self.size_and_slots().1 / 4,
        }
    }

    /// Returns the bytes of data in one slot.
    pub const fn bytes(self) -> usize {
        self.size_and_slots().0
    }

    /// Returns the bytes of one slot, and the slots that each of two ranks uses: 2 MiB at most.
    const fn size_and_slots(self) -> (usize, u64) {
        match self {
            SlotClass::Inline => (56, Self::MAX_SLOTS),
            SlotClass::HalfPage => (2 << 10, Self::MAX_SLOTS),
            SlotClass::K16 => (16 << 10, Self::MAX_SLOTS),
            SlotClass::K32 => (32 << 10, Self::MAX_SLOTS / 2),
            SlotClass::K64 => (64 << 10, Self::MAX_SLOTS / 4),
            SlotClass::K128 => (128 << 10, Self::MAX_SLOTS / 8),
        }
    }

    /// Returns the class in whose slots readers of this class look for the seq.
    const fn seq_class(self) -> Self {
        match self {
            SlotClass::HalfPage => SlotClass::HalfPage,
            _ => SlotClass::Inline,
        }
    }

    /// Returns the number of bytes up to which a slot is filled.
    ///
    /// Reading a slot to its end makes the processor prefetch some of the next slot. With two
    /// ranks, half pages are read as fast as they are written. The prefetch would then take lines
    /// from the rank that writes the next slot.
    const fn usable_bytes(self, ranks: usize) -> usize {
        match (self, ranks) {
            (SlotClass::HalfPage, ..=2) => self.bytes() / 4 * 3,
            _ => self.bytes(),
        }
    }

    /// Returns the smallest class that holds `bytes` bytes, if each of `ranks` ranks has enough of
    /// its slots.
    pub fn for_bytes(bytes: usize, ranks: usize) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|slot| bytes <= slot.usable_bytes(ranks))?;
        (found.slots(ranks) >= Self::MIN_SLOTS).then_some(found)
    }
}

/// Words of a slot's tag.
pub(crate) const TAG_WORDS: usize = 4;

/// Access to the words of one rank's slots.
pub(crate) trait EagerSlots {
    /// Returns the seq of the slot for publication `number`.
    fn seq(&self, slot: SlotClass, number: u64) -> &AtomicU64;
    /// Returns the words of that publication's tag. Only a reader in doubt looks at them.
    fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS];
    /// Returns the number of publications that the owner has acknowledged.
    fn acked(&self) -> &AtomicU64;
}

/// Shows publication `number`, whose data has been written to `slot`, to all ranks.
#[inline]
pub(crate) fn publish(slots: &impl EagerSlots, slot: SlotClass, number: u64, seq: u64, tag: &Tag) {
    // The tag comes before the seq, whose release publishes the tag and the data.
    for (place, &word) in slots.tag(number).iter().zip(&tag.0) {
        place.store(word, Ordering::Relaxed);
    }
    let stamped = slot.seq_class();
    if stamped != SlotClass::Inline {
        slots.seq(stamped, number).store(seq, Ordering::Release);
    }
    slots.seq(SlotClass::Inline, number).store(seq, Ordering::Release);
}

/// Returns the current seq at the place of publication `number`.
#[inline]
pub(crate) fn published(slots: &impl EagerSlots, slot: SlotClass, number: u64) -> u64 {
    slots.seq(slot.seq_class(), number).load(Ordering::Acquire)
}

/// Returns the tag of publication `number`. If the owner writes out of turn, the tag may be torn,
/// which is only a wrong tag.
#[inline]
pub(crate) fn tag(slots: &impl EagerSlots, number: u64) -> Tag {
    Tag(slots.tag(number).each_ref().map(|word| word.load(Ordering::Relaxed)))
}

/// Publishes how many publications the owner has acknowledged.
#[inline]
pub(crate) fn set_acked(slots: &impl EagerSlots, count: u64) {
    slots.acked().store(count, Ordering::Release);
}

/// Returns the number of publications that the owner has acknowledged.
#[inline]
pub(crate) fn acked(slots: &impl EagerSlots) -> u64 {
    slots.acked().load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const SLOTS: u64 = 2;
    const POSTS: u64 = 3;

    /// Model with two slots of each class: the rule is the same.
    struct Model {
        seqs: [AtomicU64; SLOTS as usize],
        long_seqs: [AtomicU64; SLOTS as usize],
        tags: [[AtomicU64; TAG_WORDS]; SLOTS as usize],
        acked: AtomicU64,
        data: [UnsafeCell<u64>; SLOTS as usize],
    }

    impl Default for Model {
        fn default() -> Self {
            Self {
                seqs: std::array::from_fn(|_| AtomicU64::new(0)),
                long_seqs: std::array::from_fn(|_| AtomicU64::new(0)),
                tags: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
                acked: AtomicU64::new(0),
                data: std::array::from_fn(|_| UnsafeCell::new(0)),
            }
        }
    }

    impl EagerSlots for Model {
        fn seq(&self, slot: SlotClass, number: u64) -> &AtomicU64 {
            let seqs = if slot == SlotClass::Inline { &self.seqs } else { &self.long_seqs };
            &seqs[(number % SLOTS) as usize]
        }

        fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS] {
            &self.tags[(number % SLOTS) as usize]
        }

        fn acked(&self) -> &AtomicU64 {
            &self.acked
        }
    }

    // SAFETY: loom checks exactly this claim: the data is never accessed at the same time.
    unsafe impl Sync for Model {}

    /// Tests a root that publishes, and a rank that only reads.
    #[test]
    fn loom_eager_slot_is_read_before_reuse() {
        check_read_before_reuse(SlotClass::Inline);
    }

    #[test]
    fn loom_long_eager_slot_is_read_before_reuse() {
        check_read_before_reuse(SlotClass::HalfPage);
    }

    fn check_read_before_reuse(slot: SlotClass) {
        loom::model(move || {
            let (owner, reader) = (Arc::new(Model::default()), Arc::new(Model::default()));
            let (theirs, ours) = (Arc::clone(&owner), Arc::clone(&reader));
            let posting = thread::spawn(move || {
                for number in 0..POSTS {
                    while number >= SLOTS && acked(&*ours) + SLOTS <= number {
                        thread::yield_now();
                    }
                    // SAFETY: the slot is free; loom fails the test if the reader is in it.
                    theirs.data[(number % SLOTS) as usize].with_mut(|slot| unsafe { *slot = 70 + number });
                    publish(&*theirs, slot, number, number + 1, &Tag([number; 4]));
                }
            });
            for number in 0..POSTS {
                while published(&*owner, slot, number) != number + 1 {
                    thread::yield_now();
                }
                // SAFETY: the seq was seen; loom fails the test if the owner is still writing.
                let found = owner.data[(number % SLOTS) as usize].with(|slot| unsafe { *slot });
                assert_eq!((found, tag(&*owner, number)), (70 + number, Tag([number; 4])));
                set_acked(&*reader, number + 1);
            }
            posting.join().unwrap();
        });
    }
}
