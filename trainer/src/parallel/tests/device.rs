//! Strategies whose flat memory a GPU has: the software device stands in for one.

use super::*;
use crate::device::Device;
use crate::flat::Store;
use crate::testing::gpu;
use std::time::{Duration, Instant};

/// Flat memory of the GPU that tests compute on.
fn memory() -> Memory {
    let memory = Memory::default();
    let device = Device::new(&gpu(), &memory).expect("a stream");
    memory.on(device.compute())
}

/// Adds to a gradient there what `slope` says of each place and weight.
pub(super) fn add(store: &mut Store, id: ParameterId, slope: impl Fn(usize, &f32) -> f32) -> Result<()> {
    let slopes: Vec<_> =
        store.copied_weights(id)?.iter().enumerate().map(|(at, weight)| slope(at, weight)).collect();
    let lane = Arc::clone(store.memory.lane().expect("on a GPU"));
    let slopes = lane.stream().upload(&slopes)?;
    let gradient = store.gradient_on(id)?;
    gradient.map_or(Ok(()), |gradient| Ok(lane.add(gradient, slopes.view(..), 1.0, 1.0)?))
}

/// That norms, weights and moments are those of the host, within `tolerance` of them.
fn agrees(kind: (Kind, Form), ranks: usize, settings: &Settings, dtype: Dtype, tolerance: f64) {
    let (norms, expected) = together(kind, ranks, settings, dtype, 2);
    let by_rank = on(ranks, |group| train_in(&memory(), kind, Some(group), settings, dtype, 2));
    let (of_ranks, found): (Vec<_>, Vec<_>) = by_rank.into_iter().unzip();
    assert!(of_ranks.iter().all(|norms| norms == &of_ranks[0]), "{kind:?}: ranks differ");
    let expect = |what: &str, found: f64, host: f64| {
        let near = (found - host).abs() <= tolerance * host.abs().max(0.1);
        assert!(near, "{kind:?}, {dtype:?}, {what}: {found}, not {host}");
    };
    for (found, host) in of_ranks[0].iter().zip(norms) {
        expect("norm", f64::from_bits(*found), f64::from_bits(host));
    }
    for (place, found) in testing::joined(found) {
        assert_eq!(found.len(), expected[&place].len(), "{kind:?}: moments at {place:?}");
        for (found, host) in found.iter().zip(&expected[&place]) {
            expect(&format!("{place:?}"), f32::from_bits(*found).into(), f32::from_bits(*host).into());
        }
    }
}

#[test]
fn norms_have_twelve_digits_of_the_exact_one() {
    for kind in KINDS {
        let of = |memory: fn() -> Memory| {
            let norms =
                on(2, |group| train_in(&memory(), kind, Some(group), &small_buckets(), Dtype::F32, 1).0);
            f64::from_bits(norms[0][0])
        };
        let (found, exact) = (of(memory), of(Memory::default));
        assert!((found / exact - 1.0).abs() < 1e-12, "{kind:?}: {found}, not {exact}");
    }
}

#[test]
fn all_strategies_take_the_steps_of_the_host() {
    for kind in KINDS {
        agrees(kind, 2, &small_buckets(), Dtype::F32, 1e-4);
    }
    agrees(KINDS[2], 1, &small_buckets(), Dtype::F32, 1e-4);
    agrees(KINDS[5], 3, &small_buckets(), Dtype::F32, 1e-4);
}

#[test]
fn so_they_do_with_sixteen_bits() {
    for (kind, dtype, wire, average) in [
        (KINDS[2], Dtype::F32, Some(Dtype::Bf16), Average::After),
        (KINDS[4], Dtype::F32, Some(Dtype::Bf16), Average::InReduction),
        (KINDS[5], Dtype::Bf16, None, Average::After),
        (KINDS[6], Dtype::Bf16, Some(Dtype::F32), Average::InReduction),
    ] {
        agrees(kind, 2, &Settings { wire, average, ..small_buckets() }, dtype, 2e-2);
    }
}

