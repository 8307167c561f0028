//! Runs of models of each family that differs from Llama by a few switches: to a folder of Hugging
//! Face, and from it.

use super::*;
use crate::checkpoint::latest;
use crate::models::hugging_face::FileOptions;
use serde_json::Value;
use std::path::PathBuf;

/// Families, each with keys of a small model.
const FAMILIES: [(&str, &str); 5] = [
    (
        "mistral",
        "model.sliding_window=48 model.head_dim=12 model.rope_scaling=yarn model.rope_scaling_factor=4 \
         model.rope_original_context=8",
    ),
    ("qwen2", "model.tie_word_embeddings=true model.rope_scaling=linear model.rope_scaling_factor=2"),
    ("qwen3", "model.head_dim=12"),
    ("phi3", "model.rope_base=5000"),
    ("mixtral", "experts.count=4 experts.width=24"),
];

/// Keys of all runs. The loss that balances loads is none of the model's.
const COMMON: &str = "model.heads=4 model.kv_heads=2 model.ffn_width=48 schedule.warmup=0 log.check_replicas_every=2 \
                      experts.balance=none";

fn run(ranks: usize, folder: &Path, changes: &str) -> Result<TrainResult> {
    let words: Vec<_> = COMMON.split_whitespace().chain(changes.split_whitespace()).collect();
    train_on_threads(ranks, &config(folder, &words))
}

/// Trains a model of a family on two ranks, and writes its folder.
fn exported(folder: &Path, family: &str, keys: &str) -> (TrainResult, PathBuf) {
    let common = "mesh.tensor=2 schedule.steps=2 checkpoint.last=true";
    let result = run(2, folder, &format!("model.shape={family} {keys} {common}")).unwrap();
    let export_folder = folder.join("exported");
    let checkpoint = latest(&folder.join("checkpoints")).unwrap();
    export(&checkpoint, &export_folder, &[], FileOptions::default()).unwrap();
    (result, export_folder)
}

#[test]
fn families_move_to_a_folder_and_back() {
    for (family, keys) in FAMILIES {
        let folder = folder();
        let (trained, export_folder) = exported(folder.path(), family, keys);
        let bytes = std::fs::read(export_folder.join("config.json")).unwrap();
        let fields: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(fields["model_type"], family);
        let sharing = if family == "mixtral" { "mesh.expert=2" } else { "" };
        let model_from = format!("model.from={}", export_folder.display());
        let loaded = format!("{model_from} mesh.tensor=2 strategy.kind=zero3 schedule.steps=0 {sharing}");
        let reloaded = run(4, folder.path(), &loaded).unwrap();
        assert_eq!(reloaded.fingerprint, trained.fingerprint, "{family}");
        let losses = |ranks, mesh: &str| {
            run(ranks, folder.path(), &format!("{model_from} schedule.steps=3 {mesh}")).unwrap().losses
        };
        let reference = losses(1, "");
        let meshes = [
            (2, "mesh.tensor=2"),
            (4, "mesh.tensor=2 strategy.sequence_parallel=true mesh.pipeline=2 strategy.kind=zero2"),
            (2, "mesh.sequence_data=2 strategy.kind=zero3"),
        ];
        for (ranks, mesh) in meshes {
            for (found, expected) in losses(ranks, mesh).iter().zip(&reference) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{family} {mesh}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn settings_that_files_cannot_have_are_refused_by_name() {
    let folder = folder();
    let (_, mistral) = exported(folder.path(), FAMILIES[0].0, FAMILIES[0].1);
    let words = |changes: &[String]| match Config::load(None, changes) {
        Err(error) => error.to_string(),
        Ok(config) => train_on_threads(1, &config).unwrap_err().to_string(),
    };
    let model_from = format!("model.from={}", mistral.display());
    let error = words(&[model_from.clone(), "model.context=64".to_owned()]);
    assert!(error.starts_with("model.sliding_window = 48 is less than model.context = 64"), "{error}");
    let data = format!("data.path={}", folder.path().display());
    let [experts, last] = ["experts.count=4", "checkpoint.last=false"].map(str::to_owned);
    let error = words(&[model_from, data, experts, last]);
    assert!(
        error.contains("model.from has a model of the family mistral")
            && error.contains("experts.count to 0"),
        "{error}"
    );
    // The bias of a router has no place in Mixtral's files.
    let changes =
        "model.shape=mixtral experts.count=4 experts.width=24 experts.balance=bias schedule.steps=1";
    let biased = folder.path().join("biased");
    let saving = format!("{changes} checkpoint.last=true checkpoint.folder={}", biased.display());
    run(1, folder.path(), &saving).unwrap();
    let refused = export(&biased, &folder.path().join("none"), &[], FileOptions::default());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("no model of the family mixtral") && error.contains("balance: Bias"), "{error}");
}
