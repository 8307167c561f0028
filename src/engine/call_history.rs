//! The digest of all earlier operations, by which ranks notice that they called different
//! operations.
//!
//! Ranks whose calls differ may exchange no data in these calls. For example, if ranks 0 and 1
//! broadcast from rank 0, and ranks 2 and 3 broadcast from rank 2, all calls succeed. So every
//! operation also carries a digest of the operations before it. The next operation in which such
//! ranks exchange data fails on all of them.

use crate::engine::Engine;
use crate::engine::mismatch::op_mismatch;
use crate::engine::watchdog::ROUNDS_SLEEPING;
use crate::error::{Error, ErrorKind};
use crate::hash::GOLDEN_RATIO;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::time::Duration;

/// The operations of all ranks so far: their number and a digest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallHistory {
    length: u64,
    digest: u64,
}

impl CallHistory {
    /// Returns the number of operations.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Adds an operation, and returns it with its number and the digest of those before it.
    ///
    /// The digest has 64 bits, of which an operation carries 16. So one operation misses a
    /// difference in one of 65,536 cases, and then the next operation shows it.
    #[inline]
    pub(super) fn add(&mut self, op: OpDesc) -> OpDesc {
        let numbered = op.after(self.digest, self.length);
        let [what, count] = op.agreed_words();
        let words = what ^ count.wrapping_mul(COUNT_MULTIPLIER);
        self.digest = (self.digest.rotate_left(29) ^ words).wrapping_mul(GOLDEN_RATIO);
        self.length += 1;
        numbered
    }
}

impl Engine {
    /// If `error` says that calls of two ranks differ, returns an error that names the first
    /// operation in which this rank and a peer differ, as far as it is recorded.
    ///
    /// The operations in `error` may be later ones, because ranks whose calls differ may exchange
    /// no data in these calls. Then this rank sends the list of its calls. Each peer compares the
    /// list with its own record. A peer that has also found the difference sends its own list.
    #[cold]
    pub(super) fn name_earlier_mismatch(&mut self, error: Error) -> Error {
        let error = self.with_recorded_op(error);
        let Some(op) = disputed_op(&error) else { return error };
        match self.told_answer() {
            Some(told) if sequence_of(&told) <= Some(op.sequence()) => self.prefer_to_received(told),
            _ if is_late(&error, self.fabric.rank) => self.ask_for_earlier_calls(error, op),
            _ => error,
        }
    }

    /// If a message of an earlier operation, which this rank did not receive, was still there,
    /// returns the error about that operation.
    fn with_recorded_op(&self, error: Error) -> Error {
        if let &ErrorKind::Mismatch { rank, op, other, other_op } = error.kind()
            && rank == self.fabric.rank
            && other_op.shares_sequence_with(&op)
            && other_op.sequence() < op.sequence()
            && let Some(recorded) = self.recorder.find_op(&other_op)
        {
            return op_mismatch(rank, recorded, other, other_op);
        }
        error
    }

    /// Returns the error about the first call that a peer told and that this rank made differently.
    ///
    /// An answer that only repeats that earlier calls differ names no call. So it is left out.
    fn told_answer(&self) -> Option<Error> {
        let is_open = |told: &Error| match told.kind() {
            ErrorKind::Mismatch { op, other_op, .. } => op.differs_in_history_only(other_op),
            _ => false,
        };
        self.watchdog.told_difference().filter(|told| !is_open(told))
    }

    /// Returns an error that this rank has found, and lets this rank send it to the peers.
    ///
    /// A peer may have sent an error to all, but that error may name later operations.
    fn prefer_to_received(&mut self, found: Error) -> Error {
        self.watchdog.forget_received_error();
        found
    }

