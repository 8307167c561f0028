//! Schedules as they run: idle shares of ranks whose work takes time on a clock of their own.
//!
//! A block adds its work to the clock of its rank. Each value between stages carries the time at
//! which it was ready, so a rank's clock goes on from there if it had to wait. Times are those of
//! ranks with cores of their own, whatever the machine does.

use super::*;
use crate::pipeline::{Program, run_program};
use std::sync::{Arc, Mutex};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::error::Result;
use unisono_nn::model::{Block, Flow, Model};
use unisono_nn::parameter::{Init, Parameter, Registry, UnitId};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::testing::run_ranks;

/// Time on one rank, in thirds of a stage's work.
#[derive(Default)]
struct Clock {
    now: f32,
    /// Time in which the rank worked.
    busy: f32,
}

/// Model of blocks that work on the clock of their rank.
struct Timed {
    blocks: Vec<TimedBlock>,
}

struct TimedBlock {
    is_first: bool,
    is_last: bool,
    /// Time of forward, and of each half of backward.
    third: f32,
    clock: Arc<Mutex<Clock>>,
}

/// Works for `time` from when the input is ready and the rank is free. Returns the end.
fn work(clock: &Mutex<Clock>, ready: f32, time: f32) -> f32 {
    let mut clock = clock.lock().unwrap();
    clock.now = clock.now.max(ready) + time;
    clock.busy += time;
    clock.now
}

impl Block for TimedBlock {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        let ready = if self.is_first { 0.0 } else { input.into_features().data()[0] };
        let end = work(&self.clock, ready, self.third);
        Ok(if self.is_last { Flow::Loss(1.0) } else { Flow::Features(pass.tensor_from(1, 1, &[end])?) })
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        let ready = if self.is_last { 0.0 } else { gradient.into_features().data()[0] };
        let (third, clock) = (self.third, Arc::clone(&self.clock));
        let mut end = work(&clock, ready, third);
        if pass.defers() {
            pass.defer(move |_| {
                work(&clock, 0.0, third);
                Ok(())
            });
        } else {
            end = work(&clock, 0.0, third);
        }
        Ok(if self.is_first { Flow::Start } else { Flow::Features(pass.tensor_from(1, 1, &[end])?) })
    }
}

impl Model for Timed {
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
fn step_times(name: &str, ranks: usize, micro_batches: usize, chunks: usize) -> [f32; 2] {
    let schedule = Order::find(name).unwrap().schedule(ranks, micro_batches, chunks).unwrap();
    let stages = schedule.stages();
    let times = run_ranks(ranks, |world| {
        let clock = Arc::<Mutex<Clock>>::default();
        let block = |stage| TimedBlock {
            is_first: stage == 0,
            is_last: stage + 1 == stages,
            third: 2.0 / chunks as f32,
            clock: Arc::clone(&clock),
        };
        let model = Timed { blocks: (0..stages).map(block).collect() };
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
        let losses = run_program(&model, &mut pass, &program, &world, 1.0).unwrap();
        assert!(pass.is_complete());
        let has_last = schedule.location(stages - 1).0 == world.rank();
        assert_eq!(losses, vec![if has_last { 1.0 } else { 0.0 }; micro_batches]);
        let clock = clock.lock().unwrap();
        [clock.now, clock.busy]
    });
    let worked: f32 = times.iter().map(|[_, busy]| *busy).sum();
    [times.iter().map(|[time, _]| *time).fold(0.0, f32::max), worked / ranks as f32]
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
        let [time, worked] = step_times(name, 4, 8, chunks);
        let idle = 1.0 - worked / time;
        assert!((idle - formula).abs() < 1e-5, "{name}: {idle}, not {formula}");
    }
}

#[test]
fn zero_bubble_v_is_faster_than_1f1b_when_it_runs() {
    // 1F1B waits for 3 of 11 stages' work, ZB-V for 3 of 51 thirds of a half stage's work.
    assert_eq!(
        [("1f1b", 1), ("zb-v", 2)].map(|(name, chunks)| step_times(name, 4, 8, chunks)[0]),
        [66.0, 51.0]
    );
}
