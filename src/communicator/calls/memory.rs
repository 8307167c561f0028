//! Allocation of memory whose length a user or a peer chooses, so that the system may not have
//! enough.

use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use std::collections::TryReserveError;
use unisono_reducers::{DType, Element};

/// Fails if the system has no memory for `count` elements now.
pub(in crate::communicator) fn check_room<T>(count: usize) -> std::result::Result<(), TryReserveError> {
    let mut room = Vec::<T>::new();
    let reserved = room.try_reserve_exact(count);
    // Otherwise the compiler could remove the unused allocation and assume that it succeeds.
    drop(std::hint::black_box(room));
    reserved
}

impl Communicator {
    /// Returns `count` zeros.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is no memory for them.
    pub(in crate::communicator) fn zeros<T: Element>(&self, count: usize) -> Result<Vec<T>> {
        check_room::<T>(count).map_err(|error| self.no_memory(count, T::DTYPE, &error))?;
        Ok(vec![T::default(); count])
    }

    /// Appends zeros to `elements` until it has `length` elements.
    ///
    /// # Errors
    /// As [`Communicator::zeros`].
    pub(in crate::communicator) fn lengthen<T: Element>(
        &self,
        elements: &mut Vec<T>,
        length: usize,
    ) -> Result<()> {
        if elements.is_empty() {
            *elements = self.zeros(length)?;
        } else if length > elements.len() {
            let reserved = elements.try_reserve_exact(length - elements.len());
            reserved.map_err(|error| self.no_memory(length, T::DTYPE, &error))?;
            elements.resize(length, T::default());
        }
        Ok(())
    }

    fn no_memory(&self, count: usize, dtype: DType, error: &TryReserveError) -> Error {
        let what = format!("no memory for {count} elements of {dtype:?}: {error}");
        self.attach_rank(Error::new(ErrorKind::System(what)))
    }
}
