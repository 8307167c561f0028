//! Tests of exported folders: what the folder of the trained model says stays.

use super::*;
use crate::checkpoint::latest;
use crate::models::hugging_face::FileOptions;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Files of a model besides weights, `config.json` and `tokenizer.json`, with their texts.
const FILES: [(&str, &str); 8] = [
    ("tokenizer_config.json", r#"{"eos_token": "<end>", "bos_token": "<s>", "add_bos_token": true}"#),
    ("special_tokens_map.json", r#"{"eos_token": "<end>"}"#),
    ("chat_template.jinja", "{{ messages }}"),
    ("additional_chat_templates/rag.v2.jinja", "{{ documents }}"),
    ("added_tokens.json", r#"{"<eod>": 5}"#),
    ("preprocessor_config.json", r#"{"size": 3}"#),
    ("vocab.json", r#"{"a": 0}"#),
    ("generation_config.json", r#"{"eos_token_id": [4, 3], "temperature": 0.6}"#),
];

/// Tokenizer with a token of each kind.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel",
    "vocab": {"a": 0, "b": 1, "<s>": 2, "<end>": 3, "<turn>": 4, "<eod>": 5}, "unk_token": "a"}}"#;

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Trains a Llama, and returns the folder of its checkpoint.
fn trained(folder: &Path, name: &str, changes: &[&str]) -> PathBuf {
    let folder_change = format!("checkpoint.folder={}", folder.join(name).display());
    let common = [
        "schedule.steps=1",
        "schedule.warmup=0",
        "checkpoint.last=true",
        "model.shape=llama",
        &folder_change,
    ];
    train_on_threads(1, &config(folder, &[&common[..], changes].concat())).unwrap();
    latest(&folder.join(name)).unwrap()
}

fn exported(checkpoint: &Path, target: &Path, changes: &[String]) -> Result<Value> {
    export(checkpoint, target, changes, FileOptions::default())?;
    Ok(read(&target.join("config.json")))
}

/// Makes the folder of a model with all files, and returns its `config.json`.
fn whole_folder(folder: &Path) -> Value {
    let base = folder.join("base");
    let mut config = exported(&trained(folder, "first", &[]), &base, &[]).unwrap();
    for (key, value) in [
        ("max_position_embeddings", json!(128)),
        ("bos_token_id", json!(2)),
        ("eos_token_id", json!([3, 4])),
        ("pad_token_id", json!(0)),
        ("initializer_range", json!(0.07)),
    ] {
        config[key] = value;
    }
    std::fs::write(base.join("config.json"), config.to_string()).unwrap();
    std::fs::write(base.join("tokenizer.json"), TOKENIZER).unwrap();
    std::fs::create_dir(base.join("additional_chat_templates")).unwrap();
    FILES.iter().for_each(|(name, text)| std::fs::write(base.join(name), text).unwrap());
    config
}

#[test]
fn exported_folder_keeps_what_the_source_says() {
    let folder = folder();
    let (base, target) = (folder.path().join("base"), folder.path().join("tuned"));
    let source = whole_folder(folder.path());
    let model_from = format!("model.from={}", base.display());
    let checkpoint = trained(folder.path(), "second", &[&model_from, "model.context=32"]);
    std::fs::remove_dir_all(&base).unwrap();
    let config = exported(&checkpoint, &target, &[]).unwrap();
    assert_eq!(config, source, "nothing but the weights has changed");
    for (name, text) in FILES.iter().filter(|(name, _)| *name != "generation_config.json") {
        assert_eq!(std::fs::read_to_string(target.join(name)).unwrap(), *text, "{name}");
    }
    assert_eq!(
        read(&target.join("generation_config.json")),
        json!({"eos_token_id": [4, 3], "temperature": 0.6})
    );
    assert_eq!(std::fs::read_to_string(target.join("tokenizer.json")).unwrap(), TOKENIZER);
    let end = ["data.end_of_text=<eod>".to_owned()];
    let config = exported(&checkpoint, &target, &end).unwrap();
    assert_eq!(config["eos_token_id"], json!([3, 4, 5]));
    assert_eq!(read(&target.join("generation_config.json"))["eos_token_id"], json!([4, 3, 5]));
    let template = target.join("additional_chat_templates/old.jinja");
    std::fs::write(&template, "").unwrap();
    let error = exported(&checkpoint, &target, &[]).unwrap_err().to_string();
    assert!(error.contains("old.jinja: readers would take it"), "{error}");
    std::fs::remove_file(&template).unwrap();
    // A checkpoint brings the files that its manifest lists, and no others.
    std::fs::remove_file(checkpoint.join("chat_template.jinja")).unwrap();
    let error = exported(&checkpoint, &target, &[]).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja"), "{error}");
    let first = latest(&folder.path().join("first")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", first.join("tokenizer_config.json")).unwrap();
    let error = exported(&first, &folder.path().join("other"), &[]).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json: not a file of this checkpoint"), "{error}");
}

#[test]
fn resumed_run_keeps_the_files_of_the_model() {
    let folder = folder();
    let source = whole_folder(folder.path());
    let model_from = format!("model.from={}", folder.path().join("base").display());
    let checkpoint = trained(folder.path(), "second", &[&model_from, "data.end_of_text=<turn>"]);
    std::fs::remove_dir_all(folder.path().join("base")).unwrap();
    assert!(checkpoint.join("generation_config.json").is_file());
    let ffn = format!("model.ffn_width={}", source["intermediate_size"]);
    let again = ["checkpoint.resume=true", "schedule.steps=2", "model.context=128", "model.kv_heads=2", &ffn];
    let resumed = trained(folder.path(), "second", &again);
    let target = folder.path().join("tuned");
    let config = exported(&resumed, &target, &[]).unwrap();
    assert_eq!(std::fs::read_to_string(target.join("tokenizer.json")).unwrap(), TOKENIZER);
    assert_eq!(std::fs::read_to_string(target.join("chat_template.jinja")).unwrap(), FILES[2].1);
    let text = std::fs::read_to_string(resumed.join("manifest.json")).unwrap();
    assert!(text.contains(r#"end_of_text = \"<turn>\""#), "{text}");
    assert_eq!((&config["pad_token_id"], &config["eos_token_id"]), (&json!(0), &json!([3, 4])));
}

#[test]
fn new_model_has_the_special_tokens_of_its_tokenizer() {
    let folder = folder();
    let checkpoint = trained(folder.path(), "bytes", &[]);
    let config = exported(&checkpoint, &folder.path().join("of-bytes"), &[]).unwrap();
    assert_eq!((&config["bos_token_id"], &config["eos_token_id"]), (&Value::Null, &json!(256)));
    std::fs::write(folder.path().join("tokenizer.json"), TOKENIZER).unwrap();
    let target = folder.path().join("of-words");
    let words = format!("data.tokenizer={}", folder.path().join("tokenizer.json").display());
    let config =
        exported(&checkpoint, &target, &[words.clone(), "data.end_of_text=<eod>".to_owned()]).unwrap();
    assert_eq!((&config["bos_token_id"], &config["eos_token_id"]), (&Value::Null, &json!(5)));
    assert_eq!((&config["dtype"], &config["model_type"]), (&json!("float32"), &json!("llama")));
    std::fs::write(folder.path().join("tokenizer_config.json"), FILES[0].1).unwrap();
    let config = exported(&checkpoint, &target, &[words]).unwrap();
    assert_eq!((&config["bos_token_id"], &config["eos_token_id"]), (&json!(2), &json!(3)));
    assert!(target.join("tokenizer_config.json").is_file());
    let error = exported(&checkpoint, &target, &[]).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json: readers would take it"), "{error}");
}

#[test]
fn weights_of_earlier_exports_do_not_stay() {
    let folder = folder();
    let (checkpoint, target) = (trained(folder.path(), "first", &[]), folder.path().join("out"));
    let weights = |max_bytes: usize| -> Result<Vec<String>> {
        export(&checkpoint, &target, &[], FileOptions { max_bytes, ..FileOptions::default() })?;
        let entries = std::fs::read_dir(&target).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.contains("safetensors"));
        names.sort();
        Ok(names)
    };
    let single = weights(usize::MAX).unwrap();
    assert_eq!(single, ["model.safetensors"]);
    let many = weights(40_000).unwrap();
    assert!(many.len() > 3 && !many.contains(&single[0]), "{many:?}");
    assert!(many.contains(&"model.safetensors.index.json".to_owned()), "{many:?}");
    let fewer = weights(80_000).unwrap();
    let is_of = |name: &String| name.ends_with(&format!("-of-{:05}.safetensors", fewer.len() - 1));
    assert!(fewer.len() < many.len() && fewer.iter().filter(|name| is_of(name)).count() + 1 == fewer.len());
    assert_eq!(weights(usize::MAX).unwrap(), single);
    std::fs::write(target.join("adapter_model.safetensors"), "").unwrap();
    let error = weights(usize::MAX).unwrap_err().to_string();
    assert!(error.contains("adapter_model.safetensors: readers would take it"), "{error}");
}

/// Makes the folder of a model of bytes with these settings of generation, and returns a checkpoint
/// of a run that began with it.
fn with_settings(folder: &Path, name: &str, settings: &Value) -> PathBuf {
    let base = folder.join(format!("base-of-{name}"));
    exported(&trained(folder, &format!("first-of-{name}"), &[]), &base, &[]).unwrap();
    std::fs::write(base.join("generation_config.json"), settings.to_string()).unwrap();
    trained(folder, name, &[&format!("model.from={}", base.display())])
}

#[test]
fn generation_has_the_settings_of_the_folder() {
    let folder = folder();
    let generated = |checkpoint: &Path, overrides: &str| {
        let overrides: Vec<_> = overrides.split_whitespace().map(str::to_owned).collect();
        generate(checkpoint, "line", &overrides, &mut |_| Ok(()))
    };
    let random = json!({"do_sample": true, "temperature": 3.0, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.5,
        "max_new_tokens": 12, "num_beams": 4});
    let checkpoint = with_settings(folder.path(), "random", &random);
    let given = "sample.temperature=3 sample.top_k=40 sample.top_p=0.9 sample.repetition_penalty=1.5 sample.tokens=12";
    let text = generated(&checkpoint, "").unwrap();
    assert_eq!(text, generated(&checkpoint, given).unwrap());
    assert_eq!(text, generated(&checkpoint, "sample.top_k=40").unwrap());
    let cold = generated(&checkpoint, "sample.temperature=0").unwrap();
    assert!(cold != text, "a setting of the user counts: {cold:?}");
    assert_eq!(cold, generated(&checkpoint, &format!("{given} sample.temperature=0")).unwrap());
    let greedy = json!({"do_sample": false, "temperature": 3.0, "max_new_tokens": 9});
    let checkpoint = with_settings(folder.path(), "greedy", &greedy);
    let text = generated(&checkpoint, "").unwrap();
    assert_eq!(text, generated(&checkpoint, "sample.temperature=0 sample.tokens=9").unwrap());
    let chosen = generated(&checkpoint, "sample.top_k=40 seed=5").unwrap();
    assert_eq!(chosen, generated(&checkpoint, "sample.top_k=40 sample.temperature=0.7 seed=5").unwrap());
    let checkpoint = with_settings(folder.path(), "wrong", &json!({"temperature": "warm"}));
    let error = generated(&checkpoint, "").unwrap_err().to_string();
    assert!(error.contains("generation_config.json: `sample.temperature="), "{error}");
    assert!(error.contains("give this setting to the command"), "{error}");
    generated(&checkpoint, "sample.temperature=1 sample.tokens=2").unwrap();
}

#[test]
fn adapters_and_code_are_refused_or_left_out_by_name() {
    let folder = folder();
    let base = folder.path().join("base");
    exported(&trained(folder.path(), "first", &[]), &base, &[]).unwrap();
    let custom =
        r#"{"auto_map": {"AutoTokenizer": ["tokenization_own.Own", null]}, "tokenizer_class": "Own"}"#;
    std::fs::write(base.join("tokenizer_config.json"), custom).unwrap();
    std::fs::write(base.join("tokenization_own.py"), "class Own: pass").unwrap();
    let model_from = format!("model.from={}", base.display());
    let checkpoint = trained(folder.path(), "second", &[&model_from]);
    let notes = crate::train::pretrained::notes(&config(folder.path(), &[&model_from]));
    assert!(notes.iter().any(|note| note.contains("tokenization_own.py: code is neither run")), "{notes:?}");
    let target = folder.path().join("tuned");
    exported(&checkpoint, &target, &[]).unwrap();
    assert_eq!(read(&target.join("tokenizer_config.json")), json!({"tokenizer_class": "Own"}));
    std::fs::write(target.join("adapter_config.json"), "{}").unwrap();
    let error = exported(&checkpoint, &target, &[]).unwrap_err().to_string();
    assert!(error.contains("adapter_config.json: readers would take it"), "{error}");
    let error = Config::load(None, &[format!("model.from={}", target.display())]).unwrap_err().to_string();
    assert!(error.contains("adapter_config.json: an adapter (PEFT)"), "{error}");
}
