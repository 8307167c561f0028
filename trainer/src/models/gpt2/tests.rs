use super::*;
use crate::allocator::Allocator;
use crate::checkpoint::SavedBy;
use crate::error::Result;
use crate::flat::ProcessGroup;
use crate::models::{Gpt, GptConfig, Norm};
use crate::parallel::tests::{STRATEGIES, new_strategy};
use crate::parallel::{DataParallel, GradReduction, LocalShard, ParallelKind, ProcessGroups, Settings};
use crate::parameter::{Inventory, Registry};
use crate::tensor_parallel::TensorParallel;
use crate::testing::run_ranks;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use unisono::Communicator;

/// Bits of all weights, by parameter and element of the whole tensor.
type Bits = BTreeMap<(String, usize), u32>;

fn config(tied: bool) -> GptConfig {
    GptConfig { tie_word_embeddings: tied, ..GptConfig::new(11, 6, 8, 2, 2) }
}

fn inventory(tied: bool) -> Arc<Inventory> {
    let mut registry = Registry::default();
    Gpt::new(&mut registry, config(tied), TensorParallel::default()).unwrap();
    Arc::new(registry.finish())
}

/// Returns a model with three heads, so that one of two shards has padding.
fn odd() -> GptConfig {
    GptConfig { tie_word_embeddings: false, ..GptConfig::new(11, 6, 12, 3, 2) }
}

/// Returns a strategy of that model, sharded over the ranks of `tensor`.
fn split(tensor: Option<&Communicator>, seed: u64) -> (Arc<Inventory>, Box<dyn DataParallel>) {
    let (mut registry, config) = (Registry::default(), odd());
    let split = TensorParallel::new(tensor.cloned().map(ProcessGroup::from), true, config.parallel_plan());
    Gpt::new(&mut registry, config, split).unwrap();
    let (inventory, settings) = (Arc::new(registry.finish()), Settings { seed, ..Settings::default() });
    let team = ProcessGroups::new(None, tensor).unwrap();
    let strategy = crate::parallel::new_strategy(
        ParallelKind::Zero3,
        &inventory,
        team,
        &settings,
        &Allocator::default(),
    );
    (inventory, strategy.unwrap())
}

fn bits(strategy: &mut dyn DataParallel, inventory: &Inventory) -> Bits {
    let mut bits = BTreeMap::new();
    let mut keep = |kept: LocalShard<'_>| {
        let parameter = &inventory[kept.parameter];
        for (weight, index) in kept.weights.iter().zip(kept.range) {
            match parameter.global_index(index) {
                Some(place) => drop(bits.insert((parameter.name.clone(), place), weight.to_bits())),
                None => assert_eq!(*weight, 0.0, "padding stays zero"),
            }
        }
        Ok(())
    };
    strategy.for_each_shard(&mut keep).unwrap();
    bits
}

/// Runs `body` on `ranks` ranks and merges the results.
fn on_ranks(ranks: usize, body: impl Fn(&Communicator) -> Bits + Sync) -> Bits {
    run_ranks(ranks, |world| body(&world)).into_iter().flatten().collect()
}

fn saved_by(world: &Communicator) -> SavedBy<'_> {
    SavedBy { world: Some(world), data_rank: world.rank(), tensor_rank: 0 }
}

const ALONE: SavedBy<'_> = SavedBy { world: None, data_rank: 0, tensor_rank: 0 };

fn strategy(
    kind: (ParallelKind, GradReduction),
    inventory: &Arc<Inventory>,
    group: Option<Communicator>,
    seed: u64,
) -> Box<dyn DataParallel> {
    let settings = Settings { bucket_bytes: 600, seed, ..Settings::default() };
    new_strategy(kind, inventory, group, &settings, &Allocator::default()).unwrap()
}

fn saved(path: &Path, inventory: &Arc<Inventory>) -> Bits {
    let mut strategy = strategy(STRATEGIES[5], inventory, None, 1);
    save(path, ALONE, None, &mut *strategy, inventory).unwrap();
    bits(&mut *strategy, inventory)
}

fn loaded(path: &Path, inventory: &Arc<Inventory>) -> Result<Bits> {
    let mut strategy = strategy(STRATEGIES[5], inventory, None, 2);
    load(path, ALONE, &mut *strategy, inventory)?;
    Ok(bits(&mut *strategy, inventory))
}

#[test]
fn any_strategy_reads_what_any_other_wrote() {
    let folder = tempfile::tempdir().unwrap();
    for (number, kind) in STRATEGIES.into_iter().enumerate() {
        let path = folder.path().join(format!("{number}.safetensors"));
        let inventory = &inventory(number % 2 == 0);
        let save = |world: &Communicator| {
            let mut strategy = strategy(kind, inventory, Some(world.clone()), 1);
            save(&path, saved_by(world), None, &mut *strategy, inventory).unwrap();
            bits(&mut *strategy, inventory)
        };
        let load = |world: &Communicator, kind| {
            let mut strategy = strategy(kind, inventory, Some(world.clone()), 2);
            load(&path, saved_by(world), &mut *strategy, inventory).unwrap();
            bits(&mut *strategy, inventory)
        };
        let all = on_ranks(2, save);
        assert_eq!(all.len(), inventory.count());
        assert!(on_ranks(3, |world| load(world, STRATEGIES[6])) == all, "{kind:?}");
        assert!(on_ranks(3, |world| load(world, kind)) == all, "{kind:?}");
    }
}

