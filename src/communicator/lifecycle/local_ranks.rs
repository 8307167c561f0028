//! Ranks that are threads of this process and run one function.

use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

/// Runs `rank_main` on `ranks` threads, each with the communicator of its rank, and returns the
/// results by rank.
///
/// When the function of a rank ends, the rank leaves, and ranks that still wait for it get an
/// error. To start the threads yourself, use [`Communicator::local`].
///
/// # Errors
/// Fails as [`Communicator::local`] does, or if a thread cannot be started. If ranks return errors,
/// the first of these errors is returned, because later ones may be its consequences.
///
/// # Panics
/// If `rank_main` panics on a rank, this function panics after all ranks have ended.
///
/// ```
/// use unisono::Sum;
///
/// let sums = unisono::local(4, |comm| {
///     let mut values = vec![comm.rank() as f32; 1000];
///     comm.all_reduce(&mut values, Sum)?;
///     Ok(values[0])
/// })?;
/// assert_eq!(sums, [6.0; 4]);
/// # Ok::<(), unisono::Error>(())
/// ```
pub fn local<R: Send>(ranks: usize, rank_main: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
    let comms = Communicator::local(ranks)?;
    let (rank_main, first_error) = (&rank_main, &Mutex::new(None));
    let tell = move |error: Error| {
        first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    };
    let results: Vec<Option<R>> = scope(|scope| {
        let mut threads = Vec::with_capacity(ranks);
        for comm in comms {
            let rank = comm.rank();
            let run = move || rank_main(comm).map_err(tell).ok();
            match Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run) {
                Ok(thread) => threads.push(thread),
                // The communicators of this rank and of later ones are dropped, so the threads that
                // run already get errors and end.
                Err(error) => {
                    tell(Error::new(ErrorKind::System(format!("no thread for rank {rank}: {error}"))));
                    break;
                }
            }
        }
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended.into_iter().map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    match first_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Sum;

    #[test]
    fn results_are_by_rank() {
        let ranks = local(3, |comm| Ok((comm.rank(), comm.size()))).unwrap();
        assert_eq!(ranks, [(0, 3), (1, 3), (2, 3)]);
        assert!(matches!(local(0, |_| Ok(())).unwrap_err().kind(), ErrorKind::InvalidUsage(_)));
    }

    #[test]
    fn error_that_was_returned_first_is_told() {
        let refused = || Error::invalid_usage("no data".to_owned());
        let error = local(3, |comm| match comm.rank() {
            1 => Err(refused()),
            // These ranks wait for rank 1, which never comes, so they fail later.
            _ => comm.all_reduce(&mut [1.0f32], Sum),
        });
        assert_eq!(error.unwrap_err().kind(), refused().kind());
    }

    #[test]
    #[should_panic(expected = "rank 1 panics")]
    fn panic_of_a_rank_is_passed_on() {
        let _ = local(2, |comm| {
            assert_ne!(comm.rank(), 1, "rank 1 panics");
            comm.all_reduce(&mut [1.0f32], Sum)
        });
    }
}
