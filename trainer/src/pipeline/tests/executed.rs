//! Schedules as they run: idle shares of ranks whose work is padded by sleep.

use super::*;
use crate::allocator::Allocator;
use crate::error::Result;
use crate::models::{Block, Flow, Model, OwnedBatch};
use crate::parameter::{Init, Parameter, Registry, UnitId};
use crate::pass::{Pass, Seeds};
use crate::pipeline::{Program, run_program};
use crate::strategy::LocalStrategy;
use crate::testing::run_ranks;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time of each third of a stage's work.
const THIRD: Duration = Duration::from_millis(10);

/// Model of blocks that sleep as long as their work takes.
struct Sleeper {
    blocks: Vec<SleepingBlock>,
}

struct SleepingBlock {
    is_first: bool,
    is_last: bool,
    /// Time of forward, and of each half of backward.
    third: Duration,
}

impl Block for SleepingBlock {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        sleep(self.third);
        Ok(match (self.is_last, self.is_first) {
            (true, _) => Flow::Loss(input.into_features().data()[0]),
            (_, true) => Flow::Features(pass.tensor_from(1, 1, &[1.0])?),
            _ => input,
        })
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        let third = self.third;
        sleep(third);
        if pass.defers() {
            pass.defer(move |_| {
                sleep(third);
                Ok(())
            });
        } else {
            sleep(third);
        }
        Ok(match (self.is_last, self.is_first) {
            (_, true) => Flow::Start,
            (true, _) => Flow::Features(pass.tensor_from(1, 1, &[gradient.into_loss()])?),
            _ => gradient,
        })
    }
}

impl Model for Sleeper {
    fn block_count(&self) -> usize {
        self.blocks.len()
    }

    fn block(&self, unit: UnitId) -> &dyn Block {
        &self.blocks[unit.0]
    }

    fn feature_shape(&self, _: &Pass<'_>, _: usize) -> Result<[usize; 2]> {
        Ok([1, 1])
    }

    fn check(&self, _: &Pass<'_>, _: &OwnedBatch) -> Result<()> {
        Ok(())
    }
}

/// Runs a step and returns its time on the slowest rank. A rank has one third of `chunks` chunks
/// per chunk, so that all orders have the same work.
fn step_time(name: &str, ranks: usize, micro_batches: usize, chunks: usize) -> Duration {
    let schedule = Order::find(name).unwrap().schedule(ranks, micro_batches, chunks).unwrap();
    let stages = schedule.stages();
    let block = |stage| SleepingBlock {
        is_first: stage == 0,
        is_last: stage + 1 == stages,
        third: THIRD * 2 / chunks as u32,
    };
    let times = run_ranks(ranks, |world| {
        let model = Sleeper { blocks: (0..stages).map(block).collect() };
        let mut registry = Registry::default();
        for stage in 0..stages {
            let weight = Parameter::new("weight", &[1], Init::Zeros);
            registry.unit(&format!("stage.{stage}"), |registry| registry.add(weight));
        }
        let units: Vec<_> = (0..stages).map(|stage| stage..stage + 1).collect();
        let program = Program::new(&schedule, world.rank(), &units);
        let memory = Allocator::default();
        let mut strategy = LocalStrategy::new(registry.finish(), &memory, 0);
        let seeds = vec![Seeds::default(); micro_batches];
        let mut pass = Pass::with_micro_batches(&mut strategy, &memory, &seeds, 1);
        world.barrier().unwrap();
        let start = Instant::now();
        let losses = run_program(&model, &mut pass, &program, &world, 1.0).unwrap();
        let time = start.elapsed();
        assert!(pass.is_complete());
        let has_last = schedule.location(stages - 1).0 == world.rank();
        assert_eq!(losses, vec![if has_last { 1.0 } else { 0.0 }; micro_batches]);
        time
    });
    times.into_iter().max().unwrap()
}

/// Returns the share of a step in which a rank has no work. The shortest of three runs counts: a
/// sleep is never too short, and often too long on a busy machine.
fn idle_share(name: &str, ranks: usize, micro_batches: usize, chunks: usize) -> f64 {
    let times = (0..3).map(|_| step_time(name, ranks, micro_batches, chunks));
    let work = (THIRD * 6 * micro_batches as u32).as_secs_f64();
    1.0 - work / times.min().unwrap().as_secs_f64()
}

#[test]
fn idle_shares_of_running_pipelines_are_those_of_the_formulas() {
    let (ranks, micro_batches) = (4.0, 8.0);
    let cases = [
        ("naive", 1, (ranks - 1.0) / ranks),
        ("gpipe", 1, (ranks - 1.0) / (micro_batches + ranks - 1.0)),
        ("1f1b", 1, (ranks - 1.0) / (micro_batches + ranks - 1.0)),
        ("interleaved", 2, (ranks - 1.0) / (2.0 * micro_batches + ranks - 1.0)),
        ("zb-h1", 1, 3.0 / 27.0),
        ("zb-v", 2, 3.0 / 51.0),
    ];
    for (name, chunks, formula) in cases {
        let idle = idle_share(name, 4, 8, chunks);
        println!("{name}: idle {idle:.3}, formula {formula:.3}");
        assert!((idle - formula).abs() < 0.03, "{name}: {idle:.3}, not {formula:.3}");
    }
}

#[test]
fn zero_bubble_v_is_faster_than_1f1b_when_it_runs() {
    let best = |name, chunks| (0..3).map(|_| step_time(name, 4, 8, chunks)).min().unwrap();
    let (plain, split) = (best("1f1b", 1), best("zb-v", 2));
    println!("zb-v {split:?}, 1f1b {plain:?}");
    assert!(split.as_secs_f64() < 0.9 * plain.as_secs_f64(), "{split:?}, and 1F1B takes {plain:?}");
}
