mod families;

use super::layout::FileTensor;
use super::*;
use crate::checkpoint::SavedBy;
use crate::models::{FeedForward, Gpt, GptConfig, Norm, Positions};
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::modules::{Llama3Scaling, RopeConfig, RopeScaling};
use unisono_nn::parameter::{Dtype, Inventory, Parameter, Registry};
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::testing::run_ranks;
use unisono_parallel::data_parallel::{DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_parallel::testing::new_strategy;

/// Layout and options of most files.
const FILES: (Layout, FileOptions) = (Layout::Gpt2, FileOptions { dtype: Dtype::F32, max_bytes: usize::MAX });

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

/// Returns a Llama with two heads for each head of keys.
fn llama() -> GptConfig {
    GptConfig { kv_heads: 2, ffn_width: Some(10), ..GptConfig::llama(11, 6, 16, 4, 2) }
}

/// Returns a strategy of a model, sharded over the ranks of `tensor`.
fn split(
    config: &GptConfig,
    tensor: Option<&Communicator>,
    seed: u64,
) -> (Arc<Inventory>, Box<dyn DataParallel>) {
    let (mut registry, config) = (Registry::default(), config.clone());
    let split = TensorParallel::new(tensor.cloned().map(ProcessGroup::from), true, config.parallel_plan());
    Gpt::new(&mut registry, config, split).unwrap();
    let (inventory, settings) = (Arc::new(registry.finish()), Settings { seed, ..Settings::default() });
    let team = ProcessGroups::new(None, tensor).unwrap();
    let strategy = unisono_parallel::data_parallel::new_strategy(
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
    SavedBy { world: Some(world), ..SavedBy::default() }
}

fn strategy(
    kind: ParallelKind,
    inventory: &Arc<Inventory>,
    group: Option<Communicator>,
    seed: u64,
) -> Box<dyn DataParallel> {
    let settings = Settings { bucket_bytes: 600, seed, ..Settings::default() };
    new_strategy(kind, inventory, group, &settings, &Allocator::default()).unwrap()
}

fn saved(path: &Path, inventory: &Arc<Inventory>) -> Bits {
    let mut strategy = strategy(ParallelKind::ALL[2], inventory, None, 1);
    save(path, FILES, SavedBy::default(), None, &mut *strategy, inventory).unwrap();
    bits(&mut *strategy, inventory)
}

fn loaded(path: &Path, inventory: &Arc<Inventory>) -> Result<Bits> {
    let mut strategy = strategy(ParallelKind::ALL[2], inventory, None, 2);
    load(path, Layout::Gpt2, SavedBy::default(), &mut *strategy, inventory)?;
    Ok(bits(&mut *strategy, inventory))
}

#[test]
fn any_strategy_reads_what_any_other_wrote() {
    let folder = tempfile::tempdir().unwrap();
    for (number, kind) in ParallelKind::ALL.into_iter().enumerate() {
        let path = folder.path().join(format!("{number}"));
        let inventory = &inventory(number % 2 == 0);
        let save = |world: &Communicator| {
            let mut strategy = strategy(kind, inventory, Some(world.clone()), 1);
            save(&path, FILES, saved_by(world), None, &mut *strategy, inventory).unwrap();
            bits(&mut *strategy, inventory)
        };
        let load = |world: &Communicator, kind| {
            let mut strategy = strategy(kind, inventory, Some(world.clone()), 2);
            load(&path, Layout::Gpt2, saved_by(world), &mut *strategy, inventory).unwrap();
            bits(&mut *strategy, inventory)
        };
        let saved_bits = on_ranks(2, save);
        assert_eq!(saved_bits.len(), inventory.count());
        assert!(on_ranks(3, |world| load(world, ParallelKind::ALL[3])) == saved_bits, "{kind:?}");
        assert!(on_ranks(3, |world| load(world, kind)) == saved_bits, "{kind:?}");
    }
}

#[test]
fn sharded_parameters_are_saved_whole() {
    let llama_3 = RopeConfig {
        base: 5e5,
        scaling: Some(RopeScaling::Llama3(Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8,
        })),
    };
    let scaled = GptConfig { bias: true, positions: Positions::Rotary(llama_3), ..llama() };
    let single = GptConfig { kv_heads: 1, bias: true, ..llama() };
    for (config, ranks, max_bytes) in
        [(odd(), 2, usize::MAX), (llama(), 4, usize::MAX), (single, 2, usize::MAX), (scaled, 2, 1500)]
    {
        let folder = tempfile::tempdir().unwrap();
        let (path, layout) = (folder.path(), Layout::of(&config));
        let options = (layout, FileOptions { max_bytes, ..FileOptions::default() });
        let save = |world: &Communicator| {
            let (inventory, mut strategy) = split(&config, Some(world), 1);
            save(path, options, saved_by(world), Some(world), &mut *strategy, &inventory).unwrap();
            bits(&mut *strategy, &inventory)
        };
        let load = |world: &Communicator| {
            let (inventory, mut strategy) = split(&config, Some(world), 2);
            load(path, layout, saved_by(world), &mut *strategy, &inventory).unwrap();
            bits(&mut *strategy, &inventory)
        };
        let saved_bits = on_ranks(ranks, save);
        // Four ranks repeat heads of keys and values.
        assert!(on_ranks(if layout == Layout::Gpt2 { 3 } else { 4 }, load) == saved_bits);
        let (inventory, mut strategy) = split(&config, None, 2);
        super::load(path, layout, SavedBy::default(), &mut *strategy, &inventory).unwrap();
        assert_eq!(saved_bits.len(), inventory.count());
        assert!(bits(&mut *strategy, &inventory) == saved_bits);
        assert_eq!(path.join(files::INDEX).is_file(), max_bytes < usize::MAX);
        write_config(&path.join("config.json"), &config).unwrap();
        assert_eq!(read_config(&path.join("config.json")).unwrap(), config);
    }
}

#[test]
fn llama_files_have_names_and_shapes_of_llama() {
    let (config, folder) = (llama(), tempfile::tempdir().unwrap());
    let (inventory, mut strategy) = split(&config, None, 1);
    let bf16 = FileOptions { dtype: Dtype::Bf16, max_bytes: usize::MAX };
    save(folder.path(), (Layout::of(&config), bf16), SavedBy::default(), None, &mut *strategy, &inventory)
        .unwrap();
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| tensors.tensor(name).unwrap().shape().to_vec();
    let expected: [(&str, &[usize]); 12] = [
        ("model.embed_tokens.weight", &[11, 16]),
        ("model.layers.1.input_layernorm.weight", &[16]),
        ("model.layers.1.self_attn.q_proj.weight", &[16, 16]),
        ("model.layers.1.self_attn.k_proj.weight", &[8, 16]),
        ("model.layers.1.self_attn.v_proj.weight", &[8, 16]),
        ("model.layers.1.self_attn.o_proj.weight", &[16, 16]),
        ("model.layers.1.post_attention_layernorm.weight", &[16]),
        ("model.layers.1.mlp.gate_proj.weight", &[10, 16]),
        ("model.layers.1.mlp.up_proj.weight", &[10, 16]),
        ("model.layers.1.mlp.down_proj.weight", &[16, 10]),
        ("model.norm.weight", &[16]),
        ("lm_head.weight", &[11, 16]),
    ];
    expected.iter().for_each(|(name, expected)| assert_eq!(shape(name), *expected, "{name}"));
    assert_eq!(tensors.len(), 2 * 9 + 3);
    let values = tensors.tensor("model.layers.0.self_attn.v_proj.weight").unwrap();
    let id = inventory.find("h.0.attn.c_attn.weight").unwrap();
    let mut wanted = vec![0.0; 8 * 16];
    inventory[id].initialize(1, 24 * 16..32 * 16, &mut wanted);
    for (found, wanted) in values.data().chunks_exact(2).zip(wanted) {
        assert_eq!(found, half::bf16::from_f32(wanted).to_le_bytes());
    }
}

/// Name, type and shape of a tensor.
type InFile = (String, safetensors::Dtype, Vec<usize>);

/// Writes a file with the tensors of a small model, changed by `change`.
fn changed(path: &Path, change: impl Fn(&mut Vec<InFile>)) {
    let parameters = &inventory(true).parameters;
    let tensor = |parameter: &Parameter| {
        let FileTensor { name, shape, .. } = Layout::Gpt2.tensors(parameter).remove(0);
        (format!("transformer.{name}"), safetensors::Dtype::BF16, shape)
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
fn folders_without_readable_weights_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = || loaded(folder.path(), &inventory(true)).unwrap_err().to_string();
    assert!(refused().contains("it has neither model.safetensors nor model.safetensors.index.json"));
    std::fs::write(folder.path().join("pytorch_model.bin"), "PK\u{3}\u{4}").unwrap();
    let text = refused();
    assert!(text.contains("it has `pytorch_model.bin`") && text.contains("save_pretrained"), "{text}");
    let weights = folder.path().join("model.safetensors");
    for (contents, words) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"[..], "git lfs pull"),
        (b"", "empty"),
        (b"<html>", "a web page"),
        (b"PK\x03\x04 and more", "a zip archive"),
    ] {
        std::fs::write(&weights, contents).unwrap();
        let text = refused();
        assert!(
            text.contains("model.safetensors: this is no safetensors file") && text.contains(words),
            "{text}"
        );
    }
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
    let bytes = std::fs::read({
        changed(&path, |_| ());
        &path
    })
    .unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = loaded(&path, &inventory(true)).unwrap_err().to_string();
    assert!(error.contains("where the header promises"), "{error}");
}

#[test]
fn failed_write_keeps_previous_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let saved_bits = saved(&path, &inventory(true));
    std::fs::create_dir(path.join("model.unfinished")).unwrap();
    let errors = Communicator::local(2).unwrap().into_iter().map(|world| {
        let path = path.clone();
        std::thread::spawn(move || {
            let inventory = inventory(true);
            let mut strategy = strategy(ParallelKind::ALL[3], &inventory, Some(world.clone()), 3);
            save(&path, FILES, saved_by(&world), None, &mut *strategy, &inventory).unwrap_err().to_string()
        })
    });
    let errors: Vec<_> = errors.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(errors[0].contains("model.unfinished") && errors[1].contains("failed on rank 0"), "{errors:?}");
    assert!(loaded(&path, &inventory(true)).unwrap() == saved_bits);
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
    std::fs::write(&path, r#"{"model_type": "llama", "rope_scaling": null, "rope_theta": 5e5}"#).unwrap();
    let rope = RopeConfig { base: 5e5, scaling: None };
    let first = GptConfig::llama(32_000, 2048, 4096, 32, 32);
    let first = GptConfig {
        positions: Positions::Rotary(rope),
        norm_epsilon: 1e-6,
        ffn_width: Some(11_008),
        ..first
    };
    assert_eq!(read_config(&path).unwrap(), first);
    let scaling_fields = r#"{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3", "type": "llama3"}"#;
    std::fs::write(&path, format!(r#"{{"model_type": "llama", "rope_scaling": {scaling_fields}}}"#)).unwrap();
    let Positions::Rotary(rope) = read_config(&path).unwrap().positions else { panic!("a Llama") };
    let Some(RopeScaling::Llama3(scaling)) = rope.scaling else { panic!("{rope:?}") };
    assert_eq!(scaling.original_context, 8192);
    std::fs::write(&path, r#"{"model_type": "llama", "head_dim": 64}"#).unwrap();
    assert_eq!(read_config(&path).unwrap().query_width(), 32 * 64);
    for (text, what) in [
        (r#"{"model_type": "gemma2"}"#, "model_type gemma2: it is one of gpt2, llama, mistral, qwen2"),
        (r#"{"model_type": "gpt2", "activation_function": "relu"}"#, "activation_function relu"),
        (r#"{"model_type": "gpt2", "n_head": 7}"#, "7 heads"),
        (r#"{"model_type": "llama", "hidden_act": "gelu"}"#, "hidden_act gelu"),
        (r#"{"model_type": "llama", "head_dim": 0}"#, "32 heads of 0 features"),
        (r#"{"model_type": "llama", "mlp_bias": true}"#, "attention_bias false and mlp_bias true"),
        (r#"{"model_type": "llama", "num_key_value_heads": 5}"#, "32 heads cannot share 5 heads"),
        (r#"{"model_type": "llama", "rope_scaling": {"type": "linear"}}"#, "rope_type linear without factor"),
        (r#"{"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}}"#, "rope_type llama3"),
        (
            r#"{"model_type": "llama", "rope_parameters": {"partial_rotary_factor": 0.5}}"#,
            "partial_rotary_factor 0.5",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = read_config(&path).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("config.json"), "{error}");
    }
    let refused = |config: GptConfig| write_config(&path, &config).unwrap_err().to_string();
    assert!(refused(GptConfig { norm: Norm::Rms, ..config(true) }).contains("norm Rms"));
    assert!(refused(GptConfig { kv_heads: 1, ..config(true) }).contains("2 heads with 1"));
    assert!(refused(GptConfig { feed_forward: FeedForward::Gelu, ..llama() }).contains("feed-forward Gelu"));
}

#[test]
fn missing_model_type_follows_from_the_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        read_config(&path)
    };
    let llama = read(r#"{"architectures": ["LlamaForCausalLM"]}"#).unwrap();
    assert!(matches!(llama.positions, Positions::Rotary(_)));
    assert_eq!(read(r#"{"architectures": ["GPT2LMHeadModel"]}"#).unwrap().positions, Positions::Learned);
    for (text, words) in [
        (r#"{"hidden_size": 64}"#, "neither model_type nor architectures"),
        (r#"{"model_type": null, "architectures": []}"#, "neither model_type nor architectures"),
        (r#"{"architectures": ["GemmaForCausalLM"]}"#, "architectures GemmaForCausalLM"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("add \"model_type\""), "{error}");
    }
}

#[test]
fn head_that_differs_from_its_embedding_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let head = |dtype, shape: &[usize]| {
        let shape = shape.to_vec();
        changed(&path, |tensors| tensors.push(("lm_head.weight".to_owned(), dtype, shape.clone())));
        loaded(&path, &inventory(true))
    };
    head(safetensors::Dtype::BF16, &[11, 8]).unwrap();
    // The bytes of the test are other numbers in 32 bits.
    let error = head(safetensors::Dtype::F32, &[11, 8]).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight and wte.weight differ at element 0: "), "{error}");
    assert!(error.contains("tie_word_embeddings"), "{error}");
    let error = head(safetensors::Dtype::BF16, &[12, 8]).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight is 12 × 8, and wte.weight 11 × 8"), "{error}");
}

#[test]
fn broken_indexes_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &str| {
        std::fs::write(folder.path().join(files::INDEX), text).unwrap();
        loaded(folder.path(), &inventory(true)).unwrap_err().to_string()
    };
    assert!(refused(r#"{"weight_map": {}}"#).contains("an index without files"));
    assert!(refused(r#"{"weight_map": {"a": "../a.safetensors"}}"#).contains("is not the name of a file"));
    assert!(refused(r#"{"weight_map": {"a": "a.safetensors"}}"#).contains("a.safetensors"));
    assert!(refused("{").contains(files::INDEX));
    std::fs::write(folder.path().join(files::WEIGHTS), "").unwrap();
    let text = refused(r#"{"weight_map": {"a": "a.safetensors"}}"#);
    assert!(text.contains("model.safetensors.index.json, which does not list it"), "{text}");
    assert!(refused(r#"{"weight_map": {"a": "model.safetensors"}}"#).contains("this is no safetensors file"));
}

#[test]
fn widths_of_a_file_do_not_overflow() {
    for config in [GptConfig::llama(9, 9, usize::MAX, 1, 1), GptConfig::new(9, 9, usize::MAX, 1, 1)] {
        assert!(config.ffn_width() > usize::MAX / 4, "{}", config.ffn_width());
    }
}
