//! Tests of strategies with events alone, without modules and tensors.

mod device;
mod formulas;
mod mixed;
mod options;
mod overlap;
mod shapes;
mod shard_groups;
mod unused;

use super::*;
use crate::optimizer::{AdamW, Muon};
use crate::testing;
use crate::testing::{
    backward, collect_shards, forward, inventory, new_strategy, plan, run_pass, run_pass_with,
};
use std::sync::Arc;
use unisono::{Communicator, Config, ReductionOrder};
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::parameter::{Dtype, Init, Inventory, Parameter, Registry, UnitId};
use unisono_nn::step_plan::Direction;
use unisono_nn::testing::{run_ranks, run_ranks_with};

/// Bits of the results of a run: norms, weights and moments.
type Bits = (Vec<u64>, testing::Bits);

fn train(
    kind: ParallelKind,
    group: Option<Communicator>,
    settings: &Settings,
    dtype: Dtype,
    micro: u64,
) -> Bits {
    train_in(&Allocator::default(), kind, group, settings, dtype, micro)
}

/// Trains as [`train`] does, with flat buffers in the memory of `memory`.
fn train_in(
    memory: &Allocator,
    kind: ParallelKind,
    group: Option<Communicator>,
    settings: &Settings,
    dtype: Dtype,
    micro: u64,
) -> Bits {
    let inventory = inventory(dtype);
    let rank = group.as_ref().map_or(0, Communicator::rank);
    let strategy = new_strategy(kind, &inventory, group, settings, memory).unwrap();
    take_steps(strategy, &inventory, rank, settings, micro)
}

/// Takes four steps of `micro` micro-batches.
fn take_steps(
    mut strategy: Box<dyn DataParallel>,
    inventory: &Inventory,
    rank: usize,
    settings: &Settings,
    micro: u64,
) -> Bits {
    let mut norms = Vec::new();
    for number in 1..=4 {
        strategy.begin_step(&plan(inventory, micro as usize)).unwrap();
        for part in 0..micro {
            run_pass(&mut *strategy, inventory, rank, 1000 * number + 100 * part).unwrap();
        }
        strategy.finish_backward().unwrap();
        let norm = strategy.grad_norm().unwrap();
        norms.push(norm.to_bits());
        let factor = (1.0 / (norm + 1e-6)).min(1.0) as f32;
        let optimizer: &dyn Optimizer =
            if settings.shard_by_rows { &Muon::default() } else { &AdamW::default() };
        strategy.optimizer_step(optimizer, &Step { number, lr: 0.01, grad_scale: factor }).unwrap();
    }
    (norms, collect_shards(&mut *strategy, inventory))
}

/// Returns the merged state of all ranks. Copies of the same state must agree.
fn train_on_ranks(kind: ParallelKind, ranks: usize, settings: &Settings, dtype: Dtype, micro: u64) -> Bits {
    merged(run_ranks(ranks, |group| train(kind, Some(group), settings, dtype, micro)))
}

fn merged(by_rank: Vec<Bits>) -> Bits {
    let (norms, bits): (Vec<_>, Vec<_>) = by_rank.into_iter().unzip();
    assert!(norms.iter().all(|other| other == &norms[0]), "norms of ranks differ");
    (norms[0].clone(), testing::merge_shards(bits))
}

fn small_buckets() -> Settings {
    Settings { bucket_bytes: 600, ..Settings::default() }
}

#[test]
fn strategies_are_bitwise_equal() {
    for ranks in [1, 2, 3, 5] {
        let reference = train_on_ranks(ParallelKind::ALL[0], ranks, &small_buckets(), Dtype::F32, 1);
        for kind in ParallelKind::ALL {
            assert!(
                train_on_ranks(kind, ranks, &small_buckets(), Dtype::F32, 1) == reference,
                "{kind:?}, {ranks} ranks"
            );
        }
    }
}

#[test]
fn strategies_are_bitwise_equal_in_bf16_and_any_bucket_size() {
    for (dtype, wire, average) in [
        (Dtype::Bf16, None, Average::InReduction),
        (Dtype::F32, Some(Dtype::Bf16), Average::InReduction),
        (Dtype::Bf16, Some(Dtype::F32), Average::After),
    ] {
        let settings = Settings { wire_dtype: wire, average, ..small_buckets() };
        let reference = train_on_ranks(ParallelKind::ALL[0], 3, &settings, dtype, 2);
        for kind in ParallelKind::ALL {
            let large =
                Settings { bucket_bytes: 1 << 20, prefetch: 3, max_pending_gathers: 5, ..settings.clone() };
            assert!(
                train_on_ranks(kind, 3, &settings, dtype, 2) == reference,
                "{kind:?}, {dtype:?}, {wire:?}"
            );
            assert!(
                train_on_ranks(kind, 3, &large, dtype, 2) == reference,
                "{kind:?}, {dtype:?}, {wire:?}, large"
            );
        }
    }
}

