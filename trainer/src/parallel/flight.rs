//! Communication under way.

use crate::error::Result;
use std::time::{Duration, Instant};
use unisono::{Communicator, Pending};

/// What a collective will bring, or has brought where there is nobody to talk to.
pub(super) enum Flight<R> {
    Landed(R),
    Pending(Pending<R>),
}

impl<R: Send + 'static> Flight<R> {
    /// Starts `operation` on the group, or runs it at once where this rank is alone.
    pub(super) fn start(
        group: Option<&Communicator>,
        operation: impl FnOnce(Option<&Communicator>) -> unisono::Result<R> + Send + 'static,
    ) -> Result<Self> {
        Ok(match group {
            Some(group) => Self::Pending(group.start(move |group| operation(Some(group)))),
            None => Self::Landed(operation(None)?),
        })
    }

    /// What it brought, and how long that took from now on.
    pub(super) fn land(self, waited: &mut Duration) -> Result<R> {
        let start = Instant::now();
        let result = match self {
            Flight::Landed(result) => Ok(result),
            Flight::Pending(pending) => pending.wait(),
        };
        *waited += start.elapsed();
        Ok(result?)
    }
}
