//! The reason why a rank ended its communicator for all ranks.

use crate::error::ErrorKind;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;

/// The reason why a rank ended its communicator for all ranks.
///
/// ```
/// use unisono::{AbortCause, Communicator, ErrorKind};
///
/// let comm = Communicator::local(1)?.remove(0);
/// comm.abort("the loss is NaN");
/// let error = comm.barrier().unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::Aborted { cause: AbortCause::Request, .. }));
/// assert!(!error.is_recoverable(), "the program wanted it so");
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AbortCause {
    /// The program of that rank called [`Communicator::abort`](crate::Communicator::abort).
    Request,
    /// The rank shrinks the communicator, and this rank had heard of no failure before.
    Shrink,
    /// The rank failed, or noticed this failure. A [`Timeout`](ErrorKind::Timeout) lists only ranks
    /// of which it had heard nothing.
    ///
    /// If the rank left this communicator after a failure in a related one, this is
    /// [`PeerFinalized`](ErrorKind::PeerFinalized), and the text of the reason tells the other
    /// failure.
    Failure(Box<ErrorKind>),
}

impl AbortCause {
    /// Returns the failure, if there was one.
    pub fn failure(&self) -> Option<&ErrorKind> {
        match self {
            AbortCause::Failure(kind) => Some(kind),
            AbortCause::Request | AbortCause::Shrink => None,
        }
    }

    /// Returns true if the ranks that are left can go on without the rank at fault.
    pub(super) fn is_recoverable(&self) -> bool {
        match self {
            AbortCause::Request => false,
            AbortCause::Shrink => true,
            // If a rank ended the communicator because of its own defect, a shrink leaves it out.
            AbortCause::Failure(kind) => kind.is_recoverable() || kind.ends_own_rank(),
        }
    }

    pub(super) fn help(&self) -> &'static str {
        match self {
            AbortCause::Request => "make a new communicator to go on, for example with `shrink`",
            AbortCause::Failure(kind) if !self.is_recoverable() => kind.help(),
            AbortCause::Shrink | AbortCause::Failure(_) => {
                "call `shrink` as well to go on with the ranks that are left"
            }
        }
    }
}

impl ErrorKind {
    /// Returns the kind for a communicator that the program of rank `rank` ends.
    pub(crate) fn abort_request(rank: Rank, reason: impl Into<String>) -> Self {
        ErrorKind::Aborted { by: rank, reason: reason.into(), cause: AbortCause::Request }
    }

    /// Returns the kind for a thread of rank `rank` that panicked while it used the communicator.
    pub(crate) fn panicked(rank: Rank, what: &str) -> Self {
        let failure = ErrorKind::PeerFailed { peer: rank, what: what.to_owned() };
        ErrorKind::Aborted {
            by: rank,
            reason: what.to_owned(),
            cause: AbortCause::Failure(Box::new(failure)),
        }
    }

    /// Returns the kind for ranks that wait for rank `rank`, which has left because of `reason`: a
    /// failure in another communicator, whose ranks may have other numbers.
    pub(crate) fn left_after(rank: Rank, reason: impl Into<String>) -> Self {
        let failure = ErrorKind::PeerFinalized { peer: rank };
        ErrorKind::Aborted { by: rank, reason: reason.into(), cause: AbortCause::Failure(Box::new(failure)) }
    }

    /// Returns the reason if this kind is one of [`ErrorKind::left_after`].
    pub(crate) fn departure_reason(&self) -> Option<&str> {
        match self {
            ErrorKind::Aborted { by, reason, cause: AbortCause::Failure(failure) }
                if **failure == (ErrorKind::PeerFinalized { peer: *by }) =>
            {
                Some(reason)
            }
            _ => None,
        }
    }

    /// Returns the kind for a communicator that rank `rank` shrinks. `gone` lists the ranks that it
    /// knows to be gone.
    pub(crate) fn shrunk(rank: Rank, gone: &[Rank]) -> Self {
        let Some(&peer) = gone.first() else {
            return ErrorKind::Aborted {
                by: rank,
                reason: SHRINK_REASON.to_owned(),
                cause: AbortCause::Shrink,
            };
        };
        let names: Vec<_> = gone.iter().map(|peer| format!("rank {peer}")).collect();
        let (names, are) = (names.join(", "), if gone.len() == 1 { "is" } else { "are" });
        let failure = ErrorKind::PeerFailed { peer, what: format!("rank {rank} has noticed it") };
        let reason = format!("{SHRINK_REASON}, because {names} {are} gone");
        ErrorKind::Aborted { by: rank, reason, cause: AbortCause::Failure(Box::new(failure)) }
    }

    /// Returns the kind that the other ranks get when rank `rank` fails with this kind in `op`.
    pub(crate) fn for_peers(&self, rank: Rank, op: Option<&OpDesc>) -> Self {
        let reason = match (self, op) {
            (ErrorKind::Timeout { .. }, Some(op)) => format!("in {op}, {self}"),
            _ if self.has_one_meaning() => return self.clone(),
            _ => self.to_string(),
        };
        ErrorKind::Aborted { by: rank, reason, cause: AbortCause::Failure(Box::new(self.clone())) }
    }

