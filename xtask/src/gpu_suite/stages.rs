//! The table of stages: a stage is a row.

use super::steps::{self, Step};
use super::{Setting, cpu_steps};

/// A question, the commands that answer it, and their time.
pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) question: &'static str,
    /// Seconds in a run of 410 on a GPU or 240 on processors; they scale with the minutes given.
    pub(super) seconds: u64,
    /// Its share of the time of a rehearsal, in which tests take longest.
    pub(super) rehearsed: u64,
    /// Left out where no two grids run at once: ranks on one GPU wait for each other.
    pub(super) needs_overlap: bool,
    /// Its rows are answers that later stages follow.
    pub(super) is_gate: bool,
    pub(super) fallback: &'static str,
    pub(super) steps: fn(&Setting) -> Vec<Step>,
}

const fn stage(
    name: &'static str,
    [seconds, rehearsed]: [u64; 2],
    question: &'static str,
    fallback: &'static str,
    steps: fn(&Setting) -> Vec<Step>,
) -> Stage {
    Stage { name, question, seconds, rehearsed, needs_overlap: true, is_gate: false, fallback, steps }
}

/// Marks a stage that one grid at a time is enough for.
const fn any_launch(stage: Stage) -> Stage {
    Stage { needs_overlap: false, ..stage }
}

const fn gate(stage: Stage) -> Stage {
    Stage { is_gate: true, needs_overlap: false, ..stage }
}

/// Stages of a machine with a GPU, in the order of their value.
pub(super) const GPU: &[Stage] = &[
    any_launch(stage(
        "0 machine",
        [5, 2],
        "driver, clocks, program of MPS, multicast attribute, NUMA",
        "next",
        steps::machine,
    )),
    any_launch(stage(
        "1 start",
        [15, 6],
        "openings of the GPU: machine code and PTX, one loading thread and eight",
        "later stages compile the kernels",
        steps::start,
    )),
    gate(stage(
        "2 driver rules",
        [30, 20],
        "which grids run at once, which calls wait for kernels, and what a capture refuses",
        "no answer: as if grids run at once",
        steps::driver_rules,
    )),
    stage(
        "3 smoke",
        [25, 25],
        "do 2, 4 and 8 ranks give the right bits",
        "three over their time: next",
        steps::smoke,
    ),
    any_launch(stage(
        "4 primitives",
        [45, 10],
        "constants of the cost model",
        "row by row",
        steps::primitives,
    )),
    stage(
        "5 all_reduce",
        [60, 25],
        "times by ranks, size, memory and type",
        "next command",
        steps::all_reduce,
    ),
    stage(
        "6 NCCL",
        [50, 1],
        "the same cells by NCCL in a process of its own",
        "left out",
        steps::nccl_all_reduce,
    ),
    any_launch(stage(
        "7 local peers",
        [25, 2],
        "copies and sums of the driver, torch, CuPy and Triton on the same bytes",
        "those that are there",
        steps::local_peers,
    )),
    stage(
        "8 other collectives",
        [45, 15],
        "times of five collectives, ours and NCCL's",
        "next command",
        steps::others,
    ),
    stage("9 all tests", [60, 100], "which tests fail on this GPU", "the list so far", steps::all_tests),
    stage("10 processes", [25, 6], "two processes on one GPU, and MPS", "without MPS", steps::processes),
    any_launch(stage(
        "11 tools",
        [25, 2],
        "memcheck, and bytes of a sum",
        "those that are there",
        steps::tools,
    )),
];

/// Stages of a machine's processors.
pub(super) const CPU: &[Stage] = &[
    any_launch(stage("c0 machine", [5, 1], "processor, caches, NUMA", "next", steps::machine)),
    stage(
        "c1 collectives",
        [100, 10],
        "five collectives of 2 to 16 ranks, a core each where there are enough",
        "next command",
        cpu_steps::cpu_collectives,
    ),
    stage(
        "c2 loopback TCP",
        [30, 3],
        "all_reduce and all_gather over TCP",
        "next command",
        cpu_steps::loopback_tcp,
    ),
    stage(
        "c3 trainer step",
        [30, 8],
        "tokens per second of 1, 4 and 8 ranks",
        "next command",
        cpu_steps::trainer_step,
    ),
    stage("c4 peers", [75, 1], "the same collectives by other libraries", "left out", cpu_steps::cpu_peers),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_distinct_names_and_one_gate() {
        let stages: Vec<&Stage> = GPU.iter().chain(CPU).collect();
        let mut names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), stages.iter().filter(|stage| stage.is_gate).count()), (stages.len(), 1));
        // Two calls of 7 and 4 minutes.
        let seconds = |stages: &[Stage]| stages.iter().map(|stage| stage.seconds).sum::<u64>();
        assert_eq!((seconds(GPU), seconds(CPU)), (410, 240));
    }

    #[test]
    fn stages_without_overlap_are_few() {
        let names: Vec<&str> =
            GPU.iter().filter(|stage| !stage.needs_overlap).map(|stage| stage.name).collect();
        assert_eq!(
            names,
            ["0 machine", "1 start", "2 driver rules", "4 primitives", "7 local peers", "11 tools"]
        );
    }
}
