//! Helpers for the tests of this crate and of the trainer.

use crate::data_parallel::{self, DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::Result;
use unisono_nn::allocator::Allocator;
use unisono_nn::parameter::{Dtype, Init, Inventory, Parameter, ParameterId, Registry, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::{DeviceStore, host_weights};

/// Bits of weights and moments, by parameter and element of the whole tensor.
pub type Bits = BTreeMap<(ParameterId, usize), Vec<u32>>;

/// Returns the state this rank keeps, without padding.
pub fn collect_shards(strategy: &mut dyn DataParallel, inventory: &Inventory) -> Bits {
    let mut bits = BTreeMap::new();
    let mut keep = |part: LocalShard<'_>| {
        for (index, place) in part.range.clone().enumerate() {
            let Some(place) = inventory[part.parameter].global_index(place) else { continue };
            let weight = part.weights[index].to_bits();
            let moments = part.moments.iter().map(|moment| moment[index].to_bits());
            bits.insert((part.parameter, place), [weight].into_iter().chain(moments).collect());
        }
        Ok(())
    };
    strategy.for_each_shard(&mut keep).unwrap();
    bits
}

/// Merges the state of all ranks. Copies of the same state must agree.
pub fn merge_shards(ranks: impl IntoIterator<Item = Bits>) -> Bits {
    let mut merged = Bits::new();
    for (place, bits) in ranks.into_iter().flatten() {
        let known = merged.entry(place).or_insert_with(|| bits.clone());
        assert_eq!(*known, bits, "at {place:?}");
    }
    merged
}

/// Returns parameters with odd shapes, a frozen one, and one that two units use.
pub fn inventory(dtype: Dtype) -> Arc<Inventory> {
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
pub fn gradient_at(weight: f32, rank: usize, moment: u64, place: usize) -> f32 {
    let hash = (place as u64 + 31 * moment + 977 * rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    weight * 0.3 + ((hash >> 40) as f32 / (1 << 23) as f32 - 1.0) * 10f32.powi((hash % 3) as i32 - 1)
}

/// Returns the plan of a step through all units.
pub fn plan(inventory: &Inventory, micro_batches: usize) -> StepPlan {
    StepPlan::depth_first(inventory.units.len(), micro_batches)
}

/// Runs forward and backward of one micro-batch through all units, with a model's events.
pub fn run_pass(
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    rank: usize,
    moment: u64,
) -> Result<()> {
    run_pass_with(strategy, inventory, 1.0, rank, moment)
}

/// Runs a pass as [`run_pass`] does, with the loss times `factor`.
pub fn run_pass_with(
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
pub fn forward(strategy: &mut dyn DataParallel, inventory: &Inventory) -> Result<()> {
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
pub fn backward(
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
                add_on_device(store, id, slope)?;
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

/// Creates a strategy on data ranks.
pub fn new_strategy(
    kind: ParallelKind,
    inventory: &Arc<Inventory>,
    data: Option<Communicator>,
    settings: &Settings,
    memory: &Allocator,
) -> Result<Box<dyn DataParallel>> {
    data_parallel::new_strategy(kind, inventory, ProcessGroups::data_only(data), settings, memory)
}

/// Adds `slope` of each index and weight to a gradient in GPU memory.
fn add_on_device(
    store: &mut dyn DeviceStore,
    id: ParameterId,
    slope: impl Fn(usize, &f32) -> f32,
) -> Result<()> {
    let slopes: Vec<_> =
        store.weights_to_host(id)?.iter().enumerate().map(|(index, weight)| slope(index, weight)).collect();
    let lane = Arc::clone(store.lane());
    let slopes = lane.stream().upload(&slopes)?;
    let gradient = store.device_gradient(id)?;
    gradient.map_or(Ok(()), |gradient| Ok(lane.add(gradient, slopes.view(..), 1.0, 1.0)?))
}
