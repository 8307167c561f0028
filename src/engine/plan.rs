//! A program made ready to run: built once, kept for every later call.

use super::stage::OPERANDS_MAX;
use crate::call::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Block, Place, Program, Rank, Reach, Space, Spec, Step};
use std::collections::HashMap;
use std::sync::Arc;
use unisono_transports::Geometry;

/// One rank's program, with what all ranks must agree on to run it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: Program,
    pub(crate) parts: usize,
    pub(crate) digest: Digest,
    /// Longest slice of a block that fits every slot and every window, in bytes.
    pub(crate) slice_bytes_max: usize,
    /// Whether ranks meet in windows, so that instances are counted.
    pub(crate) uses_window: bool,
    /// Whether this rank writes to its window, and reads no other.
    pub(crate) only_writes: bool,
    /// Blocks of the fullest window, and in the windows of all ranks together.
    pub(crate) window_blocks: usize,
    pub(crate) staged_blocks: usize,
    /// For each strand, the steps that are one pass over memory with another.
    pub(crate) fused: Vec<Vec<Fused>>,
}

/// What the programs of all ranks need at most: slices must be equal on all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Blocks of the longest message, at least one.
    pub(crate) blocks_per_message: usize,
    /// Blocks of the fullest window.
    pub(crate) window_blocks: usize,
    /// Blocks in all windows together.
    staged_blocks: usize,
}

impl Bounds {
    /// Those of `algorithm` for `spec`.
    pub(crate) fn of(algorithm: &Algorithm, spec: &Spec) -> Self {
        let mut bounds = Self { blocks_per_message: 1, window_blocks: 0, staged_blocks: 0 };
        for program in (0..spec.ranks).map(|rank| (algorithm.build)(spec, rank)) {
            bounds.blocks_per_message = longest_message(&program).max(bounds.blocks_per_message);
            bounds.window_blocks = program.window.max(bounds.window_blocks);
            bounds.staged_blocks += program.window;
        }
        bounds
    }
}

/// How a step is carried out together with another of its strand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fused {
    /// By itself.
    Not,
    /// Its result goes into this block of the output as well.
    Also(Block),
    /// An earlier step has done it.
    Done,
}

impl Fused {
    /// Of the targets of a step into `into`, the one that may be memory of the caller.
    pub(crate) fn own(self, into: &Place) -> Block {
        if let Fused::Also(block) = self { block } else { into.block }
    }
}

/// The plans made so far. The one used last is found without hashing.
#[derive(Default)]
pub(crate) struct Plans {
    made: HashMap<(usize, Spec), Arc<Plan>>,
    last: Option<(usize, Spec, Arc<Plan>)>,
}

impl Plans {
    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Plan> {
        self.made.values().map(|plan| &**plan)
    }

    /// The plan of `algorithm` for `spec` at `rank`, made at the first call.
    pub(crate) fn get(
        &mut self,
        algorithm: &'static Algorithm,
        spec: Spec,
        rank: Rank,
        geometry: &Geometry,
        bank_bytes: usize,
    ) -> Result<Arc<Plan>> {
        let key = std::ptr::from_ref(algorithm) as usize;
        if let Some((last_key, last_spec, plan)) = &self.last
            && *last_key == key
            && *last_spec == spec
        {
            return Ok(plan.clone());
        }
        let plan = match self.made.get(&(key, spec)) {
            Some(plan) => plan.clone(),
            None => {
                let plan = Arc::new(make(algorithm, &spec, rank, geometry, bank_bytes)?);
                self.made.insert((key, spec), plan.clone());
                plan
            }
        };
        self.last = Some((key, spec, plan.clone()));
        Ok(plan)
    }
}

fn make(
    algorithm: &Algorithm,
    spec: &Spec,
    rank: Rank,
    geometry: &Geometry,
    bank_bytes: usize,
) -> Result<Plan> {
    let Bounds { blocks_per_message, window_blocks, staged_blocks } = Bounds::of(algorithm, spec);
    let program = (algorithm.build)(spec, rank);
    let uses_window = algorithm.reach == Reach::Windows;
    let mut slice = geometry.slot_bytes / blocks_per_message;
    if uses_window {
        slice = bank_bytes / window_blocks.max(1);
    }
    let slice_bytes_max = slice / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    if slice_bytes_max == 0 {
        return Err(Error::new(ErrorKind::Unavailable(format!(
            "{} {} packs {blocks_per_message} blocks into a slot of {} bytes and {window_blocks} into a window \
             of {bank_bytes}: too many for {} ranks",
            algorithm.collective, algorithm.name, geometry.slot_bytes, spec.ranks
        ))));
    }
    let fused = program.strands.iter().map(|strand| fuse(&strand.steps)).collect();
    Ok(Plan {
        only_writes: program.window > 0 && !reads_peers(&program, rank),
        program,
        fused,
        parts: (algorithm.parts)(spec),
        digest: Digest::of(algorithm),
        slice_bytes_max,
        uses_window,
        window_blocks,
        staged_blocks,
    })
}