#[test]
fn strategies_are_bitwise_equal_with_bf16_moments() {
    for rows in [false, true] {
        let settings = Settings { moment_dtype: Dtype::Bf16, shard_by_rows: rows, ..small_buckets() };
        let reference = train_on_ranks(ParallelKind::ALL[0], 3, &settings, Dtype::F32, 1);
        for kind in ParallelKind::ALL {
            assert!(train_on_ranks(kind, 3, &settings, Dtype::F32, 1) == reference, "{kind:?}, rows: {rows}");
        }
        let wide = Settings { moment_dtype: Dtype::F32, ..settings };
        let wide = train_on_ranks(ParallelKind::ALL[0], 3, &wide, Dtype::F32, 1);
        for (place, bits) in &reference.1 {
            for (moment, wide) in bits[1..].iter().zip(&wide.1[place][1..]) {
                let [moment, wide] = [moment, wide].map(|&bits| f32::from_bits(bits));
                assert!(moment.to_bits() & 0xffff == 0, "{place:?}: {moment} has 16 bits");
                assert!((moment - wide).abs() < 0.05 * wide.abs() + 1e-4, "{place:?}: {moment}, not {wide}");
            }
        }
    }
}

#[test]
fn strategies_are_bitwise_equal_with_row_sharded_matrices() {
    let settings = Settings { shard_by_rows: true, ..small_buckets() };
    let (_, single) = train_on_ranks(ParallelKind::ALL[0], 1, &settings, Dtype::F32, 1);
    assert!(
        single != train_on_ranks(ParallelKind::ALL[0], 1, &small_buckets(), Dtype::F32, 1).1,
        "Muon is not AdamW"
    );
    for (ranks, dtype) in [(2, Dtype::F32), (3, Dtype::F32), (5, Dtype::Bf16)] {
        let reference = train_on_ranks(ParallelKind::ALL[0], ranks, &settings, dtype, 1);
        for kind in ParallelKind::ALL {
            assert!(train_on_ranks(kind, ranks, &settings, dtype, 1) == reference, "{kind:?}, {ranks} ranks");
        }
    }
}

#[test]
fn averaging_before_or_after_reduction_is_equal() {
    let norm_of = |average| {
        train_on_ranks(ParallelKind::ALL[2], 4, &Settings { average, ..small_buckets() }, Dtype::F32, 1)
    };
    assert!(norm_of(Average::InReduction) == norm_of(Average::After));
}

#[test]
fn single_rank_needs_no_communicator() {
    for kind in ParallelKind::ALL {
        let alone = train(kind, None, &small_buckets(), Dtype::F32, 2);
        assert!(alone == train_on_ranks(kind, 1, &small_buckets(), Dtype::F32, 2), "{kind:?}");
    }
}

#[test]
fn reduce_each_micro_batch_keeps_no_full_gradients() {
    let each = Settings { reduce_each: ReduceFrequency::MicroBatch, ..small_buckets() };
    let (norms, _) = train_on_ranks(ParallelKind::ALL[3], 3, &each, Dtype::F32, 3);
    let (reference, _) = train_on_ranks(ParallelKind::ALL[3], 3, &small_buckets(), Dtype::F32, 3);
    let (left, right) = (f64::from_bits(norms[0]), f64::from_bits(reference[0]));
    assert!((left / right - 1.0).abs() < 1e-6, "{left} {right}");
}

#[test]
fn unused_parameters_are_zeroed_or_rejected() {
    let (inventory, memory) = (inventory(Dtype::F32), Allocator::default());
    let refuse = Settings { unused: UnusedGradients::Refuse, ..Settings::default() };
    let mut strategy =
        ShardedStrategy::new(ParallelKind::Zero2, &inventory, ProcessGroups::default(), &refuse, &memory)
            .unwrap();
    strategy.begin_step(&plan(&inventory, 1)).unwrap();
    let error = strategy.finish_backward().unwrap_err().to_string();
    assert!(error.contains("h.1.matrix") && !error.contains("still"), "{error}");
    let mut strategy = ShardedStrategy::new(
        ParallelKind::Zero2,
        &inventory,
        ProcessGroups::default(),
        &Settings::default(),
        &memory,
    )
    .unwrap();
    strategy.begin_step(&plan(&inventory, 1)).unwrap();
    strategy.finish_backward().unwrap();
    assert_eq!(strategy.grad_norm().unwrap(), 0.0);
}

/// Returns four units of one parameter each, none shared, frozen or padded.
fn plain_inventory() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for layer in 0..4 {
        let shape = [64 * (layer + 1), 60];
        registry.unit(&format!("h.{layer}"), |r| r.add(Parameter::new("weight", &shape, Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

/// Returns settings with which every collective sends the fewest bytes.
fn two_shot() -> Config {
    let algorithms = unisono::parse_algorithms("twoshot").unwrap();
    Config::default().with_reduction_order(ReductionOrder::RankOrder).with_algorithms(algorithms)
}
