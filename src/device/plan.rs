//! Programs on the GPU, which are lowered, checked and uploaded once and kept for later calls.

use crate::device::lower::lower;
use crate::device::shape::Shape;
use crate::engine::ScheduleBounds as Widest;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::AlgorithmDigest;
use crate::schedule::lower::stores_complete_sums;
use crate::schedule::{Algorithm, GroupSpec, PeerAccess, Program as ScheduleProgram, Rank, permuted};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use unisono_transports::gpu::{
    DeviceGeometry, DeviceProgram, Endpoint, Program, ProgramBounds, Reach, Reserve,
};

/// One rank's program, with what all ranks must agree on to run it.
pub(super) struct Plan {
    /// `None` if this rank takes no step.
    pub(super) uploaded: Option<DeviceProgram>,
    pub(super) chunks_per_share: usize,
    pub(super) digest: AlgorithmDigest,
    /// Longest slice of a block that fits every slot and every window, in bytes.
    pub(super) slice_bytes_max: usize,
    /// Longest slice, in bytes, if messages use low-latency lines. It is zero if there are windows,
    /// or if messages of any rank go through the host.
    pub(super) ll_bytes_max: usize,
    /// True if a separate kernel computes the bit-identical result in one exchange.
    pub(super) is_one_shot: bool,
    /// True if every sum is complete before it is stored, so that it is rounded once.
    pub(super) rounds_once: bool,
    /// True if this rank reads every chunk of its input before it overwrites the same chunk of its
    /// output, and no peer accesses its buffers. An all_to_all then runs in place.
    pub(super) runs_in_place: bool,
}

/// Cache of plans.
#[derive(Default)]
pub(super) struct PlanCache(HashMap<(usize, GroupSpec), Arc<Plan>>);

impl PlanCache {
    /// Returns the plan of `algorithm` for `spec`, built at the first call.
    pub(super) fn get(
        &mut self,
        algorithm: &'static Algorithm,
        spec: GroupSpec,
        endpoint: &Endpoint,
        order: &[Rank],
    ) -> Result<Arc<Plan>> {
        let key = (std::ptr::from_ref(algorithm) as usize, spec);
        if let Some(plan) = self.0.get(&key) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(build_plan(algorithm, &spec, endpoint, order)?);
        self.0.insert(key, Arc::clone(&plan));
        Ok(plan)
    }
}

/// Builds a plan. Neighbors in rings, chains and trees are those of `order`.
fn build_plan(algorithm: &Algorithm, spec: &GroupSpec, endpoint: &Endpoint, order: &[Rank]) -> Result<Plan> {
    let (rank, sizes) = (endpoint.memory().rank(), endpoint.memory().layout().geometry());
    let widest = Widest::of(algorithm, spec);
    let uses_window = algorithm.peer_access != PeerAccess::TwoSided;
    let slice_bytes_max = slice_bytes_max(algorithm, &widest, sizes);
    if slice_bytes_max == 0 {
        let text = format!("{algorithm:?} has no room on a GPU with {} ranks: {sizes:?}", spec.ranks);
        return Err(Error::new(ErrorKind::Unsupported(text)));
    }
    let shape = Shape::of(algorithm, spec);
    let program_of = |rank| match shape.follows_ring_order {
        true => permuted(algorithm, spec, order, rank),
        false => (algorithm.build)(spec, rank),
    };
    let has_lines = !uses_window && is_direct(endpoint.reach(), spec.ranks, program_of)?;
    let line = if has_lines { sizes.ll_bytes / widest.chunks_per_message } else { 0 };
    let program = program_of(rank);
    let parts = (algorithm.chunks_per_share)(spec);
    let (inputs, outputs) = algorithm.collective.shares(spec.ranks, spec.root, rank);
    let bounds = ProgramBounds {
        rank,
        ranks: spec.ranks,
        input: inputs * parts,
        output: outputs * parts,
        scratch: program.scratch,
        window: widest.window_chunks,
        peer_chunks: peer_chunks(algorithm, spec, &shape),
        uses_window,
    };
    let tables = lower(program, rank)?;
    let runs_in_place = algorithm.peer_access != PeerAccess::ZeroCopy && tables.runs_in_place();
    let uploaded = match tables.lane_programs.is_empty() {
        true => None,
        false => Some(endpoint.upload(Program::new(tables, bounds)?, slice_bytes_max)?),
    };
    let line_bytes_max = line / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    Ok(Plan {
        chunks_per_share: parts,
        digest: AlgorithmDigest::of(algorithm, spec.ranks),
        slice_bytes_max,
        ll_bytes_max: line_bytes_max,
        is_one_shot: shape.is_one_shot,
        rounds_once: stores_complete_sums(algorithm, spec.ranks),
        runs_in_place,
        uploaded,
    })
}

/// Returns the longest slice of a block that fits every slot and every window.
fn slice_bytes_max(algorithm: &Algorithm, widest: &Widest, sizes: &DeviceGeometry) -> usize {
    let slice = match algorithm.peer_access {
        PeerAccess::TwoSided => sizes.slot_bytes / widest.chunks_per_message,
        PeerAccess::Window => sizes.parity_bytes() / widest.window_chunks.max(1),
        PeerAccess::ZeroCopy => ZERO_COPY_SLICE_BYTES,
    };
    slice / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES
}

