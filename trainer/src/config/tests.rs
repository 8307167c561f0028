use super::*;
use crate::models::Family;
use proptest::prelude::*;
use std::path::PathBuf;
use unisono_nn::parameter::{Dtype, ParamGroup};
use unisono_parallel::data_parallel::{Average, ParallelKind, ReduceFrequency, Settings, UnusedGradients};
use unisono_parallel::mesh::AxisOrder;
use unisono_parallel::optimizer::{LrScaling, LrShape};

/// Configuration file of a test, removed on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("unisono-config-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn loaded(name: &str, text: &str) -> Result<Config> {
    let file = TempFile::new(name, text);
    Config::load(Some(&file.0), &[])
}

fn changed(overrides: &[&str]) -> Result<Config> {
    Config::load(None, &overrides.iter().map(|&change| change.to_owned()).collect::<Vec<_>>())
}

/// Returns the message of an error, without the path.
fn words(result: Result<Config>) -> String {
    match result.unwrap_err() {
        Error::File { what, .. } => what,
        other => other.to_string(),
    }
}

#[test]
fn command_line_overrides_file_overrides_defaults() {
    let text =
        "seed = 7\n[model]\nwidth = 64\n[strategy]\nkind = \"zero1\"\n[schedule]\nlr_scale = \"sqrt\"\n";
    let file = TempFile::new("layers", text);
    let overrides =
        ["model.layers=3", "model.width = 96", "data.path=/a b", "optimizer.lr=1", "data.extensions=[\"c\"]"];
    let config = Config::load(Some(&file.0), &overrides.map(str::to_owned)).unwrap();
    assert_eq!((config.seed, config.model.layers, config.model.width), (7, 3, 96));
    assert_eq!(
        (config.data.path.as_str(), config.optimizer.lr, &config.data.extensions[..]),
        ("/a b", 1.0, &["c".to_owned()][..])
    );
    assert_eq!((config.strategy.kind, config.schedule.lr_scale), (ParallelKind::Zero1, LrScaling::Sqrt));
    assert_eq!(changed(&[]).unwrap(), Config::default());
    assert_eq!(
        changed(&["log.file=7", "data.path=\"true\""])
            .map(|config| (config.log.file, config.data.path))
            .unwrap(),
        ("7".to_owned(), "true".to_owned())
    );
}

#[test]
fn shape_is_a_preset_that_other_keys_change() {
    let llama = changed(&["model.shape=llama"]).unwrap().model;
    let shape_of = |model: &Model| (model.positions, model.norm, model.feed_forward, model.bias);
    assert_eq!(shape_of(&llama), (Positions::Rotary, Norm::Rms, FeedForward::Swiglu, false));
    assert!(!llama.tie_word_embeddings);
    let late = changed(&["model.shape=llama", "model.norm=layer"]).unwrap().model;
    assert_eq!(late, Model { norm: Norm::Layer, ..llama.clone() });
    assert_eq!(changed(&["model.norm=layer", "model.shape=llama"]).unwrap().model, llama);
    let text = "[model]\nbias = true\nshape = \"llama\"\nkv_heads = 2\n";
    let file = loaded("shape", text).unwrap().model;
    assert_eq!(file, Model { bias: true, kv_heads: 2, ..llama.clone() });
    assert_eq!(changed(&["model.shape=llama", "model.shape=gpt2"]).unwrap(), Config::default());
    let qwen2 = Model { shape: Family::Qwen2, qkv_bias: true, ..llama.clone() };
    assert_eq!(changed(&["model.shape=qwen2"]).unwrap().model, qwen2);
    let qwen3 = Model { shape: Family::Qwen3, qk_norm: true, ..llama.clone() };
    assert_eq!(changed(&["model.shape=qwen2", "model.shape=qwen3"]).unwrap().model, qwen3);
    assert_eq!(changed(&["model.shape=phi3"]).unwrap().model, Model { shape: Family::Phi3, ..llama.clone() });
    let experts = changed(&["model.shape=mixtral", "experts.width=64"]).unwrap().experts;
    assert_eq!((experts.count, experts.per_token, experts.width), (8, 2, 64));
    let few = loaded("mixtral", "[model]\nshape = \"mixtral\"\n[experts]\ncount = 4\n").unwrap();
    assert_eq!((few.experts.count, few.experts.per_token), (4, 2));
    assert_eq!(loaded("printed-mixtral", &few.to_toml().unwrap()).unwrap(), few);
    let printed = changed(&["model.shape=llama", "model.norm=layer"]).unwrap();
    assert_eq!(loaded("printed-shape", &printed.to_toml().unwrap()).unwrap(), printed);
}

