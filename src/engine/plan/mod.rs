//! Plans, which are programs that are prepared for one rank. They are built once and kept for later
//! operations.

pub(crate) mod cache;
pub(crate) mod eager;

pub(crate) use cache::{EagerPlans, PlanCache};

use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::AlgorithmDigest;
use crate::schedule::lower::{Instr, LaneInstrs, lower, stores_complete_sums};
use crate::schedule::{Algorithm, GroupSpec, PeerAccess, Program, Rank, Step};
use unisono_transports::Geometry;

/// The lowered program of one rank, with everything that all ranks must agree on to run it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) lanes: Vec<LaneInstrs>,
    /// Chunks of scratch memory.
    pub(crate) scratch_chunks: usize,
    /// Chunks of the own window.
    pub(crate) own_window_chunks: usize,
    pub(crate) chunks_per_share: usize,
    pub(crate) digest: AlgorithmDigest,
    /// Longest slice of a chunk, in bytes, that fits every slot and every window.
    pub(crate) slice_bytes_max: usize,
    /// True if the program uses windows, so that the runs of a channel are counted.
    pub(crate) uses_window: bool,
    /// True if this rank writes its window and reads no window of a peer.
    pub(crate) only_writes: bool,
    /// Chunks of the fullest window.
    pub(crate) window_chunks: usize,
    /// Chunks in the windows of all ranks together.
    pub(crate) staged_chunks: usize,
    /// True if every sum is complete before it is stored, so that it is rounded once.
    pub(crate) rounds_once: bool,
}

impl Plan {
    /// Returns the size of the plan in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let instrs = self.lanes.iter().flat_map(|lane| &lane.instrs);
        size_of::<Self>() + instrs.map(|instr| size_of::<Instr>() + instr.list_bytes()).sum::<usize>()
    }

    /// Builds the plan of `algorithm` for one rank.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if a slot or a window is too small for the chunks of the program.
    fn build(
        algorithm: &Algorithm,
        spec: &GroupSpec,
        rank: Rank,
        geometry: &Geometry,
        half_window_bytes: usize,
    ) -> Result<Self> {
        let bounds = ScheduleBounds::of(algorithm, spec);
        let ScheduleBounds { chunks_per_message, window_chunks, staged_chunks } = bounds;
        let program = (algorithm.build)(spec, rank);
        let uses_window = algorithm.peer_access == PeerAccess::Window;
        let slice = match uses_window {
            true => half_window_bytes / window_chunks.max(1),
            false => geometry.slot_bytes / chunks_per_message,
        };
        let slice_bytes_max = slice / SLICE_ALIGN_BYTES * SLICE_ALIGN_BYTES;
        if slice_bytes_max == 0 {
            return Err(Error::new(ErrorKind::Unsupported(format!(
                "{} {} packs {chunks_per_message} chunks into a slot of {} bytes and {window_chunks} into a \
                 window of {half_window_bytes}: too many for {} ranks",
                algorithm.collective, algorithm.name, geometry.slot_bytes, spec.ranks
            ))));
        }
        let (scratch_chunks, own_window_chunks) = (program.scratch, program.window);
        let lanes = lower(program, rank, true);
        Ok(Self {
            only_writes: own_window_chunks > 0 && !reads_peers(&lanes, rank),
            lanes,
            scratch_chunks,
            own_window_chunks,
            chunks_per_share: (algorithm.chunks_per_share)(spec),
            digest: AlgorithmDigest::of(algorithm, spec.ranks),
            slice_bytes_max,
            uses_window,
            window_chunks,
            staged_chunks,
            rounds_once: stores_complete_sums(algorithm, spec.ranks),
        })
    }
}

/// The largest needs among the programs of all ranks, since slices must be equal on all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleBounds {
    /// Chunks of the longest message, at least one.
    pub(crate) chunks_per_message: usize,
    /// Chunks of the fullest window.
    pub(crate) window_chunks: usize,
    /// Chunks in all windows together.
    staged_chunks: usize,
}

impl ScheduleBounds {
    /// Returns the bounds of `algorithm` for `spec`.
    pub(crate) fn of(algorithm: &Algorithm, spec: &GroupSpec) -> Self {
        let mut bounds = Self { chunks_per_message: 1, window_chunks: 0, staged_chunks: 0 };
        // The programs are built one after the other, because three numbers of each are all that is
        // kept.
        for program in (0..spec.ranks).map(|rank| (algorithm.build)(spec, rank)) {
            bounds.chunks_per_message = longest_message(&program).max(bounds.chunks_per_message);
            bounds.window_chunks = program.window.max(bounds.window_chunks);
            bounds.staged_chunks += program.window;
        }
        bounds
    }
}

fn reads_peers(lanes: &[LaneInstrs], rank: Rank) -> bool {
    let reads =
        |instr: &Instr| matches!(instr, Instr::Transfer(transfer) if transfer.reads_peer_window(rank));
    lanes.iter().flat_map(|lane| &lane.instrs).any(reads)
}

/// Returns the number of chunks in the longest message of a program.
fn longest_message(program: &Program) -> usize {
    let steps = program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
    let lengths = steps.map(|step| if let Step::Send { chunks, .. } = step { chunks.len() } else { 0 });
    lengths.max().unwrap_or(0)
}

/// Slices are multiples of this size, so that they hold whole elements of every type and whole
/// cache lines.
pub(crate) const SLICE_ALIGN_BYTES: usize = 64;
