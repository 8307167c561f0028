//! Schedules as they run: idle shares of ranks whose work is padded by sleep.

use super::*;
use crate::allocator::Allocator;
use crate::data::Batch;
use crate::error::Result;
use crate::models::{Block, Flow, Model};
use crate::parameter::{Init, Parameter, Registry, UnitId};
use crate::pass::{Pass, Seeds};
use crate::pipeline::{Program, run_program};
use crate::strategy::LocalStrategy;
use crate::testing::{run_ranks, yardstick};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Nanoseconds of work on this rank.
    busy: Arc<AtomicU64>,
}

/// Works for `time`, and adds the time that it really took to `busy`.
fn work(time: Duration, busy: &AtomicU64) {
    let start = Instant::now();
    sleep(time);
    busy.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

impl Block for SleepingBlock {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        work(self.third, &self.busy);
        Ok(match (self.is_last, self.is_first) {
            (true, _) => Flow::Loss(input.into_features().data()[0]),
            (_, true) => Flow::Features(pass.tensor_from(1, 1, &[1.0])?),
            _ => input,
        })
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        let (third, busy) = (self.third, Arc::clone(&self.busy));
        work(third, &busy);
        if pass.defers() {
            pass.defer(move |_| {
                work(third, &busy);
                Ok(())
            });
        } else {
            work(third, &busy);
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

    fn check(&self, _: &Pass<'_>, _: &Batch) -> Result<()> {
        Ok(())
    }
}

/// Runs a step. Returns its time on the slowest rank, and the mean over ranks of the time that they
/// worked. A stage has less work if a rank has several, so that all orders have the same work.
fn step_times(name: &str, ranks: usize, micro_batches: usize, chunks: usize) -> [Duration; 2] {
    let schedule = Order::find(name).unwrap().schedule(ranks, micro_batches, chunks).unwrap();
    let stages = schedule.stages();
    let times = run_ranks(ranks, |world| {
        let busy = Arc::<AtomicU64>::default();
        let block = |stage| SleepingBlock {
            is_first: stage == 0,
            is_last: stage + 1 == stages,
            third: THIRD * 2 / chunks as u32,
            busy: Arc::clone(&busy),
        };
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
        [time, Duration::from_nanos(busy.load(Ordering::Relaxed))]
    });
    let worked: Duration = times.iter().map(|[_, busy]| *busy).sum();
    [times.iter().map(|[time, _]| *time).max().unwrap(), worked / ranks as u32]
}

/// Returns the share of a step in which a rank does not work. The best of three runs counts,
/// because stages are equal only as far as the machine is quiet.
fn idle_share(name: &str, ranks: usize, micro_batches: usize, chunks: usize) -> f64 {
    let idle = |[time, worked]: [Duration; 2]| 1.0 - worked.as_secs_f64() / time.as_secs_f64();
    let shares = (0..3).map(|_| idle(step_times(name, ranks, micro_batches, chunks)));
    shares.fold(1.0, f64::min)
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
        let what = format!("idle share of {name}, {formula:.3} by the formula");
        let measure = || idle_share(name, 4, 8, chunks);
        yardstick::assert_measured(&what, measure, |idle| (idle - formula).abs() < 0.03);
    }
}

#[test]
fn zero_bubble_v_is_faster_than_1f1b_when_it_runs() {
    let best = |name, chunks| (0..3).map(|_| step_times(name, 4, 8, chunks)[0]).min().unwrap();
    let measure = || [best("1f1b", 1), best("zb-v", 2)];
    let is_faster = |[plain, split]: &[Duration; 2]| split.as_secs_f64() < 0.9 * plain.as_secs_f64();
    yardstick::assert_measured("times of 1F1B and ZB-V", measure, is_faster);
}
