//! Which algorithm an operation uses: one that somebody insists on, or the selector's.

use super::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Collective, Rank, Reach, Spec};
use crate::select::{self, Medium};

impl Engine {
    /// Insists on an algorithm for its collective, or leaves the choice to the selector again.
    pub(crate) fn choose(&mut self, collective: Collective, algorithm: Option<&'static Algorithm>) {
        self.chosen[collective as usize] = algorithm;
        self.express.forget();
    }

    /// The algorithm that an operation of this size would use; `narrow`: it rounds to floats of 8 or 16 bits.
    pub(crate) fn algorithm(
        &self,
        collective: Collective,
        root: Rank,
        bytes: usize,
        narrow: bool,
    ) -> Result<&'static Algorithm> {
        let spec = self.spec(collective, root, bytes);
        match self.chosen[collective as usize] {
            Some(algorithm) if algorithm.reach == Reach::Buffers => Err(unavailable(
                algorithm,
                "buffers from `Communicator::alloc`; it is used for them by itself",
            )),
            Some(algorithm) if algorithm.reach > self.medium().reach() => {
                Err(unavailable(algorithm, "shared memory"))
            }
            Some(algorithm) if !(algorithm.fits)(&spec) => {
                Err(unavailable(algorithm, "another number of ranks"))
            }
            Some(algorithm) => Ok(algorithm),
            None => select::algorithm(collective, &spec, bytes, self.medium(), narrow, &self.config),
        }
    }

    /// What lies between the ranks.
    fn medium(&self) -> Medium {
        match self.mesh.window {
            Some(_) if self.mesh.crowded => Medium::CrowdedWindows,
            Some(_) => Medium::Windows,
            None if self.mesh.crowded => Medium::Crowded,
            None => Medium::Messages,
        }
    }

    pub(super) fn spec(&self, collective: Collective, root: Rank, bytes: usize) -> Spec {
        let ranks = self.mesh.ranks;
        let aggregation = select::aggregation(collective, ranks, bytes, self.mesh.geometry.slot_bytes);
        Spec { ranks, root, aggregation }
    }
}

fn unavailable(algorithm: &Algorithm, what: &str) -> Error {
    let text = format!("{} {} needs {what}", algorithm.collective, algorithm.name);
    Error::new(ErrorKind::Unavailable(text))
}
