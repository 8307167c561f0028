//! What happened to one host in a simulated run.

use std::sync::Arc;
use std::time::Duration;
use unisono::Error;

/// All that one host did, in its order.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) entries: Vec<CallRecord>,
    pub(super) panicked: bool,
}

/// One call.
#[derive(Clone, Debug)]
pub(super) struct CallRecord {
    pub(super) group: Arc<Group>,
    pub(super) action: Action,
    /// In virtual time.
    pub(super) begun: Duration,
    pub(super) ended: Duration,
    pub(super) outcome: Outcome,
}

/// The ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Where they met: no two communicators have the same.
    pub(super) id: String,
    /// Their hosts, by rank.
    pub(super) hosts: Vec<usize>,
}

/// What was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The step of this number.
    Step(usize),
    /// What members of the group of a split do.
    InSubgroup(usize),
    /// Anything, after a failure.
    Repeat,
    Shrink,
    /// To agree on where to go on.
    Resume,
    /// The communicator was dropped.
    Leave,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The right result.
    Correct,
    /// So many wrong elements.
    Wrong(u64),
    Failed(Error),
    /// A communicator of these.
    Shrunk(Arc<Group>),
    /// The host died meanwhile.
    Died,
}

impl CallRecord {
    /// The error that came of it, if one did.
    pub(super) fn error(&self) -> Option<&Error> {
        match &self.outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl std::fmt::Display for CallRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group: company, action: act, begun, ended, outcome } = self;
        write!(f, "{begun:>12.3?} to {ended:>12.3?}  hosts {:?}  {act:?}: ", company.hosts)?;
        match outcome {
            Outcome::Correct => f.write_str("right"),
            Outcome::Wrong(count) => write!(f, "{count} elements are wrong"),
            Outcome::Failed(error) => write!(f, "{error}"),
            Outcome::Shrunk(company) => {
                write!(f, "hosts {:?} are left, met at {}", company.hosts, company.id)
            }
            Outcome::Died => f.write_str("died"),
        }
    }
}
