use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::parameter::{Dtype, Init, Inventory, Parameter, ParameterId, Registry, UnitId};
use unisono_nn::step_plan::{StepPlan, Visit, Work};

fn inventory(units: &[&[(usize, Dtype)]]) -> Inventory {
    let mut registry = Registry::default();
    for (number, counts) in units.iter().enumerate() {
        registry.unit(&format!("u{number}"), |r| {
            for (index, &(count, dtype)) in counts.iter().enumerate() {
                let mut parameter = Parameter::new(format!("p{index}"), &[count], Init::Normal(1.0));
                parameter.dtype = dtype;
                r.add(parameter);
            }
        });
    }
    registry.finish()
}

/// Returns (parameters, elements) of each bucket.
fn buckets(layout: &Layout) -> Vec<(Vec<usize>, usize)> {
    let content =
        |bucket: &Bucket| (bucket.entries.iter().map(|piece| piece.parameter.0).collect(), bucket.count);
    layout.buckets.iter().map(content).collect()
}

#[test]
fn buckets_run_backwards_and_split_at_cap_and_dtype() {
    use Dtype::{Bf16, F32};
    let inventory = inventory(&[&[(100, F32), (10, F32)], &[(64, Bf16), (32, Bf16), (7, F32)]]);
    let packed = |packing| buckets(&Layout::new(&inventory, 2, packing));
    let separate = vec![(vec![4], 64), (vec![3, 2], 128), (vec![1, 0], 192)];
    assert_eq!(packed(Packing::MaxBytes(1 << 20)), separate);
    assert_eq!(packed(Packing::PerUnit), separate);
    let each = vec![(vec![4], 64), (vec![3], 64), (vec![2], 64), (vec![1], 64), (vec![0], 128)];
    assert_eq!(packed(Packing::MaxBytes(0)), each);
    assert_eq!(packed(Packing::MaxBytes(500))[2..], [(vec![1], 64), (vec![0], 128)]);
}

#[test]
fn padding_matches_golden_table() {
    for (count, ranks, pad, share) in [(1000, 3, 56, 352), (1024, 4, 0, 256), (1, 8, 255, 32)] {
        let layout = Layout::new(&inventory(&[&[(count, Dtype::F32)]]), ranks, Packing::PerUnit);
        assert_eq!(layout.count(), count + pad);
        assert_eq!(layout.shard_range(BucketId(0), ranks - 1), (ranks - 1) * share..ranks * share);
    }
}

#[test]
fn matrix_shards_are_whole_rows() {
    let mut registry = Registry::default();
    registry.unit("h", |r| {
        r.add(Parameter::new("bias", &[7], Init::Zeros));
        r.add(Parameter::new("matrix", &[13, 12], Init::Zeros));
        r.add(Parameter::new("gain", &[7], Init::Zeros));
    });
    let inventory = registry.finish();
    for packing in [Packing::PerUnit, Packing::MaxBytes(1 << 20)] {
        let layout = Layout::with_rows(&inventory, 3, packing, &|parameter| parameter.shape.len() == 2);
        assert_eq!(buckets(&layout), [(vec![2], 96), (vec![1], 8 * 12 * 3), (vec![0], 96)]);
        let starts: Vec<_> = (0..3).map(|rank| layout.shard_range(BucketId(1), rank).start).collect();
        assert_eq!(starts, [0, 8 * 12, 16 * 12], "eight rows of twelve are a whole number of blocks");
    }
}

#[test]
fn frozen_parameters_get_their_own_buckets() {
    let mut inventory = inventory(&[&[(40, Dtype::F32), (40, Dtype::F32), (40, Dtype::F32)]]);
    inventory.parameters[1].trainable = false;
    let layout = Layout::new(&inventory, 1, Packing::PerUnit);
    let trainable: Vec<_> = layout.buckets.iter().map(|bucket| bucket.trainable).collect();
    assert_eq!(trainable, [true, false, true]);
}

#[test]
fn unit_needs_buckets_of_shared_parameters() {
    let mut registry = Registry::default();
    let (_, token) = registry.unit("wte", |r| r.add(Parameter::new("w", &[8], Init::Zeros)));
    registry.unit("h", |r| r.add(Parameter::new("w", &[8], Init::Zeros)));
    let (head, _) = registry.unit("head", |r| {
        r.share_parameter(token);
        r.add(Parameter::new("w", &[8], Init::Zeros))
    });
    let inventory = registry.finish();
    let layout = Layout::new(&inventory, 1, Packing::PerUnit);
    assert_eq!(layout.buckets_of(&inventory, head), [BucketId(2), BucketId(0)]);
}

