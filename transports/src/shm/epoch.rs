//! Protocol by which a rank takes its memory back from peers. This file does not handle the memory
//! itself.
//!
//! Every rank owns two words. The first word says that the rank accesses memory of others, which is
//! its *access epoch*. The second word says that its own memory is closed to others for good, so
//! its *exposure epoch* has ended. The second word is written only once, so it stays in the caches
//! of all ranks.
//!
//! A rank sets its access word, and then checks which ranks have closed their memory. If any has,
//! it clears the word and accesses nothing. A rank that closes its memory sets its second word, and
//! then reads the access words of all others. On both sides, there is a full fence in between. So
//! either the rank that wants access finds the memory closed, or the owner finds that rank's access
//! word.
//!
//! An access word is cleared with release, and is seen cleared with acquire. So all accesses
//! precede everything that the owner does after that.

use crate::sync::{AtomicU64, Ordering, fence};

/// Access to the words of all ranks.
pub(crate) trait EpochWords {
    /// Returns the word that is one while `rank` accesses memory of others. Only `rank` writes it.
    fn access(&self, rank: usize) -> &AtomicU64;
    /// Returns the word that is one once `rank` has closed its memory.
    fn closed(&self, rank: usize) -> &AtomicU64;
    /// Returns the number of ranks.
    fn ranks(&self) -> usize;
}

/// Begins an access epoch of `rank`.
///
/// # Errors
/// Returns the first rank whose memory is closed. The access epoch has then ended.
#[inline]
pub(crate) fn begin_access(words: &impl EpochWords, rank: usize) -> Result<(), usize> {
    words.access(rank).store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let closed = |&peer: &usize| words.closed(peer).load(Ordering::Relaxed) != 0;
    match (0..words.ranks()).find(closed) {
        None => Ok(()),
        Some(peer) => {
            end_access(words, rank);
            Err(peer)
        }
    }
}

/// Ends the access epoch of `rank`.
#[inline]
pub(crate) fn end_access(words: &impl EpochWords, rank: usize) {
    words.access(rank).store(0, Ordering::Release);
}

/// Closes the memory of `rank` to access epochs that begin later. Those that have begun go on.
pub(crate) fn close(words: &impl EpochWords, rank: usize) {
    words.closed(rank).store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Returns another rank than `rank` that is in an access epoch. Called after [`close`].
pub(crate) fn accessing(words: &impl EpochWords, rank: usize) -> Option<usize> {
    let accesses = |&peer: &usize| words.access(peer).load(Ordering::Acquire) != 0;
    (0..words.ranks()).filter(|&peer| peer != rank).find(accesses)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Default)]
    struct Model {
        access: [AtomicU64; 2],
        closed: [AtomicU64; 2],
        /// Memory of rank 0.
        memory: UnsafeCell<u64>,
    }

    // SAFETY: loom checks exactly this claim: the cell is never accessed at the same time.
    unsafe impl Sync for Model {}

    impl EpochWords for Model {
        fn access(&self, rank: usize) -> &AtomicU64 {
            &self.access[rank]
        }

        fn closed(&self, rank: usize) -> &AtomicU64 {
            &self.closed[rank]
        }

        fn ranks(&self) -> usize {
            2
        }
    }

    #[test]
    fn loom_closed_memory_belongs_to_its_owner() {
        loom::model(|| {
            let model = Arc::new(Model::default());
            let theirs = Arc::clone(&model);
            let peer = thread::spawn(move || {
                let mut accesses = 0;
                while accesses < 2 && begin_access(&*theirs, 1) == Ok(()) {
                    // SAFETY: in an access epoch; loom fails the test if the owner is in the cell.
                    theirs.memory.with_mut(|cell| unsafe { *cell += 1 });
                    end_access(&*theirs, 1);
                    accesses += 1;
                }
                accesses
            });
            close(&*model, 0);
            while accessing(&*model, 0).is_some() {
                thread::yield_now();
            }
            // SAFETY: closed, and nobody is in an access epoch; loom fails the test if the peer is
            // in the cell.
            let found = model.memory.with_mut(|cell| unsafe { std::mem::replace(&mut *cell, 100) });
            assert_eq!(peer.join().unwrap(), found, "accesses after the end");
        });
    }

    #[test]
    fn loom_ranks_that_close_together_see_each_other_leave() {
        loom::model(|| {
            let model = Arc::new(Model::default());
            let theirs = Arc::clone(&model);
            let end = |model: &Model, rank: usize| {
                if begin_access(model, rank) == Ok(()) {
                    end_access(model, rank);
                }
                close(model, rank);
                while accessing(model, rank).is_some() {
                    thread::yield_now();
                }
            };
            let peer = thread::spawn(move || end(&theirs, 1));
            end(&model, 0);
            peer.join().unwrap();
        });
    }
}
