//! Strategies driven by events alone: no module, no tensor.

mod device;
mod options;
mod overlap;
mod shapes;

use super::*;
use crate::flat::Dtype;
use crate::memory::{Class, Memory};
use crate::optim::{AdamW, Muon};
use crate::parameter::{Init, Inventory, Parameter, Registry, UnitId};
use crate::strategy::{Way, host_weights};
use crate::testing::{self, kept, on, on_with};
use std::sync::Arc;
use unisono::{Communicator, Config, Order};

/// Odd shapes, a frozen parameter, and one that two units use.
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
        r.borrow(token);
        add(r, "bias", &[37])
    });
    registry.freeze(|name| name.ends_with("still"));
    registry.keep_as(dtype, |parameter| !parameter.name.ends_with("gain"));
    Arc::new(registry.finish())
}

/// A gradient that depends on who computes it, when, and on the weights.
fn slope(weight: f32, rank: usize, moment: u64, place: usize) -> f32 {
    let hash = (place as u64 + 31 * moment + 977 * rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    weight * 0.3 + ((hash >> 40) as f32 / (1 << 23) as f32 - 1.0) * 10f32.powi((hash % 3) as i32 - 1)
}

/// One micro-batch: forward and backward through all units, as a model announces them.
pub(crate) fn pass(
    strategy: &mut dyn Parallel,
    inventory: &Inventory,
    rank: usize,
    moment: u64,
) -> Result<()> {
    pass_with(strategy, inventory, 1.0, rank, moment)
}

/// As [`pass`], of `factor` times the loss.
fn pass_with(
    strategy: &mut dyn Parallel,
    inventory: &Inventory,
    factor: f32,
    rank: usize,
    moment: u64,
) -> Result<()> {
    for unit in (0..inventory.units.len()).map(UnitId) {
        strategy.need(unit, Way::Forward)?;
        for id in inventory[unit].parameters.clone().map(ParameterId) {
            assert!(host_weights(strategy, id)?[0].is_finite());
        }
        strategy.done(unit, Way::Forward)?;
    }
    for unit in (0..inventory.units.len()).rev().map(UnitId) {
        strategy.need(unit, Way::Backward)?;
        let borrowed = inventory[unit].borrows.iter().map(|unit| inventory[*unit].parameters.start);
        for id in inventory[unit].parameters.clone().rev().chain(borrowed).map(ParameterId) {
            let slope = |place, weight: &f32| factor * slope(*weight, rank, moment + id.0 as u64, place);
            if let Some(store) = strategy.on_device_mut() {
                device::add(store, id, slope)?;
            } else if let Some((weights, gradient)) = strategy.gradient(id) {
                for (place, (weight, sum)) in weights.iter().zip(gradient).enumerate() {
                    *sum += slope(place, weight);
                }
            }
            if inventory[id].trainable {
                strategy.ready(id)?;
            }
        }
        strategy.done(unit, Way::Backward)?;
    }
    Ok(())
}

/// Every kind of strategy, replicas in all three forms.
pub(crate) const KINDS: [(Kind, Form); 7] = [
    (Kind::Replicated, Form::Naive),
    (Kind::Replicated, Form::Overlapped),
    (Kind::Replicated, Form::Bucketed),
    (Kind::Owners, Form::Bucketed),
    (Kind::Zero1, Form::Bucketed),
    (Kind::Zero2, Form::Bucketed),
    (Kind::Zero3, Form::Bucketed),
];

pub(crate) fn make(
    (kind, form): (Kind, Form),
    inventory: &Arc<Inventory>,
    data: Option<Communicator>,
    settings: &Settings,
    memory: &Memory,
) -> Result<Box<dyn Parallel>> {
    super::make(kind, inventory, Team::of_data(data), &Settings { form, ..settings.clone() }, memory)
}

/// Bits of everything a run leaves behind: norms, weights, moments.
type Bits = (Vec<u64>, testing::Bits);

fn train(
    kind: (Kind, Form),
    group: Option<Communicator>,
    settings: &Settings,
    dtype: Dtype,
    micro: u64,
) -> Bits {
    train_in(&Memory::default(), kind, group, settings, dtype, micro)
}

/// As [`train`], with flat memory where `memory` has it.
fn train_in(
    memory: &Memory,
    kind: (Kind, Form),
    group: Option<Communicator>,
    settings: &Settings,
    dtype: Dtype,
    micro: u64,
) -> Bits {
    let inventory = inventory(dtype);
    let rank = group.as_ref().map_or(0, Communicator::rank);
    let mut strategy = make(kind, &inventory, group, settings, memory).unwrap();
    let mut norms = Vec::new();
    for number in 1..=4 {
        for part in 0..micro {
            strategy.begin(part + 1 == micro).unwrap();
            pass(&mut *strategy, &inventory, rank, 1000 * number + 100 * part).unwrap();
        }
        strategy.finish().unwrap();
        let norm = strategy.norm().unwrap();
        norms.push(norm.to_bits());
        let factor = (1.0 / (norm + 1e-6)).min(1.0) as f32;
        let optimiser: &dyn Optimiser = if settings.rows { &Muon::default() } else { &AdamW::default() };
        strategy.update(optimiser, &Step { number, rate: 0.01, factor }).unwrap();
    }
    (norms, kept(&mut *strategy, &inventory))
}

/// What all ranks together keep; they must agree where they keep the same.
fn together(kind: (Kind, Form), ranks: usize, settings: &Settings, dtype: Dtype, micro: u64) -> Bits {
    let by_rank = on(ranks, |group| train(kind, Some(group), settings, dtype, micro));
    let (norms, bits): (Vec<_>, Vec<_>) = by_rank.into_iter().unzip();
    assert!(norms.iter().all(|other| other == &norms[0]), "{kind:?}");
    (norms[0].clone(), testing::joined(bits))
}

fn small_buckets() -> Settings {
    Settings { bucket_bytes: 600, ..Settings::default() }
}

#[test]
fn all_strategies_take_the_same_steps_to_the_last_bit() {
    for ranks in [1, 2, 3, 5] {
        let reference = together(KINDS[0], ranks, &small_buckets(), Dtype::F32, 1);
        for kind in KINDS {
            assert!(
                together(kind, ranks, &small_buckets(), Dtype::F32, 1) == reference,
                "{kind:?}, {ranks} ranks"
            );
        }
    }
}

#[test]
fn so_they_do_with_sixteen_bits_accumulation_and_any_bucket() {
    for (dtype, wire, average) in [
        (Dtype::Bf16, None, Average::InReduction),
        (Dtype::F32, Some(Dtype::Bf16), Average::InReduction),
        (Dtype::Bf16, Some(Dtype::F32), Average::After),
    ] {
        let settings = Settings { wire, average, ..small_buckets() };
        let reference = together(KINDS[0], 3, &settings, dtype, 2);
        for kind in KINDS {
            let large = Settings { bucket_bytes: 1 << 20, prefetch: 3, gathers_max: 5, ..settings.clone() };
            assert!(together(kind, 3, &settings, dtype, 2) == reference, "{kind:?}, {dtype:?}, {wire:?}");
            assert!(together(kind, 3, &large, dtype, 2) == reference, "{kind:?}, {dtype:?}, {wire:?}, large");
        }
    }
}

#[test]
fn so_they_do_with_whole_matrices_whose_state_is_dealt_out_by_rows() {
    let settings = Settings { rows: true, ..small_buckets() };
    let (_, whole) = together(KINDS[0], 1, &settings, Dtype::F32, 1);
    assert!(whole != together(KINDS[0], 1, &small_buckets(), Dtype::F32, 1).1, "Muon is not AdamW");
    for (ranks, dtype) in [(2, Dtype::F32), (3, Dtype::F32), (5, Dtype::Bf16)] {
        let reference = together(KINDS[0], ranks, &settings, dtype, 1);
        for kind in KINDS {
            assert!(together(kind, ranks, &settings, dtype, 1) == reference, "{kind:?}, {ranks} ranks");
        }
    }
}

#[test]
fn the_division_may_come_first_or_last() {
    let of = |average| together(KINDS[5], 4, &Settings { average, ..small_buckets() }, Dtype::F32, 1);
    assert!(of(Average::InReduction) == of(Average::After));
}

#[test]
fn one_rank_alone_needs_no_communicator() {
    for kind in KINDS {
        let alone = train(kind, None, &small_buckets(), Dtype::F32, 2);
        assert!(alone == together(kind, 1, &small_buckets(), Dtype::F32, 2), "{kind:?}");
    }
}

#[test]
fn reducing_every_micro_batch_keeps_no_whole_gradients() {
    let each = Settings { reduce_each: ReduceEach::MicroBatch, ..small_buckets() };
    let (norms, _) = together(KINDS[6], 3, &each, Dtype::F32, 3);
    let (whole, _) = together(KINDS[6], 3, &small_buckets(), Dtype::F32, 3);
    let (one, other) = (f64::from_bits(norms[0]), f64::from_bits(whole[0]));
    assert!((one / other - 1.0).abs() < 1e-6, "{one} {other}");
}

#[test]
fn unused_parameters_are_zero_or_refused() {
    let (inventory, memory) = (inventory(Dtype::F32), Memory::default());
    let refuse = Settings { unused: Unused::Refuse, ..Settings::default() };
    let mut strategy = Sharded::two(&inventory, Team::default(), &refuse, &memory).unwrap();
    strategy.begin(true).unwrap();
    let error = strategy.finish().unwrap_err().to_string();
    assert!(error.contains("h.1.matrix") && !error.contains("still"), "{error}");
    let mut strategy = Sharded::two(&inventory, Team::default(), &Settings::default(), &memory).unwrap();
    strategy.begin(true).unwrap();
    strategy.finish().unwrap();
    assert_eq!(strategy.norm().unwrap(), 0.0);
}

/// Bytes of each class that a rank holds after backward, and the most it held of weights.
fn memory_of(kind: (Kind, Form), ranks: usize, dtype: Dtype) -> ([usize; 3], usize) {
    let measure = |group: Communicator| {
        let (inventory, memory, rank) = (inventory(dtype), Memory::default(), group.rank());
        let mut strategy = make(kind, &inventory, Some(group), &small_buckets(), &memory).unwrap();
        let step = Step { number: 1, rate: 0.01, factor: 1.0 };
        for _ in 0..2 {
            strategy.begin(true).unwrap();
            pass(&mut *strategy, &inventory, rank, 1).unwrap();
            strategy.finish().unwrap();
            strategy.update(&AdamW::default(), &step).unwrap();
        }
        strategy.begin(true).unwrap();
        pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish().unwrap();
        let now = |class| memory.usage(class).now;
        (
            [now(Class::Weights), now(Class::Gradients), now(Class::Optimiser)],
            memory.usage(Class::Weights).peak,
        )
    };
    on(ranks, measure).swap_remove(0)
}

#[test]
fn memory_is_what_the_formulas_say() {
    let inventory = inventory(Dtype::F32);
    let count = |layout: &crate::flat::Layout, trainable: bool| -> usize {
        layout.buckets.iter().filter(|bucket| bucket.trainable || !trainable).map(|bucket| bucket.count).sum()
    };
    let ranks = 4;
    let packed = small_buckets().layout(Kind::Zero1, &inventory, ranks);
    let (all, trained) = (count(&packed, false), count(&packed, true));
    assert_eq!(memory_of(KINDS[4], ranks, Dtype::F32).0, [4 * all, 4 * trained, 8 * trained / ranks]);
    assert_eq!(memory_of(KINDS[5], ranks, Dtype::F32).0, [4 * all, 4 * trained / ranks, 8 * trained / ranks]);
    let units = small_buckets().layout(Kind::Zero3, &inventory, ranks);
    let (all, trained) = (count(&units, false), count(&units, true));
    let largest = units.buckets.iter().map(|bucket| bucket.count).max().unwrap();
    let (now, peak) = memory_of(KINDS[6], ranks, Dtype::F32);
    assert_eq!(now, [4 * all / ranks, 4 * trained / ranks, 8 * trained / ranks]);
    assert!(
        peak <= 4 * all / ranks + 3 * 4 * largest,
        "peak {peak}, shard {}, largest {}",
        all / ranks,
        largest
    );
}

/// Four units of one parameter each, none shared, frozen or padded.
fn plain_inventory() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for layer in 0..4 {
        let shape = [64 * (layer + 1), 60];
        registry.unit(&format!("h.{layer}"), |r| r.add(Parameter::new("weight", &shape, Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

/// Settings with which every collective moves the fewest bytes.
fn two_shot() -> Config {
    let algorithms = unisono::algorithms("twoshot").unwrap();
    Config { order: Order::Ranks, algorithms, ..Config::default() }
}

/// Bytes that each rank moves in one step, gradients of two micro-batches accumulated.
fn traffic_of(kind: (Kind, Form), ranks: usize) -> Vec<u64> {
    let config = two_shot();
    let measure = |group: Communicator| {
        let (inventory, memory, rank) = (plain_inventory(), Memory::default(), group.rank());
        let mut strategy = make(kind, &inventory, Some(group.clone()), &small_buckets(), &memory).unwrap();
        let before = group.traffic().unwrap().bytes;
        for micro in 0..2 {
            strategy.begin(micro == 1).unwrap();
            pass(&mut *strategy, &inventory, rank, micro).unwrap();
        }
        strategy.finish().unwrap();
        strategy.update(&AdamW::default(), &Step { number: 1, rate: 0.01, factor: 1.0 }).unwrap();
        strategy.settle().unwrap();
        group.traffic().unwrap().bytes - before
    };
    on_with(ranks, &config, measure)
}

#[test]
fn traffic_is_what_the_formulas_say() {
    for ranks in [2, 3, 5] {
        let inventory = plain_inventory();
        let count = |kind| small_buckets().layout(kind, &inventory, ranks).count();
        let last: usize = 4 * 64 * 60;
        for kind in KINDS.into_iter().filter(|(kind, _)| *kind != Kind::Owners) {
            let whole = match kind.0 {
                // Both micro-batches gather forward and backward; the last unit stays in between.
                Kind::Zero3 => {
                    2 * (2 * count(Kind::Zero3) - last.next_multiple_of(32 * ranks)) + count(Kind::Zero3)
                }
                kind => 2 * count(kind),
            };
            let moved = traffic_of(kind, ranks);
            // Shares of an all_reduce are cut in as many chunks as there are ranks, whose lengths may differ by some elements.
            let expected = (4 * whole * (ranks - 1) / ranks) as f64;
            for bytes in moved {
                let exactly = kind.0 != Kind::Replicated || ranks == 2;
                let error = (bytes as f64 / expected - 1.0).abs();
                assert!(
                    error < if exactly { 1e-12 } else { 1e-3 },
                    "{kind:?}, {ranks} ranks: {bytes}, not {expected}"
                );
            }
        }
    }
}
