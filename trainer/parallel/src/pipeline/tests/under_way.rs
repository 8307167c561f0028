//! Messages between stages are under way while the stages compute.

use super::*;
use crate::pipeline::{Program, run_program};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::error::Result;
use unisono_nn::model::{Block, Flow, Model};
use unisono_nn::parameter::{Init, Parameter, Registry, UnitId};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::tensor::Tensor;
use unisono_nn::testing::run_ranks;

/// Rows and columns of the features between stages. Their 16 MiB are more than a link holds, so a
/// send ends only if the other rank receives.
const FEATURES: [usize; 2] = [2048, 2048];
const MICRO_BATCHES: usize = 6;
/// Time after which a wait that should have ended is an error.
const LIMIT: Duration = Duration::from_secs(100);

/// Number of forward passes that the first stage has begun.
#[derive(Default)]
struct Begun {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Begun {
    fn add(&self) {
        *self.count.lock().expect("no panic") += 1;
        self.changed.notify_all();
    }

    /// Waits until the first stage has begun `count` passes.
    fn wait_for(&self, count: usize, otherwise: &str) {
        let guard = self.count.lock().expect("no panic");
        let ended = self.changed.wait_timeout_while(guard, LIMIT, |begun| *begun < count);
        let (begun, result) = ended.expect("no panic");
        assert!(!result.timed_out(), "{otherwise}: the first stage has begun {begun} passes");
    }
}

/// Stage that counts the passes which the first one begins. The first pass of the last stage ends
/// only after two messages have been sent and a third and a fourth are under way.
struct Stage<'a> {
    is_last: bool,
    begun: &'a Begun,
    has_waited: AtomicBool,
}

impl Block for Stage<'_> {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        if !self.is_last {
            self.begun.add();
            return Ok(Flow::Features(Tensor::zeros(pass.memory(), FEATURES[0], FEATURES[1])));
        }
        if !self.has_waited.swap(true, Ordering::Relaxed) {
            self.begun.wait_for(5, "no second message arrives while the last stage computes");
        }
        Ok(Flow::Loss(input.into_features().data()[0]))
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        if !self.is_last {
            return Ok(Flow::Start);
        }
        gradient.into_loss();
        Ok(Flow::Features(Tensor::zeros(pass.memory(), FEATURES[0], FEATURES[1])))
    }
}

struct Stages<'a>([Stage<'a>; 2]);

impl Model for Stages<'_> {
    fn block_count(&self) -> usize {
        self.0.len()
    }

    fn block(&self, unit: UnitId) -> &dyn Block {
        &self.0[unit.0]
    }

    fn feature_shape(&self, _: &Pass<'_>, _: usize) -> Result<[usize; 2]> {
        Ok(FEATURES)
    }

    fn check(&self, _: &Pass<'_>, _: &Batch) -> Result<()> {
        Ok(())
    }
}

/// The last stage begins only after the first one has begun three passes, so two sends of a link
/// are under way at once. The first pass of the last stage ends only after the first stage has
/// begun five, so the second message has arrived meanwhile: its receive was posted ahead.
#[test]
fn two_sends_and_a_receive_are_under_way_beside_a_pass() {
    let schedule = Order::find("gpipe").unwrap().schedule(2, MICRO_BATCHES, 1).unwrap();
    let begun = Begun::default();
    run_ranks(2, |world| {
        let stage = |is_last| Stage { is_last, begun: &begun, has_waited: AtomicBool::new(false) };
        let model = Stages([stage(false), stage(true)]);
        let mut registry = Registry::default();
        for name in ["first", "last"] {
            let weight = Parameter::new("weight", &[1], Init::Zeros);
            registry.unit(name, |registry| registry.add(weight));
        }
        let program = Program::new(&schedule, world.rank(), &[0..1, 1..2]);
        let memory = Allocator::default();
        let mut strategy = LocalStrategy::new(registry.finish(), &memory, 0);
        let mut pass =
            Pass::with_micro_batches(&mut strategy, &memory, &[Seeds::default(); MICRO_BATCHES], 1);
        if world.rank() == 1 {
            begun.wait_for(3, "a second send waits for the first one");
        }
        let losses = run_program(&model, &mut pass, &program, &world, 1.0).unwrap();
        assert_eq!(losses, [0.0; MICRO_BATCHES]);
        assert!(pass.is_complete());
    });
}
