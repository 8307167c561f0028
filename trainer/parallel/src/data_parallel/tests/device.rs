//! Tests of strategies with flat buffers in GPU memory, on the software device.

use super::*;
use std::time::{Duration, Instant};
use unisono_nn::device::Device;
use unisono_nn::testing::gpu;

/// Returns an allocator for flat buffers on the GPU for tests.
fn memory() -> Allocator {
    let memory = Allocator::default();
    let device = Device::new(&gpu(), &memory).expect("a stream");
    memory.with_lane(device.compute())
}

/// Asserts that norms, weights and moments equal those of the host within `tolerance`.
fn assert_matches_host(kind: ParallelKind, ranks: usize, settings: &Settings, dtype: Dtype, tolerance: f64) {
    let (norms, expected) = train_on_ranks(kind, ranks, settings, dtype, 2);
    let by_rank = run_ranks(ranks, |group| train_in(&memory(), kind, Some(group), settings, dtype, 2));
    let (of_ranks, found): (Vec<_>, Vec<_>) = by_rank.into_iter().unzip();
    assert!(of_ranks.iter().all(|norms| norms == &of_ranks[0]), "{kind:?}: ranks differ");
    let expect = |what: &str, found: f64, host: f64| {
        let is_near = (found - host).abs() <= tolerance * host.abs().max(0.1);
        assert!(is_near, "{kind:?}, {dtype:?}, {what}: {found}, not {host}");
    };
    for (found, host) in of_ranks[0].iter().zip(norms) {
        expect("norm", f64::from_bits(*found), f64::from_bits(host));
    }
    for (place, found) in testing::merge_shards(found) {
        assert_eq!(found.len(), expected[&place].len(), "{kind:?}: moments at {place:?}");
        for (found, host) in found.iter().zip(&expected[&place]) {
            expect(&format!("{place:?}"), f32::from_bits(*found).into(), f32::from_bits(*host).into());
        }
    }
}

#[test]
fn device_norm_has_twelve_exact_digits() {
    for kind in ParallelKind::ALL {
        let steps_in = |memory: fn() -> Allocator| {
            let norms = run_ranks(2, |group| {
                train_in(&memory(), kind, Some(group), &small_buckets(), Dtype::F32, 1).0
            });
            f64::from_bits(norms[0][0])
        };
        let (found, exact) = (steps_in(memory), steps_in(Allocator::default));
        assert!((found / exact - 1.0).abs() < 1e-12, "{kind:?}: {found}, not {exact}");
    }
}

#[test]
fn device_strategies_match_host() {
    for kind in ParallelKind::ALL {
        assert_matches_host(kind, 2, &small_buckets(), Dtype::F32, 1e-4);
    }
    assert_matches_host(ParallelKind::ALL[0], 1, &small_buckets(), Dtype::F32, 1e-4);
    assert_matches_host(ParallelKind::ALL[2], 3, &small_buckets(), Dtype::F32, 1e-4);
    for kind in [ParallelKind::ALL[1], ParallelKind::ALL[3]] {
        assert_matches_host(kind, 4, &Settings { shard_ranks: 2, ..small_buckets() }, Dtype::F32, 1e-4);
    }
}

#[test]
fn device_strategies_match_host_in_bf16() {
    for (kind, dtype, wire, average) in [
        (ParallelKind::ALL[0], Dtype::F32, Some(Dtype::Bf16), Average::After),
        (ParallelKind::ALL[1], Dtype::F32, Some(Dtype::Bf16), Average::InReduction),
        (ParallelKind::ALL[2], Dtype::Bf16, None, Average::After),
        (ParallelKind::ALL[3], Dtype::Bf16, Some(Dtype::F32), Average::InReduction),
    ] {
        assert_matches_host(kind, 2, &Settings { wire_dtype: wire, average, ..small_buckets() }, dtype, 2e-2);
    }
}

