//! The protocol of cells, apart from its memory: small messages to all ranks,
//! with the data behind the flag in one cache line.
//!
//! A cell is a *stamp* and, behind it, its data; whoever polls the stamp of a short
//! one has all 56 bytes with the same cache line. A rank owns many
//! cells of each kind and uses them in turn: post `n` goes into cell `n mod c`
//! of the `c` of its kind. All have their stamps in short cells, so that a reader who expects a post of
//! another size finds there that ranks disagree, and nobody touches a long cell before there is something in it; one of half a
//! page has it in front of its data as well. Every rank counts the same
//! posts (those it only reads included) and publishes now and then how many it has *seen*;
//! before it writes post `n` into one of `c` cells, the owner makes sure that
//! everybody has seen all posts up to `n - c`.
//!
//! Data race freedom, in words: the data of post `n` is written before its
//! stamp (release) and read after the stamp was seen (acquire); a reader's
//! reads precede its `seen` (release), which the owner has read (acquire), or
//! learnt from a later stamp of that reader, before it writes that cell again.

use crate::Tag;
use crate::sync::{AtomicU64, Ordering};

/// Where the data of a post is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// In the line of its stamp.
    Short,
    /// In half a page.
    Medium,
    /// In four pages.
    Pages4,
    /// In eight.
    Pages8,
    /// In sixteen.
    Pages16,
    /// In thirty-two.
    Pages32,
}

impl Cell {
    /// All kinds, the smallest first.
    pub const ALL: [Self; 6] =
        [Cell::Short, Cell::Medium, Cell::Pages4, Cell::Pages8, Cell::Pages16, Cell::Pages32];

    /// How many there are of a kind at most.
    pub const COUNT_MAX: u64 = 128;

    /// Fewer, and ranks wait for each other more than they gain.
    const COUNT_MIN: u64 = 8;

    /// How many of this kind each of `ranks` ranks uses: so many posts may be on their way before anybody looks. Of those that are
    /// not short, two ranks use so many that a peer's own cache has lost what it read of one before it is written again, which until
    /// then takes several times as long. More ranks use less each, and all of them together as much: it is to stay in the cache
    /// that they have in common, and every rank's first look at a page costs. (All cells of one kind fill 4 MiB at most, and programs
    /// seldom use many kinds in turn.) A power of two.
    pub const fn count(self, ranks: usize) -> u64 {
        match (self, ranks) {
            (Cell::Short, _) => Self::COUNT_MAX,
            (_, ..=2) => self.row().1,
            (_, 3..=4) => self.row().1 / 2,
            _ => self.row().1 / 4,
        }
    }

    /// Bytes of data in one.
    pub const fn bytes(self) -> usize {
        self.row().0
    }

    /// Bytes of one, and how many of them each of two ranks uses: 2 MiB at most.
    const fn row(self) -> (usize, u64) {
        match self {
            Cell::Short => (56, Self::COUNT_MAX),
            Cell::Medium => (2 << 10, Self::COUNT_MAX),
            Cell::Pages4 => (16 << 10, Self::COUNT_MAX),
            Cell::Pages8 => (32 << 10, Self::COUNT_MAX / 2),
            Cell::Pages16 => (64 << 10, Self::COUNT_MAX / 4),
            Cell::Pages32 => (128 << 10, Self::COUNT_MAX / 8),
        }
    }

    /// The kind of cell in which readers of this one look for its stamp.
    const fn stamped(self) -> Self {
        match self {
            Cell::Medium => Cell::Medium,
            _ => Cell::Short,
        }
    }

    /// Up to here one is filled. Whoever reads one to its end has its processor fetch some of what comes next: where half pages
    /// are read as fast as they are written, by two ranks, from under the hands of the one that writes the next.
    const fn filled(self, ranks: usize) -> usize {
        match (self, ranks) {
            (Cell::Medium, ..=2) => self.bytes() / 4 * 3,
            _ => self.bytes(),
        }
    }

    /// The smallest that holds so many bytes, if each of `ranks` ranks has enough of them.
    pub fn holding(bytes: usize, ranks: usize) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|cell| bytes <= cell.filled(ranks))?;
        (found.count(ranks) >= Self::COUNT_MIN).then_some(found)
    }
}

/// Words of a cell's tag.
pub(crate) const TAG_WORDS: usize = 4;

/// Where the words of one rank's cells are.
pub(crate) trait Cells {
    /// The stamp of the cell for post `number`.
    fn stamp(&self, cell: Cell, number: u64) -> &AtomicU64;
    /// The words of that post's tag, which only a reader in doubt looks at.
    fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS];
    /// How many posts the owner has seen.
    fn seen(&self) -> &AtomicU64;
}