#[test]
fn unknown_keys_suggest_the_nearest() {
    let word = |text| words(loaded("unknown", text));
    assert_eq!(
        word("seed = 1\n[model]\nwidht = 3\n"),
        "line 3, `widht = 3`: unknown key `model.widht`; the nearest is `model.width`"
    );
    assert!(word("[modle]\nwidth = 3\n").ends_with("unknown key `modle`; the nearest is `model`"));
    assert!(word("[data]\nheads = 3\n").ends_with("unknown key `data.heads`; the nearest is `model.heads`"));
    assert!(word("mesh = { tensors = 3 }\n").ends_with("the nearest is `mesh.tensor`"));
    let error = words(changed(&["strategy.buckets_mb=3"]));
    assert_eq!(
        error,
        "`strategy.buckets_mb=3`: unknown key `strategy.buckets_mb`; the nearest is `strategy.bucket_mb`"
    );
    assert!(words(changed(&["sed=3"])).ends_with("the nearest is `seed`"));
}

#[test]
fn far_names_are_not_suggested() {
    let word = |change: &str| words(changed(&[change]));
    assert!(
        word("mesh.colour=2")
            .ends_with("section `mesh` has expert, expert_folded, order, pipeline, sequence_data, tensor")
    );
    assert!(word("WORLD_SIZE=2").ends_with("unknown key `WORLD_SIZE`; `unisono-train keys` lists all keys"));
    assert_eq!(word("=3"), "`=3`: an override is `section.key=value`");
    assert!(word("optimizer.learning_rate=1").ends_with("it is called `optimizer.lr`"));
    assert!(word("n_layer=2").ends_with("it is called `model.layers`"));
}

#[test]
fn names_of_other_programs_are_values_too() {
    let config =
        changed(&["strategy.kind=ddp", "model.norm=rmsnorm", "strategy.param_dtype=bfloat16"]).unwrap();
    assert_eq!((config.strategy.kind, config.model.norm), (ParallelKind::Replicated, Norm::Rms));
    assert_eq!(config.strategy.param_dtype, Dtype::Bf16);
    for alias in ["fsdp", "fsdp2", "zero-3"] {
        assert_eq!(changed(&[&format!("strategy.kind={alias}")]).unwrap().strategy.kind, ParallelKind::Zero3);
    }
    let error = words(changed(&["optimizer.kind=adam"]));
    assert!(error.ends_with("adamw with optimizer.weight_decay=0 is Adam"), "{error}");
    let list = changed(&["model.freeze=wte, h.*.attn"]).unwrap().model.freeze;
    assert_eq!(list, ["wte", "h.*.attn"]);
}

#[test]
fn renamed_keys_are_answered_with_their_present_name() {
    let defaults = super::read::to_table(&Config::default()).unwrap();
    for (earlier, present) in super::renamed_keys::RENAMED_KEYS {
        let answer = format!("key `{earlier}` is now `{present}`; rename it");
        let change = format!("{earlier}=3");
        assert_eq!(words(changed(&[&change])), format!("`{change}`: {answer}"));
        let (section, key) = present.split_once('.').unwrap_or((present, ""));
        let section = defaults.get(section).and_then(|section| section.as_table());
        assert!(section.is_some_and(|section| key.is_empty() || section.contains_key(key)), "{present}");
    }
    let word = |text| words(loaded("renamed", text));
    assert_eq!(
        word("[model]\ntied = true\n"),
        "line 2, `tied = true`: key `model.tied` is now `model.tie_word_embeddings`; rename it"
    );
    assert!(word("[optimiser]\nlr = 1e-3\n").ends_with("key `optimiser` is now `optimizer`; rename it"));
    assert!(word("[log]\ncompare_every = 3\n").ends_with("is now `log.check_replicas_every`; rename it"));
}

