//! The protocol of signals, tags and done counters between ranks, apart from its memory.
//!
//! A rank owns one *board* for each channel: it alone writes it, everybody
//! reads it. A board has two *banks*, each a cache line with a signal and a
//! tag, and a counter of finished instances. A signal is published in the bank
//! whose tag was set last, so that signal and tag cross to a reader together,
//! in one line. A reader takes the larger of the two signals, which is the last
//! one published, because signals only grow; the line of the bank not in use
//! stays in the reader's cache, so looking at it is free.
//!
//! Data race freedom, in words: all that a rank wrote before a signal, its tag
//! included, precedes the signal (release), and a reader that sees it (acquire)
//! sees all of that. What a reader did before it published `done` precedes
//! whatever the writer does once it has seen that.

use crate::Tag;
use crate::sync::{AtomicU64, Ordering};

/// Where the words of one board are.
pub(crate) trait Board {
    /// The `index`-th of [`BANK_WORDS`] words of a bank.
    fn word(&self, bank: usize, index: usize) -> &AtomicU64;
    /// How many instances its owner has finished.
    fn finished(&self) -> &AtomicU64;
}

/// Banks of a board.
pub(crate) const BANKS: usize = 2;
/// Words of a bank: the signal and four of the tag.
pub(crate) const BANK_WORDS: usize = 5;

/// What the owner of a board remembers about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Announcer {
    /// The bank whose tag was set last.
    bank: usize,
}

impl Announcer {
    /// Writes the tag of a bank; the next signal shows it.
    #[inline]
    pub(crate) fn set_tag(&mut self, board: &impl Board, bank: usize, tag: &Tag) {
        self.bank = bank;
        for (index, &value) in tag.0.iter().enumerate() {
            board.word(bank, 1 + index).store(value, Ordering::Relaxed);
        }
    }

    /// Publishes a signal, and all that was written before it.
    #[inline]
    pub(crate) fn signal(&self, board: &impl Board, value: u64) {
        board.word(self.bank, 0).store(value, Ordering::Release);
    }
}

/// The last signal published on a board.
#[inline]
pub(crate) fn signals(board: &impl Board) -> u64 {
    board.word(0, 0).load(Ordering::Acquire).max(board.word(1, 0).load(Ordering::Acquire))
}

/// The tag of a bank; one torn by its owner out of turn is only a wrong tag.
#[inline]
pub(crate) fn tag(board: &impl Board, bank: usize) -> Tag {
    Tag(std::array::from_fn(|index| board.word(bank, 1 + index).load(Ordering::Relaxed)))
}

/// Publishes how many instances the board's owner has finished.
#[inline]
pub(crate) fn publish_done(board: &impl Board, value: u64) {
    board.finished().store(value, Ordering::Release);
}

/// How many instances the board's owner has finished.
#[inline]
pub(crate) fn dones(board: &impl Board) -> u64 {
    board.finished().load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Default)]
    struct Model {
        banks: [[AtomicU64; BANK_WORDS]; BANKS],
        finished: AtomicU64,
        data: [UnsafeCell<u64>; BANKS],
    }

    impl Board for Model {
        fn word(&self, bank: usize, index: usize) -> &AtomicU64 {
            &self.banks[bank][index]
        }

        fn finished(&self) -> &AtomicU64 {
            &self.finished
        }
    }

    // SAFETY: what loom is there to check: the cells are never accessed at the same time.
    unsafe impl Sync for Model {}

    /// Three instances in two banks, so that one bank is used again.
    #[test]
    fn loom_a_signal_shows_its_data_and_its_tag() {
        const INSTANCES: u64 = 3;
        loom::model(|| {
            let writer = Arc::new(Model::default());
            let reader = Arc::new(Model::default());
            let (theirs, ours) = (Arc::clone(&writer), Arc::clone(&reader));
            let writing = thread::spawn(move || {
                let mut announcer = Announcer::default();
                for instance in 0..INSTANCES {
                    while dones(&*ours) + 1 < instance {
                        thread::yield_now();
                    }
                    let bank = (instance % 2) as usize;
                    // SAFETY: the reader is done with this bank; loom fails the test if it is in it.
                    theirs.data[bank].with_mut(|cell| unsafe { *cell = 70 + instance });
                    announcer.set_tag(&*theirs, bank, &Tag([instance + 1; 4]));
                    announcer.signal(&*theirs, instance + 1);
                }
            });
            for instance in 0..INSTANCES {
                while signals(&*writer) < instance + 1 {
                    thread::yield_now();
                }
                let bank = (instance % 2) as usize;
                // SAFETY: the signal was seen; loom fails the test if the writer is still in the bank.
                let found = writer.data[bank].with(|cell| unsafe { *cell });
                assert_eq!((found, tag(&*writer, bank)), (70 + instance, Tag([instance + 1; 4])));
                publish_done(&*reader, instance + 1);
            }
            writing.join().unwrap();
        });
    }
}