/// Finds results that are reduced into a window for the peers and then copied to the output, and blocks of the input that
/// are copied to both: both are written in one pass. A signal may lie between; it is then given a little later.
fn fuse(steps: &[Step]) -> Vec<Fused> {
    let mut fused = vec![Fused::Not; steps.len()];
    for (index, step) in steps.iter().enumerate() {
        let (result, laid) = match step {
            Step::Reduce { from, into, .. } if from.len() <= OPERANDS_MAX => (into, into),
            Step::Copy { from, into } if from.block.space == Space::Input => (from, into),
            _ => continue,
        };
        let later = steps[index + 1..].iter().position(|step| *step != Step::Signal);
        if laid.block.space == Space::Window
            && let Some(later) = later.map(|later| index + 1 + later)
            && let Step::Copy { from, into } = &steps[later]
            && from == result
            && into.block.space == Space::Output
        {
            (fused[index], fused[later]) = (Fused::Also(into.block), Fused::Done);
        }
    }
    fused
}

/// Most blocks of a window that a rank of `algorithm` uses.
pub(crate) fn window_blocks(algorithm: &Algorithm, spec: &Spec) -> usize {
    (0..spec.ranks).map(|rank| (algorithm.build)(spec, rank).window).max().unwrap_or(0)
}

fn reads_peers(program: &Program, rank: Rank) -> bool {
    let mut steps = program.strands.iter().flat_map(|strand| &strand.steps);
    let is_peers = |place: &Place| place.block.space == Space::Window && place.rank != rank;
    steps.any(|step| match step {
        Step::Copy { from, .. } => is_peers(from),
        Step::Reduce { from, .. } => from.iter().any(is_peers),
        _ => false,
    })
}

fn longest_message(program: &Program) -> usize {
    let steps = program.strands.iter().flat_map(|strand| &strand.steps);
    steps
        .map(|step| match step {
            Step::Send { blocks, .. } => blocks.len(),
            _ => 0,
        })
        .max()
        .unwrap_or(0)
}

/// Slices are whole numbers of this, so that every element type and every cache line fits.
pub(crate) const SLICE_UNIT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Collective, find, input, output, window};

    #[test]
    fn the_result_of_a_two_shot_is_written_once() {
        let row = find(Collective::AllReduce, "twoshot").unwrap();
        let program = (row.build)(&Spec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let steps = &program.strands[0].steps;
        let fused = fuse(steps);
        let reduce = steps.iter().position(|step| matches!(step, Step::Reduce { .. })).unwrap();
        assert_eq!(fused[reduce..reduce + 3], [Fused::Also(output(1)), Fused::Not, Fused::Done]);
        assert_eq!(fused.iter().filter(|fused| **fused != Fused::Not).count(), 2);
    }

    #[test]
    fn the_input_of_an_all_gather_is_read_once() {
        let row = find(Collective::AllGather, "direct").unwrap();
        let program = (row.build)(&Spec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let fused = fuse(&program.strands[0].steps);
        assert_eq!(fused[..3], [Fused::Also(output(1)), Fused::Not, Fused::Done]);
        assert!(fused[3..].iter().all(|fused| *fused == Fused::Not));
    }

    #[test]
    fn steps_apart_stay_apart() {
        let mut builder = crate::schedule::ProgramBuilder::new(0);
        let own = |block| crate::schedule::at(0, block);
        builder.reduce(vec![own(input(0))], window(0), true).wait(1, 1).copy(window(0), output(0));
        builder.reduce(vec![own(input(0))], window(1), true).copy(window(0), output(1));
        let program = builder.finish(0, 2);
        assert!(fuse(&program.strands[0].steps).iter().all(|fused| *fused == Fused::Not));
    }
}
