//! Memory and traffic of every strategy equal their formulas: what is kept, the peaks, and the
//! bytes of each phase of a step.

use super::*;
use crate::data_parallel::GroupBytes;
use crate::data_parallel::ParallelKind;

/// Bytes of weights, gradients and optimizer state, and of conversion buffers.
const CLASSES: [AllocClass; 4] =
    [AllocClass::Weights, AllocClass::Gradients, AllocClass::Optimizer, AllocClass::Buffers];

/// Memory of one rank after backward of the third step.
#[derive(Debug, PartialEq)]
struct Measured {
    kept: [usize; 4],
    /// Peaks of the third step.
    peaks: [usize; 4],
}

/// Returns the memory of rank 0.
fn memory_of(kind: ParallelKind, ranks: usize, inventory: &Arc<Inventory>) -> Measured {
    let measure = |group: Communicator| {
        let (memory, rank) = (Allocator::default(), group.rank());
        let mut strategy = new_strategy(kind, inventory, Some(group), &small_buckets(), &memory).unwrap();
        let step = Step { number: 1, lr: 0.01, grad_scale: 1.0 };
        for _ in 0..2 {
            strategy.begin_step(&plan(inventory, 1)).unwrap();
            run_pass(&mut *strategy, inventory, rank, 1).unwrap();
            strategy.finish_backward().unwrap();
            strategy.optimizer_step(&AdamW::default(), &step).unwrap();
        }
        strategy.wait_all().unwrap();
        memory.reset_peaks();
        strategy.begin_step(&plan(inventory, 1)).unwrap();
        run_pass(&mut *strategy, inventory, rank, 1).unwrap();
        strategy.finish_backward().unwrap();
        let kept = CLASSES.map(|class| memory.usage(class).current);
        strategy.optimizer_step(&AdamW::default(), &step).unwrap();
        strategy.wait_all().unwrap();
        Measured { kept, peaks: CLASSES.map(|class| memory.usage(class).peak) }
    };
    run_ranks(ranks, measure).swap_remove(0)
}

/// Returns the elements of all buckets, of those with gradients, and of the largest one.
fn elements(kind: ParallelKind, inventory: &Inventory, ranks: usize) -> [usize; 3] {
    let layout = small_buckets().layout(kind, inventory, ranks);
    let trained = layout.buckets.iter().filter(|bucket| bucket.trainable).map(|bucket| bucket.count).sum();
    let largest = layout.buckets.iter().map(|bucket| bucket.count).max().unwrap();
    [layout.count(), trained, largest]
}

#[test]
fn memory_matches_formula() {
    let (inventory, ranks) = (inventory(Dtype::F32), 4);
    let sizes_of = |kind| (elements(kind, &inventory, ranks), memory_of(kind, ranks, &inventory));
    // Replicated, and ZeRO-1: gradients exist once, in the buckets that are sent.
    for kind in ParallelKind::ALL {
        let ([total, trained, _], found) = sizes_of(kind);
        let state = match kind {
            ParallelKind::Replicated => 8 * trained,
            ParallelKind::Zero1 => 8 * trained / ranks,
            _ => continue,
        };
        let expected = [4 * total, 4 * trained, state, 0];
        assert_eq!(found, Measured { kept: expected, peaks: expected }, "{kind:?}");
    }
}

#[test]
fn sharded_gradients_and_weights_match_formula() {
    let (inventory, ranks) = (inventory(Dtype::F32), 4);
    let sizes_of = |kind| (elements(kind, &inventory, ranks), memory_of(kind, ranks, &inventory));
    let ([total, trained, largest], found) = sizes_of(ParallelKind::ALL[2]);
    assert_eq!(found.kept, [4 * total, 4 * trained / ranks, 8 * trained / ranks, 0]);
    assert_eq!((found.peaks[0], found.peaks[2], found.peaks[3]), (4 * total, 8 * trained / ranks, 0));
    // The shards, one bucket that fills, and those under way.
    let under_way = Settings::default().max_pending_reductions;
    let most = 4 * trained / ranks + 4 * (under_way + 1) * largest;
    assert!((found.kept[1] + 1..=most).contains(&found.peaks[1]), "{found:?}, at most {most}");
    let ([total, trained, largest], found) = sizes_of(ParallelKind::ALL[3]);
    assert_eq!(found.kept, [4 * total / ranks, 4 * trained / ranks, 8 * trained / ranks, 0]);
    let most = 4 * trained / ranks + 4 * (under_way + 1) * largest;
    assert!((found.kept[1] + 1..=most).contains(&found.peaks[1]), "{found:?}, at most {most}");
}

#[test]
fn gathered_weights_are_the_unit_in_use_and_the_next() {
    let (inventory, ranks) = (plain_inventory(), 4);
    let layout = small_buckets().layout(ParallelKind::Zero3, &inventory, ranks);
    // The last two units are the largest two in a row.
    let two: usize = layout.buckets.iter().take(2).map(|bucket| bucket.count).sum();
    let found = memory_of(ParallelKind::ALL[3], ranks, &inventory);
    assert_eq!(found.peaks[0], 4 * layout.count() / ranks + 4 * two);
}