    /// Returns true if the text of the kind is right on all ranks.
    fn has_one_meaning(&self) -> bool {
        matches!(
            self,
            ErrorKind::Mismatch { .. }
                | ErrorKind::CountMismatch { .. }
                | ErrorKind::PeerFailed { .. }
                | ErrorKind::PeerFinalized { .. }
                | ErrorKind::ProtocolViolation { .. }
                | ErrorKind::Aborted { .. }
                | ErrorKind::NotFinite { .. }
                | ErrorKind::BarrierTimeout { .. }
        )
    }

    /// Returns true if the rank that reports the error has to end because of it.
    fn ends_own_rank(&self) -> bool {
        matches!(
            self,
            ErrorKind::System(_) | ErrorKind::Gpu(_) | ErrorKind::Bug(_) | ErrorKind::Excluded { .. }
        )
    }

    /// Returns true if `shrink` can leave out the rank that is the cause.
    pub(super) fn is_recoverable(&self) -> bool {
        match self {
            ErrorKind::PeerFailed { .. }
            | ErrorKind::PeerFinalized { .. }
            | ErrorKind::BarrierTimeout { .. } => true,
            ErrorKind::Timeout { waiting_for, .. } => waiting_for.iter().any(|(_, op)| op.is_none()),
            ErrorKind::MessageTimeout { peer, .. } => peer.is_some(),
            ErrorKind::Aborted { cause, .. } => cause.is_recoverable(),
            _ => false,
        }
    }
}

/// The beginning of the reason that ranks of a shrinking communicator see.
pub(crate) const SHRINK_REASON: &str = "the communicator is being shrunk";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::time::Duration;

    fn timeout(waiting_for: Vec<(Rank, Option<OpDesc>)>) -> ErrorKind {
        ErrorKind::Timeout { waiting_for, elsewhere: Vec::new(), after: Duration::ZERO }
    }

    #[test]
    fn recoverable_errors_are_those_that_shrink_leaves_out() {
        let text = String::new;
        let recoverable = |kind: &ErrorKind| Error::new(kind.clone()).is_recoverable();
        let gone = ErrorKind::PeerFailed { peer: 2, what: text() };
        let op = OpDesc::new(0, crate::op_desc::OpKind::SendRecv, unisono_reducers::DType::F32, None, 0, 1);
        let yes = [
            gone.clone(),
            ErrorKind::PeerFinalized { peer: 2 },
            timeout(vec![(1, Some(op)), (2, None)]),
            ErrorKind::BarrierTimeout { missing: vec![2], after: Duration::ZERO },
            ErrorKind::shrunk(1, &[]),
            ErrorKind::shrunk(1, &[2]),
            gone.for_peers(1, None),
            ErrorKind::Gpu(text()).for_peers(1, None),
            ErrorKind::panicked(1, "its thread panicked"),
            ErrorKind::left_after(1, text()),
        ];
        let no = [
            ErrorKind::Mismatch { rank: 0, op, other: 1, other_op: op },
            ErrorKind::CountMismatch { sender: 0, sent: 1, receiver: 1, expected: 2 },
            timeout(vec![(1, Some(op))]),
            timeout(vec![(1, Some(op))]).for_peers(1, Some(&op)),
            ErrorKind::abort_request(1, text()),
            ErrorKind::NotFinite { rank: 1, index: 0, what: text() },
            ErrorKind::Excluded { by: 1 },
            ErrorKind::Gpu(text()),
            ErrorKind::InvalidUsage(text()),
            ErrorKind::Bootstrap(crate::BootstrapError::Other { what: text() }),
        ];
        yes.iter().for_each(|kind| assert!(recoverable(kind), "{kind:?}"));
        no.iter().for_each(|kind| assert!(!recoverable(kind), "{kind:?}"));
    }

    #[test]
    fn abort_after_a_failure_names_the_failed_rank() {
        let error = Error::new(ErrorKind::shrunk(1, &[2, 4])).with_rank(0, "here", None);
        assert_eq!(error.peer(), Some(2));
        let text = "rank 1 aborted: the communicator is being shrunk, because rank 2, rank 4 are gone; call `shrink`";
        assert!(error.to_string().contains(text), "{error}");
        let silent = timeout(vec![(3, None)]).for_peers(1, None);
        assert_eq!(Error::new(silent).with_rank(0, "here", None).peer(), Some(3));
    }

    #[test]
    fn departure_after_a_failure_has_its_reason() {
        let kind = ErrorKind::left_after(1, "a disk is full");
        assert_eq!(kind.to_string(), "rank 1 has left the communicator after a failure: a disk is full");
        assert_eq!((kind.departure_reason(), kind.peer(Some(0))), (Some("a disk is full"), Some(1)));
        for other in [ErrorKind::PeerFinalized { peer: 1 }, ErrorKind::panicked(1, "it panicked")] {
            assert_eq!(other.departure_reason(), None, "{other}");
        }
    }
}
