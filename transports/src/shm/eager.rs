//! The protocol of slots, apart from its memory: small messages to all ranks,
//! with the data behind the flag in one cache line.
//!
//! A slot is a *seq* and, behind it, its data; whoever polls the seq of a short
//! one has all 56 bytes with the same cache line. A rank owns many
//! slots of each kind and uses them in turn: post `n` goes into slot `n mod c`
//! of the `c` of its kind. All have their seqs in short slots, so that a reader who expects a post of
//! another size finds there that ranks disagree, and nobody touches a long slot before there is something in it; one of half a
//! page has it in front of its data as well. Every rank counts the same
//! posts (those it only reads included) and publishes now and then how many it has *seen*;
//! before it writes post `n` into one of `c` slots, the owner makes sure that
//! everybody has seen all posts up to `n - c`.
//!
//! Data race freedom, in words: the data of post `n` is written before its
//! seq (release) and read after the seq was seen (acquire); a reader's
//! reads precede its `seen` (release), which the owner has read (acquire), or
//! learned from a later seq of that reader, before it writes that slot again.

use crate::Tag;
use crate::sync::{AtomicU64, Ordering};

/// Where the data of a post is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotClass {
    /// In the line of its seq.
    Inline,
    /// In half a page.
    HalfPage,
    /// In four pages.
    K16,
    /// In eight.
    K32,
    /// In sixteen.
    K64,
    /// In thirty-two.
    K128,
}

impl SlotClass {
    /// All kinds, the smallest first.
    pub const ALL: [Self; 6] = [
        SlotClass::Inline,
        SlotClass::HalfPage,
        SlotClass::K16,
        SlotClass::K32,
        SlotClass::K64,
        SlotClass::K128,
    ];

    /// How many there are of a kind at most.
    pub const MAX_SLOTS: u64 = 128;

    /// Fewer, and ranks wait for each other more than they gain.
    const MIN_SLOTS: u64 = 8;

    /// How many of this kind each of `ranks` ranks uses: so many posts may be on their way before anybody looks. Of those that are
    /// not short, two ranks use so many that a peer's own cache has lost what it read of one before it is written again, which until
    /// then takes several times as long. More ranks use less each, and all of them together as much: it is to stay in the cache
    /// that they have in common, and every rank's first look at a page costs. (All slots of one kind fill 4 MiB at most, and programs
    /// seldom use many kinds in turn.) A power of two.
    pub const fn slots(self, ranks: usize) -> u64 {
        match (self, ranks) {
            (SlotClass::Inline, _) => Self::MAX_SLOTS,
            (_, ..=2) => self.size_and_slots().1,
            (_, 3..=4) => self.size_and_slots().1 / 2,
            _ => self.size_and_slots().1 / 4,
        }
    }

    /// Bytes of data in one.
    pub const fn bytes(self) -> usize {
        self.size_and_slots().0
    }

    /// Bytes of one, and how many of them each of two ranks uses: 2 MiB at most.
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

    /// The kind of slot in which readers of this one look for its seq.
    const fn seq_class(self) -> Self {
        match self {
            SlotClass::HalfPage => SlotClass::HalfPage,
            _ => SlotClass::Inline,
        }
    }

    /// Up to here one is filled. Whoever reads one to its end has its processor fetch some of what comes next: where half pages
    /// are read as fast as they are written, by two ranks, from under the hands of the one that writes the next.
    const fn usable_bytes(self, ranks: usize) -> usize {
        match (self, ranks) {
            (SlotClass::HalfPage, ..=2) => self.bytes() / 4 * 3,
            _ => self.bytes(),
        }
    }

    /// The smallest that holds so many bytes, if each of `ranks` ranks has enough of them.
    pub fn for_bytes(bytes: usize, ranks: usize) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|slot| bytes <= slot.usable_bytes(ranks))?;
        (found.slots(ranks) >= Self::MIN_SLOTS).then_some(found)
    }
}

/// Words of a slot's tag.
pub(crate) const TAG_WORDS: usize = 4;

/// Where the words of one rank's slots are.
pub(crate) trait EagerSlots {
    /// The seq of the slot for post `number`.
    fn seq(&self, slot: SlotClass, number: u64) -> &AtomicU64;
    /// The words of that post's tag, which only a reader in doubt looks at.
    fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS];
    /// How many posts the owner has seen.
    fn acked(&self) -> &AtomicU64;
}

/// Shows post `number`, whose data has been written to `slot`, to everybody.
#[inline]
pub(crate) fn publish(slots: &impl EagerSlots, slot: SlotClass, number: u64, seq: u64, tag: &Tag) {
    for (place, &word) in slots.tag(number).iter().zip(&tag.0) {
        place.store(word, Ordering::Relaxed);
    }
    let stamped = slot.seq_class();
    if stamped != SlotClass::Inline {
        slots.seq(stamped, number).store(seq, Ordering::Release);
    }
    slots.seq(SlotClass::Inline, number).store(seq, Ordering::Release);
}

/// The seq now where that of post `number` is.
#[inline]
pub(crate) fn published(slots: &impl EagerSlots, slot: SlotClass, number: u64) -> u64 {
    slots.seq(slot.seq_class(), number).load(Ordering::Acquire)
}

/// The tag of post `number`; one torn by its owner out of turn is only a wrong tag.
#[inline]
pub(crate) fn tag(slots: &impl EagerSlots, number: u64) -> Tag {
    Tag(slots.tag(number).each_ref().map(|word| word.load(Ordering::Relaxed)))
}

/// Publishes how many posts the owner has seen.
#[inline]
pub(crate) fn set_acked(slots: &impl EagerSlots, count: u64) {
    slots.acked().store(count, Ordering::Release);
}

/// How many posts the owner has acked.
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

    /// Two slots of each kind: the rule is the same.
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

    // SAFETY: what loom is there to check: the data is never accessed at the same time.
    unsafe impl Sync for Model {}

    /// A root that posts, and a rank that only reads.
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
                // SAFETY: the seq was acked; loom fails the test if the owner is still writing.
                let found = owner.data[(number % SLOTS) as usize].with(|slot| unsafe { *slot });
                assert_eq!((found, tag(&*owner, number)), (70 + number, Tag([number; 4])));
                set_acked(&*reader, number + 1);
            }
            posting.join().unwrap();
        });
    }
}
