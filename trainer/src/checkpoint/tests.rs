use super::*;
use crate::data::{Dataset, Position};
use crate::error::Result;
use crate::flat::Dtype;
use crate::memory::Memory;
use crate::optim::{AdamW, Step};
use crate::parallel::tests::{KINDS, inventory, make, pass};
use crate::parallel::{Form, Kind, Parallel, Settings};
use crate::parameter::{Cut, Init, Inventory, Parameter, Registry};
use crate::testing::{Bits, joined, kept, on};
use std::path::Path;
use std::sync::Arc;
use unisono::Communicator;

fn of_data(world: &Communicator) -> Who<'_> {
    Who { world: Some(world), data_rank: world.rank(), tensor_rank: 0 }
}

fn progress() -> Progress {
    let data = Dataset { name: "text".to_owned(), samples: 1000, hash: 7 };
    Progress { step: 2, position: Position { epoch: 1, sample: 64 }, seed: 0, data, ..Progress::default() }
}

fn settings() -> Settings {
    Settings { bucket_bytes: 600, ..Settings::default() }
}

fn steps(strategy: &mut dyn Parallel, inventory: &Inventory, rank: usize, numbers: std::ops::Range<u64>) {
    for number in numbers {
        strategy.begin(true).unwrap();
        pass(strategy, inventory, rank, 1000 * number).unwrap();
        strategy.finish().unwrap();
        strategy.update(&AdamW::default(), &Step { number, rate: 0.01, factor: 1.0 }).unwrap();
    }
}

fn saved(root: &Path, kind: (Kind, Form), ranks: usize, dtype: Dtype) -> Bits {
    let all = on(ranks, |world| {
        let (inventory, memory, rank) = (inventory(dtype), Memory::default(), world.rank());
        let mut strategy = make(kind, &inventory, Some(world.clone()), &settings(), &memory).unwrap();
        steps(&mut *strategy, &inventory, rank, 1..3);
        save(root, of_data(&world), &mut *strategy, &inventory, progress(), "[model]", 2).unwrap();
        kept(&mut *strategy, &inventory)
    });
    joined(all)
}

fn loaded(root: &Path, kind: (Kind, Form), ranks: usize, dtype: Dtype) -> Bits {
    let all = on(ranks, |world| {
        let (inventory, memory) = (inventory(dtype), Memory::default());
        let other = Settings { seed: 99, ..settings() };
        let mut strategy = make(kind, &inventory, Some(world.clone()), &other, &memory).unwrap();
        let found = load(&latest(root).unwrap(), of_data(&world), &mut *strategy, &inventory).unwrap();
        assert_eq!(found, progress());
        kept(&mut *strategy, &inventory)
    });
    joined(all)
}

#[test]
fn any_strategy_and_number_of_ranks_loads_what_any_other_saved() {
    let ranks = [3, 1, 4, 2];
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for (index, from) in KINDS.into_iter().enumerate() {
            let root = tempfile::tempdir().unwrap();
            let before = saved(root.path(), from, ranks[index % 4], dtype);
            for (other, into) in KINDS.into_iter().enumerate().skip(index % 3).step_by(3) {
                let after = loaded(root.path(), into, ranks[(index + other + 1) % 4], dtype);
                assert!(before == after, "{from:?} to {into:?}, {dtype:?}");
            }
        }
    }
}

#[test]
fn a_resumed_run_takes_the_same_steps() {
    for kind in KINDS {
        let root = tempfile::tempdir().unwrap();
        saved(root.path(), kind, 3, Dtype::F32);
        on(3, |world| {
            let (inventory, memory, rank) = (inventory(Dtype::F32), Memory::default(), world.rank());
            let make = || make(kind, &inventory, Some(world.clone()), &settings(), &memory).unwrap();
            let (mut straight, mut resumed) = (make(), make());
            steps(&mut *straight, &inventory, rank, 1..6);
            load(&latest(root.path()).unwrap(), of_data(&world), &mut *resumed, &inventory).unwrap();
            steps(&mut *resumed, &inventory, rank, 3..6);
            assert!(kept(&mut *straight, &inventory) == kept(&mut *resumed, &inventory), "{kind:?}");
        });
    }
}

