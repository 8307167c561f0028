//! Tests of settings other than the defaults.

use super::*;
use crate::config::new_model;
use crate::train::read_ahead::ReadAhead;
use unisono_parallel::testing::{Bits, collect_shards, merge_shards};

/// Returns losses, weights and moments of a short run.
fn trained(ranks: usize, config: &Config) -> (Vec<f64>, Bits) {
    let ends = run_ranks(ranks, |world| {
        let mut run = Run::new(config, world).unwrap();
        let losses = (0..config.schedule.steps).map(|_| run.step().unwrap().loss).collect::<Vec<_>>();
        let inventory = Arc::clone(&run.inventory);
        (losses, collect_shards(&mut *run.strategy, &inventory))
    });
    let (losses, bits): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    (losses[0].clone(), merge_shards(bits))
}

#[test]
fn muon_nearly_matches_with_sharded_matrices() {
    let folder = folder();
    let weights_of = |ranks, changes: &[&str]| {
        let muon = ["optimizer.kind=muon", "schedule.steps=4", "model.tie_word_embeddings=false"];
        let config = config(folder.path(), &[&muon, changes].concat());
        let (_, inventory) = new_model(&config, None).unwrap();
        let (losses, bits) = trained(ranks, &config);
        let is_hidden =
            |name: &str| name.starts_with("h.") && name.ends_with("weight") && !name.contains("ln_");
        let hidden = bits.into_iter().filter(|((id, _), _)| is_hidden(&inventory[*id].name));
        let weights: Vec<f32> = hidden.map(|(_, bits)| f32::from_bits(bits[0])).collect();
        (losses, weights)
    };
    let (reference, weights) = weights_of(1, &[]);
    assert_eq!(weights.len(), 2 * 12 * 32 * 32);
    let meshes: [(usize, &[&str]); 3] = [
        (2, &["mesh.tensor=2"]),
        (3, &["mesh.tensor=3", "model.heads=4"]),
        (4, &["mesh.tensor=2", "strategy.kind=zero3", "strategy.sequence_parallel=true"]),
    ];
    for (ranks, changes) in meshes {
        let (reference, weights) = if changes.len() == 2 {
            weights_of(1, &changes[1..])
        } else {
            (reference.clone(), weights.clone())
        };
        let (losses, found) = weights_of(ranks, changes);
        let furthest =
            found.iter().zip(&weights).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5 && found.len() == weights.len(), "{changes:?}: {furthest:e} apart");
        let is_near = |(left, right): (&f64, &f64)| (left / right - 1.0).abs() < 1e-5;
        assert!(losses.iter().zip(&reference).all(is_near), "{changes:?}: {losses:?}, not {reference:?}");
    }
}

#[test]
fn loss_averaging_trains_and_frozen_table_stays() {
    let folder = folder();
    let trained_with = |changes: &[&str]| trained(2, &config(folder.path(), changes));
    let (losses, _) = trained_with(&[]);
    for kind in ["bucketed", "zero1", "full-shard"] {
        let (found, _) = trained_with(&["strategy.average=in-loss", &format!("strategy.kind={kind}")]);
        assert!(found.iter().zip(&losses).all(|(left, right)| (left / right - 1.0).abs() < 1e-6), "{kind}");
    }
    let config = config(folder.path(), &["model.freeze=[\"wte\", \"h.*.attn\"]"]);
    let (_, inventory) = new_model(&config, None).unwrap();
    for ((id, place), bits) in trained(2, &config).1 {
        let frozen = ["wte", "h.0.attn", "h.1.attn"].iter().any(|path| inventory[id].name.starts_with(path));
        let mut start = [0.0];
        inventory[id].initialize(u64::from(config.seed), place..place + 1, &mut start);
        assert_eq!(frozen, bits.len() == 1, "{} has moments", inventory[id].name);
        assert!(!frozen || bits[0] == start[0].to_bits(), "{} has moved", inventory[id].name);
    }
}

/// Biases with their own decay, and a first layer that does not learn.
const GROUPS: &str = "optimizer.groups=[{parameters=[\"*.bias\"],lr_scale=0.5,weight_decay=0.05},\
                      {parameters=[\"h.0\"],lr_scale=0}]";

