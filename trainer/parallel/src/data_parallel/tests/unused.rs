//! Tests of ranks that use different parameters in a step.

use super::*;
use crate::data_parallel::tests::mixed::{MIXES, mixed};
use crate::testing::gradient_at;

/// Treatment of a parameter that a rank does not use.
#[derive(Clone, Copy, PartialEq)]
enum Unused {
    /// Its gradient never comes.
    IsAbsent,
    /// A gradient of zero comes.
    IsZero,
}

/// Returns true if a rank uses a parameter in this micro-batch.
fn is_used(id: ParameterId, rank: usize, moment: u64) -> bool {
    !(id.0 as u64 + 2 * rank as u64 + moment).is_multiple_of(3)
}

/// Runs backward of one micro-batch. Each rank uses other parameters.
fn backward_in_part(
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
    unused: Unused,
    rank: usize,
    moment: u64,
) -> Result<()> {
    for unit in (0..inventory.units.len()).rev().map(UnitId) {
        strategy.pre_unit(unit, Direction::Backward)?;
        for id in inventory.parameters_of(unit).rev().filter(|&id| inventory[id].trainable) {
            let is_used = is_used(id, rank, moment);
            if is_used && let Some((weights, gradient)) = strategy.weights_and_gradient(id) {
                for (place, (weight, sum)) in weights.iter().zip(gradient).enumerate() {
                    *sum += gradient_at(*weight, rank, moment, place);
                }
            }
            if is_used || unused == Unused::IsZero {
                strategy.grad_ready(id)?;
            }
        }
        strategy.post_unit(unit, Direction::Backward)?;
    }
    Ok(())
}

/// Takes two steps of two micro-batches in which each rank uses other parameters.
fn take_partial_steps(
    mut strategy: Box<dyn DataParallel>,
    inventory: &Inventory,
    unused: Unused,
    rank: usize,
) -> Bits {
    let mut norms = Vec::new();
    for number in 1..=2 {
        strategy.begin_step(&plan(inventory, 2)).unwrap();
        for part in 0..2 {
            forward(&mut *strategy, inventory).unwrap();
            backward_in_part(&mut *strategy, inventory, unused, rank, 10 * number + part).unwrap();
        }
        strategy.finish_backward().unwrap();
        norms.push(strategy.grad_norm().unwrap().to_bits());
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 0.01, grad_scale: 1.0 }).unwrap();
    }
    (norms, collect_shards(&mut *strategy, inventory))
}

/// Returns the state of all ranks after steps with the strategy that `create` makes.
fn train_partly(
    create: impl Fn(&Arc<Inventory>, Communicator) -> Box<dyn DataParallel> + Sync,
    dtype: Dtype,
    unused: Unused,
) -> Bits {
    // Ranks that wait for each other fail early.
    let config = Config::default().with_timeout(std::time::Duration::from_secs(10));
    let config = config.with_reduction_order(ReductionOrder::RankOrder);
    merged(run_ranks_with(3, &config, |group| {
        let (inventory, rank) = (inventory(dtype), group.rank());
        take_partial_steps(create(&inventory, group), &inventory, unused, rank)
    }))
}

#[test]
fn unused_parameters_of_some_ranks_have_zero_gradients() {
    let single = Settings { max_pending_reductions: 1, max_pending_gathers: 1, ..small_buckets() };
    let each = Settings { reduce_each: ReduceFrequency::MicroBatch, ..single.clone() };
    let wide = Settings { fp32_grad_accum: true, ..single.clone() };
    for (settings, dtype) in [(&single, Dtype::F32), (&each, Dtype::F32), (&wide, Dtype::Bf16)] {
        let alone = |kind| {
            move |inventory: &Arc<Inventory>, group| {
                new_strategy(kind, inventory, Some(group), settings, &Allocator::default()).unwrap()
            }
        };
        let reference = train_partly(alone(ParallelKind::ALL[2]), dtype, Unused::IsZero);
        for kind in ParallelKind::ALL {
            // Replicated strategies reduce once a step, so that sums of each micro-batch differ.
            let expected = train_partly(alone(kind), dtype, Unused::IsZero);
            assert!(train_partly(alone(kind), dtype, Unused::IsAbsent) == expected, "{kind:?}, {settings:?}");
        }
        for mix in MIXES {
            let create = |inventory: &Arc<Inventory>, group| {
                mixed(mix, inventory, Some(group), settings, &Allocator::default())
            };
            let found = train_partly(create, dtype, Unused::IsAbsent);
            assert!(settings == &each || found == reference, "{mix:?}, {settings:?}");
        }
    }
}
