//! Tests of overlap: gradients during backward, weights ahead of their use, within limits.

use super::*;
use crate::bucket::{Layout, Packing};
use std::time::{Duration, Instant};

/// Returns six units of one parameter of 960 elements each.
fn equal_units() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for layer in 0..6 {
        registry
            .unit(&format!("h.{layer}"), |r| r.add(Parameter::new("weight", &[32, 30], Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

/// Returns the number of collectives by the time the last of six gradients is ready, and by the end
/// of the step.
fn collectives(bucket_bytes: usize) -> (u64, u64) {
    let counts = run_ranks(2, |group| {
        let (inventory, memory) = (equal_units(), Allocator::default());
        let settings = Settings { bucket_bytes, ..Settings::default() };
        let kind = ParallelKind::Replicated;
        let mut strategy = new_strategy(kind, &inventory, Some(group.clone()), &settings, &memory).unwrap();
        let operations = || group.traffic_stats().unwrap().operations;
        let operations_before = operations();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        let unit = UnitId(5);
        strategy.pre_unit(unit, Direction::Backward).unwrap();
        strategy.grad_ready(ParameterId(5)).unwrap();
        strategy.post_unit(unit, Direction::Backward).unwrap();
        // Reading the weights waits for collectives under way.
        let early = operations() - operations_before;
        for id in (0..5).rev() {
            strategy.pre_unit(UnitId(id), Direction::Backward).unwrap();
            strategy.grad_ready(ParameterId(id)).unwrap();
            strategy.post_unit(UnitId(id), Direction::Backward).unwrap();
        }
        strategy.finish_backward().unwrap();
        (early, operations() - operations_before)
    });
    assert_eq!(counts[0], counts[1]);
    counts[0]
}

#[test]
fn buckets_are_reduced_during_backward() {
    let parameter = 4 * 960;
    assert_eq!(collectives(parameter), (1, 6));
    assert_eq!(collectives(2 * parameter), (0, 3));
    assert_eq!(collectives(1 << 20), (0, 1));
}

/// A model of one's own accumulates micro-batches in the same way: only the last one is reduced.
#[test]
fn micro_batches_before_the_last_exchange_nothing() {
    for kind in [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero2] {
        let counts = run_ranks(2, |group| {
            let (inventory, memory, rank) = (equal_units(), Allocator::default(), group.rank());
            let settings = Settings { bucket_bytes: 1, ..Settings::default() };
            let mut strategy =
                new_strategy(kind, &inventory, Some(group.clone()), &settings, &memory).unwrap();
            let operations = || group.traffic_stats().unwrap().operations;
            let operations_before = operations();
            strategy.begin_step(&plan(&inventory, 3)).unwrap();
            let mut counts: Vec<u64> = Vec::new();
            for part in 0..3 {
                run_pass(&mut *strategy, &inventory, rank, part).unwrap();
                counts.push(operations() - operations_before);
            }
            strategy.finish_backward().unwrap();
            counts.push(operations() - operations_before);
            counts
        });
        // One collective for each of six buckets, which begins in the last backward pass.
        assert_eq!(counts, [[0, 0, 6, 6]; 2], "{kind:?}");
    }
}

/// Returns the number of whole units of weights on a rank during the use of each unit, forward and
/// backward, in addition to its shard.
fn units_held(settings: &Settings, is_slow: impl Fn(usize) -> bool + Sync) -> [Vec<usize>; 2] {
    let held = run_ranks(2, |group| {
        let (inventory, memory, rank) = (equal_units(), Allocator::default(), group.rank());
        let mut strategy =
            new_strategy(ParallelKind::Zero3, &inventory, Some(group), settings, &memory).unwrap();
        let share = memory.usage(AllocClass::Weights).current;
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        let mut visit = |unit: usize, way| {
            if is_slow(rank) {
                std::thread::sleep(Duration::from_millis(10));
            }
            strategy.pre_unit(UnitId(unit), way).unwrap();
            let held = (memory.usage(AllocClass::Weights).current - share) / (4 * 960);
            if way == Direction::Backward {
                strategy.grad_ready(ParameterId(unit)).unwrap();
            }
            strategy.post_unit(UnitId(unit), way).unwrap();
            held
        };
        let forward = (0..6).map(|unit| visit(unit, Direction::Forward)).collect();
        [forward, (0..6).rev().map(|unit| visit(unit, Direction::Backward)).collect()]
    });
    assert_eq!(held[0], held[1]);
    held.into_iter().next().unwrap()
}

fn prefetch_settings(prefetch: usize, gathers_max: usize) -> Settings {
    Settings { prefetch, max_pending_gathers: gathers_max, ..Settings::default() }
}

#[test]
fn next_units_are_prefetched() {
    let held = |prefetch| units_held(&prefetch_settings(prefetch, 9), |_| false);
    // The last unit stays from forward to backward, and backward begins with units that forward
    // ends with.
    assert_eq!(held(0), [[1; 6], [1; 6]]);
    assert_eq!(held(1), [[2; 6], [2, 2, 2, 2, 2, 1]]);
    // The unit after the last one in forward is at hand, and is not gathered for backward yet.
    assert_eq!(held(2), [[3, 3, 3, 3, 2, 3], [3, 3, 3, 3, 2, 1]]);
}

/// Returns the number of gathers begun by the time each unit is in use, forward and backward.
fn gathers_begun(prefetch: usize) -> [Vec<u64>; 2] {
    let begun = run_ranks(2, |group| {
        let (inventory, memory) = (equal_units(), Allocator::default());
        let kind = ParallelKind::Zero3;
        let settings = prefetch_settings(prefetch, 9);
        let mut strategy = new_strategy(kind, &inventory, Some(group.clone()), &settings, &memory).unwrap();
        let operations = || group.traffic_stats().unwrap().operations;
        let (operations_before, mut reductions) = (operations(), 0);
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        let mut visit = |unit: usize, way| {
            strategy.pre_unit(UnitId(unit), way).unwrap();
            // Reading the count waits for collectives under way.
            let begun = operations() - operations_before - reductions;
            if way == Direction::Backward {
                strategy.grad_ready(ParameterId(unit)).unwrap();
                reductions += 1;
            }
            strategy.post_unit(UnitId(unit), way).unwrap();
            begun
        };
        let forward = (0..6).map(|unit| visit(unit, Direction::Forward)).collect();
        [forward, (0..6).rev().map(|unit| visit(unit, Direction::Backward)).collect()]
    });
    assert_eq!(begun[0], begun[1]);
    begun.into_iter().next().unwrap()
}

#[test]
fn gathers_of_next_units_begin_before_their_use() {
    // Six gathers forward, and five backward: the last unit stays.
    assert_eq!(gathers_begun(0), [[1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 10, 11]]);
    assert_eq!(gathers_begun(1), [[2, 3, 4, 5, 6, 7], [7, 8, 9, 10, 11, 11]]);
    assert_eq!(gathers_begun(2), [[3, 4, 5, 6, 6, 8], [8, 9, 10, 11, 11, 11]]);
}

#[test]
fn pending_gathers_stay_within_limit() {
    for slow in [0, 1] {
        for limit in [1, 2, 3] {
            let held = units_held(&prefetch_settings(5, limit), |rank| rank == slow);
            // Forward gathers the first unit too; backward begins with a unit that is present.
            assert_eq!(held.map(|way| way.into_iter().max()), [Some(limit), Some(limit + 1)]);
        }
    }
}

#[test]
fn no_reshard_after_forward_trades_memory_for_gathers() {
    let kept = Settings { reshard_after_forward: false, ..prefetch_settings(1, 2) };
    let [forward, backward] = units_held(&kept, |_| false);
    assert_eq!((forward[5], backward[0]), (6, 6));
}

/// Returns the peak of gradients in bytes on a rank of ZeRO-2 during a step.
fn peak_gradients(reductions_max: usize) -> usize {
    let most = run_ranks(2, |group| {
        let (inventory, memory, rank) = (equal_units(), Allocator::default(), group.rank());
        let settings =
            Settings { bucket_bytes: 1, max_pending_reductions: reductions_max, ..Settings::default() };
        let mut strategy =
            new_strategy(ParallelKind::Zero2, &inventory, Some(group.clone()), &settings, &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        // Rank 0 reduces nothing before everything allowed was started.
        let gate = (rank == 0).then(|| {
            group.spawn(|_| {
                std::thread::sleep(Duration::from_millis(30));
                Ok(())
            })
        });
        run_pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish_backward().unwrap();
        gate.map_or(Ok(()), |gate| gate.wait()).unwrap();
        memory.usage(AllocClass::Gradients).peak
    });
    most[0].max(most[1])
}

#[test]
fn each_pending_reduction_costs_one_bucket() {
    let (bucket, shares) = (4 * 960, 6 * 4 * 960 / 2);
    for reductions_max in [1, 2, 3] {
        // Whole buckets under way, one bucket being filled, and shards.
        let most = peak_gradients(reductions_max);
        assert!(most <= shares + (reductions_max + 1) * bucket, "{reductions_max}: {most}");
    }
    assert!(peak_gradients(1) < peak_gradients(4));
    let peak_with = |reductions_max| {
        let settings = Settings { max_pending_reductions: reductions_max, ..small_buckets() };
        train_on_ranks(ParallelKind::ALL[2], 3, &settings, Dtype::F32, 1)
    };
    assert!(peak_with(1) == peak_with(2) && peak_with(2) == peak_with(3));
}

#[test]
fn zero3_initializes_within_shard_and_one_unit() {
    let peaks = run_ranks(4, |group| {
        let (inventory, memory) = (equal_units(), Allocator::default());
        new_strategy(ParallelKind::Zero3, &inventory, Some(group), &Settings::default(), &memory).unwrap();
        let layout = Layout::new(&inventory, 4, Packing::PerUnit);
        let share: usize = layout.buckets.iter().map(|bucket| bucket.count / 4).sum();
        (memory.usage(AllocClass::Weights).peak, 4 * share, 4 * layout.buckets[0].count)
    });
    for (peak, share, unit) in peaks {
        assert!(peak <= share + unit, "{peak} for a share of {share} and units of {unit}");
    }
}

/// Returns the time of the optimizer steps on the first of two ranks, and of the wait for the first
/// weights, when the other rank is late.
fn step_beside_a_late_rank(kind: ParallelKind, late: Duration) -> [Duration; 2] {
    let times = run_ranks(2, |group| {
        let (inventory, memory, rank) = (equal_units(), Allocator::default(), group.rank());
        let settings = Settings { bucket_bytes: 1, ..Settings::default() };
        let mut strategy = new_strategy(kind, &inventory, Some(group), &settings, &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        run_pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish_backward().unwrap();
        if rank == 1 {
            std::thread::sleep(late);
        }
        let begun = Instant::now();
        strategy.optimizer_step(&AdamW::default(), &Step { number: 1, lr: 0.01, grad_scale: 1.0 }).unwrap();
        let updated = begun.elapsed();
        strategy.pre_unit(UnitId(0), Direction::Forward).unwrap();
        [updated, begun.elapsed() - updated]
    });
    times[0]
}

#[test]
fn weights_are_sent_while_rank_is_busy() {
    let late = Duration::from_millis(500);
    for kind in [ParallelKind::Zero1, ParallelKind::Zero2] {
        let [updated, waited] = step_beside_a_late_rank(kind, late);
        assert!(updated < late / 2 && waited > late / 2, "{kind:?}: {updated:?}, then {waited:?}");
    }
}
