//! Memory whose length a user or a peer chooses, so that it may not exist.

use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use std::collections::TryReserveError;
use unisono_cuda::Element;

/// Fails if the system would give no memory for `count` elements now.
pub(super) fn check_room<T>(count: usize) -> std::result::Result<(), TryReserveError> {
    let mut room = Vec::<T>::new();
    let reserved = room.try_reserve_exact(count);
    // A compiler may leave out memory that nobody uses, and then takes the answer for yes.
    drop(std::hint::black_box(room));
    reserved
}

impl Communicator {
    /// Returns `count` zeros.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is no memory for them.
    pub(super) fn zeros<T: Element>(&self, count: usize) -> Result<Vec<T>> {
        check_room::<T>(count).map_err(|error| {
            let what = format!("no memory for {count} elements of {:?}: {error}", T::DTYPE);
            self.attach_rank(Error::new(ErrorKind::System(what)))
        })?;
        Ok(vec![T::default(); count])
    }
}
