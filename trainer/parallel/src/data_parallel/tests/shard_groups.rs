//! Tests of state that neighboring ranks divide, with replicas in other groups.

use super::*;
use crate::bucket::Layout;
use crate::data_parallel::GroupBytes;
use crate::data_parallel::ParallelKind;
use crate::data_parallel::tests::mixed::{MIXES, train_mixed};

/// Kinds that divide state, with their names in configurations.
const SHARDING: [(ParallelKind, ParallelKind); 3] = [
    (ParallelKind::Zero1, ParallelKind::Zero1),
    (ParallelKind::Zero2, ParallelKind::Zero2),
    (ParallelKind::Zero3, ParallelKind::Zero3),
];

/// Returns settings with which `shard_ranks` neighbors divide state.
fn groups_of(shard_ranks: usize) -> Settings {
    Settings { shard_ranks, ..small_buckets() }
}

/// Asserts that norms, weights and moments are equal up to rounding.
fn assert_near(what: &str, found: &Bits, reference: &Bits) {
    for (found, reference) in found.0.iter().zip(&reference.0) {
        let [found, reference] = [found, reference].map(|&bits| f64::from_bits(bits));
        assert!((found / reference - 1.0).abs() < 1e-5, "{what}: norm {found}, not {reference}");
    }
    assert_eq!(found.1.len(), reference.1.len(), "{what}");
    for (place, bits) in &found.1 {
        for (found, reference) in bits.iter().zip(&reference.1[place]) {
            let [found, reference] = [found, reference].map(|&bits| f32::from_bits(bits));
            let is_near = (found - reference).abs() <= 1e-3 * reference.abs().max(1.0);
            assert!(is_near, "{what}, {place:?}: {found}, not {reference}");
        }
    }
}

#[test]
fn zero_stages_in_groups_are_bitwise_equal() {
    for (ranks, shard_ranks) in [(4, 2), (6, 3), (6, 2)] {
        let settings = groups_of(shard_ranks);
        let [first, second, third] =
            SHARDING.map(|(kind, _)| train_on_ranks(kind, ranks, &settings, Dtype::F32, 2));
        assert!(second == first && third == first, "{ranks} ranks in groups of {shard_ranks}");
        let replicated = train_on_ranks(ParallelKind::ALL[0], ranks, &small_buckets(), Dtype::F32, 2);
        assert_near(&format!("{ranks} ranks in groups of {shard_ranks}"), &first, &replicated);
    }
}

#[test]
fn one_group_and_groups_of_one_rank_equal_replicas() {
    let reference = train_on_ranks(ParallelKind::ALL[0], 4, &small_buckets(), Dtype::F32, 1);
    for (kind, _) in SHARDING {
        for shard_ranks in [1, 4] {
            let found = train_on_ranks(kind, 4, &groups_of(shard_ranks), Dtype::F32, 1);
            assert!(found == reference, "{kind:?} in groups of {shard_ranks}");
        }
    }
}

#[test]
fn zero_stages_in_groups_are_bitwise_equal_with_every_option() {
    let options = [
        (Settings { wire_dtype: Some(Dtype::Bf16), ..groups_of(2) }, Dtype::F32),
        (Settings { average: Average::After, prefetch: 3, ..groups_of(2) }, Dtype::Bf16),
        (Settings { shard_by_rows: true, ..groups_of(2) }, Dtype::F32),
        (Settings { moment_dtype: Dtype::Bf16, fp32_grad_accum: true, ..groups_of(2) }, Dtype::Bf16),
    ];
    for (settings, dtype) in options {
        let [first, second, third] = SHARDING.map(|(kind, _)| train_on_ranks(kind, 4, &settings, dtype, 2));
        assert!(second == first && third == first, "{settings:?}");
    }
}

#[test]
fn groups_that_reduce_each_micro_batch_nearly_match_replicas() {
    let reference = train_on_ranks(ParallelKind::ALL[0], 4, &small_buckets(), Dtype::F32, 3);
    let each = Settings { reduce_each: ReduceFrequency::MicroBatch, ..groups_of(2) };
    for kind in [ParallelKind::Zero2, ParallelKind::Zero3] {
        let found = train_on_ranks(kind, 4, &each, Dtype::F32, 3);
        assert_near(&format!("{kind:?}"), &found, &reference);
    }
}

#[test]
fn mixed_strategies_in_groups_nearly_match_replicas() {
    let reference = train_on_ranks(ParallelKind::ALL[0], 4, &small_buckets(), Dtype::F32, 2);
    for mix in MIXES {
        let found = train_mixed(mix, 4, &groups_of(2), Dtype::F32, 2);
        assert_near(&format!("{mix:?}"), &found, &reference);
    }
}

