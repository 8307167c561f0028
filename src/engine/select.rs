//! Which algorithm an operation uses: one that somebody insists on, or the selector's.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Collective, GroupSpec, PeerAccess, Rank};
use crate::select::{self, Topology};

impl Engine {
    /// Insists on an algorithm for its collective, or leaves the choice to the selector again.
    pub(crate) fn set_override(&mut self, collective: Collective, algorithm: Option<&'static Algorithm>) {
        self.overrides[collective as usize] = algorithm;
        self.eager.clear();
    }

    /// The algorithm that an operation of this size would use; `narrow`: it rounds to floats of 8 or 16 bits.
    pub(crate) fn select_algorithm(
        &self,
        collective: Collective,
        root: Rank,
        bytes: usize,
        narrow: bool,
    ) -> Result<&'static Algorithm> {
        let spec = self.group_spec(collective, root, bytes);
        match self.overrides[collective as usize] {
            Some(algorithm) if algorithm.peer_access == PeerAccess::ZeroCopy => Err(unsupported(
                algorithm,
                "buffers from `Communicator::alloc_symmetric`; it is used for them by itself",
            )),
            Some(algorithm) if algorithm.peer_access > self.topology().peer_access() => {
                Err(unsupported(algorithm, "shared memory"))
            }
            Some(algorithm) if !(algorithm.supports)(&spec) => {
                Err(unsupported(algorithm, "another number of ranks"))
            }
            Some(algorithm) => Ok(algorithm),
            None => select::algorithm(collective, &spec, bytes, self.topology(), narrow, &self.config),
        }
    }

    /// What lies between the ranks.
    fn topology(&self) -> Topology {
        match self.fabric.window {
            Some(_) if self.fabric.oversubscribed => Topology::SharedMemoryOversubscribed,
            Some(_) => Topology::SharedMemory,
            None if self.fabric.oversubscribed => Topology::NetworkOversubscribed,
            None => Topology::Network,
        }
    }

    pub(super) fn group_spec(&self, collective: Collective, root: Rank, bytes: usize) -> GroupSpec {
        let ranks = self.fabric.ranks;
        let aggregation = select::aggregation(collective, ranks, bytes, self.fabric.geometry.slot_bytes);
        GroupSpec { ranks, root, aggregation }
    }
}

fn unsupported(algorithm: &Algorithm, what: &str) -> Error {
    let text = format!("{} {} needs {what}", algorithm.collective, algorithm.name);
    Error::new(ErrorKind::Unsupported(text))
}
