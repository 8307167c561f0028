//! Protocol of signals, tags and completion counters between ranks. This file does not handle their
//! memory.
//!
//! A rank owns one *block* for each lane. Only this rank writes the block, and all ranks read it. A
//! block has two *parities*, each a cache line with a signal and a tag, and a counter of finished
//! instances. A signal is published in the parity whose tag was set last, so a reader gets signal
//! and tag together, in one line.
//!
//! A reader takes the larger of the two signals. This is the last one published, because signals
//! only grow. The line of the parity not in use stays in the reader's cache, so reading it is free.
//!
//! There is no data race for the following reasons. All writes of a rank before a signal, including
//! its tag, precede the signal (release). A reader that sees the signal (acquire) sees all of them.
//! All reads of a reader before it published its completion precede all writes that the writer
//! makes after it has seen that completion.

use crate::Tag;
use crate::sync::{AtomicU64, Ordering};

/// Access to the words of one signal block.
pub(crate) trait SignalBlock {
    /// Returns word `index` of the [`PARITY_WORDS`] words of a parity.
    fn word(&self, parity: usize, index: usize) -> &AtomicU64;
    /// Returns the number of instances that the owner has finished.
    fn completions(&self) -> &AtomicU64;
}

/// Parities of a block.
pub(crate) const PARITIES: usize = 2;
/// Words of a parity: the signal and four of the tag.
pub(crate) const PARITY_WORDS: usize = 5;

/// State that the owner of a block keeps about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SignalWriter {
    /// The parity whose tag was set last.
    parity: usize,
}

impl SignalWriter {
    /// Writes the tag of a parity. The next signal makes it visible.
    #[inline]
    pub(crate) fn set_tag(&mut self, block: &impl SignalBlock, parity: usize, tag: &Tag) {
        self.parity = parity;
        for (index, &value) in tag.0.iter().enumerate() {
            block.word(parity, 1 + index).store(value, Ordering::Relaxed);
        }
    }

    /// Publishes a signal, and everything written before it.
    #[inline]
    pub(crate) fn signal(&self, block: &impl SignalBlock, value: u64) {
        block.word(self.parity, 0).store(value, Ordering::Release);
    }
}

/// Returns the last signal published on a block.
#[inline]
pub(crate) fn last_signal(block: &impl SignalBlock) -> u64 {
    block.word(0, 0).load(Ordering::Acquire).max(block.word(1, 0).load(Ordering::Acquire))
}

/// Returns the tag of a parity. A tag torn by an owner that writes out of turn is only a wrong tag.
#[inline]
pub(crate) fn tag(block: &impl SignalBlock, parity: usize) -> Tag {
    Tag(std::array::from_fn(|index| block.word(parity, 1 + index).load(Ordering::Relaxed)))
}

/// Publishes how many instances the block's owner has finished.
#[inline]
pub(crate) fn publish_completion(block: &impl SignalBlock, value: u64) {
    block.completions().store(value, Ordering::Release);
}

/// Returns the number of instances that the block's owner has finished.
#[inline]
pub(crate) fn completions(block: &impl SignalBlock) -> u64 {
    block.completions().load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Default)]
    struct Model {
        parities: [[AtomicU64; PARITY_WORDS]; PARITIES],
        finished: AtomicU64,
        data: [UnsafeCell<u64>; PARITIES],
    }

    impl SignalBlock for Model {
        fn word(&self, parity: usize, index: usize) -> &AtomicU64 {
            &self.parities[parity][index]
        }

        fn completions(&self) -> &AtomicU64 {
            &self.finished
        }
    }

    // SAFETY: loom checks exactly this claim: the cells are never accessed at the same time.
    unsafe impl Sync for Model {}

    /// Three instances in two parities, so that one parity is used again.
    #[test]
    fn loom_signal_publishes_data_and_tag() {
        const INSTANCES: u64 = 3;
        loom::model(|| {
            let writer = Arc::new(Model::default());
            let reader = Arc::new(Model::default());
            let (theirs, ours) = (Arc::clone(&writer), Arc::clone(&reader));
            let writing = thread::spawn(move || {
                let mut announcer = SignalWriter::default();
                for instance in 0..INSTANCES {
                    while completions(&*ours) + 1 < instance {
                        thread::yield_now();
                    }
                    let parity = (instance % 2) as usize;
                    // SAFETY: the reader is done with this parity; loom fails the test if it is in
                    // it.
                    theirs.data[parity].with_mut(|cell| unsafe { *cell = 70 + instance });
                    announcer.set_tag(&*theirs, parity, &Tag([instance + 1; 4]));
                    announcer.signal(&*theirs, instance + 1);
                }
            });
            for instance in 0..INSTANCES {
                while last_signal(&*writer) < instance + 1 {
                    thread::yield_now();
                }
                let parity = (instance % 2) as usize;
                // SAFETY: the signal was seen; loom fails the test if the writer is still in the
                // parity.
                let found = writer.data[parity].with(|cell| unsafe { *cell });
                assert_eq!((found, tag(&*writer, parity)), (70 + instance, Tag([instance + 1; 4])));
                publish_completion(&*reader, instance + 1);
            }
            writing.join().unwrap();
        });
    }
}