/// Returns the memory that a rank reserves when ranks meet, so that later launches allocate none.
/// It holds tables, and the scratch of every built-in algorithm.
pub(super) fn reserve(sizes: &DeviceGeometry) -> Reserve {
    let mut reserve = Reserve {
        table_bytes: TABLE_BYTES,
        scratch_bytes: SCRATCH_SLICES_MIN * sizes.slot_bytes,
        scratch_chunks: SCRATCH_SLICES_MIN,
    };
    // Schedules of larger groups take long to build, so their scratch is allocated later if the
    // reserved memory is too small.
    if sizes.ranks <= RESERVED_RANKS_MAX {
        for (algorithm, widest, chunks) in scratch_of_algorithms(sizes.ranks).iter() {
            let bytes = chunks.saturating_mul(slice_bytes_max(algorithm, widest, sizes));
            reserve.scratch_bytes = reserve.scratch_bytes.max(bytes);
            reserve.scratch_chunks = reserve.scratch_chunks.max(*chunks);
        }
    }
    reserve
}

/// Algorithms with scratch: the bounds of each, and the scratch chunks of one lane program.
type ScratchOfAlgorithms = Arc<Vec<(&'static Algorithm, Widest, usize)>>;

/// Returns the algorithms for `ranks` ranks that use scratch, computed once for each number of
/// ranks.
fn scratch_of_algorithms(ranks: usize) -> ScratchOfAlgorithms {
    static KNOWN: Mutex<Option<HashMap<usize, ScratchOfAlgorithms>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let compute = || {
        let spec = GroupSpec::new(ranks);
        let scratch_entry = |algorithm: &'static Algorithm| {
            let scratch = (0..ranks).map(|rank| (algorithm.build)(&spec, rank).scratch).max()?;
            (scratch > 0).then(|| (algorithm, Widest::of(algorithm, &spec), scratch))
        };
        // Ranks on GPUs run no scans.
        let fits = |row: &&'static Algorithm| !row.collective.is_scan() && (row.supports)(&spec);
        Arc::new(Algorithm::ALL.iter().filter(fits).filter_map(scratch_entry).collect())
    };
    Arc::clone(known.entry(ranks).or_insert_with(compute))
}

/// Returns true if no rank's program has a message that moves through the host. The answer is the
/// same on all ranks, and so is the protocol that depends on it.
fn is_direct(reach: &Reach, ranks: usize, program_of: impl Fn(Rank) -> ScheduleProgram) -> Result<bool> {
    if reach.is_complete() {
        return Ok(true);
    }
    for rank in 0..ranks {
        if !lower(program_of(rank), rank)?.message_peers().all(|peer| reach.connects(rank, peer)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the chunks of each peer's input and output that zero-copy programs name.
fn peer_chunks(algorithm: &Algorithm, spec: &GroupSpec, shape: &Shape) -> [usize; 2] {
    let parts = (algorithm.chunks_per_share)(spec);
    let shares = |rank| algorithm.collective.shares(spec.ranks, spec.root, rank);
    let most = |side: fn((usize, usize)) -> usize| (0..spec.ranks).map(|rank| side(shares(rank))).max();
    let [input, output] = [most(|(inputs, _)| inputs), most(|(_, outputs)| outputs)];
    let blocks = |named: bool, shares: Option<usize>| if named { shares.unwrap_or(0) * parts } else { 0 };
    [blocks(shape.accesses_peer_inputs, input), blocks(shape.accesses_peer_outputs, output)]
}

/// Bytes of tables that a communicator has room for.
const TABLE_BYTES: usize = 4 << 20;
/// Slices of scratch that each thread block has at least.
const SCRATCH_SLICES_MIN: usize = 2;
/// Largest number of ranks whose schedules are built to learn their scratch.
const RESERVED_RANKS_MAX: usize = 32;
/// Slice size of zero-copy programs. It is large because nothing is staged, so slices only divide
/// the work among channels.
const ZERO_COPY_SLICE_BYTES: usize = 1 << 30;
/// Every slice is a multiple of this number of bytes.
pub(super) const SLICE_UNIT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Collective, find};

    #[test]
    fn lines_need_direct_paths_of_the_program() {
        // Four ranks in a circle, each of which reaches its neighbors.
        let reach = Reach::from_rows(4, &[0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0]);
        let spec = GroupSpec::new(4);
        let direct = |name, reach: &Reach| {
            let ring = find(Collective::AllReduce, name).unwrap();
            is_direct(reach, 4, |rank| (ring.build)(&spec, rank)).unwrap()
        };
        assert!(direct("ring", &reach), "neighbors only");
        assert!(!direct("recursive_doubling", &reach), "ranks 0 and 2 exchange messages");
        assert!(direct("recursive_doubling", &Reach::complete(4)));
    }
}
