use super::*;
use crate::data::{DatasetId, Position};
use std::path::Path;
use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Dtype, Init, Inventory, Parameter, Registry, ShardSpec};
use unisono_nn::testing::run_ranks;
use unisono_parallel::data_parallel::{DataParallel, ParallelKind, Settings};
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_parallel::testing::{Bits, collect_shards, merge_shards};
use unisono_parallel::testing::{inventory, new_strategy, plan, run_pass};

fn of_data(world: &Communicator) -> SavedBy<'_> {
    SavedBy { world: Some(world), ..SavedBy::default() }
}

fn progress() -> TrainProgress {
    let data = DatasetId { name: "text".to_owned(), samples: 1000, hash: 7 };
    TrainProgress {
        step: 2,
        position: Position { epoch: 1, sample: 64 },
        seed: 0,
        data,
        ..TrainProgress::default()
    }
}

fn settings() -> Settings {
    Settings { bucket_bytes: 600, ..Settings::default() }
}

fn steps(strategy: &mut dyn DataParallel, inventory: &Inventory, rank: usize, numbers: std::ops::Range<u64>) {
    for number in numbers {
        strategy.begin_step(&plan(inventory, 1)).unwrap();
        run_pass(strategy, inventory, rank, 1000 * number).unwrap();
        strategy.finish_backward().unwrap();
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 0.01, grad_scale: 1.0 }).unwrap();
    }
}

fn saved(root: &Path, kind: ParallelKind, ranks: usize, dtype: Dtype) -> Bits {
    saved_with(root, kind, ranks, dtype, &settings())
}

/// Saves as [`saved`] does, with these settings.
fn saved_with(root: &Path, kind: ParallelKind, ranks: usize, dtype: Dtype, settings: &Settings) -> Bits {
    let results = run_ranks(ranks, |world| {
        let (inventory, memory, rank) = (inventory(dtype), Allocator::default(), world.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(world.clone()), settings, &memory).unwrap();
        steps(&mut *strategy, &inventory, rank, 1..3);
        save(root, of_data(&world), &mut *strategy, &inventory, progress(), &RunSetup::default(), 2).unwrap();
        collect_shards(&mut *strategy, &inventory)
    });
    merge_shards(results)
}

fn loaded(root: &Path, kind: ParallelKind, ranks: usize, dtype: Dtype) -> Bits {
    loaded_with(root, kind, ranks, dtype, &settings())
}

/// Loads as [`loaded`] does, with these settings.
fn loaded_with(root: &Path, kind: ParallelKind, ranks: usize, dtype: Dtype, settings: &Settings) -> Bits {
    let results = run_ranks(ranks, |world| {
        let (inventory, memory) = (inventory(dtype), Allocator::default());
        let other_seed = Settings { seed: 99, ..settings.clone() };
        let mut strategy = new_strategy(kind, &inventory, Some(world.clone()), &other_seed, &memory).unwrap();
        let found = load(&latest(root).unwrap(), of_data(&world), &mut *strategy, &inventory).unwrap();
        assert_eq!(found, progress());
        collect_shards(&mut *strategy, &inventory)
    });
    merge_shards(results)
}

#[test]
fn checkpoints_load_on_any_strategy_and_rank_count() {
    let ranks = [3, 1, 4, 2];
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for (index, saved_kind) in ParallelKind::ALL.into_iter().enumerate() {
            let root = tempfile::tempdir().unwrap();
            let saved_state = saved(root.path(), saved_kind, ranks[index % 4], dtype);
            for (other, loaded_kind) in ParallelKind::ALL.into_iter().enumerate().skip(index % 3).step_by(3) {
                let loaded_state = loaded(root.path(), loaded_kind, ranks[(index + other + 1) % 4], dtype);
                assert!(saved_state == loaded_state, "{saved_kind:?} to {loaded_kind:?}, {dtype:?}");
            }
        }
    }
}

#[test]
fn one_of_several_shard_groups_is_saved() {
    let pairs = Settings { shard_ranks: 2, ..settings() };
    let kinds = &ParallelKind::ALL[1..];
    for (kind, next) in kinds.iter().zip(kinds.iter().cycle().skip(1)) {
        let root = tempfile::tempdir().unwrap();
        let saved_state = saved_with(root.path(), *kind, 4, Dtype::F32, &pairs);
        let manifest = Manifest::read(&latest(root.path()).unwrap()).unwrap();
        assert_eq!(manifest.shards.len(), 2, "{kind:?}: the files of one group");
        let loaded_states = [
            loaded_with(root.path(), *next, 4, Dtype::F32, &pairs),
            loaded(root.path(), *next, 3, Dtype::F32),
        ];
        assert!(loaded_states.iter().all(|state| *state == saved_state), "{kind:?} to {next:?}");
    }
}

#[test]
fn resumed_run_is_bitwise_equal() {
    for kind in ParallelKind::ALL {
        let root = tempfile::tempdir().unwrap();
        saved(root.path(), kind, 3, Dtype::F32);
        run_ranks(3, |world| {
            let (inventory, memory, rank) = (inventory(Dtype::F32), Allocator::default(), world.rank());
            let make = || new_strategy(kind, &inventory, Some(world.clone()), &settings(), &memory).unwrap();
            let (mut straight, mut resumed) = (make(), make());
            steps(&mut *straight, &inventory, rank, 1..6);
            load(&latest(root.path()).unwrap(), of_data(&world), &mut *resumed, &inventory).unwrap();
            steps(&mut *resumed, &inventory, rank, 3..6);
            assert!(
                collect_shards(&mut *straight, &inventory) == collect_shards(&mut *resumed, &inventory),
                "{kind:?}"
            );
        });
    }
}

