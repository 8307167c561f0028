use super::*;
use crate::memory::{Class, Memory};
use crate::parameter::{Init, Inventory, Parameter, ParameterId, Registry, UnitId};
use proptest::prelude::*;
use std::sync::Arc;

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

/// (parameters, elements) of each bucket.
fn buckets(layout: &Layout) -> Vec<(Vec<usize>, usize)> {
    let of = |bucket: &Bucket| (bucket.pieces.iter().map(|piece| piece.parameter.0).collect(), bucket.count);
    layout.buckets.iter().map(of).collect()
}

#[test]
fn buckets_go_backwards_and_end_at_the_cap_and_where_the_type_changes() {
    use Dtype::{Bf16, F32};
    let inventory = inventory(&[&[(100, F32), (10, F32)], &[(64, Bf16), (32, Bf16), (7, F32)]]);
    let of = |packing| buckets(&Layout::new(&inventory, 2, packing));
    let all = vec![(vec![4], 64), (vec![3, 2], 128), (vec![1, 0], 192)];
    assert_eq!(of(Packing::Cap(1 << 20)), all);
    assert_eq!(of(Packing::Units), all);
    let each = vec![(vec![4], 64), (vec![3], 64), (vec![2], 64), (vec![1], 64), (vec![0], 128)];
    assert_eq!(of(Packing::Cap(0)), each);
    assert_eq!(of(Packing::Cap(500))[2..], [(vec![1], 64), (vec![0], 128)]);
}

#[test]
fn padding_is_that_of_the_golden_table() {
    for (count, ranks, pad, share) in [(1000, 3, 56, 352), (1024, 4, 0, 256), (1, 8, 255, 32)] {
        let layout = Layout::new(&inventory(&[&[(count, Dtype::F32)]]), ranks, Packing::Units);
        assert_eq!(layout.count(), count + pad);
        assert_eq!(layout.share(BucketId(0), ranks - 1), (ranks - 1) * share..ranks * share);
    }
}

#[test]
fn shares_of_a_matrix_are_whole_rows() {
    let mut registry = Registry::default();
    registry.unit("h", |r| {
        r.add(Parameter::new("bias", &[7], Init::Zeros));
        r.add(Parameter::new("matrix", &[13, 12], Init::Zeros));
        r.add(Parameter::new("gain", &[7], Init::Zeros));
    });
    let inventory = registry.finish();
    for packing in [Packing::Units, Packing::Cap(1 << 20)] {
        let layout = Layout::with_rows(&inventory, 3, packing, &|parameter| parameter.shape.len() == 2);
        assert_eq!(buckets(&layout), [(vec![2], 96), (vec![1], 8 * 12 * 3), (vec![0], 96)]);
        let starts: Vec<_> = (0..3).map(|rank| layout.share(BucketId(1), rank).start).collect();
        assert_eq!(starts, [0, 8 * 12, 16 * 12], "eight rows of twelve are a whole number of blocks");
    }
}

#[test]
fn frozen_parameters_lie_apart() {
    let mut inventory = inventory(&[&[(40, Dtype::F32), (40, Dtype::F32), (40, Dtype::F32)]]);
    inventory.parameters[1].trainable = false;
    let layout = Layout::new(&inventory, 1, Packing::Units);
    let trainable: Vec<_> = layout.buckets.iter().map(|bucket| bucket.trainable).collect();
    assert_eq!(trainable, [true, false, true]);
}

#[test]
fn a_unit_needs_the_buckets_it_borrows_from() {
    let mut registry = Registry::default();
    let (_, token) = registry.unit("wte", |r| r.add(Parameter::new("w", &[8], Init::Zeros)));
    registry.unit("h", |r| r.add(Parameter::new("w", &[8], Init::Zeros)));
    let (head, _) = registry.unit("head", |r| {
        r.borrow(token);
        r.add(Parameter::new("w", &[8], Init::Zeros))
    });
    let inventory = registry.finish();
    let layout = Layout::new(&inventory, 1, Packing::Units);
    assert_eq!(layout.buckets_of(&inventory, head), [BucketId(2), BucketId(0)]);
}

proptest! {
    #[test]
    fn every_element_has_one_place(
        counts in prop::collection::vec(prop::collection::vec(1usize..300, 1..5), 1..5),
        ranks in 1usize..8,
        cap in prop::option::of(0usize..4000),
    ) {
        let units: Vec<Vec<_>> =
            counts.iter().map(|unit| unit.iter().map(|&count| (count, Dtype::F32)).collect()).collect();
        let inventory = inventory(&units.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let layout = Layout::new(&inventory, ranks, cap.map_or(Packing::Units, Packing::Cap));
        let mut met: Vec<Vec<bool>> = inventory.parameters.iter().map(|p| vec![false; p.count()]).collect();
        for bucket in layout.ids() {
            for rank in 0..ranks {
                let share = layout.share(bucket, rank);
                prop_assert_eq!(share.start % GRAIN, 0);
                for (id, elements, place) in layout[bucket].within(share.clone()) {
                    prop_assert!(place.start >= share.start && place.end <= share.end);
                    prop_assert_eq!(place.start % GRAIN, elements.start % GRAIN);
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
fn buckets_complete_in_order_whatever_comes_first() {
    let inventory = Arc::new(inventory(&[&[(8, Dtype::F32); 3]]));
    let layout = Arc::new(Layout::new(&inventory, 1, Packing::Cap(0)));
    let mut countdown = Countdown::new(inventory, layout);
    assert!(countdown.ready(ParameterId(1)).unwrap());
    assert_eq!(countdown.complete(), None, "parameter 2 lies in bucket 0");
    countdown.ready(ParameterId(2)).unwrap();
    assert_eq!(
        [countdown.complete(), countdown.complete(), countdown.complete()],
        [Some(BucketId(0)), Some(BucketId(1)), None]
    );
    assert_eq!(countdown.missing(), ["u0.p0"]);
    assert_eq!([countdown.rest(), countdown.rest()], [Some(BucketId(2)), None]);
    assert!(countdown.ready(ParameterId(1)).unwrap_err().to_string().contains("u0.p1"));
}

#[test]
fn modules_see_views_and_sixteen_bits_are_widened_while_open() {
    let memory = Memory::default();
    let inventory = Arc::new(inventory(&[&[(40, Dtype::F32)], &[(40, Dtype::Bf16)]]));
    let layout = Arc::new(Layout::new(&inventory, 2, Packing::Units));
    let mut store = Store::new(Arc::clone(&inventory), Arc::clone(&layout), &memory);
    for bucket in layout.ids() {
        let weights = store.initial(bucket, 0..layout[bucket].count, 1).unwrap();
        store.put_weights(bucket, weights);
    }
    let (wide, narrow) = (ParameterId(0), ParameterId(1));
    let flat = store.bucket(layout.place(wide).0).unwrap().floats().unwrap().as_ptr();
    assert_eq!(store.weights(wide).as_ptr(), flat, "a view, not a copy");
    store.open(UnitId(1)).unwrap();
    assert_eq!(store.weights(narrow).len(), 40);
    store.gradient(narrow).unwrap().1[0] = 1.0 + f32::EPSILON;
    store.gradient(narrow).unwrap().1[0] += 1.0;
    store.settle(narrow).unwrap();
    store.close(UnitId(1));
    assert_eq!(memory.usage(Class::Buffers).now, 0);
    let mut sum = [0.0];
    store.take_gradients(layout.place(narrow).0).unwrap().widen(0..1, &mut sum).unwrap();
    assert_eq!(sum, [2.0], "added in 32 bits, rounded once");
}