#[test]
fn settings_of_other_models_are_answered_with_their_place() {
    let (override_of, file) =
        (|change: &str| words(changed(&[change])), |text| words(loaded("removed", text)));
    for key in ["model.kind", "model.hidden_sizes"] {
        let change = format!("{key}=[3]");
        assert!(override_of(&change).contains("examples/classifier"), "{change}");
    }
    let table = "unknown variant `table`, expected `text` or `tokens`; examples/classifier reads tables";
    assert!(override_of("data.kind=table").contains(table));
    assert!(file("[data]\nkind = \"table\"\n").contains(table));
    assert!(file("[model]\nkind = \"mlp\"\n").starts_with("line 2, `kind = \"mlp\"`: no key `model.kind`"));
    for form in ["naive", "overlapped", "zero1-parameters"] {
        let place = "examples/data_parallel has this form";
        assert!(override_of(&format!("strategy.kind={form}")).contains(place), "{form}");
        let text = format!("[strategy]\nkind = \"{form}\"\n");
        assert!(words(loaded("form", &text)).contains(place), "{form}");
    }
    // Settings that an earlier version saved with a GPT are still read.
    let saved = "[model]\nwidth = 96\nkind = \"gpt\"\nhidden_sizes = [64, 64]\n";
    assert_eq!(loaded("saved", saved).unwrap().model, changed(&["model.width=96"]).unwrap().model);
}

#[test]
fn wrong_values_name_file_and_line() {
    let file = TempFile::new("wrong", "[data]\n\nmicro_batch = \"four\"\n");
    let error = Config::load(Some(&file.0), &[]).unwrap_err().to_string();
    let name = file.0.display();
    assert_eq!(
        error,
        format!(
            "{name}: line 3, `micro_batch = \"four\"`: invalid type: string \"four\", expected a whole number"
        )
    );
    let word = |text| words(loaded("values", text));
    assert!(word("seed = -1\n").contains("line 1, `seed = -1`: invalid value: integer `-1`"));
    assert!(
        word("[model]\nnorm = \"batch\"\n").contains("unknown variant `batch`, expected one of `layer`, ")
    );
    assert!(word("model = 3\n").starts_with("line 1, `model = 3`: invalid type"));
    assert!(word("[model\n").starts_with("line 1"));
    assert!(word("seed = 1\nseed = 2\n").starts_with("line 2, `seed = 2`: duplicate key"));
    let missing = Config::load(Some(Path::new("/nowhere/run.toml")), &[]).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/run.toml: "));
}

#[test]
fn wrong_overrides_are_rejected() {
    assert_eq!(words(changed(&["seed"])), "`seed`: an override is `section.key=value`");
    let error = words(changed(&["strategy.kind=zero9"]));
    assert!(
        error.starts_with("`strategy.kind=zero9`: unknown variant `zero9`, expected one of `bucketed`"),
        "{error}"
    );
    let error = words(changed(&["model.width=wide"]));
    assert_eq!(error, "`model.width=wide`: invalid type: string \"wide\", expected a whole number");
    assert_eq!(
        words(changed(&["model=3"])),
        "`model=3`: invalid type: integer `3`, expected a section with keys"
    );
}