#[test]
fn device_strategies_match_host_with_matrix_optimizer() {
    let rows = Settings { shard_by_rows: true, ..small_buckets() };
    for kind in [ParallelKind::ALL[0], ParallelKind::ALL[1], ParallelKind::ALL[2]] {
        assert_matches_host(kind, 2, &rows, Dtype::F32, 1e-3);
    }
    let each = Settings { reduce_each: ReduceFrequency::MicroBatch, shard_by_rows: true, ..small_buckets() };
    assert_matches_host(ParallelKind::ALL[3], 2, &each, Dtype::F32, 1e-3);
}

/// Returns the bytes of weights and gradients on ranks after backward.
fn memory_held(kind: ParallelKind, memory: impl Fn() -> Allocator + Sync) -> Vec<[usize; 2]> {
    run_ranks(2, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), memory(), group.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(group), &small_buckets(), &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        run_pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish_backward().unwrap();
        [AllocClass::Weights, AllocClass::Gradients].map(|class| memory.usage(class).current)
    })
}

#[test]
fn device_memory_matches_host() {
    for kind in ParallelKind::ALL {
        assert_eq!(memory_held(kind, memory), memory_held(kind, Allocator::default), "{kind:?}");
    }
}

#[test]
fn absent_rank_times_out_on_device() {
    let limit = Duration::from_millis(400);
    let gpu = Config::default().gpu.with_timeout(limit);
    let config = Config::default().with_timeout(limit).with_gpu(gpu);
    let errors = run_ranks_with(2, &config, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), memory(), group.rank());
        let mut strategy =
            new_strategy(ParallelKind::ALL[0], &inventory, Some(group.clone()), &small_buckets(), &memory)
                .unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            return String::new();
        }
        let norm = run_pass(&mut *strategy, &inventory, rank, 1)
            .and_then(|()| strategy.finish_backward())
            .and_then(|()| strategy.grad_norm());
        norm.expect_err("nobody to exchange gradients with").to_string()
    });
    assert!(errors[0].contains("rank 0") && errors[0].contains("rank 1"), "{}", errors[0]);
}

/// Returns the time that `body` takes on rank 0, while rank 1 starts 300 ms later.
fn alone(kind: ParallelKind, body: impl Fn(&mut dyn DataParallel) -> Result<()> + Sync) -> Duration {
    let times = run_ranks(2, |group| {
        let settings = Settings { max_pending_reductions: 1, ..small_buckets() };
        let (inventory, memory) = (inventory(Dtype::F32), memory());
        let mut strategy = new_strategy(kind, &inventory, Some(group.clone()), &settings, &memory).unwrap();
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        group.barrier().unwrap();
        std::thread::sleep(Duration::from_millis(300 * group.rank() as u64));
        let start = Instant::now();
        body(&mut *strategy).unwrap();
        let time = start.elapsed();
        strategy.finish_backward().unwrap();
        time
    });
    times[0]
}

#[test]
fn host_does_not_run_ahead_of_pending_limit() {
    let least = Duration::from_millis(250);
    assert!(alone(ParallelKind::ALL[3], |strategy| strategy.pre_unit(UnitId(0), Direction::Forward)) > least);
    let inventory = inventory(Dtype::F32);
    let trained = (1..inventory.parameters.len()).map(ParameterId).filter(|&id| inventory[id].trainable);
    let trained: Vec<_> = trained.rev().collect();
    let backward =
        |strategy: &mut dyn DataParallel| trained.iter().try_for_each(|&id| strategy.grad_ready(id));
    assert!(alone(ParallelKind::ALL[2], backward) > least, "of two buckets one may be under way");
}

#[test]
fn host_only_options_are_rejected_on_device() {
    let settings = Settings { offload: Some("/tmp".into()), ..Settings::default() };
    let error = new_strategy(ParallelKind::ALL[2], &inventory(Dtype::F32), None, &settings, &memory())
        .err()
        .expect("refused");
    assert_eq!(
        error.to_string(),
        "optimizer state on disk, with flat memory of a GPU: not part of this build"
    );
}
