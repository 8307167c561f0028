//! What can be chosen, and what it costs.

use super::*;
use crate::optim::Sgd;

/// Sets what is kept of weights to nothing.
fn clear(kept: Kept<'_>) -> Result<()> {
    kept.weights.fill(0.0);
    Ok(())
}

/// Gradients of the first step: what one step of plain descent takes from the weights.
fn gradients(kind: (Kind, Form), ranks: usize, settings: &Settings) -> Vec<f32> {
    let bits = on(ranks, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), Memory::default(), group.rank());
        let mut strategy = make(kind, &inventory, Some(group), settings, &memory).unwrap();
        strategy.begin(true).unwrap();
        pass_with(&mut *strategy, &inventory, settings.average.loss_factor(ranks), rank, 7).unwrap();
        strategy.finish().unwrap();
        // From weights of nothing, rounding of the step is that of the gradient.
        strategy.visit(&mut clear).unwrap();
        strategy.update(&Sgd::default(), &Step { number: 1, rate: 1.0, factor: 1.0 }).unwrap();
        kept(&mut *strategy, &inventory)
    });
    testing::joined(bits).into_values().map(|bits| f32::from_bits(bits[0])).collect()
}

/// Mean of the sizes of what the ranks add up: what rounding is relative to.
fn sizes(ranks: usize) -> Vec<f32> {
    let settings = small_buckets();
    let of = |rank: usize| {
        let (inventory, memory) = (inventory(Dtype::F32), Memory::default());
        let mut strategy = make(KINDS[0], &inventory, None, &settings, &memory).unwrap();
        strategy.begin(true).unwrap();
        pass_with(&mut *strategy, &inventory, 1.0, rank, 7).unwrap();
        strategy.finish().unwrap();
        strategy.visit(&mut clear).unwrap();
        strategy.update(&Sgd::default(), &Step { number: 1, rate: 1.0, factor: 1.0 }).unwrap();
        kept(&mut *strategy, &inventory).into_values().map(|bits| f32::from_bits(bits[0]).abs())
    };
    let mut sums: Vec<f32> = of(0).collect();
    (1..ranks).for_each(|rank| sums.iter_mut().zip(of(rank)).for_each(|(sum, size)| *sum += size));
    sums.into_iter().map(|sum| sum / ranks as f32).collect()
}

/// Distance from a number to the next larger.
fn ulp(of: f32) -> f32 {
    f32::from_bits(of.to_bits() + 1) - of
}

#[test]
fn the_three_ways_to_a_mean_agree_to_the_last_bits() {
    for ranks in [2, 3, 4, 5] {
        let sizes = sizes(ranks);
        for kind in [KINDS[2], KINDS[4], KINDS[6]] {
            let of = |average| gradients(kind, ranks, &Settings { average, ..small_buckets() });
            let reference = of(Average::InReduction);
            assert!(reference == of(Average::After), "{kind:?}, {ranks} ranks");
            for ((one, other), size) in of(Average::InLoss).iter().zip(&reference).zip(&sizes) {
                let most = ulp(*size) * ranks.next_power_of_two().ilog2() as f32;
                assert!((one - other).abs() <= most, "{kind:?}, {ranks} ranks: {one}, not {other}");
            }
        }
    }
}

