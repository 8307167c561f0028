//! Tests of runs with the switches of attention: norms of queries and keys, biases of queries, keys
//! and values only, and heads with features of their own.

use crate::train::tests::*;

/// Switches of Qwen2 and of Qwen3, and all together.
const SWITCHES: [&str; 3] = [
    "model.qkv_bias=true",
    "model.qk_norm=true model.head_dim=12",
    "model.qk_norm=true model.qkv_bias=true model.head_dim=6 model.sliding_window=32",
];

const COMMON: &str = "model.shape=llama model.heads=4 model.kv_heads=2 model.ffn_width=48 schedule.steps=4 \
                      log.check_replicas_every=2";

fn run(ranks: usize, changes: &str) -> TrainResult {
    let folder = folder();
    let words: Vec<_> = COMMON.split_whitespace().chain(changes.split_whitespace()).collect();
    train_on_threads(ranks, &config(folder.path(), &words)).unwrap()
}

#[test]
fn meshes_with_switches_nearly_match_one_rank() {
    // The updates of SGD are proportional to gradients, so that a constant factor shows.
    let meshes = [
        (2, "mesh.tensor=2"),
        (4, "mesh.tensor=2 strategy.sequence_parallel=true strategy.kind=zero3"),
        (2, "mesh.sequence_data=2 context.kv_transfer=ring model.activation_checkpointing=true"),
        (4, "mesh.pipeline=2 mesh.tensor=2 pipeline.schedule=zb-h1"),
        (3, "strategy.kind=zero2"),
    ];
    for (switches, optimizer) in
        SWITCHES.iter().zip(["sgd optimizer.lr=0.1", "adamw", "sgd optimizer.lr=0.1"])
    {
        let losses =
            |ranks, mesh: &str| run(ranks, &format!("{switches} optimizer.kind={optimizer} {mesh}")).losses;
        let reference = losses(1, "");
        assert!(reference[3] < reference[0], "{switches}: {reference:?}");
        for (ranks, mesh) in meshes {
            for (found, expected) in losses(ranks, mesh).iter().zip(&reference) {
                let ratio = found / expected;
                assert!((ratio - 1.0).abs() < 1e-5, "{switches} {mesh}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn strategies_with_switches_are_bitwise_equal() {
    let result = |changes: &str| bits(&run(4, &format!("mesh.tensor=2 {} {changes}", SWITCHES[2])));
    let first = result("strategy.kind=bucketed");
    assert_eq!(result("strategy.kind=zero3 model.activation_checkpointing=true"), first);
    assert_eq!(result("strategy.kind=zero1"), first);
}

#[test]
fn memory_with_switches_matches_formulas() {
    for changes in ["", "mesh.tensor=2", "model.activation_checkpointing=true model.layers=4"] {
        for switches in SWITCHES {
            let memory = run(2, &format!("{switches} {changes} log.check_replicas_every=0")).memory;
            let kept = [0, 1, 2].map(|class| memory.classes[class].0);
            assert_eq!(kept, memory.formulas[..3], "{switches} {changes}");
            let measured = memory.classes[AllocClass::Activations as usize].1 as f64;
            let ratio = measured / memory.formulas[3] as f64;
            assert!((0.9..1.1).contains(&ratio), "{switches} {changes}: {ratio}");
        }
    }
}

#[test]
fn checkpoints_with_switches_move_between_meshes() {
    let shapes = [
        (1, "strategy.kind=bucketed"),
        (2, "mesh.tensor=2 strategy.kind=zero1"),
        (4, "mesh.tensor=2 mesh.pipeline=2 strategy.kind=zero3"),
    ];
    let configure = |folder: &Path, changes: &str| {
        let words = format!("{COMMON} {} {changes}", SWITCHES[2]);
        config(folder, &words.split_whitespace().collect::<Vec<_>>())
    };
    super::meshes::assert_checkpoints_move(&shapes, 2, configure);
}

#[test]
fn operations_count_the_features_of_queries() {
    let folder = folder();
    let flops = |change: &str| {
        let config = config(folder.path(), &["model.heads=2", change]);
        let (_, inventory) = crate::config::new_model(&config, None).unwrap();
        unisono_plan::cost::flops_per_sample(&config.gpt_shape(), &inventory)
    };
    // Twice the features per head double the queries, keys, values and outputs of two layers.
    let (usual, wide) = (flops("model.head_dim=16"), flops("model.head_dim=32"));
    assert_eq!(flops("model.head_dim=0"), usual);
    let (tokens, width) = (32.0, 32.0);
    assert_eq!(wide - usual, 6.0 * tokens * 2.0 * (4.0 * width * width + tokens * width));
}
