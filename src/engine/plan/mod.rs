//! A program made ready to run: built once, kept for every later call.
pub(crate) mod eager;

use crate::engine::exec::step::OPERANDS_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::AlgorithmDigest;
use crate::schedule::{Algorithm, Chunk, ChunkRef, GroupSpec, PeerAccess, Program, Rank, Space, Step};
use std::collections::HashMap;
use std::sync::Arc;
use unisono_transports::Geometry;

/// One rank's program, with what all ranks must agree on to run it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: Program,
    pub(crate) chunks_per_share: usize,
    pub(crate) digest: AlgorithmDigest,
    /// Longest slice of a chunk that fits every slot and every window, in bytes.
    pub(crate) slice_bytes_max: usize,
    /// Whether ranks meet in windows, so that instances are counted.
    pub(crate) uses_window: bool,
    /// Whether this rank writes to its window, and reads no other.
    pub(crate) only_writes: bool,
    /// Blocks of the fullest window, and in the windows of all ranks together.
    pub(crate) window_chunks: usize,
    pub(crate) staged_chunks: usize,
    /// For each lane_program, the steps that are one pass over memory with another.
    pub(crate) fusions: Vec<Vec<Fusion>>,
}

/// What the programs of all ranks need at most: slices must be equal on all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleBounds {
    /// Blocks of the longest message, at least one.
    pub(crate) chunks_per_message: usize,
    /// Blocks of the fullest window.
    pub(crate) window_chunks: usize,
    /// Blocks in all windows together.
    staged_chunks: usize,
}

impl ScheduleBounds {
    /// Those of `algorithm` for `spec`.
    pub(crate) fn of(algorithm: &Algorithm, spec: &GroupSpec) -> Self {
        let mut bounds = Self { chunks_per_message: 1, window_chunks: 0, staged_chunks: 0 };
        for program in (0..spec.ranks).map(|rank| (algorithm.build)(spec, rank)) {
            bounds.chunks_per_message = longest_message(&program).max(bounds.chunks_per_message);
            bounds.window_chunks = program.window.max(bounds.window_chunks);
            bounds.staged_chunks += program.window;
        }
        bounds
    }
}

/// How a step is carried out together with another of its lane_program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// By itself.
    None,
    /// Its result goes into this chunk of the output as well.
    AlsoInto(Chunk),
    /// An earlier step has done it.
    Elided,
}

impl Fusion {
    /// Of the targets of a step into `into`, the one that may be memory of the caller.
    pub(crate) fn user_target(self, into: &ChunkRef) -> Chunk {
        if let Fusion::AlsoInto(chunk) = self { chunk } else { into.chunk }
    }
}

/// The plans made so far. The one used last is found without hashing.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: HashMap<(usize, GroupSpec), Arc<Plan>>,
    last: Option<(usize, GroupSpec, Arc<Plan>)>,
}

impl PlanCache {
    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Plan> {
        self.plans.values().map(|plan| &**plan)
    }

    /// The plan of `algorithm` for `spec` at `rank`, made at the first call.
    pub(crate) fn get(
        &mut self,
        algorithm: &'static Algorithm,
        spec: GroupSpec,
        rank: Rank,
        geometry: &Geometry,
        half_window_bytes: usize,
    ) -> Result<Arc<Plan>> {
        let key = std::ptr::from_ref(algorithm) as usize;
        if let Some((last_key, last_spec, plan)) = &self.last
            && *last_key == key
            && *last_spec == spec
        {
            return Ok(plan.clone());
        }
        let plan = match self.plans.get(&(key, spec)) {
            Some(plan) => plan.clone(),
            None => {
                let plan = Arc::new(build(algorithm, &spec, rank, geometry, half_window_bytes)?);
                self.plans.insert((key, spec), plan.clone());
                plan
            }
        };
        self.last = Some((key, spec, plan.clone()));
        Ok(plan)
    }
}