#[test]
fn so_they_do_with_whole_matrices_and_every_micro_batch_reduced() {
    let rows = Settings { rows: true, ..small_buckets() };
    for kind in [KINDS[2], KINDS[3], KINDS[5]] {
        agrees(kind, 2, &rows, Dtype::F32, 1e-3);
    }
    let each = Settings { reduce_each: ReduceEach::MicroBatch, rows: true, ..small_buckets() };
    agrees(KINDS[6], 2, &each, Dtype::F32, 1e-3);
}

/// Bytes of weights and gradients that ranks hold after backward.
fn held(kind: (Kind, Form), memory: impl Fn() -> Memory + Sync) -> Vec<[usize; 2]> {
    on(2, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), memory(), group.rank());
        let mut strategy = make(kind, &inventory, Some(group), &small_buckets(), &memory).unwrap();
        strategy.begin(true).unwrap();
        pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish().unwrap();
        [Class::Weights, Class::Gradients].map(|class| memory.usage(class).now)
    })
}

#[test]
fn memory_there_is_what_it_is_on_the_host() {
    for kind in [KINDS[2], KINDS[4], KINDS[5], KINDS[6]] {
        assert_eq!(held(kind, memory), held(kind, Memory::default), "{kind:?}");
    }
}

#[test]
fn a_rank_that_never_comes_is_an_error_and_no_wait_without_end() {
    let config = Config { timeout: Duration::from_millis(400), ..Config::default() };
    let errors = on_with(2, &config, |group| {
        let (inventory, memory, rank) = (inventory(Dtype::F32), memory(), group.rank());
        let mut strategy =
            make(KINDS[2], &inventory, Some(group.clone()), &small_buckets(), &memory).unwrap();
        strategy.begin(true).unwrap();
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            return String::new();
        }
        let norm = pass(&mut *strategy, &inventory, rank, 1)
            .and_then(|()| strategy.finish())
            .and_then(|()| strategy.norm());
        norm.expect_err("nobody to exchange gradients with").to_string()
    });
    assert!(errors[0].contains("rank 0") && errors[0].contains("rank 1"), "{}", errors[0]);
}

/// How long rank 0 is busy with `body` while rank 1 comes 300 ms later to the same.
fn alone(kind: (Kind, Form), body: impl Fn(&mut dyn Parallel) -> Result<()> + Sync) -> Duration {
    let times = on(2, |group| {
        let settings = Settings { reductions_max: 1, ..small_buckets() };
        let (inventory, memory) = (inventory(Dtype::F32), memory());
        let mut strategy = make(kind, &inventory, Some(group.clone()), &settings, &memory).unwrap();
        strategy.begin(true).unwrap();
        group.barrier().unwrap();
        std::thread::sleep(Duration::from_millis(300 * group.rank() as u64));
        let start = Instant::now();
        body(&mut *strategy).unwrap();
        let time = start.elapsed();
        strategy.finish().unwrap();
        time
    });
    times[0]
}

#[test]
fn the_host_is_not_ahead_of_what_may_be_under_way() {
    let least = Duration::from_millis(250);
    assert!(alone(KINDS[6], |strategy| strategy.need(UnitId(0), Way::Forward)) > least);
    let inventory = inventory(Dtype::F32);
    let trained = (1..inventory.parameters.len()).map(ParameterId).filter(|&id| inventory[id].trainable);
    let trained: Vec<_> = trained.rev().collect();
    let backward = |strategy: &mut dyn Parallel| trained.iter().try_for_each(|&id| strategy.ready(id));
    assert!(alone(KINDS[5], backward) > least, "of two buckets one may be under way");
}

#[test]
fn what_only_the_host_does_is_refused() {
    let settings = Settings { offload: Some("/tmp".into()), ..Settings::default() };
    let error = make(KINDS[5], &inventory(Dtype::F32), None, &settings, &memory()).err().expect("refused");
    assert_eq!(
        error.to_string(),
        "optimiser state on disk, with flat memory of a GPU: not part of this build"
    );
}
