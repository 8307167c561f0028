//! Protocol of sleep and wake-up between ranks that share memory. This file does not handle the
//! memory itself.
//!
//! Every rank owns two words. The first word holds its *requests*, in which another rank sets a bit
//! before it sleeps until this rank publishes something. The *asleep* word is one while the rank
//! sleeps, and is the word of its futex. So a sleeper sets its asleep word, sets its bit at the
//! ranks that it awaits, checks once more, and sleeps. A rank that has published something clears
//! the bits in its requests, and wakes each of those ranks whose asleep word it changes from one to
//! zero.
//!
//! Publishing must cost nothing if no rank sleeps. So a rank that publishes only loads its
//! requests, which stay in its cache, and does nothing if they are zero. This load may be executed
//! before the published word is visible, so alone it would lose wake-ups. Two bits prevent this. A
//! sleeper also sets [`REQUESTED`]. When the owner sees this bit, it answers with [`FENCED`]. From
//! then on, its requests are not zero, so it executes a full fence between its publication and its
//! check of the bits. A sleeper may rely on being woken only if it finds this answer at every rank
//! that it awaits, which [`request`] returns. Others sleep for a short time. An owner that has
//! found no sleeper for many publications withdraws its answer, which takes effect only if no bit
//! is set at that moment.
//!
//! No wake-up is lost for the following reasons. The sleeper sets its bit, and then reads the
//! published word, with a full fence in between (on x86-64 the locked `or` is one, on Arm `dmb
//! ish`). The owner writes the published word, and then reads the bits, with a full fence in
//! between (`mfence`, `dmb ish`). So either the sleeper reads what was published, or the owner
//! reads the bit. That the owner is past its answer follows from the coherence of one word: the
//! owner set [`FENCED`] itself, so all its later loads find it, or the zero that it wrote itself.
//! The sleeper's `or` is ordered before that zero, and then the withdrawal fails, or after it, and
//! then the sleeper does not find [`FENCED`].
//!
//! A faulty peer can write all these words. Then a rank is woken without need, or too late. So a
//! sleep always has a limit.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Access to the words of all ranks.
pub(crate) trait WakeWords {
    /// Returns the requests of `rank`.
    fn requests(&self, rank: usize) -> &AtomicU64;
    /// Returns the word that is one while `rank` sleeps.
    fn asleep(&self, rank: usize) -> &AtomicU32;
}

/// Bit of requests by which a sleeper requests fences.
pub(crate) const REQUESTED: u64 = 1 << 62;
/// Bit of requests by which the owner answers that it executes fences.
pub(crate) const FENCED: u64 = 1 << 63;
/// The other bits stand for ranks.
const RANK_BITS: usize = 62;

/// Returns the bit of `rank`. Ranks that are [`RANK_BITS`] apart share one, and are woken together.
pub(crate) fn bit(rank: usize) -> u64 {
    1 << (rank % RANK_BITS)
}

/// Declares that `rank` is about to sleep. Requests follow.
pub(crate) fn fall_asleep(words: &impl WakeWords, rank: usize) {
    words.asleep(rank).store(ASLEEP, Ordering::Relaxed);
}

/// Requests that `peer` wakes `rank` at its next publication. Returns true if `peer` will certainly
/// do it.
///
/// After this call and before `rank` sleeps, the caller must check what `peer` has published.
pub(crate) fn request(words: &impl WakeWords, rank: usize, peer: usize) -> bool {
    let requests = words.requests(peer).fetch_or(bit(rank) | REQUESTED, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    requests & FENCED != 0
}

/// Declares that `rank` is awake.
pub(crate) fn wake_up(words: &impl WakeWords, rank: usize) {
    words.asleep(rank).store(AWAKE, Ordering::Relaxed);
}

/// Returns the bits of the ranks that sleep until `rank` publishes something, and clears them. Call
/// it after each publication if [`WakeWords::requests`] is not zero.
pub(crate) fn take_requests(words: &impl WakeWords, rank: usize) -> u64 {
    let requests = words.requests(rank);
    if requests.load(Ordering::Relaxed) & FENCED == 0 {
        requests.fetch_or(FENCED, Ordering::SeqCst);
    }
    fence(Ordering::SeqCst);
    match requests.load(Ordering::Relaxed) & !(REQUESTED | FENCED) {
        0 => 0,
        // Acquires what the sleepers wrote before, their asleep words among it.
        sleepers => requests.fetch_and(!sleepers, Ordering::SeqCst) & sleepers,
    }
}

/// Returns true if `rank` has to be woken, because it sleeps or is about to sleep. After that, it
/// counts as awake.
pub(crate) fn is_to_be_woken(words: &impl WakeWords, rank: usize) -> bool {
    words.asleep(rank).swap(AWAKE, Ordering::SeqCst) == ASLEEP
}

/// Withdraws the answer to all sleepers, unless one is there. Publishing is then free again.
pub(crate) fn withdraw_fences(words: &impl WakeWords, rank: usize) {
    let requests = words.requests(rank);
    let _ = requests.compare_exchange(REQUESTED | FENCED, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Value of an asleep word while its rank sleeps, or is about to.
pub(crate) const ASLEEP: u32 = 1;
const AWAKE: u32 = 0;

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const PUBLICATIONS: u64 = 3;

    #[derive(Default)]
    struct Model {
        requests: [AtomicU64; 2],
        asleep: [AtomicU32; 2],
        published: AtomicU64,
    }

    impl WakeWords for Model {
        fn requests(&self, rank: usize) -> &AtomicU64 {
            &self.requests[rank]
        }

        fn asleep(&self, rank: usize) -> &AtomicU32 {
            &self.asleep[rank]
        }
    }

    fn publish(model: &Model, value: u64, withdraw: bool) {
        model.published.store(value, Ordering::Release);
        if model.requests(0).load(Ordering::Relaxed) == 0 {
            return;
        }
        let sleepers = take_requests(model, 0);
        if sleepers & bit(1) != 0 {
            // The change of the word is the wake-up: a futex is not slept on with another value.
            is_to_be_woken(model, 1);
        }
        if withdraw && sleepers == 0 {
            withdraw_fences(model, 0);
        }
    }

    /// The sleeper relies on its wake-up wherever it may, and then loom finds a lost one as a
    /// thread that never ends.
    fn sleeper_is_woken(withdraw: bool) {
        // All interleavings take hours, and those with four preemptions seconds.
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(4);
        bounded.check(move || {
            let model = Arc::new(Model::default());
            let theirs = Arc::clone(&model);
            let publishing = thread::spawn(move || {
                (1..=PUBLICATIONS).for_each(|value| publish(&theirs, value, withdraw));
            });
            let seen = |value| model.published.load(Ordering::Acquire) >= value;
            'all: for value in 1..=PUBLICATIONS {
                while !seen(value) {
                    fall_asleep(&*model, 1);
                    let certain = request(&*model, 1, 0);
                    if seen(value) {
                        break;
                    }
                    if !certain {
                        // This sleep has a limit, and the model need not go on.
                        break 'all;
                    }
                    // A bit that was set earlier may end the sleep, which then begins again.
                    while model.asleep(1).load(Ordering::SeqCst) == ASLEEP {
                        thread::yield_now();
                    }
                }
                wake_up(&*model, 1);
            }
            publishing.join().unwrap();
        });
    }

    #[test]
    fn loom_sleeper_that_was_answered_is_woken() {
        sleeper_is_woken(false);
    }

    #[test]
    fn loom_withdrawn_answer_loses_no_wake_up() {
        sleeper_is_woken(true);
    }
}
