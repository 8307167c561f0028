//! The paths between ranks on GPUs, which are direct or go through host memory.

use crate::perf::jsonl::write_line;
use serde_json::json;
use unisono::Communicator;
use unisono::device::DeviceCommunicator;

/// The paths of all ranks, the same on every rank.
pub(crate) struct Paths {
    ranks: usize,
    /// True where rank `row` reaches rank `column` through host memory, row by row.
    staged: Vec<bool>,
    /// Host and location of each rank's GPU.
    gpus: Vec<[u8; PLACE_BYTES]>,
}

impl Paths {
    /// Collects the paths of all ranks. Every rank must call it.
    pub(super) fn collect(base: &Communicator, comm: &DeviceCommunicator) -> unisono::Result<Self> {
        let ranks = base.size();
        let staged_here: Vec<u8> = (0..ranks).map(|peer| u8::from(comm.is_staged(peer))).collect();
        let mut staged = vec![0u8; ranks * ranks];
        base.all_gather(&staged_here, &mut staged)?;
        let mut place = [0u8; PLACE_BYTES];
        // The name of a host may have the number of the process behind it.
        let host = base.config().host.split(" (pid").next().unwrap_or_default();
        let text = format!("{} {host}", comm.gpu().info().bus_id().unwrap_or_default());
        // Every rank contributes the same number of bytes to a gather, so the text is cut or
        // padded.
        place.iter_mut().zip(text.bytes()).for_each(|(target, byte)| *target = byte);
        let mut places = vec![0u8; ranks * PLACE_BYTES];
        base.all_gather(&place, &mut places)?;
        let gpus = places.chunks_exact(PLACE_BYTES).map(|place| place.try_into().unwrap_or([0; PLACE_BYTES]));
        Ok(Self { ranks, staged: staged.into_iter().map(|flag| flag > 0).collect(), gpus: gpus.collect() })
    }

    /// Returns "direct" if no rank is reached through host memory, "staged" if all are, and "mixed"
    /// otherwise.
    pub(crate) fn name(&self) -> &'static str {
        match self.staged().count() {
            0 => "direct",
            count if count == self.ranks * (self.ranks - 1) => "staged",
            _ => "mixed",
        }
    }

    /// Prints every path, as a comment for each rank or as one JSON object for all.
    pub(super) fn print(&self, as_json: bool) -> Result<(), String> {
        let word =
            |source: usize, target: usize| if self.is_staged(source, target) { "staged" } else { "direct" };
        if as_json {
            let staged: Vec<String> =
                self.staged().map(|(source, target)| format!("{source}-{target}")).collect();
            let paths = self.ranks * (self.ranks - 1);
            let object =
                json!({ "ranks": self.ranks, "direct_paths": paths - staged.len(), "staged_paths": staged });
            return write_line(&object);
        }
        for source in 0..self.ranks {
            let peers = (0..self.ranks).filter(|&target| target != source);
            let paths: Vec<String> =
                peers.map(|target| format!("{target} {}", word(source, target))).collect();
            println!("# paths of rank {source}: {}", paths.join(", "));
        }
        Ok(())
    }

    /// Refuses ranks that share a GPU and still exchange data through host memory, because their
    /// times say nothing about the GPU.
    pub(super) fn check_one_gpu(&self) -> Result<(), String> {
        match self.staged().find(|&(source, target)| self.gpus[source] == self.gpus[target]) {
            None => Ok(()),
            Some((source, target)) => Err(format!(
                "ranks {source} and {target} share a GPU, but their data goes through host memory; the \
                 messages of UNISONO_LOG=info say why their link was refused, and UNISONO_GPU_P2P=off asks for \
                 that path"
            )),
        }
    }

    fn is_staged(&self, source: usize, target: usize) -> bool {
        self.staged[source * self.ranks + target]
    }

    fn staged(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let pairs = (0..self.ranks).flat_map(|source| (0..self.ranks).map(move |target| (source, target)));
        pairs.filter(|&(source, target)| source != target && self.is_staged(source, target))
    }
}

/// Enough for a PCI location and the name of a host.
const PLACE_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(staged: [bool; 4], gpus: [u8; 2]) -> Paths {
        Paths { ranks: 2, staged: staged.to_vec(), gpus: gpus.map(|gpu| [gpu; PLACE_BYTES]).to_vec() }
    }

    #[test]
    fn staged_ranks_of_one_gpu_are_refused() {
        let refused = paths([false, true, false, false], [1, 1]).check_one_gpu();
        assert!(refused.is_err_and(|error| error.contains("ranks 0 and 1 share a GPU")));
        assert_eq!(paths([false, true, true, false], [1, 2]).check_one_gpu(), Ok(()));
        assert_eq!(paths([false; 4], [1, 1]).check_one_gpu(), Ok(()));
    }

    #[test]
    fn paths_are_named_by_their_kinds() {
        assert_eq!(paths([false; 4], [1, 1]).name(), "direct");
        assert_eq!(paths([false, true, false, false], [1, 1]).name(), "mixed");
        assert_eq!(paths([false, true, true, false], [1, 1]).name(), "staged");
    }
}
