//! Collectives and bytes of tensor parallel layers.

use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::modules::{LinearInit, Module};
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::tensor::Tensor;
use unisono_parallel::data_parallel::{ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::optimizer::{Sgd, Step};
use unisono_parallel::tensor_parallel::{ParallelPlan, ParallelStyle, TensorParallel};
use unisono_trainer::models::{Gpt, GptConfig};

const ROWS: usize = 6;
const WIDTH: usize = 24;

/// Runs `body` on `ranks` ranks, and returns the result of rank 0.
fn on<R: Send>(ranks: usize, body: impl Fn(Communicator) -> R + Sync) -> R {
    let groups = Communicator::local(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| body(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    })
}

/// Returns the collectives and bytes of this rank so far.
fn bytes_moved(group: &Communicator) -> [u64; 2] {
    let traffic = group.traffic_stats().unwrap();
    [traffic.operations, traffic.bytes]
}

/// Returns the traffic of one layer, forward and backward, sharded over two ranks.
fn linear_bytes(style: ParallelStyle) -> [[u64; 2]; 2] {
    on(2, |group| {
        let split = TensorParallel::new(Some(group.clone().into()), false, ParallelPlan::new([("m", style)]));
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let (_, map) = registry.unit("m", |r| split.linear(r, 8, 8, LinearInit::fan_in(8)));
        let mut strategy = LocalStrategy::new(registry.finish(), &memory, 3);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let inputs = if matches!(style, ParallelStyle::Row { .. }) { 4 } else { 8 };
        let start = bytes_moved(&group);
        let output = map.forward(&mut pass, Tensor::zeros(&memory, ROWS, inputs)).unwrap();
        let turned = bytes_moved(&group);
        map.backward(&mut pass, output).unwrap();
        let end = bytes_moved(&group);
        [[0, 1].map(|index| turned[index] - start[index]), [0, 1].map(|index| end[index] - turned[index])]
    })
}

#[test]
fn column_sends_in_backward_and_row_in_forward() {
    let sum = [1, (4 * ROWS * 8) as u64];
    assert_eq!(linear_bytes(ParallelStyle::Column { blocks: 1, grain: 1 }), [[0, 0], sum]);
    assert_eq!(linear_bytes(ParallelStyle::Row { grain: 1 }), [sum, [0, 0]]);
}

/// Returns the traffic of a GPT, forward and backward, sharded over two ranks.
fn gpt_bytes(layers: usize, sequence: bool) -> [[u64; 2]; 2] {
    on(2, |group| {
        let config = GptConfig::new(16, ROWS, WIDTH, 4, layers);
        let split = TensorParallel::new(Some(group.clone().into()), sequence, config.parallel_plan());
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let model = Gpt::new(&mut registry, config, split).unwrap();
        let inventory = Arc::new(registry.finish());
        // Partial gradients are summed on a communicator of their own, and are not counted here.
        let team = ProcessGroups::new(None, Some(&group)).unwrap();
        let mut strategy =
            new_strategy(ParallelKind::Zero1, &inventory, team, &Settings::default(), &memory).unwrap();
        let tokens: Vec<u32> = (0..=ROWS as u32).collect();
        let batch = Batch::tokens(&tokens[1..], &tokens[..ROWS], ROWS);
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1)).unwrap();
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        let start = bytes_moved(&group);
        model.forward(&mut pass, &batch).unwrap();
        let turned = bytes_moved(&group);
        model.backward(&mut pass, 1.0).unwrap();
        let end = bytes_moved(&group);
        strategy.finish_backward().unwrap();
        strategy.optimizer_step(&Sgd::default(), &Step { number: 1, lr: 0.1, grad_scale: 1.0 }).unwrap();
        [[0, 1].map(|index| turned[index] - start[index]), [0, 1].map(|index| end[index] - turned[index])]
    })
}

/// Returns the traffic of two more layers.
fn two_layer_bytes(sequence: bool) -> [[u64; 2]; 2] {
    let (one_layer, three_layers) = (gpt_bytes(1, sequence), gpt_bytes(3, sequence));
    [0, 1].map(|way| [0, 1].map(|index| three_layers[way][index] - one_layer[way][index]))
}

#[test]
fn layer_takes_two_all_reduces_each_way() {
    // A sum over two ranks sends one buffer.
    let bytes = 4 * (4 * ROWS * WIDTH) as u64;
    assert_eq!(two_layer_bytes(false), [[4, bytes]; 2]);
}

#[test]
fn sequence_parallel_sends_equal_bytes() {
    let [[sums, bytes], _] = two_layer_bytes(false);
    assert_eq!(two_layer_bytes(true), [[2 * sums, bytes]; 2]);
}