#[test]
fn parameter_groups_are_bitwise_equal_over_strategies() {
    let folder = folder();
    for optimizer in ["optimizer.kind=adamw", "optimizer.kind=muon", "optimizer.kind=sgd"] {
        let trained_with = |ranks, changes: &[&str]| {
            let keys = [&[optimizer, "schedule.steps=3", "optimizer.lr=0.01"], changes].concat();
            trained(ranks, &config(folder.path(), &keys))
        };
        let (grouped, plain) = (trained_with(2, &[GROUPS]), trained_with(2, &[]));
        let (_, inventory) = new_model(&config(folder.path(), &[]), None).unwrap();
        for ((id, place), bits) in &grouped.1 {
            let name = &inventory[*id].name;
            let mut start = [0.0];
            inventory[*id].initialize(1, *place..place + 1, &mut start);
            let stays = name.starts_with("h.0.") && !name.ends_with(".bias");
            assert!(!stays || bits[0] == start[0].to_bits(), "{name} has moved");
        }
        assert!(grouped.1 != plain.1, "{optimizer}: groups have an effect");
        let offload = format!("strategy.offload={}", folder.path().join("state").display());
        let shapes: [&[&str]; 4] = [
            &["strategy.kind=zero1"],
            &["strategy.kind=zero2"],
            &["strategy.kind=zero3"],
            &["strategy.kind=zero2", &offload],
        ];
        for changes in shapes {
            let found = trained_with(2, &[&[GROUPS], changes].concat());
            assert!(found == grouped, "{optimizer}, {changes:?}");
        }
    }
}

#[test]
fn tensor_parallel_wait_is_reported_and_traced() {
    let folder = folder();
    let trace = folder.path().join("trace.json");
    let traced = format!("log.trace={}", trace.display());
    let config = config(folder.path(), &["mesh.tensor=2", &traced, "schedule.steps=3", "schedule.warmup=0"]);
    run_ranks(2, |world| {
        let mut run = Run::new(&config, world).unwrap();
        let taken = run.step().unwrap();
        assert!(
            taken.tensor_parallel_wait > taken.exposed && taken.tensor_parallel_wait < taken.time,
            "{taken:?}"
        );
    });
    train_on_threads(2, &config).unwrap();
    let text = std::fs::read_to_string(trace).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let is_sum = |event: &&serde_json::Value| event["name"] == "sum of a layer" && event["tid"] == 1;
    // Two blocks with two parts each, both directions, six micro-batches: 3 steps of 2 ranks.
    let found = trace["traceEvents"].as_array().unwrap().iter().filter(is_sum).count();
    assert!(found >= 2 * 2 * 2 * 6 * 3 * 2, "{found}");
}

/// Largest difference of the loss with moments of 16 bits, relative to that with 32 bits.
const BF16_MOMENTS_LOSS: f64 = 0.02;

#[test]
fn bf16_moments_halve_the_state_and_keep_the_loss() {
    let folder = folder();
    let half = "optimizer.moment_dtype=bf16";
    for (ranks, kind) in [(1, "optimizer.kind=adamw"), (2, "strategy.kind=zero3"), (2, "optimizer.kind=muon")]
    {
        let trained_with = |changes: &[&str]| {
            let keys = [&[kind, "schedule.steps=60", "log.check_replicas_every=20"], changes].concat();
            let config = config(folder.path(), &keys);
            let formula = DryRun::new(&config, ranks).unwrap().own_memory();
            let outcome = train_on_threads(ranks, &config).unwrap();
            assert_eq!(outcome.memory.classes[2].0, formula[2], "{keys:?}");
            outcome
        };
        let (wide, narrow) = (trained_with(&[]), trained_with(&[half]));
        assert_eq!(2 * narrow.memory.classes[2].0, wide.memory.classes[2].0, "{kind}");
        assert!(wide.losses[59] < 0.6 * wide.losses[0] && narrow.fingerprint != wide.fingerprint, "{kind}");
        let apart = narrow.losses.iter().zip(&wide.losses).map(|(left, right)| (left / right - 1.0).abs());
        let difference = apart.fold(0.0, f64::max);
        assert!(difference < BF16_MOMENTS_LOSS, "{kind}: losses are up to {difference} apart");
    }
}

