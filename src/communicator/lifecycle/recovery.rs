//! Running an attempt again with the ranks that are left.

use crate::communicator::Communicator;
use crate::error::Error;
use crate::reduce_op::ReduceOp;
use std::error::Error as StdError;
use std::iter::successors;

impl Communicator {
    /// Runs `attempt`, and runs it again without the ranks that failed in it, until all ranks that
    /// are left have completed it.
    ///
    /// `value` returns the state from which this rank can go on, for example the number of its
    /// newest checkpoint. It is called before each attempt. The attempt gets the communicator of
    /// the ranks that are left, and the smallest of their values, which is the same on all ranks.
    /// It must begin with the state of this value, because an attempt that failed may have changed
    /// only parts of the state on some ranks.
    ///
    /// A barrier follows the attempt, so that no rank leaves while another rank must repeat it. A
    /// rank whose call has returned takes part in no further attempt, so it should drop its clones
    /// of the communicator. If another rank fails after that, the ranks that are left go on without
    /// the rank that returned.
    ///
    /// [`Communicator::shrink_and_agree`] makes the communicator of the ranks that are left. Call
    /// it yourself if a rank keeps its state in memory, as in the loop of the page on errors.
    ///
    /// # Errors
    /// The error of the attempt, if it would come again. The attempt is repeated only if a rank has
    /// failed, and if the error or one of its [sources](StdError::source) is an [`Error`] that
    /// [is recoverable](Error::is_recoverable). A rank that returns the error of the attempt
    /// and drops its clones is left out by the other ranks. Other errors are those of
    /// [`Communicator::shrink_and_agree`].
    ///
    /// ```
    /// use unisono::{Communicator, Sum};
    ///
    /// let ranks = Communicator::local(3)?;
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let number = comm.rank();
    ///             let sum = comm.run_with_recovery(
    ///                 || 7, // The newest checkpoint of this rank is that of step 7.
    ///                 |comm, step| {
    ///                     assert_eq!(step, 7);
    ///                     if number == 1 {
    ///                         return Err("rank 1 has no data".into());
    ///                     }
    ///                     Ok(comm.all_reduce_value(1, Sum)?)
    ///                 },
    ///             );
    ///             match number {
    ///                 1 => assert!(sum.is_err()),
    ///                 _ => assert_eq!(sum.unwrap(), 2),
    ///             }
    ///         });
    ///     }
    /// });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn run_with_recovery<R>(
        self,
        mut value: impl FnMut() -> u64,
        mut attempt: impl FnMut(&Communicator, u64) -> Result<R, Box<dyn StdError>>,
    ) -> Result<R, Box<dyn StdError>> {
        let mut comm = self;
        // Survivors agree on the value in the shrink, and the ranks of the first attempt here.
        let mut agreed = comm.all_reduce_value(value(), ReduceOp::Min);
        loop {
            let outcome = match agreed {
                Ok(smallest) => comm.complete(smallest, &mut attempt),
                Err(error) => Err(error.into()),
            };
            let error = match outcome {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            if !is_recoverable(&*error) {
                return Err(error);
            }
            let (left, smallest) = comm.shrink_and_agree(value())?;
            // No rank has failed, so the error would come again.
            if left.size() == comm.size() {
                return Err(error);
            }
            tracing::warn!(rank = left.rank(), ranks = left.size(), value = smallest, %error, "runs again");
            (comm, agreed) = (left, Ok(smallest));
        }
    }

    /// Runs `attempt`, and then waits for all ranks.
    fn complete<R>(
        &self,
        value: u64,
        attempt: &mut impl FnMut(&Communicator, u64) -> Result<R, Box<dyn StdError>>,
    ) -> Result<R, Box<dyn StdError>> {
        let result = attempt(self, value)?;
        self.barrier()?;
        Ok(result)
    }
}

/// Returns true if a shrink can leave out the cause of the error.
fn is_recoverable(error: &(dyn StdError + 'static)) -> bool {
    let mut chain = successors(Some(error), |&error| error.source());
    let cause: Option<&Error> = chain.find_map(|error| error.downcast_ref());
    cause.is_some_and(Error::is_recoverable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::fmt;

    /// The error of a program, which has another error as its source.
    #[derive(Debug)]
    struct StepError(Box<dyn StdError>);

    impl fmt::Display for StepError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a step failed")
        }
    }

    impl StdError for StepError {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&*self.0)
        }
    }

    #[test]
    fn cause_is_found_in_the_chain_of_sources() {
        let gone = Error::new(ErrorKind::PeerFinalized { peer: 1 });
        let refused = Error::invalid_usage("the root is rank 9");
        let wrapped = |cause: Error| StepError(Box::new(StepError(cause.into())));
        assert!(is_recoverable(&gone) && is_recoverable(&wrapped(gone.clone())));
        assert!(!is_recoverable(&refused) && !is_recoverable(&wrapped(refused.clone())));
        assert!(!is_recoverable(&StepError("no data".into())));
    }
}
