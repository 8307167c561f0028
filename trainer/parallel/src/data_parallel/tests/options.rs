//! Tests of strategy settings, and of their cost.

use super::*;
use crate::optimizer::Sgd;

/// Sets kept weights to zero.
fn clear(kept: LocalShard<'_>) -> Result<()> {
    kept.weights.fill(0.0);
    Ok(())
}

/// Returns the gradients of the first step: the change of the weights by plain SGD.
fn gradients(kind: ParallelKind, ranks: usize, settings: &Settings) -> Vec<f32> {
    let bits = run_ranks(ranks, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), Allocator::default(), group.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(group), settings, &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        run_pass_with(&mut *strategy, &inventory, settings.average.loss_factor(ranks), rank, 7).unwrap();
        strategy.finish_backward().unwrap();
        // With zero weights, rounding of the step equals rounding of the gradient.
        strategy.for_each_shard(&mut clear).unwrap();
        strategy.optimizer_step(&Sgd::default(), &Step { number: 1, lr: 1.0, grad_scale: 1.0 }).unwrap();
        collect_shards(&mut *strategy, &inventory)
    });
    testing::merge_shards(bits).into_values().map(|bits| f32::from_bits(bits[0])).collect()
}

/// Returns the mean magnitude of the ranks' summands, as the scale of rounding errors.
fn sizes(ranks: usize) -> Vec<f32> {
    let settings = small_buckets();
    let sizes_of = |rank: usize| {
        let (inventory, memory) = (inventory(Dtype::F32), Allocator::default());
        let mut strategy = new_strategy(ParallelKind::ALL[0], &inventory, None, &settings, &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        run_pass_with(&mut *strategy, &inventory, 1.0, rank, 7).unwrap();
        strategy.finish_backward().unwrap();
        strategy.for_each_shard(&mut clear).unwrap();
        strategy.optimizer_step(&Sgd::default(), &Step { number: 1, lr: 1.0, grad_scale: 1.0 }).unwrap();
        collect_shards(&mut *strategy, &inventory).into_values().map(|bits| f32::from_bits(bits[0]).abs())
    };
    let mut sums: Vec<f32> = sizes_of(0).collect();
    (1..ranks).for_each(|rank| sums.iter_mut().zip(sizes_of(rank)).for_each(|(sum, size)| *sum += size));
    sums.into_iter().map(|sum| sum / ranks as f32).collect()
}

/// Returns the distance to the next larger float.
fn ulp(value: f32) -> f32 {
    f32::from_bits(value.to_bits() + 1) - value
}

#[test]
fn averaging_modes_agree_within_ulps() {
    for ranks in [2, 3, 4, 5] {
        let sizes = sizes(ranks);
        for kind in [ParallelKind::ALL[0], ParallelKind::ALL[1], ParallelKind::ALL[3]] {
            let averaged = |average| gradients(kind, ranks, &Settings { average, ..small_buckets() });
            let reference = averaged(Average::InReduction);
            assert!(reference == averaged(Average::After), "{kind:?}, {ranks} ranks");
            for ((left, right), size) in averaged(Average::InLoss).iter().zip(&reference).zip(&sizes) {
                let most = ulp(*size) * ranks.next_power_of_two().ilog2() as f32;
                assert!((left - right).abs() <= most, "{kind:?}, {ranks} ranks: {left}, not {right}");
            }
        }
    }
}

#[test]
fn bf16_wire_halves_bytes_and_sums_in_f32() {
    let narrow = Settings { wire_dtype: Some(Dtype::Bf16), ..small_buckets() };
    for kind in [ParallelKind::ALL[0], ParallelKind::ALL[1], ParallelKind::ALL[2]] {
        let [wide, half] = [&small_buckets(), &narrow].map(|settings| reductions_of(kind, 2, settings));
        assert_eq!(wide, 2 * half, "{kind:?}");
    }
    let (ranks, rounding) = (5, 1.0 / 256.0);
    let (exact, sizes) = (gradients(ParallelKind::ALL[1], ranks, &small_buckets()), sizes(ranks));
    for kind in [ParallelKind::ALL[0], ParallelKind::ALL[1], ParallelKind::ALL[3]] {
        let found = gradients(kind, ranks, &narrow);
        let (mut error, mut bound) = (0.0, 0.0);
        for ((found, exact), size) in found.iter().zip(&exact).zip(&sizes) {
            // Each summand is rounded once, and the mean once.
            let most = rounding * (size + exact.abs()) * 1.01;
            assert!((found - exact).abs() <= most, "{kind:?}: {found}, not {exact}");
            error += (found - exact).abs();
            bound += most;
        }
        assert!(error > 0.01 * bound, "{kind:?}: nothing was rounded");
    }
}

/// Returns the bytes that rank 0 sends to reduce the gradients of two micro-batches.
fn reductions_of(kind: ParallelKind, ranks: usize, settings: &Settings) -> u64 {
    let config = two_shot();
    let moved = run_ranks_with(ranks, &config, |group| {
        let (inventory, memory, rank) = (plain_inventory(), Allocator::default(), group.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(group.clone()), settings, &memory).unwrap();
        let bytes_before = group.traffic_stats().unwrap().bytes;
        strategy.begin_step(&plan(&inventory, 2)).unwrap();
        for micro in 0..2 {
            run_pass(&mut *strategy, &inventory, rank, micro).unwrap();
        }
        strategy.finish_backward().unwrap();
        group.traffic_stats().unwrap().bytes - bytes_before
    });
    moved[0]
}

#[test]
fn reduce_each_micro_batch_multiplies_bytes() {
    let each = Settings { reduce_each: ReduceFrequency::MicroBatch, ..small_buckets() };
    let reductions = |settings: &Settings| reductions_of(ParallelKind::ALL[2], 3, settings);
    assert_eq!(reductions(&each), 2 * reductions(&small_buckets()));
    let count = small_buckets().layout(ParallelKind::Zero2, &plain_inventory(), 3).count();
    assert_eq!(reductions(&small_buckets()), (4 * count * 2 / 3) as u64);
}

#[test]
fn no_reshard_after_forward_gathers_once() {
    let keep = Settings { reshard_after_forward: false, prefetch: 0, ..small_buckets() };
    let count = small_buckets().layout(ParallelKind::Zero3, &plain_inventory(), 2).count();
    // Two micro-batches gather all weights once each, but for the first unit, which stays between
    // them. One reduction follows.
    assert_eq!(reductions_of(ParallelKind::ALL[3], 2, &keep), (4 * (3 * count - 64 * 60) / 2) as u64);
}

#[test]
fn fp32_grad_accum_loses_no_bits() {
    let norm = |dtype, wide_gradients| {
        let settings =
            Settings { fp32_grad_accum: wide_gradients, wire_dtype: Some(Dtype::F32), ..small_buckets() };
        f64::from_bits(train_on_ranks(ParallelKind::ALL[2], 2, &settings, dtype, 4).0[0])
    };
    let exact = norm(Dtype::F32, false);
    let [wide, narrow] = [true, false].map(|wide| (norm(Dtype::Bf16, wide) / exact - 1.0).abs());
    assert!(wide < narrow, "{wide} {narrow}");
}

#[test]
fn frozen_parameters_have_no_traffic_or_state() {
    let frozen = |freezes: &[&str]| {
        let mut registry = Registry::default();
        for layer in 0..3 {
            let add = |r: &mut Registry| r.add(Parameter::new("weight", &[64, 60], Init::Normal(0.5)));
            registry.unit(&format!("h.{layer}"), add);
        }
        let freezes: Vec<_> = freezes.iter().map(|&pattern| pattern.to_owned()).collect();
        registry.freeze_all(&freezes).map(|()| Arc::new(registry.finish()))
    };
    let two_thirds = frozen(&["h.0", "h.2.weight"]).unwrap();
    for (kind, gathers) in ParallelKind::ALL.into_iter().zip([0, 0, 0, 3 + 2]) {
        let moved = run_ranks_with(2, &two_shot(), |group| {
            let (memory, rank) = (Allocator::default(), group.rank());
            let settings = Settings { prefetch: 0, ..small_buckets() };
            let mut strategy =
                new_strategy(kind, &two_thirds, Some(group.clone()), &settings, &memory).unwrap();
            let bytes_before = group.traffic_stats().unwrap().bytes;
            strategy.begin_step(&plan(&two_thirds, 1)).unwrap();
            run_pass(&mut *strategy, &two_thirds, rank, 1).unwrap();
            strategy.finish_backward().unwrap();
            strategy
                .optimizer_step(&AdamW::default(), &Step { number: 1, lr: 0.01, grad_scale: 1.0 })
                .unwrap();
            strategy.wait_all().unwrap();
            (group.traffic_stats().unwrap().bytes - bytes_before, memory.usage(AllocClass::Optimizer).current)
        });
        let (weight_bytes, shares) = (4 * 64 * 60, if kind == ParallelKind::Replicated { 1 } else { 2 });
        let sent = if kind == ParallelKind::Zero3 { gathers + 1 } else { 2 };
        assert_eq!(moved[0], ((sent * weight_bytes / 2) as u64, 2 * weight_bytes / shares), "{kind:?}");
    }
    let error = |patterns: &[&str]| frozen(patterns).unwrap_err().to_string();
    assert!(error(&["h.0", "h3"]).contains("`h3`; near are `h`, `h.0`, `h.1`"), "{}", error(&["h3"]));
    assert!(error(&["h.*"]).contains("nothing is left to train"));
}