#[test]
fn sharded_parameters_are_saved_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let save = |world: &Communicator| {
        let (inventory, mut strategy) = split(Some(world), 1);
        save(&path, saved_by(world), Some(world), &mut *strategy, &inventory).unwrap();
        bits(&mut *strategy, &inventory)
    };
    let load = |world: &Communicator| {
        let (inventory, mut strategy) = split(Some(world), 2);
        load(&path, saved_by(world), &mut *strategy, &inventory).unwrap();
        bits(&mut *strategy, &inventory)
    };
    let all = on_ranks(2, save);
    assert!(on_ranks(3, load) == all);
    let (inventory, mut strategy) = split(None, 2);
    super::load(&path, ALONE, &mut *strategy, &inventory).unwrap();
    assert_eq!(all.len(), inventory.count());
    assert!(bits(&mut *strategy, &inventory) == all);
}

/// Name, type and shape of a tensor.
type InFile = (String, safetensors::Dtype, Vec<usize>);

/// Writes a file with the tensors of a small model, changed by `change`.
fn changed(path: &Path, change: impl Fn(&mut Vec<InFile>)) {
    let parameters = &inventory(true).parameters;
    let tensor = |parameter: &Parameter| {
        (format!("transformer.{}", parameter.name), safetensors::Dtype::BF16, shape_in_file(parameter))
    };
    let mut tensors: Vec<_> = parameters.iter().map(tensor).collect();
    change(&mut tensors);
    // Ones in 16 bits; unspecified values in other types.
    let bytes = |shape: &[usize], size: usize| {
        half::bf16::ONE.to_le_bytes().repeat(shape.iter().product::<usize>() * size / 2)
    };
    let data: Vec<_> = tensors.iter().map(|(_, dtype, shape)| bytes(shape, dtype.bitsize() / 8)).collect();
    let views = tensors.iter().zip(&data);
    let views = views.map(|((name, dtype, shape), data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

#[test]
fn prefixes_masks_and_bf16_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    changed(&path, |tensors| {
        tensors.push(("transformer.h.0.attn.bias".to_owned(), safetensors::Dtype::U8, vec![1, 1, 6, 6]));
        tensors.push(("lm_head.weight".to_owned(), safetensors::Dtype::BF16, vec![11, 8]));
    });
    let weights = loaded(&path, &inventory(true)).unwrap();
    assert!(weights.values().all(|weight| *weight == 1.0f32.to_bits()));
}

#[test]
fn foreign_models_are_rejected_by_name_and_shape() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let refused = |change: &dyn Fn(&mut Vec<InFile>), wanted: &str| {
        changed(&path, change);
        let error = loaded(&path, &inventory(true)).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {wanted}", path.display()));
    };
    let number = inventory(true).find("h.0.attn.c_attn.weight").unwrap().0;
    refused(
        &|tensors| tensors[number].2 = vec![24, 8],
        "h.0.attn.c_attn.weight is 24 × 8 in the file, 8 × 24 in the model",
    );
    refused(
        &|tensors| drop(tensors.remove(number)),
        "no h.0.attn.c_attn.weight, which is 8 × 24 in the model",
    );
    refused(&|tensors| tensors[number].1 = safetensors::Dtype::I64, "h.0.attn.c_attn.weight is of type I64");
    refused(
        &|tensors| tensors.push(("transformer.h.2.ln_1.bias".to_owned(), safetensors::Dtype::F32, vec![8])),
        "transformer.h.2.ln_1.bias (8) is not in the model",
    );
    let whole = std::fs::read({
        changed(&path, |_| ());
        &path
    })
    .unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = loaded(&path, &inventory(true)).unwrap_err().to_string();
    assert!(error.contains("where the header promises"), "{error}");
}

#[test]
fn failed_write_keeps_previous_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let all = saved(&path, &inventory(true));
    std::fs::create_dir(path.with_extension("unfinished")).unwrap();
    let errors = Communicator::local(2).unwrap().into_iter().map(|world| {
        let path = path.clone();
        std::thread::spawn(move || {
            let inventory = inventory(true);
            let mut strategy = strategy(STRATEGIES[6], &inventory, Some(world.clone()), 3);
            save(&path, saved_by(&world), None, &mut *strategy, &inventory).unwrap_err().to_string()
        })
    });
    let errors: Vec<_> = errors.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(errors[0].contains("model.unfinished") && errors[1].contains("failed on rank 0"), "{errors:?}");
    assert!(loaded(&path, &inventory(true)).unwrap() == all);
}

#[test]
fn config_round_trips_and_foreign_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    write_config(&path, &config(false)).unwrap();
    assert_eq!(read_config(&path).unwrap(), config(false));
    std::fs::write(
        &path,
        r#"{"model_type": "gpt2", "n_layer": 24, "n_head": 16, "n_embd": 1024, "n_ctx": 1024}"#,
    )
    .unwrap();
    assert_eq!(read_config(&path).unwrap(), GptConfig::new(50257, 1024, 1024, 16, 24));
    for (text, what) in [
        (r#"{"model_type": "llama"}"#, "model_type llama"),
        (r#"{"activation_function": "relu"}"#, "activation_function relu"),
        (r#"{"n_inner": 100}"#, "n_inner 100"),
        (r#"{"n_head": 7}"#, "7 heads"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = read_config(&path).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("config.json"), "{error}");
    }
    let modern = GptConfig { norm: Norm::Rms, ..config(true) };
    assert!(write_config(&path, &modern).unwrap_err().to_string().contains("norm Rms"));
}
