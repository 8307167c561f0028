//! Files of the families that differ from Llama by a few switches.

use super::*;
use crate::models::Family;
use crate::models::hugging_face::{Provenance, config_text, with_family};
use serde_json::{Value, json};
use unisono_nn::modules::YarnScaling;
use unisono_parallel::experts::Experts;

/// Returns a small model of each family besides GPT-2 and Llama.
fn models() -> [GptConfig; 5] {
    let family = |family| GptConfig { family, ..llama() };
    let experts = Experts { count: 4, per_token: 2, width: 10, ..Experts::default() };
    [
        GptConfig { sliding_window: Some(6), head_dim: Some(6), ..family(Family::Mistral) },
        GptConfig { qkv_bias: true, tie_word_embeddings: true, ..family(Family::Qwen2) },
        GptConfig { qk_norm: true, head_dim: Some(6), ..family(Family::Qwen3) },
        family(Family::Phi3),
        GptConfig { experts: Some(experts), ..family(Family::Mixtral) },
    ]
}

#[test]
fn families_are_saved_whole_and_read_again() {
    for config in models() {
        let folder = tempfile::tempdir().unwrap();
        let (path, layout) = (folder.path(), Layout::of(&config));
        let save = |world: &Communicator| {
            let (inventory, mut strategy) = split(&config, Some(world), 1);
            let files = (layout, FileOptions::default());
            save(path, files, saved_by(world), Some(world), &mut *strategy, &inventory).unwrap();
            bits(&mut *strategy, &inventory)
        };
        let saved = on_ranks(2, save);
        let load = |world: &Communicator| {
            let (inventory, mut strategy) = split(&config, Some(world), 2);
            load(path, layout, saved_by(world), &mut *strategy, &inventory).unwrap();
            bits(&mut *strategy, &inventory)
        };
        assert!(on_ranks(2, load) == saved, "{config:?}");
        let (inventory, mut strategy) = split(&config, None, 2);
        super::load(path, layout, SavedBy::default(), &mut *strategy, &inventory).unwrap();
        assert_eq!(saved.len(), inventory.count());
        assert!(bits(&mut *strategy, &inventory) == saved, "{config:?}");
        write_config(&path.join("config.json"), &config).unwrap();
        assert_eq!(read_config(&path.join("config.json")).unwrap(), config);
    }
}

/// Returns the names of the tensors of block 1, and the shapes.
fn tensors_of(config: &GptConfig) -> BTreeMap<String, Vec<usize>> {
    let (mut registry, layout) = (Registry::default(), Layout::of(config));
    Gpt::new(&mut registry, config.clone(), TensorParallel::default()).unwrap();
    let tensors = registry.finish().parameters.into_iter().flat_map(|parameter| layout.tensors(&parameter));
    let in_block = |tensor: FileTensor| {
        let name = tensor.name.strip_prefix("model.layers.1.")?.to_owned();
        Some((name, tensor.shape))
    };
    tensors.filter_map(in_block).collect()
}

/// Checks that the tensors of a block are `count` in number, and have these names and shapes among
/// theirs.
fn assert_has(tensors: &BTreeMap<String, Vec<usize>>, count: usize, wanted: &[(&str, &[usize])]) {
    assert_eq!(tensors.len(), count, "{tensors:?}");
    wanted.iter().for_each(|(name, shape)| assert_eq!(tensors[*name], *shape, "{name}"));
}

#[test]
fn families_have_the_names_and_shapes_of_transformers() {
    let [mistral, qwen2, qwen3, phi3, mixtral] = models().map(|config| tensors_of(&config));
    let wide_heads: [(&str, &[usize]); 2] =
        [("self_attn.q_proj.weight", &[24, 16]), ("self_attn.o_proj.weight", &[16, 24])];
    assert_has(&mistral, 9, &wide_heads);
    let biases: [(&str, &[usize]); 3] =
        [("self_attn.q_proj.bias", &[16]), ("self_attn.k_proj.bias", &[8]), ("self_attn.v_proj.bias", &[8])];
    assert_has(&qwen2, 12, &biases);
    let norms: [(&str, &[usize]); 3] = [
        ("self_attn.q_norm.weight", &[6]),
        ("self_attn.k_norm.weight", &[6]),
        ("self_attn.k_proj.weight", &[12, 16]),
    ];
    assert_has(&qwen3, 11, &norms);
    let fused: [(&str, &[usize]); 4] = [
        ("self_attn.qkv_proj.weight", &[32, 16]),
        ("self_attn.o_proj.weight", &[16, 16]),
        ("mlp.gate_up_proj.weight", &[20, 16]),
        ("mlp.down_proj.weight", &[16, 10]),
    ];
    assert_has(&phi3, 6, &fused);
    let experts: [(&str, &[usize]); 4] = [
        ("block_sparse_moe.gate.weight", &[4, 16]),
        ("block_sparse_moe.experts.3.w1.weight", &[10, 16]),
        ("block_sparse_moe.experts.3.w3.weight", &[10, 16]),
        ("block_sparse_moe.experts.0.w2.weight", &[16, 10]),
    ];
    assert_has(&mixtral, 6 + 1 + 4 * 3, &experts);
}

