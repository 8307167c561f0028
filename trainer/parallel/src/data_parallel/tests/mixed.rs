//! Tests of models whose units have different strategies.

use super::*;
use crate::bucket::Layout;

/// Kinds of the five units of [`inventory`], by their numbers in [`ParallelKind::ALL`]. The last
/// unit uses a parameter of the first one.
pub(super) const MIXES: [[usize; 5]; 5] =
    [[3, 0, 3, 0, 3], [0, 3, 2, 1, 0], [2, 0, 0, 0, 0], [0, 1, 0, 1, 3], [3, 2, 3, 2, 0]];

fn units(mix: [usize; 5]) -> Vec<ParallelKind> {
    mix.map(|number| ParallelKind::ALL[number]).to_vec()
}

pub(super) fn mixed(
    mix: [usize; 5],
    inventory: &Inventory,
    data: Option<Communicator>,
    settings: &Settings,
    memory: &Allocator,
) -> Box<dyn DataParallel> {
    let team = ProcessGroups::data_only(data);
    Box::new(Mixed::new(&units(mix), inventory, &team, settings, memory).unwrap())
}

/// Trains as [`train_on_ranks`] does.
pub(super) fn train_mixed(
    mix: [usize; 5],
    ranks: usize,
    settings: &Settings,
    dtype: Dtype,
    micro: u64,
) -> Bits {
    let by_rank = run_ranks(ranks, |group| {
        let (inventory, rank) = (inventory(dtype), group.rank());
        let strategy = mixed(mix, &inventory, Some(group), settings, &Allocator::default());
        take_steps(strategy, &inventory, rank, settings, micro)
    });
    merged(by_rank)
}

#[test]
fn mixed_strategies_are_bitwise_equal_to_one() {
    for ranks in [1, 2, 3, 4] {
        let reference = train_on_ranks(ParallelKind::ALL[0], ranks, &small_buckets(), Dtype::F32, 2);
        for mix in MIXES {
            let found = train_mixed(mix, ranks, &small_buckets(), Dtype::F32, 2);
            assert!(found == reference, "{mix:?} on {ranks} ranks");
        }
    }
}

#[test]
fn mixed_strategies_are_bitwise_equal_with_every_option() {
    let options = [
        (Settings { shard_by_rows: true, ..small_buckets() }, Dtype::F32),
        (
            Settings { prefetch: 3, max_pending_gathers: 5, average: Average::After, ..small_buckets() },
            Dtype::Bf16,
        ),
        (Settings { moment_dtype: Dtype::Bf16, fp32_grad_accum: true, ..small_buckets() }, Dtype::Bf16),
        (
            Settings { reshard_after_forward: false, unused: UnusedGradients::Refuse, ..small_buckets() },
            Dtype::F32,
        ),
    ];
    for (settings, dtype) in options {
        let reference = train_on_ranks(ParallelKind::ALL[2], 3, &settings, dtype, 2);
        for mix in [MIXES[0], MIXES[1]] {
            assert!(train_mixed(mix, 3, &settings, dtype, 2) == reference, "{mix:?}, {settings:?}");
        }
    }
}

#[test]
fn small_parameters_stay_whole_with_equal_bits() {
    // Biases of 4 and 37 elements and a gain, but no matrix.
    let settings = Settings { replicate_below: 38, ..small_buckets() };
    for ranks in [2, 3] {
        let reference = train_on_ranks(ParallelKind::ALL[0], ranks, &small_buckets(), Dtype::F32, 2);
        for (number, kind) in ParallelKind::ALL.iter().enumerate().skip(1) {
            let found = train_mixed([number; 5], ranks, &settings, Dtype::F32, 2);
            assert!(found == reference, "{kind:?} on {ranks} ranks");
        }
    }
    let kept = run_ranks(2, |group| {
        let (inventory, memory) = (inventory(Dtype::F32), Allocator::default());
        let mut strategy = mixed([3; 5], &inventory, Some(group), &settings, &memory);
        let mut kept_counts = vec![0; inventory.parameters.len()];
        let mut count = |kept: LocalShard<'_>| {
            kept_counts[kept.parameter.0] += kept.range.len();
            Ok(())
        };
        strategy.for_each_shard(&mut count).unwrap();
        let parameters = inventory.parameters.iter().zip(kept_counts);
        let replicated = parameters.filter(|(parameter, kept_count)| parameter.count() == *kept_count);
        replicated.map(|(parameter, _)| parameter.name.clone()).collect::<Vec<String>>()
    });
    for names in &kept {
        let is_small = |name: &&str| names.iter().any(|kept| kept == name);
        assert!(["h.0.gain", "h.2.bias", "head.bias"].iter().all(is_small), "{names:?}");
    }
    assert!(kept.iter().all(|names| !names.contains(&"h.1.matrix".to_owned())), "{kept:?}");
}

#[test]
fn mixed_strategy_needs_no_communicator() {
    let (inventory, settings) = (inventory(Dtype::F32), small_buckets());
    let strategy = mixed(MIXES[1], &inventory, None, &settings, &Allocator::default());
    let alone = take_steps(strategy, &inventory, 0, &settings, 2);
    assert!(alone == train_on_ranks(ParallelKind::ALL[0], 1, &settings, Dtype::F32, 2));
}

/// Returns the layouts of the parts of a mix.
fn layouts(mix: [usize; 5], inventory: &Inventory, ranks: usize) -> Vec<(ParallelKind, Layout)> {
    let mut kinds = mix.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    let part = |number: usize| {
        let part_inventory = inventory.restrict(|id| mix[inventory.unit_of(id).0] == number);
        let kind = ParallelKind::ALL[number];
        (kind, small_buckets().layout(kind, &part_inventory, ranks))
    };
    kinds.into_iter().map(part).collect()
}

#[test]
fn mixed_strategy_keeps_the_memory_of_its_parts() {
    let (ranks, mix) = (2, [2, 0, 3, 0, 3]);
    let held = run_ranks(ranks, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), Allocator::default(), group.rank());
        let mut strategy = mixed(mix, &inventory, Some(group), &small_buckets(), &memory);
        for number in 1..=2 {
            strategy.begin_step(&plan(&inventory, 1)).unwrap();
            run_pass(&mut *strategy, &inventory, rank, number).unwrap();
            strategy.finish_backward().unwrap();
            if number == 1 {
                let step = Step { number, lr: 0.01, grad_scale: 1.0 };
                strategy.optimizer_step(&AdamW::default(), &step).unwrap();
            }
        }
        [AllocClass::Weights, AllocClass::Gradients, AllocClass::Optimizer]
            .map(|class| memory.usage(class).current)
    });
    let mut expected = [0; 3];
    let trained = |layout: &Layout| -> usize {
        layout.buckets.iter().filter(|bucket| bucket.trainable).map(|bucket| bucket.count).sum()
    };
    for (kind, layout) in layouts(mix, &inventory(Dtype::F32), ranks) {
        let shares = match kind {
            ParallelKind::Replicated => [1, 1, 1],
            ParallelKind::Zero2 => [1, ranks, ranks],
            _ => [ranks; 3],
        };
        let sizes = [4 * layout.count(), 4 * trained(&layout), 8 * trained(&layout)];
        expected.iter_mut().zip(sizes).zip(shares).for_each(|((sum, size), share)| *sum += size / share);
    }
    assert_eq!(held, [expected; 2]);
}
