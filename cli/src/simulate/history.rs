//! History of one host in a simulated run.

use std::sync::Arc;
use std::time::Duration;
use unisono::Error;

/// Calls of one host, in order.
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
    /// Virtual time of the start.
    pub(super) begun: Duration,
    pub(super) ended: Duration,
    pub(super) outcome: Outcome,
}

/// Members of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Endpoint and group of the meeting, which no other communicator has.
    pub(super) id: String,
    /// Their hosts, by rank.
    pub(super) hosts: Vec<usize>,
}

/// Kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The step of this number.
    Step(usize),
    /// A step in a communicator made by a split.
    InSubgroup(usize),
    /// Any call after a failure.
    Repeat,
    Shrink,
    /// An agreement on the step from which to go on.
    Resume,
    /// The communicator was dropped.
    Leave,
}

/// Result of a call.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The right result.
    Correct,
    /// Number of wrong elements.
    Wrong(u64),
    Failed(Error),
    /// A communicator of these members was made.
    Shrunk(Arc<Group>),
    /// The host died during the call.
    Died,
}

impl CallRecord {
    /// Returns the error of the call, if it failed.
    pub(super) fn error(&self) -> Option<&Error> {
        match &self.outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl std::fmt::Display for CallRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, action, begun, ended, outcome } = self;
        write!(f, "{begun:>12.3?} to {ended:>12.3?}  hosts {:?}  {action:?}: ", group.hosts)?;
        match outcome {
            Outcome::Correct => f.write_str("right"),
            Outcome::Wrong(count) => write!(f, "{count} elements are wrong"),
            Outcome::Failed(error) => write!(f, "{error}"),
            Outcome::Shrunk(group) => {
                write!(f, "hosts {:?} are left, met at {}", group.hosts, group.id)
            }
            Outcome::Died => f.write_str("died"),
        }
    }
}
