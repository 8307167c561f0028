//! Fusion: two steps that read or write the same memory become one pass over it.

use crate::engine::exec::step::OPERANDS_MAX;
use crate::schedule::{Chunk, ChunkRef, Space, Step};

/// The way a step is executed together with another one of its lane program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// The step is executed alone.
    None,
    /// The result of the step is also written to this chunk of the output.
    AlsoInto(Chunk),
    /// An earlier step has done the work of this one.
    Elided,
}

impl Fusion {
    /// Returns the target of a step into `into` that may be memory of the caller.
    pub(crate) fn user_target(self, into: &ChunkRef) -> Chunk {
        if let Fusion::AlsoInto(chunk) = self { chunk } else { into.chunk }
    }
}

/// Finds the steps of a lane program that are fused.
///
/// Two patterns write a window for the peers and the output at once. One is a result that is
/// reduced into the window and then copied to the output. The other is a chunk of the input that is
/// copied to both. A signal may lie between the two steps; it is then sent a little later.
pub(super) fn find_fusions(steps: &[Step]) -> Vec<Fusion> {
    let mut fusions = vec![Fusion::None; steps.len()];
    for (index, step) in steps.iter().enumerate() {
        let (result, packed) = match step {
            Step::Reduce { from, into, .. } if from.len() <= OPERANDS_MAX => (into, into),
            Step::Copy { from, into } if from.chunk.space == Space::Input => (from, into),
            _ => continue,
        };
        let later = steps[index + 1..].iter().position(|step| *step != Step::Signal);
        if packed.chunk.space == Space::Window
            && let Some(later) = later.map(|later| index + 1 + later)
            && let Step::Copy { from, into } = &steps[later]
            && from == result
            && into.chunk.space == Space::Output
        {
            (fusions[index], fusions[later]) = (Fusion::AlsoInto(into.chunk), Fusion::Elided);
        }
    }
    fusions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Collective, GroupSpec, find, input, output, window};

    #[test]
    fn fusion_twoshot_result_is_written_once() {
        let row = find(Collective::AllReduce, "twoshot").unwrap();
        let program = (row.build)(&GroupSpec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let steps = &program.lane_programs[0].steps;
        let fusions = find_fusions(steps);
        let reduce = steps.iter().position(|step| matches!(step, Step::Reduce { .. })).unwrap();
        assert_eq!(fusions[reduce..reduce + 3], [Fusion::AlsoInto(output(1)), Fusion::None, Fusion::Elided]);
        assert_eq!(fusions.iter().filter(|fusion| **fusion != Fusion::None).count(), 2);
    }

    #[test]
    fn fusion_all_gather_input_is_read_once() {
        let row = find(Collective::AllGather, "window_direct").unwrap();
        let program = (row.build)(&GroupSpec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let fusions = find_fusions(&program.lane_programs[0].steps);
        assert_eq!(fusions[..3], [Fusion::AlsoInto(output(1)), Fusion::None, Fusion::Elided]);
        assert!(fusions[3..].iter().all(|fusion| *fusion == Fusion::None));
    }

    #[test]
    fn fusion_skips_steps_with_others_between() {
        let mut builder = crate::schedule::ProgramBuilder::new(0);
        let own = |chunk| crate::schedule::chunk_at(0, chunk);
        builder.reduce(vec![own(input(0))], window(0), true).wait(1, 1).copy(window(0), output(0));
        builder.reduce(vec![own(input(0))], window(1), true).copy(window(0), output(1));
        let program = builder.finish(0, 2);
        assert!(find_fusions(&program.lane_programs[0].steps).iter().all(|fusion| *fusion == Fusion::None));
    }
}