/// Returns the bytes of weights, gradients and optimizer state of each rank after backward.
fn memory_of(kind: ParallelKind, ranks: usize, settings: &Settings) -> Vec<[usize; 3]> {
    run_ranks(ranks, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), Allocator::default(), group.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(group), settings, &memory).unwrap();
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
    })
}

#[test]
fn ranks_keep_the_shards_of_their_group() {
    let (ranks, settings) = (4, groups_of(2));
    let trained = |layout: &Layout| -> usize {
        layout.buckets.iter().filter(|bucket| bucket.trainable).map(|bucket| bucket.count).sum()
    };
    for (kind, name) in SHARDING {
        let layout = settings.layout(kind, &inventory(Dtype::F32), settings.shard_ranks);
        let sizes = [4 * layout.count(), 4 * trained(&layout), 8 * trained(&layout)];
        let group = GroupBytes { state: sizes.map(|size| size as f64), ..GroupBytes::default() };
        let expected = group.kept(name, settings.shard_ranks).map(|bytes| bytes as usize);
        assert_eq!(memory_of(kind, ranks, &settings), vec![expected; ranks], "{kind:?}");
    }
}

/// Returns the bytes that each rank sends within its group and to other groups, in forward,
/// backward and after the step.
fn phases_of(kind: ParallelKind, ranks: usize, settings: &Settings) -> Vec<[[u64; 2]; 3]> {
    run_ranks_with(ranks, &two_shot(), |group| {
        let (inventory, memory, rank) = (plain_inventory(), Allocator::default(), group.rank());
        let team = ProcessGroups::data_only(Some(group));
        let mut strategy = ShardedStrategy::new(kind, &inventory, team, settings, &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        let begun = strategy.bytes_sent();
        forward(&mut strategy, &inventory).unwrap();
        let turned = strategy.bytes_sent();
        backward(&mut strategy, &inventory, 1.0, rank, 1).unwrap();
        strategy.finish_backward().unwrap();
        let reduced = strategy.bytes_sent();
        let step = Step { number: 1, lr: 0.01, grad_scale: 1.0 };
        strategy.optimizer_step(&AdamW::default(), &step).unwrap();
        strategy.wait_all().unwrap();
        let stepped = strategy.bytes_sent();
        let sent = |later: [u64; 2], earlier: [u64; 2]| [0, 1].map(|place| later[place] - earlier[place]);
        [sent(turned, begun), sent(reduced, turned), sent(stepped, reduced)]
    })
}

#[test]
fn each_phase_sends_the_bytes_of_its_groups() {
    let (ranks, settings) = (4, Settings { prefetch: 0, ..groups_of(2) });
    let groups = ShardGroups::new(settings.shard_ranks, ranks);
    for (kind, name) in SHARDING {
        let layout = settings.layout(kind, &plain_inventory(), groups.shards);
        let total = 4.0 * layout.count() as f64;
        // The last unit's weights stay from forward to backward.
        let regathered = total - 4.0 * layout.buckets[0].count as f64;
        let bytes = GroupBytes {
            gathered: [total, regathered],
            reduced: total,
            stepped: total,
            ..GroupBytes::default()
        };
        let [forward, backward, stepped] = bytes.sent(name, groups.shards);
        let expected = [[forward, 0.0], [backward, bytes.sent_between(groups)], [stepped, 0.0]];
        for found in phases_of(kind, ranks, &settings) {
            assert_eq!(found.map(|phase| phase.map(|bytes| bytes as f64)), expected, "{kind:?}");
        }
    }
}

#[test]
fn data_ranks_are_divided_into_equal_groups() {
    assert_eq!(ShardGroups::new(0, 6), ShardGroups { shards: 6, groups: 1 });
    assert_eq!(ShardGroups::new(2, 6), ShardGroups { shards: 2, groups: 3 });
    assert_eq!(ShardGroups::new(8, 1), ShardGroups { shards: 1, groups: 1 });
    // If 8 neighbors have 4 different experts, 2 have the same.
    let of_experts = |shard_ranks, expert| groups_of(shard_ranks).for_experts(expert).shard_ranks;
    assert_eq!([of_experts(8, 4), of_experts(4, 4), of_experts(2, 4), of_experts(0, 4)], [2, 1, 1, 0]);
    let errors = run_ranks(4, |group| {
        let (inventory, memory) = (plain_inventory(), Allocator::default());
        let refused =
            new_strategy(ParallelKind::Zero2, &inventory, Some(group), &groups_of(3), &memory).err();
        refused.expect("unequal groups").to_string()
    });
    assert_eq!(errors[0], "shard_ranks = 3 does not divide 4 data ranks");
}