fn build(
    algorithm: &Algorithm,
    spec: &GroupSpec,
    rank: Rank,
    geometry: &Geometry,
    half_window_bytes: usize,
) -> Result<Plan> {
    let ScheduleBounds { chunks_per_message, window_chunks, staged_chunks } =
        ScheduleBounds::of(algorithm, spec);
    let program = (algorithm.build)(spec, rank);
    let uses_window = algorithm.peer_access == PeerAccess::Window;
    let mut slice = geometry.slot_bytes / chunks_per_message;
    if uses_window {
        slice = half_window_bytes / window_chunks.max(1);
    }
    let slice_bytes_max = slice / SLICE_ALIGN_BYTES * SLICE_ALIGN_BYTES;
    if slice_bytes_max == 0 {
        return Err(Error::new(ErrorKind::Unsupported(format!(
            "{} {} packs {chunks_per_message} chunks into a slot of {} bytes and {window_chunks} into a window \
             of {half_window_bytes}: too many for {} ranks",
            algorithm.collective, algorithm.name, geometry.slot_bytes, spec.ranks
        ))));
    }
    let fused = program.lane_programs.iter().map(|lane_program| find_fusions(&lane_program.steps)).collect();
    Ok(Plan {
        only_writes: program.window > 0 && !reads_peers(&program, rank),
        program,
        fusions: fused,
        chunks_per_share: (algorithm.chunks_per_share)(spec),
        digest: AlgorithmDigest::of(algorithm),
        slice_bytes_max,
        uses_window,
        window_chunks,
        staged_chunks,
    })
}

/// Finds results that are reduced into a window for the peers and then copied to the output, and chunks of the input that
/// are copied to both: both are written in one pass. A signal may lie between; it is then given a little later.
fn find_fusions(steps: &[Step]) -> Vec<Fusion> {
    let mut fused = vec![Fusion::None; steps.len()];
    for (index, step) in steps.iter().enumerate() {
        let (result, laid) = match step {
            Step::Reduce { from, into, .. } if from.len() <= OPERANDS_MAX => (into, into),
            Step::Copy { from, into } if from.chunk.space == Space::Input => (from, into),
            _ => continue,
        };
        let later = steps[index + 1..].iter().position(|step| *step != Step::Signal);
        if laid.chunk.space == Space::Window
            && let Some(later) = later.map(|later| index + 1 + later)
            && let Step::Copy { from, into } = &steps[later]
            && from == result
            && into.chunk.space == Space::Output
        {
            (fused[index], fused[later]) = (Fusion::AlsoInto(into.chunk), Fusion::Elided);
        }
    }
    fused
}

/// Most chunks of a window that a rank of `algorithm` uses.
pub(crate) fn window_chunks(algorithm: &Algorithm, spec: &GroupSpec) -> usize {
    (0..spec.ranks).map(|rank| (algorithm.build)(spec, rank).window).max().unwrap_or(0)
}

fn reads_peers(program: &Program, rank: Rank) -> bool {
    let mut steps = program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
    let is_peers = |place: &ChunkRef| place.chunk.space == Space::Window && place.rank != rank;
    steps.any(|step| match step {
        Step::Copy { from, .. } => is_peers(from),
        Step::Reduce { from, .. } => from.iter().any(is_peers),
        _ => false,
    })
}

fn longest_message(program: &Program) -> usize {
    let steps = program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
    steps
        .map(|step| match step {
            Step::Send { chunks, .. } => chunks.len(),
            _ => 0,
        })
        .max()
        .unwrap_or(0)
}

/// Slices are whole numbers of this, so that every element type and every cache line fits.
pub(crate) const SLICE_ALIGN_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Collective, find, input, output, window};

    #[test]
    fn fusion_twoshot_result_is_written_once() {
        let row = find(Collective::AllReduce, "twoshot").unwrap();
        let program = (row.build)(&GroupSpec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let steps = &program.lane_programs[0].steps;
        let fused = find_fusions(steps);
        let reduce = steps.iter().position(|step| matches!(step, Step::Reduce { .. })).unwrap();
        assert_eq!(fused[reduce..reduce + 3], [Fusion::AlsoInto(output(1)), Fusion::None, Fusion::Elided]);
        assert_eq!(fused.iter().filter(|fused| **fused != Fusion::None).count(), 2);
    }

    #[test]
    fn fusion_all_gather_input_is_read_once() {
        let row = find(Collective::AllGather, "window_direct").unwrap();
        let program = (row.build)(&GroupSpec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let fused = find_fusions(&program.lane_programs[0].steps);
        assert_eq!(fused[..3], [Fusion::AlsoInto(output(1)), Fusion::None, Fusion::Elided]);
        assert!(fused[3..].iter().all(|fused| *fused == Fusion::None));
    }

    #[test]
    fn fusion_skips_steps_with_others_between() {
        let mut builder = crate::schedule::ProgramBuilder::new(0);
        let own = |chunk| crate::schedule::chunk_at(0, chunk);
        builder.reduce(vec![own(input(0))], window(0), true).wait(1, 1).copy(window(0), output(0));
        builder.reduce(vec![own(input(0))], window(1), true).copy(window(0), output(1));
        let program = builder.finish(0, 2);
        assert!(find_fusions(&program.lane_programs[0].steps).iter().all(|fused| *fused == Fusion::None));
    }
}
