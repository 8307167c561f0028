//! Numbers of rows or classes in memory of a GPU.

use crate::device::{Buffer, GpuError, Stream};

/// Numbers of rows or classes that have been checked: each is below a limit, or is the number that
/// stands for none.
pub struct Indices {
    pub(super) numbers: Buffer<u32>,
    pub(super) below: usize,
    pub(super) ignored: Option<u32>,
}

impl Indices {
    /// Uploads indices for launches on `stream`, through page-locked memory. The call does not
    /// wait.
    ///
    /// # Errors
    /// [`GpuError::IndexOutOfRange`] for an index that is not below `below` and not `ignored`, or
    /// the driver fails.
    pub fn new(
        stream: &Stream,
        numbers: &[u32],
        below: usize,
        ignored: Option<u32>,
    ) -> Result<Self, GpuError> {
        let is_beyond = |number: &&u32| **number as usize >= below && Some(**number) != ignored;
        match numbers.iter().find(is_beyond) {
            Some(&index) => Err(GpuError::IndexOutOfRange { index, below }),
            None => Ok(Self { numbers: stream.upload_pinned(numbers)?, below, ignored }),
        }
    }

    /// Returns the number of indices.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns true if there are no indices.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}