#[test]
fn invalid_configs_are_rejected() {
    let cases = [
        ("model.heads=3", "model.heads = 3 does not divide model.width = 128"),
        ("model.heads=0", "model.heads = 0: it is from 1 to 1048576"),
        ("model.kv_heads=3", "model.kv_heads = 3 does not divide model.heads = 4"),
        ("model.ffn_width=1048577", "model.ffn_width = 1048577: it is at most 1048576"),
        ("model.head_dim=1048577", "model.head_dim = 1048577: it is at most 1048576"),
        (
            "model.sliding_window=127",
            "model.sliding_window = 127 is less than model.context = 128: attention within a window is not part of \
             this build; set model.context to at most 127",
        ),
        ("model.rope_base=0", "model.rope_base = 0: it must be positive"),
        ("model.norm_epsilon=nan", "model.norm_epsilon = NaN: it must be positive"),
        (
            "model.rope_low_freq_factor=4",
            "model.rope_low_freq_factor = 4 is not below model.rope_high_freq_factor = 4",
        ),
        ("model.rope_beta_slow=33", "model.rope_beta_slow = 33 is above model.rope_beta_fast = 32"),
        ("model.rope_attention_factor=-1", "model.rope_attention_factor = -1 is not a valid size"),
        ("threads=4294967296", "threads = 4294967296: it is from 1 to 1024"),
        ("model.layers=9223372036854775807", "model.layers = 9223372036854775807: it is from 1 to 4096"),
        ("model.width=4294967296", "model.width = 4294967296: it is from 1 to 1048576"),
        (
            "data.global_batch=9223372036854775807",
            "data.global_batch = 9223372036854775807: it is from 1 to 4294967296",
        ),
        ("strategy.bucket_mb=inf", "strategy.bucket_mb = inf is not a valid size"),
        ("model.dropout=1.0", "model.dropout = 1 is not a fraction below 1"),
        ("optimizer.lr=nan", "optimizer.lr = NaN is not a valid size"),
        ("sample.repetition_penalty=0", "sample.repetition_penalty = 0: it must be positive"),
        ("sample.repetition_penalty=1e-40", "sample.repetition_penalty = 1e-40: it is from 0.001 to 1000"),
        ("sample.repetition_penalty=1e39", "sample.repetition_penalty = 1e39: it is from 0.001 to 1000"),
        ("optimizer.beta2=1", "optimizer.beta2 = 1 is not a fraction below 1"),
        ("data.path=", "data.path is empty: name a file or folder"),
        ("strategy.bucket_mb=0", "strategy.bucket_mb = 0 is not a valid size"),
        (
            "schedule.warmup=301",
            "schedule.warmup = 301 and schedule.decay = 0 are more than schedule.steps = 300; usual is \
             schedule.warmup=30",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(words(changed(&[change])), expected);
    }
    changed(&["model.heads=3", "model.head_dim=64", "model.sliding_window=128"]).unwrap();
    let odd = ["model.width=12", "model.positions=rotary"];
    assert_eq!(
        words(changed(&odd)),
        "model.positions = \"rotary\" needs an even number of features per head, not 3"
    );
    let flat = words(changed(&["model.rope_base=1", "model.rope_scaling=yarn"]));
    assert_eq!(flat, "model.rope_base = 1 with model.rope_scaling = \"yarn\": it is above 1");
    let slow = words(changed(&["optimizer.moment_dtype=bf16", "optimizer.beta2=0.999"]));
    assert!(slow.contains("rounding would lose") && slow.contains("beta2 to at most 0.99"), "{slow}");
    changed(&["optimizer.moment_dtype=bf16"]).unwrap();
    let nowhere = "checkpoint.folder=";
    assert!(changed(&[nowhere, "checkpoint.last=false"]).is_ok(), "nothing is kept there");
    for needs in ["checkpoint.every=5", "checkpoint.resume=true", "checkpoint.last=true"] {
        let error = words(changed(&["checkpoint.last=false", needs, nowhere]));
        assert_eq!(error, "checkpoint.folder is empty: name one, or set checkpoint.last=false");
    }
    let many = words(changed(&["model.width=1048576", "model.layers=4096"]));
    assert!(many.starts_with("this model has about 5.4e16 parameters"), "{many}");
    assert!(words(changed(&["model.context=16777216", "data.micro_batch=65536"])).contains("activations"));
}

#[test]
fn parameter_groups_come_from_file_or_override() {
    let text = "[[optimizer.groups]]\nparameters = [\"*.bias\", \"wte\"]\nlr_scale = 0.1\nweight_decay = 0.0\n\n\
                [[optimizer.groups]]\nparameters = [\"h.0\"]\n";
    let group = |patterns: &[&str], lr_scale, weight_decay| {
        let parameters = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        ParamGroup { parameters, lr_scale, weight_decay }
    };
    let expected = [group(&["*.bias", "wte"], 0.1, Some(0.0)), group(&["h.0"], 1.0, None)];
    let config = loaded("groups", text).unwrap();
    assert_eq!(config.optimizer.groups, expected);
    assert_eq!(loaded("groups-again", &config.to_toml().unwrap()).unwrap(), config);
    let first = "{ parameters = [\"*.bias\", \"wte\"], lr_scale = 0.1, weight_decay = 0.0 }";
    let change = format!("optimizer.groups=[{first}, {{ parameters = [\"h.0\"] }}]");
    assert_eq!(changed(&[&change]).unwrap().optimizer.groups, expected);
    let error = words(loaded("group-key", &text.replace("lr_scale", "lr")));
    assert!(error.starts_with("line 3, `lr = 0.1`: unknown field `lr`"), "{error}");
    let refused = |group: &str| words(changed(&[&format!("optimizer.groups=[{group}]")]));
    assert!(refused("{}").starts_with("group 1 of optimizer.groups has no parameters"));
    assert_eq!(
        refused("{ parameters = [\"wte\"], lr_scale = -1.0 }"),
        "lr_scale = -1 in group 1 of optimizer.groups is not a valid factor"
    );
}

#[test]
fn the_printed_defaults_name_every_section() {
    let text = Config::default().to_toml().unwrap();
    for line in
        ["seed = 1", "[model]", "shape = \"gpt2\"", "[mesh]", "expert_folded = true", "[log]", "lr = 0.002"]
    {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert_eq!(loaded("printed", &text).unwrap(), Config::default());
}

#[test]
fn batch_and_rate_follow_config() {
    let config = changed(&["data.global_batch=32", "schedule.lr_scale=sqrt", "mesh.tensor=2"]).unwrap();
    let mesh = Mesh::new(8, config.mesh).unwrap();
    assert_eq!(
        config.batch(&mesh).unwrap(),
        BatchPlan { micro_batch: 2, accumulation: 4, ranks: 4, breadth_first: 1, micro_sequences: 1 }
    );
    assert_eq!(config.peak_rate(), 2.0 * config.optimizer.lr);
}

#[test]
fn strategy_settings_follow_config() {
    let settings = |changes: &[&str]| changed(changes).unwrap().strategy.settings(9);
    assert_eq!(settings(&[]), Settings { seed: 9, ..Settings::default() });
    let other = settings(&["strategy.bucket_mb=0.5", "strategy.reduce_dtype=bf16"]);
    assert_eq!((other.bucket_bytes, other.wire_dtype), (1 << 19, Some(Dtype::Bf16)));
    let narrow =
        settings(&["strategy.reduce_dtype=bf16", "strategy.param_dtype=bf16", "strategy.gather_limit=7"]);
    assert_eq!((narrow.wire_dtype, narrow.max_pending_gathers), (None, 7));
    let wide = settings(&[
        "strategy.reduce_dtype=bf16",
        "strategy.param_dtype=bf16",
        "strategy.fp32_grad_accum=true",
        "strategy.average=in-loss",
        "strategy.unused=refuse",
        "strategy.reduce_each=micro-batch",
        "strategy.kind=full-shard",
        "strategy.reshard_after_forward=false",
        "strategy.reduction_limit=5",
    ]);
    assert_eq!(
        (wide.wire_dtype, wide.average, wide.unused),
        (Some(Dtype::Bf16), Average::InLoss, UnusedGradients::Refuse)
    );
    assert_eq!((wide.reduce_each, wide.reshard_after_forward), (ReduceFrequency::MicroBatch, false));
    assert_eq!((wide.max_pending_reductions, wide.fp32_grad_accum), (5, true));
    let groups = settings(&["strategy.shard_ranks=4", "strategy.replicate_below=100"]);
    assert_eq!((groups.shard_ranks, groups.replicate_below), (4, 100));
}

#[test]
fn strategies_of_units_come_from_file_or_override() {
    let expected = [("h.*".to_owned(), ParallelKind::Zero2), ("h.1".to_owned(), ParallelKind::Zero3)];
    let config =
        loaded("units", "[strategy.units]\n\"h.*\" = \"zero2\"\n\"h.1\" = \"full-shard\"\n").unwrap();
    assert_eq!(config.strategy.units, expected.clone().into());
    assert_eq!(loaded("units-again", &config.to_toml().unwrap()).unwrap(), config);
    let change = r#"strategy.units={ "h.*" = "zero2", "h.1" = "zero3" }"#;
    assert_eq!(changed(&[change]).unwrap().strategy.units, expected.into());
    let error = words(loaded("units-kind", "[strategy]\nunits = { wte = \"zero9\" }\n"));
    assert!(error.starts_with("line 2, ") && error.contains("unknown variant `zero9`"), "{error}");
    changed(&["strategy.units={ h = \"zero2\" }", "strategy.reduce_each=micro-batch"]).unwrap();
}

#[test]
fn pytorch_names_are_accepted() {
    let kinds = ParallelKind::ALL.into_iter().filter_map(|kind| Some((kind, kind.pytorch_name()?)));
    for (kind, alias) in kinds {
        let config = changed(&[&format!("strategy.kind={alias}")]).unwrap();
        assert_eq!(config.strategy.kind, kind);
    }
    for kind in ["hsdp", "hybrid-shard"] {
        let error = words(changed(&[&format!("strategy.kind={kind}")]));
        assert!(error.contains("with strategy.shard_ranks"), "{error}");
    }
    let error = words(changed(&["strategy.kind=zero1", "strategy.reduce_each=micro-batch"]));
    assert!(error.contains("is for strategy.kind zero2 and zero3") && error.ends_with("this is zero1"));
    assert!(words(changed(&["strategy.avarage=after"])).ends_with("the nearest is `strategy.average`"));
}

#[test]
fn impossible_experts_are_rejected() {
    let word = |changes: &[&str]| words(changed(changes));
    assert_eq!(word(&["mesh.expert=2"]), "mesh.expert = 2 without experts: set experts.count");
    let refusal = |change: &str| word(&["experts.count=6", change]);
    assert_eq!(refusal("mesh.expert=4"), "mesh.expert = 4 does not divide experts.count = 6");
    assert_eq!(refusal("experts.per_token=7"), "experts.per_token = 7: it is from 1 to experts.count = 6");
    assert_eq!(refusal("experts.per_token=0"), "experts.per_token = 0: it is from 1 to experts.count = 6");
    assert_eq!(
        refusal("experts.first_dense=2"),
        "experts.first_dense = 2 leaves none of model.layers = 2 with experts"
    );
    assert_eq!(
        refusal("experts.capacity_factor=-1"),
        "experts.capacity_factor = -1e0: it is from 0 to below 10^6"
    );
    assert!(word(&["experts.count=6", "data.micro_sequences=2"]).ends_with("not part of this build"));
    assert!(
        word(&["experts.count=6", "experts.score=sigmoid", "experts.z_loss=0.1"])
            .contains("has no log-sum-exp")
    );
}

prop_compose! {
    fn configurations()(
        seed in any::<u32>(),
        sizes in prop::array::uniform4(1usize..1 << 12),
        share in 0.0..1.0f64,
        lr in prop::num::f64::POSITIVE,
        path in "(?s).+",
        shape in prop::sample::select(vec![LrShape::Constant, LrShape::Linear, LrShape::WarmupStableDecay]),
        kind in prop::sample::select(ParallelKind::ALL.to_vec()),
    ) -> Config {
        let mut config = Config { seed, ..Config::default() };
        let [layers, width, tensor, bucket] = sizes;
        config.model = Model { layers, width, heads: width, dropout: share, ..config.model };
        config.data = Data { path: path.clone(), extensions: vec![path], ..config.data };
        config.mesh.tensor = tensor << 28;
        config.optimizer.lr = lr;
        config.schedule.shape = shape;
        config.strategy = super::Strategy { kind, bucket_mb: bucket as f64, ..config.strategy };
        config
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn printed_config_round_trips(config in configurations()) {
        let file = TempFile::new("round-trip", &config.to_toml().unwrap());
        prop_assert_eq!(Config::load(Some(&file.0), &[]).unwrap(), config);
    }
}

#[test]
fn every_order_of_axes_is_read() {
    for order in AxisOrder::all() {
        let config = Config::load(None, &[format!("mesh.order={order}")]).unwrap();
        assert_eq!(config.mesh.order, order);
    }
    let word = Config::load(None, &["mesh.order=tensor,stage".to_owned()]).unwrap_err().to_string();
    assert!(word.contains("unknown variant `stage`"), "{word}");
}