fn read(fields: &Value) -> Result<GptConfig> {
    super::super::config::parse(&fields.to_string(), Path::new("config.json"))
}

#[test]
fn missing_keys_have_the_values_of_transformers() {
    let dimensions = |model_type: &str| {
        let config = read(&json!({"model_type": model_type})).unwrap();
        (config.vocabulary, config.context, config.ffn_width(), config.kv_heads, config.sliding_window)
    };
    assert_eq!(dimensions("llama"), (32_000, 2048, 11_008, 32, None));
    assert_eq!(dimensions("mistral"), (32_000, 131_072, 14_336, 8, Some(4096)));
    assert_eq!(dimensions("qwen2"), (151_936, 32_768, 22_016, 32, None));
    assert_eq!(dimensions("phi3"), (32_064, 4096, 8192, 32, None));
    let qwen3 = read(&json!({"model_type": "qwen3"})).unwrap();
    assert_eq!((qwen3.head_dim(), qwen3.qk_norm, qwen3.qkv_bias), (128, true, false));
    let narrow = read(&json!({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8}));
    assert_eq!(narrow.unwrap().query_width(), 2048);
    let mixtral = read(&json!({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]})).unwrap();
    let Positions::Rotary(rope) = mixtral.positions else { panic!("{mixtral:?}") };
    let experts = mixtral.experts.unwrap();
    assert_eq!((experts.count, experts.per_token, experts.width), (8, 2, 14_336));
    assert_eq!((rope.base, mixtral.norm_epsilon, mixtral.sliding_window), (1e6, 1e-5, None));
}

#[test]
fn other_names_of_keys_are_read() {
    let other = json!({"model_type": "gpt2", "vocab_size": 11, "hidden_size": 64, "max_position_embeddings": 32,
        "num_attention_heads": 4, "num_hidden_layers": 2});
    assert_eq!(read(&other).unwrap(), GptConfig::new(11, 32, 64, 4, 2));
    let experts = json!({"model_type": "mixtral", "num_experts": 4});
    assert_eq!(read(&experts).unwrap().experts.unwrap().count, 4);
}

#[test]
fn windows_count_where_a_block_has_one() {
    let window = |model_type: &str, fields: Value| {
        let mut config = json!({"model_type": model_type, "sliding_window": 64, "num_hidden_layers": 4});
        fields.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        read(&config).unwrap().sliding_window
    };
    for model_type in ["mistral", "phi3", "mixtral"] {
        assert_eq!(window(model_type, json!({})), Some(64));
        assert_eq!(window(model_type, json!({"sliding_window": null})), None);
    }
    assert_eq!(window("llama", json!({})), None);
    for model_type in ["qwen2", "qwen3"] {
        assert_eq!(window(model_type, json!({"max_window_layers": 0})), None, "it is switched off");
        let switched_on = json!({"use_sliding_window": true});
        assert_eq!(window(model_type, switched_on), None, "the first block with a window is number 28");
        assert_eq!(window(model_type, json!({"use_sliding_window": true, "max_window_layers": 3})), Some(64));
        let types =
            json!({"use_sliding_window": true, "layer_types": ["full_attention", "sliding_attention"]});
        assert_eq!(window(model_type, types), Some(64));
    }
    let narrow = GptConfig { context: 7, ..models()[0].clone() };
    let (mut registry, split) = (Registry::default(), TensorParallel::default());
    let error = Gpt::new(&mut registry, narrow, split).map(drop).unwrap_err().to_string();
    assert!(error.contains("model.sliding_window = 6 is less than model.context = 7"), "{error}");
}

