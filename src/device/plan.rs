//! A program on the GPU: lowered, checked and uploaded once, kept for every later call.

use crate::device::lower::lower;
use crate::device::shape::Shape;
use crate::engine::ScheduleBounds as Widest;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::AlgorithmDigest;
use crate::schedule::{Algorithm, GroupSpec, PeerAccess, Rank, permuted};
use std::collections::HashMap;
use std::sync::Arc;
use unisono_transports::gpu::{DeviceProgram, Endpoint, Program, ProgramBounds};

/// One rank's program, with what all ranks must agree on to run it.
pub(super) struct Plan {
    /// `None` if this rank takes no step.
    pub(super) uploaded: Option<DeviceProgram>,
    pub(super) chunks_per_share: usize,
    pub(super) digest: AlgorithmDigest,
    /// Longest slice of a block that fits every slot and every window, in bytes.
    pub(super) slice_bytes_max: usize,
    /// Longest slice where messages use low-latency lines, in bytes; zero where there are windows.
    pub(super) ll_bytes_max: usize,
    /// True if a separate kernel computes the bit-identical result in one exchange.
    pub(super) is_one_shot: bool,
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
    let shape = Shape::of(algorithm, spec);
    let program = match shape.follows_ring_order {
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
        peer_chunks: peer_chunks(algorithm, spec, &shape),
        uses_window,
    };
    let tables = lower(program, rank)?;
    let uploaded = match tables.lane_programs.is_empty() {
        true => None,
        false => Some(endpoint.upload(Program::new(tables, bounds)?, slice_bytes_max)?),
    };
    let line_bytes_max = line / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    Ok(Plan {
        chunks_per_share: parts,
        digest: AlgorithmDigest::of(algorithm),
        slice_bytes_max,
        ll_bytes_max: line_bytes_max,
        is_one_shot: shape.is_one_shot,
        uploaded,
    })
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

/// Slice size of zero-copy programs. Nothing is staged, so slices only divide the work among
/// channels.
const ZERO_COPY_SLICE_BYTES: usize = 1 << 30;
/// Every slice is a multiple of this number of bytes.
pub(super) const SLICE_UNIT_BYTES: usize = 64;
