//! A step in steady state takes almost nothing from the system's allocator.

use allocation_counter::measure;
use std::sync::Arc;
use unisono::Communicator;
use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::data_parallel::{ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

const SEQUENCE: usize = 64;
const ROWS: usize = 4 * SEQUENCE;
const WIDTH: usize = 128;

/// Bytes from the system's allocator on the thread of a rank.
#[derive(Clone, Copy, Debug)]
struct StepUsage {
    /// Most bytes at one time in forward and backward.
    pass: u64,
    /// Bytes of the exchange of gradients, the norm and the optimizer's step.
    step: u64,
    /// Bytes that are kept.
    kept: i64,
}

/// Returns the usage of each step after the first, and the bytes of the model.
fn usage_by_step(kind: ParallelKind, group: Communicator) -> (Vec<StepUsage>, usize) {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let config = GptConfig::new(257, SEQUENCE, WIDTH, 4, 3);
    let model = Gpt::new(&mut registry, config, TensorParallel::default()).unwrap();
    let inventory = Arc::new(registry.finish());
    let settings = Settings { bucket_bytes: 100_000, ..Settings::default() };
    let team = ProcessGroups::data_only(Some(group));
    let mut strategy = new_strategy(kind, &inventory, team, &settings, &memory).unwrap();
    let tokens: Vec<u32> = (0..=ROWS as u32).map(|index| index * index % 257).collect();
    let (inputs, targets) = (&tokens[1..], &tokens[..ROWS]);
    let batch = Batch::tokens(inputs, targets, SEQUENCE);
    let mut step = |number| {
        let pass = measure(|| {
            strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1)).unwrap();
            let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
            model.forward(&mut pass, &batch).unwrap();
            model.backward(&mut pass, 1.0).unwrap();
        });
        let update = measure(|| {
            strategy.finish_backward().unwrap();
            strategy.grad_norm().unwrap();
            let step = Step { number, lr: 1e-3, grad_scale: 1.0 };
            strategy.optimizer_step(&AdamW::default(), &step).unwrap();
        });
        let kept = pass.bytes_current + update.bytes_current;
        StepUsage { pass: pass.bytes_max, step: update.bytes_total, kept }
    };
    step(1);
    ((2..=6).map(&mut step).collect(), 4 * inventory.count())
}

/// Returns the bytes that the largest products of the model allocate while they run, to pack their
/// operands.
fn packing() -> u64 {
    let (rows, wide) = (vec![0.0; ROWS * WIDTH], vec![0.0; ROWS * 4 * WIDTH]);
    let mut weights = vec![0.0; 4 * WIDTH * WIDTH];
    let product = measure(|| {
        let (left, right) = (Matrix::new(&wide, ROWS, 4 * WIDTH), Matrix::new(&rows, ROWS, WIDTH));
        matmul(MatrixMut::new(&mut weights, 4 * WIDTH, WIDTH), 0.0, 1.0, left.t(), right, 1);
    });
    product.bytes_max
}

#[test]
fn later_steps_take_little_from_the_system() {
    let packing = packing();
    for kind in [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero3] {
        let groups = Communicator::local(2).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    let (steps, model) = usage_by_step(kind, group);
                    let least = |bytes_of: fn(&StepUsage) -> u64| steps.iter().map(bytes_of).min().unwrap();
                    let what = format!("{kind:?}: {steps:?}, {packing} to pack, {model} in all");
                    // Lists of units and handles of operations, but no tensor and no bucket.
                    assert!(least(|usage| usage.pass) < packing + 64_000, "{what}");
                    assert!(least(|usage| usage.step) < 16_000 && model > 2_000_000, "{what}");
                    // A slow reduction may need a bucket more, once.
                    let kept = steps.iter().filter(|usage| usage.kept.abs() > 64_000).count();
                    assert!(kept < 3, "{what}");
                });
            }
        });
    }
}