/// Returns the bytes that each rank sends in forward, backward and after the step.
fn phases_of(kind: ParallelKind, ranks: usize, settings: &Settings) -> Vec<[u64; 3]> {
    let measure = |group: Communicator| {
        let (inventory, memory, rank) = (plain_inventory(), Allocator::default(), group.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(group.clone()), settings, &memory).unwrap();
        let sent = || group.traffic_stats().unwrap().bytes;
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        let begun = sent();
        forward(&mut *strategy, &inventory).unwrap();
        let turned = sent();
        backward(&mut *strategy, &inventory, 1.0, rank, 1).unwrap();
        strategy.finish_backward().unwrap();
        let reduced = sent();
        strategy.optimizer_step(&AdamW::default(), &Step { number: 1, lr: 0.01, grad_scale: 1.0 }).unwrap();
        strategy.wait_all().unwrap();
        [turned - begun, reduced - turned, sent() - reduced]
    };
    run_ranks_with(ranks, &two_shot(), measure)
}

#[test]
fn each_phase_sends_the_bytes_of_the_formula() {
    let names = [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3];
    for ranks in [2, 3, 5] {
        for (kind, name) in ParallelKind::ALL.into_iter().zip(names) {
            // Without prefetching, no gather for backward is sent in forward.
            let settings = Settings { prefetch: 0, ..small_buckets() };
            let layout = settings.layout(kind, &plain_inventory(), ranks);
            let total = 4.0 * layout.count() as f64;
            // The last unit's weights stay from forward to backward.
            let regathered = total - 4.0 * layout.buckets[0].count as f64;
            let group = GroupBytes {
                gathered: [total, regathered],
                reduced: total,
                stepped: total,
                ..GroupBytes::default()
            };
            let expected = group.sent(name, ranks);
            for found in phases_of(kind, ranks, &settings) {
                for (phase, (sent, expected)) in found.into_iter().zip(expected).enumerate() {
                    // An all_reduce splits its buffer into one chunk per rank. Their lengths may
                    // differ by some elements.
                    let exactly = kind != ParallelKind::Replicated || ranks == 2;
                    let tolerance = if exactly { 1e-12 } else { 1e-3 };
                    let apart = (sent as f64 - expected).abs();
                    let what = format!("{kind:?}, {ranks} ranks, phase {phase}");
                    assert!(apart <= tolerance * expected, "{what}: {sent}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn phases_by_hand() {
    // Ψ of 64 · 60 · (1 + 2 + 3 + 4) parameters in 4 bytes, of which two ranks send a half each.
    let psi = 64 * 60 * 10 * 4 / 2;
    let last = 64 * 60 * 4 * 4 / 2;
    let size_of = |index: usize| {
        let settings = Settings { prefetch: 0, ..small_buckets() };
        phases_of(ParallelKind::ALL[index], 2, &settings)[0]
    };
    assert_eq!(size_of(0), [0, 2 * psi, 0], "replicated");
    assert_eq!(size_of(1), [0, psi, psi], "ZeRO-1");
    assert_eq!(size_of(2), [0, psi, psi], "ZeRO-2");
    assert_eq!(size_of(3), [psi, 2 * psi - last, 0], "ZeRO-3");
}

/// Returns the bytes that each rank sends in one step with two micro-batches.
fn traffic_of(kind: ParallelKind, ranks: usize) -> Vec<u64> {
    let config = two_shot();
    let measure = |group: Communicator| {
        let (inventory, memory, rank) = (plain_inventory(), Allocator::default(), group.rank());
        let mut strategy =
            new_strategy(kind, &inventory, Some(group.clone()), &small_buckets(), &memory).unwrap();
        let bytes_before = group.traffic_stats().unwrap().bytes;
        strategy.begin_step(&plan(&inventory, 2)).unwrap();
        for micro in 0..2 {
            run_pass(&mut *strategy, &inventory, rank, micro).unwrap();
        }
        strategy.finish_backward().unwrap();
        strategy.optimizer_step(&AdamW::default(), &Step { number: 1, lr: 0.01, grad_scale: 1.0 }).unwrap();
        strategy.wait_all().unwrap();
        group.traffic_stats().unwrap().bytes - bytes_before
    };
    run_ranks_with(ranks, &config, measure)
}

#[test]
fn traffic_matches_formula() {
    for ranks in [2, 3, 5] {
        let inventory = plain_inventory();
        let count = |kind| small_buckets().layout(kind, &inventory, ranks).count();
        let unit = |layer: usize| (64 * layer * 60).next_multiple_of(32 * ranks);
        for kind in ParallelKind::ALL {
            let gathered = match kind {
                // Both micro-batches gather in forward and backward. The last unit stays in
                // between, and the first one between the micro-batches.
                ParallelKind::Zero3 => 5 * count(ParallelKind::Zero3) - 2 * unit(4) - unit(1),
                kind => 2 * count(kind),
            };
            let moved = traffic_of(kind, ranks);
            // An all_reduce splits its buffer into one chunk per rank. Their lengths may differ by
            // some elements.
            let expected = (4 * gathered * (ranks - 1) / ranks) as f64;
            for bytes in moved {
                let exactly = kind != ParallelKind::Replicated || ranks == 2;
                let error = (bytes as f64 / expected - 1.0).abs();
                assert!(
                    error < if exactly { 1e-12 } else { 1e-3 },
                    "{kind:?}, {ranks} ranks: {bytes}, not {expected}"
                );
            }
        }
    }
}