/// Returns the inventory of rank `part` of `parts`, with sharded parameters.
fn sharded_inventory(parts: usize, part: usize) -> Arc<Inventory> {
    let mut registry = Registry::default();
    let add = |r: &mut Registry, name: &str, dimension, blocks, ratio, grain, repeats| {
        let cut = ShardSpec {
            dim: dimension,
            global_size: 12,
            block_count: blocks,
            first_block_ratio: ratio,
            granularity: grain,
            shard_count: parts,
            shard_index: part,
            repeats,
        };
        r.add(Parameter::new(name, &[12, 12], Init::Normal(1.0)).with_shard(cut));
    };
    registry.unit("h", |r| {
        add(r, "rows", 0, 3, 1, 1, 1);
        add(r, "groups", 0, 3, 2, 1, 1);
        add(r, "columns", 1, 1, 1, 3, 1);
        // Ten heads of queries share one head of keys, which two or five ranks repeat.
        add(r, "repeated", 0, 3, 10, 1, if [2, 5].contains(&parts) { parts } else { 1 });
        r.add(Parameter::new("gain", &[12], Init::Ones));
    });
    Arc::new(registry.finish())
}

#[test]
fn tensors_may_be_resharded_on_load() {
    let run =
        |parts: usize,
         seed,
         action: &(dyn Fn(SavedBy<'_>, &mut dyn DataParallel, &Inventory) -> Result<()> + Sync)| {
            let results = run_ranks(parts, |world| {
                let (inventory, memory) = (sharded_inventory(parts, world.rank()), Allocator::default());
                let settings = Settings { seed, ..settings() };
                let mut strategy =
                    new_strategy(ParallelKind::ALL[3], &inventory, None, &settings, &memory).unwrap();
                let who = SavedBy { world: Some(&world), tensor_rank: world.rank() };
                action(who, &mut *strategy, &inventory).unwrap();
                collect_shards(&mut *strategy, &inventory)
            });
            merge_shards(results)
        };
    for (saved_parts, loaded_parts) in [(1, 2), (2, 3), (3, 1), (5, 2), (2, 5)] {
        let root = tempfile::tempdir().unwrap();
        let saved_state = run(saved_parts, 1, &|who, strategy, inventory| {
            save(root.path(), who, strategy, inventory, TrainProgress::default(), &RunSetup::default(), 1)
                .map(drop)
        });
        let loaded_state = run(loaded_parts, 2, &|who, strategy, inventory| {
            load(&latest(root.path()).unwrap(), who, strategy, inventory).map(drop)
        });
        assert!(
            saved_state == loaded_state && saved_state.len() == 4 * 144 + 12,
            "{saved_parts} to {loaded_parts}"
        );
    }
}

pub(super) fn save_on_one_rank() -> SavedBy<'static> {
    SavedBy::default()
}

pub(super) fn strategy(inventory: &Arc<Inventory>) -> Box<dyn DataParallel> {
    new_strategy(ParallelKind::ALL[2], inventory, None, &settings(), &Allocator::default()).unwrap()
}

#[test]
fn failed_save_leaves_nothing_but_earlier_checkpoints() {
    let (root, inventory) = (tempfile::tempdir().unwrap(), inventory(Dtype::F32));
    let mut strategy = strategy(&inventory);
    let mut take = |step| {
        let progress = TrainProgress { step, ..TrainProgress::default() };
        Snapshot::take(
            root.path(),
            save_on_one_rank(),
            &mut *strategy,
            &inventory,
            progress,
            &RunSetup::default(),
        )
        .unwrap()
    };
    let earlier = take(1).write(None, 2).unwrap();
    let snapshot = take(2);
    // A folder in place of the file makes it unwritable.
    std::fs::create_dir(root.path().join("unfinished-00000002/rank-00000.safetensors")).unwrap();
    let error = snapshot.write(None, 2).unwrap_err().to_string();
    assert!(error.contains("rank-00000.safetensors"), "{error}");
    let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [earlier]);
}

#[test]
fn damaged_foreign_and_unfinished_checkpoints_are_rejected() {
    let (root, inventory) = (tempfile::tempdir().unwrap(), inventory(Dtype::F32));
    let mut strategy = strategy(&inventory);
    let mut save_step = |step| {
        let progress = TrainProgress { step, ..TrainProgress::default() };
        save(root.path(), save_on_one_rank(), &mut *strategy, &inventory, progress, &RunSetup::default(), 2)
            .unwrap()
    };
    let paths = [save_step(1), save_step(2), save_step(10)];
    let steps = || list(root.path()).iter().map(|(step, _)| *step).collect::<Vec<_>>();
    assert_eq!(steps(), [2, 10]);
    save_step(3);
    save_step(4);
    assert_eq!(steps(), [3, 4, 10], "what was just written stays, and what another run left");
    std::fs::create_dir(root.path().join("unfinished-00000011")).unwrap();
    std::fs::create_dir(root.path().join("step-00000012")).unwrap();
    assert_eq!(latest(root.path()).as_ref(), Some(&paths[2]), "without a manifest it is none");
    let other = sharded_inventory(1, 0);
    let error =
        load(&paths[2], save_on_one_rank(), &mut *self::strategy(&other), &other).unwrap_err().to_string();
    assert!(error.contains("no parameter h.rows"), "{error}");
    let file = paths[2].join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = load(&paths[2], save_on_one_rank(), &mut *strategy, &inventory).unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains("rank-00000"), "{error}");
}
