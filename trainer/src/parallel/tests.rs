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
use crate::allocator::{AllocClass, Allocator};
use crate::optim::{AdamW, Muon};
use crate::parameter::{Dtype, Init, Inventory, Parameter, Registry, UnitId};
use crate::step_plan::{Direction, StepPlan};
use crate::strategy::host_weights;
use crate::testing::{self, collect_shards, run_ranks, run_ranks_with};
use std::sync::Arc;
use unisono::{Communicator, Config, ReductionOrder};

/// Returns parameters with odd shapes, a frozen one, and one that two units use.
pub(crate) fn inventory(dtype: Dtype) -> Arc<Inventory> {
    let mut registry = Registry::default();
    let add =
        |r: &mut Registry, name: &str, shape: &[usize]| r.add(Parameter::new(name, shape, Init::Normal(0.5)));
    let (_, token) = registry.unit("wte", |r| add(r, "weight", &[37, 5]));
    for layer in 0..3 {
        registry.unit(&format!("h.{layer}"), |r| {
            add(r, "gain", &[1]);
            add(r, "matrix", &[13, 7]);
            add(r, "still", &[40]);
            add(r, "bias", &[4]);
        });
    }
    registry.unit("head", |r| {
        r.share_parameter(token);
        add(r, "bias", &[37])
    });
    registry.freeze(|name| name.ends_with("still"));
    registry.set_dtype(dtype, |parameter| !parameter.name.ends_with("gain"));
    Arc::new(registry.finish())
}

/// Returns a gradient that depends on the rank, the time and the weight.
fn gradient_at(weight: f32, rank: usize, moment: u64, place: usize) -> f32 {
    let hash = (place as u64 + 31 * moment + 977 * rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    weight * 0.3 + ((hash >> 40) as f32 / (1 << 23) as f32 - 1.0) * 10f32.powi((hash % 3) as i32 - 1)
}

/// Returns the plan of a step through all units.
pub(crate) fn plan(inventory: &Inventory, micro_batches: usize) -> StepPlan {
    StepPlan::depth_first(inventory.units.len(), micro_batches)
}

/// Runs forward and backward of one micro-batch through all units, with a model's events.
pub(crate) fn run_pass(
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    rank: usize,
    moment: u64,
) -> Result<()> {
    run_pass_with(strategy, inventory, 1.0, rank, moment)
}

/// Runs a pass as [`run_pass`] does, with the loss times `factor`.
fn run_pass_with(
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    factor: f32,
    rank: usize,
    moment: u64,
) -> Result<()> {
    forward(strategy, inventory)?;
    backward(strategy, inventory, factor, rank, moment)
}

/// Runs forward of one micro-batch through all units.
fn forward(strategy: &mut dyn DataParallel, inventory: &Inventory) -> Result<()> {
    for unit in (0..inventory.units.len()).map(UnitId) {
        strategy.pre_unit(unit, Direction::Forward)?;
        for id in inventory[unit].parameters.clone().map(ParameterId) {
            assert!(host_weights(strategy, id)?[0].is_finite());
        }
        strategy.post_unit(unit, Direction::Forward)?;
    }
    Ok(())
}

/// Runs backward of one micro-batch through all units, with the loss times `factor`.
fn backward(
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    factor: f32,
    rank: usize,
    moment: u64,
) -> Result<()> {
    for unit in (0..inventory.units.len()).rev().map(UnitId) {
        strategy.pre_unit(unit, Direction::Backward)?;
        let unit_parameters = inventory[unit].parameters.clone().rev().map(ParameterId);
        for id in unit_parameters.chain(inventory[unit].shared.iter().copied()) {
            let slope =
                |place, weight: &f32| factor * gradient_at(*weight, rank, moment + id.0 as u64, place);
            if let Some(store) = strategy.device_store_mut(id) {
                device::add(store, id, slope)?;
            } else if let Some((weights, gradient)) = strategy.weights_and_gradient(id) {
                for (place, (weight, sum)) in weights.iter().zip(gradient).enumerate() {
                    *sum += slope(place, weight);
                }
            }
            if inventory[id].trainable {
                strategy.grad_ready(id)?;
            }
        }
        strategy.post_unit(unit, Direction::Backward)?;
    }
    Ok(())
}

/// Every kind of strategy.
pub(crate) const STRATEGIES: [ParallelKind; 4] =
    [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3];

pub(crate) fn new_strategy(
    kind: ParallelKind,
    inventory: &Arc<Inventory>,
    data: Option<Communicator>,
    settings: &Settings,
    memory: &Allocator,
) -> Result<Box<dyn DataParallel>> {
    super::new_strategy(kind, inventory, ProcessGroups::data_only(data), settings, memory)
}

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
        let reference = train_on_ranks(STRATEGIES[0], ranks, &small_buckets(), Dtype::F32, 1);
        for kind in STRATEGIES {
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
        let reference = train_on_ranks(STRATEGIES[0], 3, &settings, dtype, 2);
        for kind in STRATEGIES {
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
        let reference = train_on_ranks(STRATEGIES[0], 3, &settings, Dtype::F32, 1);
        for kind in STRATEGIES {
            assert!(train_on_ranks(kind, 3, &settings, Dtype::F32, 1) == reference, "{kind:?}, rows: {rows}");
        }
        let wide = Settings { moment_dtype: Dtype::F32, ..settings };
        let wide = train_on_ranks(STRATEGIES[0], 3, &wide, Dtype::F32, 1);
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
    let (_, single) = train_on_ranks(STRATEGIES[0], 1, &settings, Dtype::F32, 1);
    assert!(
        single != train_on_ranks(STRATEGIES[0], 1, &small_buckets(), Dtype::F32, 1).1,
        "Muon is not AdamW"
    );
    for (ranks, dtype) in [(2, Dtype::F32), (3, Dtype::F32), (5, Dtype::Bf16)] {
        let reference = train_on_ranks(STRATEGIES[0], ranks, &settings, dtype, 1);
        for kind in STRATEGIES {
            assert!(train_on_ranks(kind, ranks, &settings, dtype, 1) == reference, "{kind:?}, {ranks} ranks");
        }
    }
}

#[test]
fn averaging_before_or_after_reduction_is_equal() {
    let norm_of =
        |average| train_on_ranks(STRATEGIES[2], 4, &Settings { average, ..small_buckets() }, Dtype::F32, 1);
    assert!(norm_of(Average::InReduction) == norm_of(Average::After));
}

#[test]
fn single_rank_needs_no_communicator() {
    for kind in STRATEGIES {
        let alone = train(kind, None, &small_buckets(), Dtype::F32, 2);
        assert!(alone == train_on_ranks(kind, 1, &small_buckets(), Dtype::F32, 2), "{kind:?}");
    }
}

#[test]
fn reduce_each_micro_batch_keeps_no_full_gradients() {
    let each = Settings { reduce_each: ReduceFrequency::MicroBatch, ..small_buckets() };
    let (norms, _) = train_on_ranks(STRATEGIES[3], 3, &each, Dtype::F32, 3);
    let (reference, _) = train_on_ranks(STRATEGIES[3], 3, &small_buckets(), Dtype::F32, 3);
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