proptest! {
    #[test]
    fn every_element_has_one_location(
        counts in prop::collection::vec(prop::collection::vec(1usize..300, 1..5), 1..5),
        ranks in 1usize..8,
        cap in prop::option::of(0usize..4000),
    ) {
        let units: Vec<Vec<_>> =
            counts.iter().map(|unit| unit.iter().map(|&count| (count, Dtype::F32)).collect()).collect();
        let inventory = inventory(&units.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let layout = Layout::new(&inventory, ranks, cap.map_or(Packing::PerUnit, Packing::MaxBytes));
        let mut met: Vec<Vec<bool>> = inventory.parameters.iter().map(|p| vec![false; p.count()]).collect();
        for bucket in layout.ids() {
            for rank in 0..ranks {
                let share = layout.shard_range(bucket, rank);
                prop_assert_eq!(share.start % ALIGNMENT, 0);
                for (id, elements, place) in layout[bucket].entries_within(share.clone()) {
                    prop_assert!(place.start >= share.start && place.end <= share.end);
                    prop_assert_eq!(place.start % ALIGNMENT, elements.start % ALIGNMENT);
                    for element in elements {
                        prop_assert!(!std::mem::replace(&mut met[id.0][element], true));
                    }
                }
            }
        }
        prop_assert!(met.iter().flatten().all(|&met| met));
    }
}

#[test]
fn buckets_complete_in_order_for_any_arrival_order() {
    let inventory = Arc::new(inventory(&[&[(8, Dtype::F32); 3]]));
    let layout = Arc::new(Layout::new(&inventory, 1, Packing::MaxBytes(0)));
    let mut countdown = BucketTracker::new(inventory, layout, false);
    countdown.begin_step(&StepPlan::depth_first(1, 1));
    assert!(countdown.mark_ready(ParameterId(1)).unwrap());
    assert_eq!(countdown.next_complete(), None, "parameter 2 lies in bucket 0");
    countdown.mark_ready(ParameterId(2)).unwrap();
    assert_eq!(
        [countdown.next_complete(), countdown.next_complete(), countdown.next_complete()],
        [Some(BucketId(0)), Some(BucketId(1)), None]
    );
    assert_eq!(countdown.missing(), ["u0.p0"]);
    assert_eq!([countdown.next_remaining(), countdown.next_remaining()], [Some(BucketId(2)), None]);
    assert!(countdown.mark_ready(ParameterId(1)).unwrap_err().to_string().contains("u0.p1"));
}

/// Returns the buckets in the order of completion, when gradients arrive as planned.
fn completion_order(plan: &StepPlan, each_visit: bool) -> Vec<usize> {
    let inventory = Arc::new(inventory(&[&[(8, Dtype::F32)], &[(8, Dtype::F32)]]));
    let layout = Arc::new(Layout::new(&inventory, 1, Packing::PerUnit));
    let mut tracker = BucketTracker::new(Arc::clone(&inventory), layout, each_visit);
    tracker.begin_step(plan);
    let mut order = Vec::new();
    for id in plan.contributions(&inventory) {
        tracker.mark_ready(id).unwrap();
        order.extend(std::iter::from_fn(|| tracker.next_complete()).map(|bucket| bucket.0));
    }
    assert_eq!(tracker.next_remaining(), None);
    order
}

#[test]
fn buckets_complete_in_the_order_of_the_plan() {
    // Unit 1 is in bucket 0, unit 0 in bucket 1.
    let depth = StepPlan::depth_first(2, 2);
    assert_eq!(completion_order(&depth, false), [0, 1]);
    assert_eq!(completion_order(&depth, true), [0, 1, 0, 1]);
    let visit = |(work, unit, micro)| Visit { work, unit: UnitId(unit), micro_batches: micro..micro + 1 };
    let (inputs, weights) = (Work::InputGrads, Work::WeightGrads);
    let split = [(inputs, 1, 0), (inputs, 0, 0), (weights, 0, 0), (inputs, 1, 1), (inputs, 0, 1)];
    let split = split.into_iter().chain([(weights, 0, 1), (weights, 1, 0), (weights, 1, 1)]);
    let split = StepPlan::new(split.map(visit).collect());
    assert_eq!(completion_order(&split, false), [1, 0]);
    assert_eq!(completion_order(&split, true), [1, 1, 0, 0]);
}

/// Returns two units of two parameters each, with their weights in a store.
fn filled_store(dtype: Dtype, memory: &Allocator) -> (Arc<Inventory>, Arc<Layout>, ParamStore) {
    let inventory = Arc::new(inventory(&[&[(40, dtype), (7, dtype)], &[(33, dtype), (64, dtype)]]));
    let layout = Arc::new(Layout::new(&inventory, 2, Packing::MaxBytes(1 << 20)));
    let mut store = ParamStore::new(Arc::clone(&inventory), Arc::clone(&layout), memory);
    for bucket in layout.ids() {
        let weights = store.initial_weights(bucket, 0..layout[bucket].count, 1).unwrap();
        store.put_weights(bucket, weights);
    }
    (inventory, layout, store)
}

/// Uses all weights and adds `value` to all gradients, as a pass does. Returns the addresses of
/// weights and gradients by parameter.
fn pass_over(store: &mut ParamStore, value: f32) -> Vec<[usize; 2]> {
    let inventory = Arc::clone(&store.inventory);
    let mut addresses = Vec::new();
    for unit in (0..inventory.units.len()).map(UnitId) {
        store.widen_unit(unit).unwrap();
        for id in inventory.parameters_of(unit) {
            let seen = store.weights(id).as_ptr() as usize;
            let (weights, gradient) = store.weights_and_gradient(id).unwrap();
            assert_eq!(weights.as_ptr() as usize, seen);
            gradient.iter_mut().for_each(|sum| *sum += value);
            addresses.push([seen, gradient.as_ptr() as usize]);
            store.fold_wide_grad(id).unwrap();
        }
        store.drop_widened(unit);
    }
    addresses
}

#[test]
fn f32_weights_and_gradients_are_views_of_their_bucket() {
    let memory = Allocator::default();
    let (inventory, layout, mut store) = filled_store(Dtype::F32, &memory);
    let seen = pass_over(&mut store, 1.0);
    let weights = store.bucket_weights(BucketId(0)).unwrap().as_f32().unwrap().as_ptr() as usize;
    let gradients = store.take_gradients(BucketId(0)).unwrap();
    let start = gradients.as_f32().unwrap().as_ptr() as usize;
    for (id, found) in (0..inventory.parameters.len()).map(ParameterId).zip(&seen) {
        let (bucket, range) = layout.location(id);
        assert_eq!(bucket, BucketId(0), "one bucket has all");
        let address = |base: usize| base + 4 * range.start;
        assert_eq!(*found, [address(weights), address(start)], "{}", inventory[id].name);
        assert!(gradients.as_f32().unwrap()[range].iter().all(|sum| *sum == 1.0), "what the module added");
    }
    // A collective returns the buffer, and modules add to the same places again.
    store.put_gradients(BucketId(0), gradients);
    assert_eq!(pass_over(&mut store, 1.0), seen);
    assert_eq!(store.take_gradients(BucketId(0)).unwrap().as_f32().unwrap()[0], 2.0);
    assert_eq!((store.copies(), memory.usage(AllocClass::Buffers).current), (0, 0));
}

#[test]
fn bf16_parameters_are_copied_once_for_each_use() {
    let memory = Allocator::default();
    let (inventory, _, mut store) = filled_store(Dtype::Bf16, &memory);
    let parameters = inventory.parameters.len() as u64;
    store.widen_unit(UnitId(0)).unwrap();
    store.drop_widened(UnitId(0));
    assert_eq!(store.copies(), 2, "forward: one for each weight");
    let copies_before = store.copies();
    pass_over(&mut store, 1.0);
    // Weights once, and gradients once to 32 bits and once back.
    assert_eq!(store.copies() - copies_before, 3 * parameters);
    assert_eq!(memory.usage(AllocClass::Buffers).current, 0);
}

#[test]
fn bf16_is_widened_while_unit_is_in_use() {
    let memory = Allocator::default();
    let inventory = Arc::new(inventory(&[&[(40, Dtype::F32)], &[(40, Dtype::Bf16)]]));
    let layout = Arc::new(Layout::new(&inventory, 2, Packing::PerUnit));
    let mut store = ParamStore::new(Arc::clone(&inventory), Arc::clone(&layout), &memory);
    for bucket in layout.ids() {
        let weights = store.initial_weights(bucket, 0..layout[bucket].count, 1).unwrap();
        store.put_weights(bucket, weights);
    }
    let (wide, narrow) = (ParameterId(0), ParameterId(1));
    let flat = store.bucket_weights(layout.location(wide).0).unwrap().as_f32().unwrap().as_ptr();
    assert_eq!(store.weights(wide).as_ptr(), flat, "a view, not a copy");
    store.widen_unit(UnitId(1)).unwrap();
    assert_eq!(store.weights(narrow).len(), 40);
    store.weights_and_gradient(narrow).unwrap().1[0] = 1.0 + f32::EPSILON;
    store.weights_and_gradient(narrow).unwrap().1[0] += 1.0;
    store.fold_wide_grad(narrow).unwrap();
    store.drop_widened(UnitId(1));
    assert_eq!(memory.usage(AllocClass::Buffers).current, 0);
    let mut sum = [0.0];
    store.take_gradients(layout.location(narrow).0).unwrap().widen(0..1, &mut sum).unwrap();
    assert_eq!(sum, [2.0], "added in 32 bits, rounded once");
}