#[test]
fn sixteen_bits_on_the_wire_halve_the_bytes_and_are_added_in_thirty_two() {
    let narrow = Settings { wire: Some(Dtype::Bf16), ..small_buckets() };
    for kind in [KINDS[2], KINDS[4], KINDS[5]] {
        let [wide, half] = [&small_buckets(), &narrow].map(|settings| reductions_of(kind, 2, settings));
        assert_eq!(wide, 2 * half, "{kind:?}");
    }
    let (ranks, rounding) = (5, 1.0 / 256.0);
    let (exact, sizes) = (gradients(KINDS[4], ranks, &small_buckets()), sizes(ranks));
    for kind in [KINDS[0], KINDS[4], KINDS[6]] {
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

/// Bytes that rank 0 moves to reduce the gradients of two micro-batches.
fn reductions_of(kind: (Kind, Form), ranks: usize, settings: &Settings) -> u64 {
    let config = two_shot();
    let moved = on_with(ranks, &config, |group| {
        let (inventory, memory, rank) = (plain_inventory(), Memory::default(), group.rank());
        let mut strategy = make(kind, &inventory, Some(group.clone()), settings, &memory).unwrap();
        let before = group.traffic().unwrap().bytes;
        for micro in 0..2 {
            strategy.begin(micro == 1).unwrap();
            pass(&mut *strategy, &inventory, rank, micro).unwrap();
        }
        strategy.finish().unwrap();
        group.traffic().unwrap().bytes - before
    });
    moved[0]
}

#[test]
fn reducing_each_micro_batch_sends_as_many_times_the_bytes() {
    let each = Settings { reduce_each: ReduceEach::MicroBatch, ..small_buckets() };
    let of = |settings: &Settings| reductions_of(KINDS[5], 3, settings);
    assert_eq!(of(&each), 2 * of(&small_buckets()));
    let count = small_buckets().layout(Kind::Zero2, &plain_inventory(), 3).count();
    assert_eq!(of(&small_buckets()), (4 * count * 2 / 3) as u64);
}

#[test]
fn weights_kept_after_forward_are_gathered_once() {
    let keep = Settings { reshard_after_forward: false, prefetch: 0, ..small_buckets() };
    let count = small_buckets().layout(Kind::Zero3, &plain_inventory(), 2).count();
    // Two micro-batches gather all weights once each, and one reduction follows.
    assert_eq!(reductions_of(KINDS[6], 2, &keep), (3 * 4 * count / 2) as u64);
}

#[test]
fn wide_gradients_lose_nothing_while_they_are_added_up() {
    let norm = |dtype, wide_gradients| {
        let settings = Settings { wide_gradients, wire: Some(Dtype::F32), ..small_buckets() };
        f64::from_bits(together(KINDS[5], 2, &settings, dtype, 4).0[0])
    };
    let exact = norm(Dtype::F32, false);
    let [wide, narrow] = [true, false].map(|wide| (norm(Dtype::Bf16, wide) / exact - 1.0).abs());
    assert!(wide < narrow, "{wide} {narrow}");
}

#[test]
fn what_is_frozen_is_not_sent_and_has_no_state() {
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
    for (kind, gathers) in [(KINDS[0], 0), (KINDS[2], 0), (KINDS[4], 0), (KINDS[5], 0), (KINDS[6], 3 + 2)] {
        let moved = on_with(2, &two_shot(), |group| {
            let (memory, rank) = (Memory::default(), group.rank());
            let settings = Settings { prefetch: 0, ..small_buckets() };
            let mut strategy = make(kind, &two_thirds, Some(group.clone()), &settings, &memory).unwrap();
            let before = group.traffic().unwrap().bytes;
            strategy.begin(true).unwrap();
            pass(&mut *strategy, &two_thirds, rank, 1).unwrap();
            strategy.finish().unwrap();
            strategy.update(&AdamW::default(), &Step { number: 1, rate: 0.01, factor: 1.0 }).unwrap();
            strategy.settle().unwrap();
            (group.traffic().unwrap().bytes - before, memory.usage(Class::Optimiser).now)
        });
        let (one, shares) = (4 * 64 * 60, if kind.0 == Kind::Replicated { 1 } else { 2 });
        let sent = if kind.0 == Kind::Zero3 { gathers + 1 } else { 2 };
        assert_eq!(moved[0], ((sent * one / 2) as u64, 2 * one / shares), "{kind:?}");
    }
    let error = |patterns: &[&str]| frozen(patterns).unwrap_err().to_string();
    assert!(error(&["h.0", "h3"]).contains("`h3`; near are `h`, `h.0`, `h.1`"), "{}", error(&["h3"]));
    assert!(error(&["h.*"]).contains("nothing is left to train"));
}
