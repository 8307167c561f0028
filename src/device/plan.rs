//! A program on the GPU: lowered, checked and uploaded once, kept for every later call.

use crate::device::lower::lower;
use crate::device::registered;
use crate::engine::ScheduleBounds as Widest;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::AlgorithmDigest;
use crate::schedule::algorithms::window_reduce::ONE_SHOT;
use crate::schedule::{Algorithm, Collective, GroupSpec, PeerAccess, Rank, permuted};
use std::collections::HashMap;
use std::sync::Arc;
use unisono_transports::gpu::{DeviceProgram, Endpoint, Program, ProgramBounds};

/// One rank's program, with what all ranks must agree on to run it.
pub(super) struct Plan {
    /// None if this rank has nothing to do.
    pub(super) uploaded: Option<DeviceProgram>,
    pub(super) chunks_per_share: usize,
    pub(super) digest: AlgorithmDigest,
    /// Longest slice of a block that fits every slot and every window, in bytes.
    pub(super) slice_bytes_max: usize,
    /// The same where messages go in lines; zero where there are windows.
    pub(super) ll_bytes_max: usize,
    /// Whether a kernel of its own does the same to the bit, in one trip.
    pub(super) is_one_shot: bool,
}

/// The plans made so far.
#[derive(Default)]
pub(super) struct PlanCache(HashMap<(usize, GroupSpec), Arc<Plan>>);

impl PlanCache {
    /// The plan of `algorithm` for `spec`, made at the first call.
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

/// Of rings, chains and trees, neighbors are those of `order`.
fn build_plan(algorithm: &Algorithm, spec: &GroupSpec, endpoint: &Endpoint, order: &[Rank]) -> Result<Plan> {
    let (rank, sizes) = (endpoint.memory().rank(), endpoint.memory().layout().geometry());
    let widest = Widest::of(algorithm, spec);
    let slice = match algorithm.peer_access {
        PeerAccess::TwoSided => sizes.slot_bytes / widest.chunks_per_message,
        PeerAccess::Window => endpoint.parity_bytes() / widest.window_chunks.max(1),
        PeerAccess::ZeroCopy => ZERO_COPY_SLICE_BYTES,
    };
    let uses_window = algorithm.peer_access != PeerAccess::TwoSided;
    let line = if uses_window { 0 } else { sizes.ll_bytes / widest.chunks_per_message };
    let slice_bytes_max = slice / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    if slice_bytes_max == 0 {
        let text = format!("{algorithm:?} has no room on a GPU with {} ranks: {sizes:?}", spec.ranks);
        return Err(Error::new(ErrorKind::Unsupported(text)));
    }
    let program = match uses_ring_order(algorithm) {
        true => permuted(algorithm, spec, order, rank),
        false => (algorithm.build)(spec, rank),
    };
    let parts = (algorithm.chunks_per_share)(spec);
    let (inputs, outputs) = algorithm.collective.shares(spec.ranks, spec.root, rank);
    let bounds = ProgramBounds {
        rank,
        ranks: spec.ranks,
        input: inputs * parts,
        output: outputs * parts,
        scratch: program.scratch,
        window: widest.window_chunks,
        peer_chunks: peer_chunks(algorithm, spec),
        uses_window,
    };
    let tables = lower(&program, rank)?;
    let uploaded = match tables.lane_programs.is_empty() {
        true => None,
        false => Some(endpoint.upload(Program::new(tables, bounds)?, slice_bytes_max)?),
    };
    let line_bytes_max = line / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    let is_one_shot = algorithm.collective == Collective::AllReduce && algorithm.name == ONE_SHOT.name;
    Ok(Plan {
        chunks_per_share: parts,
        digest: AlgorithmDigest::of(algorithm),
        slice_bytes_max,
        ll_bytes_max: line_bytes_max,
        is_one_shot,
        uploaded,
    })
}

/// Blocks of each peer's buffers that programs name where buffers are lent.
fn peer_chunks(algorithm: &Algorithm, spec: &GroupSpec) -> [usize; 2] {
    if algorithm.peer_access != PeerAccess::ZeroCopy {
        return [0, 0];
    }
    let parts = (algorithm.chunks_per_share)(spec);
    let shares = |rank| algorithm.collective.shares(spec.ranks, spec.root, rank);
    let most = |side: fn((usize, usize)) -> usize| (0..spec.ranks).map(|rank| side(shares(rank))).max();
    let [input, output] = [most(|(inputs, _)| inputs), most(|(_, outputs)| outputs)];
    let blocks = |named: bool, shares: Option<usize>| if named { shares.unwrap_or(0) * parts } else { 0 };
    let (reads, writes) = registered::named_peer_buffers(algorithm);
    [blocks(reads, input), blocks(writes, output)]
}

/// Whether neighbors in the order of all ranks are who an algorithm joins: in rings, and on the way from a root or to it. Not where operands keep
/// the order of the ranks, nor where all reach all.
fn uses_ring_order(algorithm: &Algorithm) -> bool {
    let rooted = algorithm.collective.has_root() && ROOTED_ALGORITHMS.contains(&algorithm.name);
    rooted || RING_ALGORITHMS.contains(&algorithm.name)
}

/// Algorithms without a root in which ranks have two neighbors.
const RING_ALGORITHMS: [&str; 2] = ["ring", "bidirectional_ring"];
/// Those with one in which ranks pass on what they get; and the linear ones, which turn to the nearest first.
const ROOTED_ALGORITHMS: [&str; 4] = ["chain", "tree", "binomial", "linear"];
/// Where nothing is staged, slices only share the work among channels.
const ZERO_COPY_SLICE_BYTES: usize = 1 << 30;
/// Slices are whole numbers of this.
pub(super) const SLICE_UNIT_BYTES: usize = 64;