    /// Tells the peers the calls before `op`, and waits for an answer that names earlier operations
    /// than `error` does.
    fn ask_for_earlier_calls(&mut self, mut error: Error, op: OpDesc) -> Error {
        for call in self.recorder.calls_before(&op, CALLS_TOLD) {
            self.watchdog.announce_call(&mut *self.fabric.control, call);
        }
        let begun = self.fabric.wait.now();
        let limit = self.config.timeout.min(ANSWER_TIME_MAX);
        while self.fabric.wait.now().saturating_sub(begun) < limit {
            let answer = self.watchdog.read_events(&mut *self.fabric.control);
            if let Some(told) = self.told_answer() {
                return self.prefer_to_received(told);
            }
            match answer {
                Err(cause) if !is_late(&cause, self.fabric.rank) => return cause,
                // Even earlier calls differ, so this rank listens on.
                Err(cause) if sequence_of(&cause) < sequence_of(&error) => error = cause,
                _ => self.fabric.wait.pause(ROUNDS_SLEEPING),
            }
        }
        error
    }
}

/// Returns the operation of an error about two ranks that called different operations under the
/// same number, or the same operation after different ones.
fn disputed_op(error: &Error) -> Option<OpDesc> {
    match error.kind() {
        ErrorKind::Mismatch { op, other_op, .. } => {
            let is_disputed = op.shares_sequence_with(other_op) && op.sequence() == other_op.sequence();
            is_disputed.then_some(*op)
        }
        _ => None,
    }
}

/// Returns the number of the operations that an error is about, if it is the same.
fn sequence_of(error: &Error) -> Option<u64> {
    disputed_op(error).map(|op| op.sequence())
}

/// Returns true if earlier calls than those in `error` differ, too, and `rank` may still learn
/// which.
fn is_late(error: &Error, rank: Rank) -> bool {
    match error.kind() {
        // A peer has searched for earlier calls before it sent its error. Its error is used if it
        // names two different calls.
        ErrorKind::Mismatch { rank: finder, op, other_op, .. } => {
            let is_open = *finder == rank || op.differs_in_history_only(other_op);
            disputed_op(error).is_some() && op.differs_in_history(other_op) && is_open
        }
        _ => false,
    }
}

/// A second multiplier, so that a difference of counts and a difference of roots do not cancel out.
const COUNT_MULTIPLIER: u64 = 0xd1b5_4a32_d192_ed03;
/// Earlier operations that a rank tells its peers. Shared memory keeps eight unread messages.
pub(super) const CALLS_TOLD: usize = 6;
/// Time in which a peer answers. Only errors without the names of the calls wait for it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_desc::OpKind;
    use crate::schedule::Collective;
    use unisono_reducers::DType;

    fn broadcast(root: usize, count: u64) -> OpDesc {
        OpDesc::new(0, OpKind::Collective(Collective::Broadcast), DType::F32, None, root, count)
    }

    fn after(ops: &[OpDesc]) -> OpDesc {
        let mut history = CallHistory::default();
        ops.iter().for_each(|&op| _ = history.add(op));
        history.add(broadcast(0, 1))
    }

    #[test]
    fn operations_after_different_ones_differ_in_their_history() {
        let same = after(&[broadcast(0, 8); 40]);
        assert_eq!((same.sequence(), same), (40, after(&[broadcast(0, 8); 40])));
        // This also holds for a difference that is repeated, which might cancel out.
        for length in 1..=40 {
            let histories = (0..1000).map(|root| after(&vec![broadcast(root, 8); length]).tag(0));
            let different: std::collections::HashSet<_> = histories.map(|tag| tag.0).collect();
            assert!(different.len() > 980, "{} of 1000 roots after {length} calls", different.len());
        }
        let pairs = [
            (broadcast(0, 8), broadcast(0, 9)),
            (broadcast(1, 8), broadcast(2, 8)),
            (broadcast(1, 8), broadcast(0, 9)),
        ];
        for (call, other_call) in pairs {
            let (history, other_history) = (after(&[call, same]), after(&[other_call, same]));
            assert!(history.differs_in_history_only(&other_history), "{history:?} {other_history:?}");
        }
    }

    #[test]
    fn counts_that_differ_between_ranks_are_no_difference() {
        let gather = |count| OpDesc::new(0, OpKind::GatherV, DType::F32, None, 0, count);
        assert_eq!(after(&[gather(8)]), after(&[gather(9)]));
    }
}