#[test]
fn unsupported_options_of_families_are_named() {
    for (fields, what) in [
        (json!({"model_type": "mistral", "hidden_act": "gelu"}), "hidden_act gelu"),
        (json!({"model_type": "mistral", "sliding_window": 0}), "sliding_window 0"),
        (
            json!({"model_type": "mistral", "quantization_config": {"quant_method": "awq"}}),
            "quantization_config with quant_method awq: the weights are quantized",
        ),
        (
            json!({"model_type": "qwen3", "attention_bias": true}),
            "attention_bias true and mlp_bias false: not supported",
        ),
        (
            json!({"model_type": "qwen2", "layer_types": ["full_attention", "chunked_attention"]}),
            "layer_types with chunked_attention",
        ),
        (
            json!({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
            "rope_type longrope with model_type phi3",
        ),
        (
            json!({"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 2.0}}),
            "rope_type yarn with model_type phi3",
        ),
        (json!({"model_type": "phi3", "partial_rotary_factor": 0.75}), "partial_rotary_factor 0.75"),
        (json!({"model_type": "mixtral", "router_jitter_noise": 0.1}), "router_jitter_noise 0.1"),
        (
            json!({"model_type": "mixtral", "num_experts_per_tok": 9}),
            "num_local_experts 8 and num_experts_per_tok 9",
        ),
        (
            json!({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "rope_type dynamic",
        ),
    ] {
        let error = read(&fields).unwrap_err().to_string();
        assert!(error.starts_with("config.json: ") && error.contains(what), "{error}");
    }
    let refused =
        |config: &GptConfig| write_config(Path::new("config.json"), config).unwrap_err().to_string();
    let [.., mixtral] = models();
    let experts = Experts { normalize: false, ..mixtral.experts.unwrap() };
    let error = refused(&GptConfig { experts: Some(experts), ..mixtral });
    assert!(
        error.contains("no model of the family mixtral") && error.contains("normalize: false"),
        "{error}"
    );
    let crossed = GptConfig { qk_norm: true, qkv_bias: true, ..llama() };
    assert!(refused(&crossed).contains("no model of the family llama: bias false, qkv_bias true"));
}

/// Returns the file of a model that began with that of `fields`, after `change`.
fn exported(fields: &Value, change: impl FnOnce(&mut GptConfig)) -> Value {
    let (source, path) = (fields.to_string().into_bytes(), Path::new("config.json"));
    let mut config = read(fields).unwrap();
    // A resumed run may have been started by the keys of a Llama.
    config.family = Family::Llama;
    change(&mut config);
    let config = with_family(&config, Some(&source[..])).unwrap();
    let known = Provenance { source: Some(&source[..]), ..Provenance::default() };
    serde_json::from_str(&config_text(path, &config, &known).unwrap()).unwrap()
}

/// Key with the value that a file should have.
type Wanted<'a> = (&'a str, Value);

fn assert_changed(fields: &Value, exported: &Value, wanted: &[Wanted<'_>]) {
    let mut expected = fields.clone();
    for (key, value) in [("dtype", json!("float32")), ("torch_dtype", json!("float32"))].iter().chain(wanted)
    {
        expected[*key] = value.clone();
    }
    assert_eq!(*exported, expected);
}

#[test]
fn keys_of_the_source_survive_an_export() {
    let sizes = json!({"vocab_size": 11, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2,
        "max_position_embeddings": 64, "num_key_value_heads": 2, "intermediate_size": 10});
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
        "mscale_all_dim": 0.9});
    let source = |changes: Value| {
        let mut fields = sizes.clone();
        changes.as_object().unwrap().iter().for_each(|(key, value)| fields[key] = value.clone());
        let family = Family::named(changes["model_type"].as_str().unwrap()).unwrap();
        fields["architectures"] = json!([family.switches().class]);
        fields
    };
    let types = ["full_attention", "sliding_attention"];
    let linear = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6});
    let sources = [
        json!({"model_type": "mistral", "sliding_window": 64, "rope_theta": 1e4}),
        json!({"model_type": "mistral", "sliding_window": null, "rope_scaling": yarn, "rope_theta": 1e6}),
        json!({"model_type": "qwen2", "use_sliding_window": false, "sliding_window": 8}),
        json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 64, "layer_types": types}),
        json!({"model_type": "qwen3", "head_dim": 6, "rope_parameters": linear}),
        json!({"model_type": "phi3", "original_max_position_embeddings": 64, "embd_pdrop": 0.1}),
        json!({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 3, "bos_token_id": 5}),
    ]
    .map(source);
    for fields in &sources {
        let shorter = exported(fields, |config| config.context = 32);
        assert_changed(fields, &shorter, &[]);
        assert_eq!(read(&shorter).unwrap(), read(fields).unwrap());
    }
    let turned = |config: &mut GptConfig| {
        config.positions = Positions::Rotary(RopeConfig { base: 5e5, scaling: None });
    };
    let plain = [
        ("rope_theta", json!(5e5)),
        ("rope_scaling", Value::Null),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5})),
    ];
    assert_changed(&sources[1], &exported(&sources[1], turned), &plain);
    let plain = source(json!({"model_type": "qwen2", "layer_types": ["full_attention", "full_attention"]}));
    let windowed = exported(&plain, |config| config.sliding_window = Some(128));
    let [switch, window] = ["use_sliding_window", "sliding_window"].map(|key| &windowed[key]);
    assert_eq!((switch, window, windowed.get("layer_types")), (&json!(true), &json!(128), None));
}

#[test]
fn scaled_positions_are_read_from_both_keys() {
    let yarn = YarnScaling {
        factor: 4.0,
        original_context: 16,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };
    let expected = Positions::Rotary(RopeConfig { base: 5e5, scaling: Some(RopeScaling::Yarn(yarn)) });
    let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    let mut with_base = scaling.clone();
    with_base["rope_theta"] = json!(5e5);
    for fields in [
        json!({"model_type": "qwen3", "rope_theta": 5e5, "rope_scaling": scaling}),
        json!({"model_type": "qwen3", "rope_parameters": with_base}),
        json!({"model_type": "qwen3", "rope_theta": 5e5, "rope_scaling": scaling, "rope_parameters": {"rope_type": "default"}}),
        json!({"model_type": "qwen3", "rope_scaling": null, "rope_parameters": with_base}),
    ] {
        assert_eq!(read(&fields).unwrap().positions, expected, "{fields}");
    }
    let odd = json!({"model_type": "llama", "rope_theta": 1.0, "rope_scaling": scaling});
    assert!(read(&odd).unwrap_err().to_string().contains("a rotary base of 1"));
}