/// A model of which rank `part` of `parts` has its part.
fn cut_inventory(parts: usize, part: usize) -> Arc<Inventory> {
    let mut registry = Registry::default();
    let add = |r: &mut Registry, name: &str, dimension, blocks, grain| {
        let cut = Cut { dimension, whole: 12, blocks, grain, parts, part };
        r.add(Parameter::new(name, &[12, 12], Init::Normal(1.0)).cut(cut));
    };
    registry.unit("h", |r| {
        add(r, "rows", 0, 3, 1);
        add(r, "columns", 1, 1, 3);
        r.add(Parameter::new("gain", &[12], Init::Ones));
    });
    Arc::new(registry.finish())
}

#[test]
fn tensors_may_be_cut_otherwise_after_loading() {
    let run = |parts: usize,
               seed,
               action: &(dyn Fn(Who<'_>, &mut dyn Parallel, &Inventory) -> Result<()> + Sync)| {
        let all = on(parts, |world| {
            let (inventory, memory) = (cut_inventory(parts, world.rank()), Memory::default());
            let settings = Settings { seed, ..settings() };
            let mut strategy = make(KINDS[6], &inventory, None, &settings, &memory).unwrap();
            let who = Who { world: Some(&world), data_rank: 0, tensor_rank: world.rank() };
            action(who, &mut *strategy, &inventory).unwrap();
            kept(&mut *strategy, &inventory)
        });
        joined(all)
    };
    for (from, into) in [(1, 2), (2, 3), (3, 1), (5, 2)] {
        let root = tempfile::tempdir().unwrap();
        let before = run(from, 1, &|who, strategy, inventory| {
            save(root.path(), who, strategy, inventory, Progress::default(), "", 1).map(drop)
        });
        let after = run(into, 2, &|who, strategy, inventory| {
            load(&latest(root.path()).unwrap(), who, strategy, inventory).map(drop)
        });
        assert!(before == after && before.len() == 2 * 144 + 12, "{from} to {into}");
    }
}

pub(super) fn alone() -> Who<'static> {
    Who { world: None, data_rank: 0, tensor_rank: 0 }
}

pub(super) fn strategy(inventory: &Arc<Inventory>) -> Box<dyn Parallel> {
    make(KINDS[5], inventory, None, &settings(), &Memory::default()).unwrap()
}

#[test]
fn damage_another_model_and_unfinished_folders_are_noticed() {
    let (root, inventory) = (tempfile::tempdir().unwrap(), inventory(Dtype::F32));
    let mut strategy = strategy(&inventory);
    let mut at = |step| {
        let progress = Progress { step, ..Progress::default() };
        save(root.path(), alone(), &mut *strategy, &inventory, progress, "", 2).unwrap()
    };
    let paths = [at(1), at(2), at(10)];
    let steps = || list(root.path()).iter().map(|(step, _)| *step).collect::<Vec<_>>();
    assert_eq!(steps(), [2, 10]);
    at(3);
    at(4);
    assert_eq!(steps(), [3, 4, 10], "what was just written stays, and what another run left");
    std::fs::create_dir(root.path().join("unfinished-00000011")).unwrap();
    std::fs::create_dir(root.path().join("step-00000012")).unwrap();
    assert_eq!(latest(root.path()).as_ref(), Some(&paths[2]), "without a manifest it is none");
    let other = cut_inventory(1, 0);
    let error = load(&paths[2], alone(), &mut *self::strategy(&other), &other).unwrap_err().to_string();
    assert!(error.contains("no parameter h.rows"), "{error}");
    let file = paths[2].join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = load(&paths[2], alone(), &mut *strategy, &inventory).unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains("rank-00000"), "{error}");
}