#[test]
fn checkpoints_and_offload_keep_bf16_moments_exactly() {
    let folder = folder();
    let half = "optimizer.moment_dtype=bf16";
    let trained_with = |changes: &[&str]| {
        let keys = [&[half, "schedule.steps=4", "checkpoint.every=2", "checkpoint.keep=3"], changes].concat();
        train_on_threads(2, &config(folder.path(), &keys)).unwrap()
    };
    let uninterrupted = trained_with(&["strategy.kind=zero3"]);
    std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000004")).unwrap();
    let resumed = trained_with(&["strategy.kind=zero1", "checkpoint.resume=true"]);
    assert_eq!(
        (resumed.fingerprint, &resumed.losses[..]),
        (uninterrupted.fingerprint, &uninterrupted.losses[2..])
    );
    let offload = format!("strategy.offload={}", folder.path().join("state").display());
    let away = trained_with(&["strategy.kind=zero3", "checkpoint.every=0", &offload]);
    assert_eq!(bits(&away), bits(&uninterrupted));
    let [away, kept] = [(&away, AllocClass::Offloaded), (&uninterrupted, AllocClass::Optimizer)]
        .map(|(outcome, class)| outcome.memory.classes[class as usize].0);
    assert_eq!(away, kept);
}

#[test]
fn offloaded_state_is_bitwise_equal() {
    let folder = folder();
    let state = folder.path().join("state");
    let offload = format!("strategy.offload={}", state.display());
    for (kind, dtype) in [("bucketed", "f32"), ("zero1", "f32"), ("zero2", "bf16"), ("zero3", "bf16")] {
        let (kind, dtype) = (format!("strategy.kind={kind}"), format!("strategy.param_dtype={dtype}"));
        let trained_with = |changes: &[&str]| {
            let changes = [&[&kind, &dtype, "schedule.steps=4", "checkpoint.every=2"], changes].concat();
            train_on_threads(2, &config(folder.path(), &changes)).unwrap()
        };
        let (kept, away) = (trained_with(&["checkpoint.every=0"]), trained_with(&[&offload]));
        assert_eq!(bits(&away), bits(&kept), "{kind}, {dtype}");
        let now = |outcome: &TrainResult, class| outcome.memory.classes[class as usize].0;
        assert_eq!(now(&away, AllocClass::Offloaded), now(&kept, AllocClass::Optimizer), "{kind}, {dtype}");
        assert_eq!((now(&away, AllocClass::Optimizer), now(&kept, AllocClass::Offloaded)), (0, 0));
        assert_eq!(away.memory.formulas[4], kept.memory.formulas[2], "{kind}, {dtype}");
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0, "files have no names");
        std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000004")).unwrap();
        let resumed = trained_with(&[&offload, "checkpoint.resume=true"]);
        assert_eq!((resumed.fingerprint, &resumed.losses[..]), (kept.fingerprint, &kept.losses[2..]));
        std::fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
    }
}

#[test]
fn workers_are_ahead_of_a_run_by_their_number_of_steps() {
    let folder = folder();
    let ahead = |workers: usize| {
        let config = config(folder.path(), &[&format!("data.workers={workers}"), "schedule.steps=3"]);
        let ranks = run_ranks(2, |world| {
            let mut run = Run::new(&config, world).unwrap();
            [(); 2].map(|()| {
                run.step().unwrap();
                run.read_ahead.as_ref().map(ReadAhead::steps_under_way)
            })
        });
        assert_eq!(ranks[0], ranks[1], "{workers} workers");
        ranks[0]
    };
    assert_eq!(ahead(0), [None; 2]);
    // Each worker has two steps under way, of which the run has taken the first.
    for workers in [1, 3] {
        assert_eq!(ahead(workers), [Some(2 * workers - 1); 2]);
    }
}