/// Shows post `number`, whose data has been written to `cell`, to everybody.
#[inline]
pub(crate) fn post(cells: &impl Cells, cell: Cell, number: u64, stamp: u64, tag: &Tag) {
    for (place, &word) in cells.tag(number).iter().zip(&tag.0) {
        place.store(word, Ordering::Relaxed);
    }
    let stamped = cell.stamped();
    if stamped != Cell::Short {
        cells.stamp(stamped, number).store(stamp, Ordering::Release);
    }
    cells.stamp(Cell::Short, number).store(stamp, Ordering::Release);
}

/// The stamp now where that of post `number` is.
#[inline]
pub(crate) fn posted(cells: &impl Cells, cell: Cell, number: u64) -> u64 {
    cells.stamp(cell.stamped(), number).load(Ordering::Acquire)
}

/// The tag of post `number`; one torn by its owner out of turn is only a wrong tag.
#[inline]
pub(crate) fn tag(cells: &impl Cells, number: u64) -> Tag {
    Tag(cells.tag(number).each_ref().map(|word| word.load(Ordering::Relaxed)))
}

/// Publishes how many posts the owner has seen.
#[inline]
pub(crate) fn set_seen(cells: &impl Cells, count: u64) {
    cells.seen().store(count, Ordering::Release);
}

/// How many posts the owner has seen.
#[inline]
pub(crate) fn seen(cells: &impl Cells) -> u64 {
    cells.seen().load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const SLOTS: u64 = 2;
    const POSTS: u64 = 3;

    /// Two cells of each kind: the rule is the same.
    struct Model {
        stamps: [AtomicU64; SLOTS as usize],
        long_stamps: [AtomicU64; SLOTS as usize],
        tags: [[AtomicU64; TAG_WORDS]; SLOTS as usize],
        seen: AtomicU64,
        data: [UnsafeCell<u64>; SLOTS as usize],
    }

    impl Default for Model {
        fn default() -> Self {
            Self {
                stamps: std::array::from_fn(|_| AtomicU64::new(0)),
                long_stamps: std::array::from_fn(|_| AtomicU64::new(0)),
                tags: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
                seen: AtomicU64::new(0),
                data: std::array::from_fn(|_| UnsafeCell::new(0)),
            }
        }
    }

    impl Cells for Model {
        fn stamp(&self, cell: Cell, number: u64) -> &AtomicU64 {
            let stamps = if cell == Cell::Short { &self.stamps } else { &self.long_stamps };
            &stamps[(number % SLOTS) as usize]
        }

        fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS] {
            &self.tags[(number % SLOTS) as usize]
        }

        fn seen(&self) -> &AtomicU64 {
            &self.seen
        }
    }

    // SAFETY: what loom is there to check: the data is never accessed at the same time.
    unsafe impl Sync for Model {}

    /// A root that posts, and a rank that only reads.
    #[test]
    fn loom_a_post_is_read_whole_before_its_cell_is_used_again() {
        read_whole(Cell::Short);
    }

    #[test]
    fn loom_a_post_with_two_stamps_is_read_whole_before_its_cell_is_used_again() {
        read_whole(Cell::Medium);
    }

    fn read_whole(cell: Cell) {
        loom::model(move || {
            let (owner, reader) = (Arc::new(Model::default()), Arc::new(Model::default()));
            let (theirs, ours) = (Arc::clone(&owner), Arc::clone(&reader));
            let posting = thread::spawn(move || {
                for number in 0..POSTS {
                    while number >= SLOTS && seen(&*ours) + SLOTS <= number {
                        thread::yield_now();
                    }
                    // SAFETY: the cell is free; loom fails the test if the reader is in it.
                    theirs.data[(number % SLOTS) as usize].with_mut(|cell| unsafe { *cell = 70 + number });
                    post(&*theirs, cell, number, number + 1, &Tag([number; 4]));
                }
            });
            for number in 0..POSTS {
                while posted(&*owner, cell, number) != number + 1 {
                    thread::yield_now();
                }
                // SAFETY: the stamp was seen; loom fails the test if the owner is still writing.
                let found = owner.data[(number % SLOTS) as usize].with(|cell| unsafe { *cell });
                assert_eq!((found, tag(&*owner, number)), (70 + number, Tag([number; 4])));
                set_seen(&*reader, number + 1);
            }
            posting.join().unwrap();
        });
    }
}
