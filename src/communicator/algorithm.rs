//! The choice of algorithms.

use crate::communicator::Communicator;
use crate::error::Result;
use crate::schedule::{Algorithm, Collective};

impl Communicator {
    /// Uses `algorithm` for its collective from now on; every rank must do the same.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn set_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.with_engine(|engine| {
            engine.set_override(algorithm.collective, Some(algorithm));
            Ok(())
        })
    }

    /// Leaves the choice of algorithms for `collective` to the library again; every rank must do the same.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn clear_algorithm(&self, collective: Collective) -> Result<()> {
        self.with_engine(|engine| {
            engine.set_override(collective, None);
            Ok(())
        })
    }

    /// The algorithm that would carry out `collective` with shares of `bytes` bytes; floats of 8 and 16 bits may be served by
    /// another one, which rounds their sums once.
    ///
    /// # Errors
    /// If none can, or the one insisted on cannot.
    pub fn select_algorithm(&self, collective: Collective, bytes: usize) -> Result<&'static Algorithm> {
        self.with_engine(|engine| engine.select_algorithm(collective, 0, bytes, false))
    }

    /// The algorithm that carried out the last collective of this rank.
    ///
    /// # Errors
    /// If an earlier operation failed.
    pub fn last_algorithm(&self) -> Result<Option<&'static Algorithm>> {
        self.with_engine(|engine| Ok(engine.last_algorithm))
    }
}
