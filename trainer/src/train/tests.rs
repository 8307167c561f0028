//! Tests of whole runs on threads.

mod added_losses;
mod attention_switches;
mod device;
mod sequence_sharding;

use super::run::Run;
use super::*;
use crate::config::Config;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use unisono_nn::allocator::AllocClass;
use unisono_nn::error::{Error, Result};
use unisono_nn::testing::run_ranks;
use unisono_parallel::data_parallel::ParallelKind;

mod buffers;
mod experts;
mod exports;
mod families;
mod interrupts;
mod llama;
mod meshes;
mod mixed;
mod norms;
mod options;
mod padding;
mod pipelines;
mod repeated_heads;
mod saving;
mod shard_groups;
mod starts;

/// Returns the configuration of a small model on a small text in `folder`, changed by `overrides`.
fn config(folder: &Path, overrides: &[&str]) -> Config {
    let text: String =
        (0..400).map(|line| format!("line {line} of {} is {}\n", line * 7 % 13, line % 5)).collect();
    std::fs::write(folder.join("text.txt"), text).unwrap();
    let (data, checkpoints) = (folder.display(), folder.join("checkpoints"));
    let small = [
        format!("data.path={data}"),
        format!("checkpoint.folder={}", checkpoints.display()),
        "model.layers=2".to_owned(),
        "model.width=32".to_owned(),
        "model.heads=2".to_owned(),
        "model.context=32".to_owned(),
        "data.global_batch=12".to_owned(),
        "data.micro_batch=2".to_owned(),
        "schedule.steps=12".to_owned(),
        "schedule.warmup=2".to_owned(),
        "strategy.bucket_mb=0.02".to_owned(),
        "sample.tokens=0".to_owned(),
        "log.validate_every=0".to_owned(),
        "log.check_replicas_every=3".to_owned(),
        "log.every=1000".to_owned(),
        "checkpoint.last=false".to_owned(),
    ];
    let changes = small.into_iter().chain(overrides.iter().map(|&change| change.to_owned()));
    Config::load(None, &changes.collect::<Vec<_>>()).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Returns the loss and the norm of the gradient of each of `count` steps. Ranks agree on them, and
/// copies of weights are equal after the last.
fn losses_and_norms(ranks: usize, config: &Config, count: usize) -> Vec<[f64; 2]> {
    let mut results = run_ranks(ranks, |world| {
        let mut run = Run::new(config, world).unwrap();
        let step = |run: &mut Run| run.step().map(|taken| [taken.loss, taken.grad_norm]).unwrap();
        let numbers: Vec<_> = (0..count).map(|_| step(&mut run)).collect();
        run.check_replicas().unwrap();
        numbers
    });
    let first = results.remove(0);
    assert!(results.iter().all(|other| *other == first), "ranks differ: {results:?}, not {first:?}");
    first
}

/// Checks that losses and norms are nearly those of one rank.
fn assert_near_steps(what: &str, found: &[[f64; 2]], expected: &[[f64; 2]]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        for (index, tolerance) in [(0, 1e-5), (1, 1e-4)] {
            let ratio = found[index] / expected[index];
            assert!((ratio - 1.0).abs() < tolerance, "{what}: {found:?}, not {expected:?}");
        }
    }
}

/// Returns the exact bits of losses and weights.
fn bits(outcome: &TrainResult) -> (Vec<u64>, u64) {
    (outcome.losses.iter().map(|loss| loss.to_bits()).collect(), outcome.fingerprint)
}

#[test]
fn loss_falls_and_model_generates() {
    let folder = folder();
    let config = config(folder.path(), &["schedule.steps=60", "sample.tokens=20", "sample.prompt=line"]);
    let outcome = train_on_threads(2, &config).unwrap();
    let (first, last) = (outcome.losses[0], outcome.losses[59]);
    assert!((5.0..6.0).contains(&first) && last < 3.0, "from {first} to {last}");
    assert!(outcome.validation.unwrap() < 3.2, "{:?}", outcome.validation);
    assert!(outcome.sample.unwrap().len() >= 20);
}

/// Weights that differ stand for processors that round products differently.
#[test]
fn ranks_with_unequal_logits_generate_the_same_text() {
    for mesh in ["mesh.tensor=1", "mesh.tensor=2", "mesh.pipeline=2"] {
        let folder = folder();
        let config = config(folder.path(), &["sample.tokens=30", "data.micro_batch=1", mesh]);
        let texts = run_ranks(4, |world| {
            let factor = 1.0 + world.rank() as f32;
            let mut run = Run::new(&config, world).unwrap();
            let changed = run.strategy.for_each_shard(&mut |kept| {
                kept.weights.iter_mut().for_each(|weight| *weight *= factor);
                Ok(())
            });
            changed.unwrap();
            run.generate("line").unwrap().unwrap()
        });
        assert!(!texts[0].is_empty());
        assert!(texts.iter().all(|text| *text == texts[0]), "{mesh}: {texts:?}");
    }
}

#[test]
fn reruns_and_strategies_are_bitwise_equal() {
    let folder = folder();
    let run = |kind: ParallelKind, ranks| {
        let kind = format!("strategy.kind={}", kind.name());
        bits(&train_on_threads(ranks, &config(folder.path(), &[&kind, "model.dropout=0.1"])).unwrap())
    };
    for ranks in [1, 3] {
        let first = run(ParallelKind::Replicated, ranks);
        for kind in ParallelKind::ALL {
            assert_eq!(run(kind, ranks), first, "{kind:?} on {ranks} ranks");
        }
    }
}

#[test]
fn tensor_parallel_nearly_matches_one_rank() {
    let folder = folder();
    let run =
        |ranks, changes: &[&str]| train_on_threads(ranks, &config(folder.path(), changes)).unwrap().losses;
    let reference = run(1, &[]);
    let meshes: [&[&str]; 2] =
        [&["mesh.tensor=2"], &["mesh.tensor=2", "strategy.sequence_parallel=true", "strategy.kind=zero2"]];
    for changes in meshes {
        for (left, right) in run(4, changes).iter().zip(&reference) {
            assert!((left / right - 1.0).abs() < 1e-4, "{changes:?}: {left}, not {right}");
        }
    }
    let muon = run(2, &["optimizer.kind=muon", "schedule.steps=40", "strategy.kind=zero3"]);
    assert!(muon[39] < 4.0, "{}", muon[39]);
}

/// Dropout masks depend on the step, not on the numbers drawn before.
const DROPOUT: &str = "model.dropout=0.1";

#[test]
fn resumed_run_equals_uninterrupted_run() {
    for (saved, resumed) in [("bucketed", "bucketed"), ("zero1", "zero3"), ("zero3", "zero2")] {
        let folder = folder();
        let saving = format!("strategy.kind={saved}");
        let changes = [&saving, "checkpoint.every=5", "checkpoint.last=true", "checkpoint.keep=3", DROPOUT];
        let uninterrupted = train_on_threads(2, &config(folder.path(), &changes)).unwrap();
        for later in ["10", "12"] {
            std::fs::remove_dir_all(folder.path().join(format!("checkpoints/step-000000{later}"))).unwrap();
        }
        let going_on = format!("strategy.kind={resumed}");
        let continued =
            train_on_threads(2, &config(folder.path(), &[&going_on, "checkpoint.resume=true", DROPOUT]))
                .unwrap();
        assert_eq!(continued.losses, uninterrupted.losses[5..], "{saved} {resumed}");
        assert_eq!((continued.steps, continued.fingerprint), (12, uninterrupted.fingerprint));
    }
}

#[test]
fn checkpoint_of_other_seed_is_rejected() {
    let folder = folder();
    train_on_threads(2, &config(folder.path(), &["checkpoint.every=12"])).unwrap();
    let other = config(folder.path(), &["checkpoint.resume=true", "seed=2"]);
    let error = train_on_threads(2, &other).unwrap_err().to_string();
    assert!(error.contains("seed = 2 (saved: 1); set seed=1, or accept"), "{error}");
    let checkpoints = folder.path().join("checkpoints");
    let text = |prompt: &str| {
        let (mut shown, count) = (String::new(), ["sample.tokens=10".to_owned()]);
        let text = generate(&checkpoints, prompt, &count, &mut |part| {
            shown.push_str(part);
            Ok(())
        })?;
        assert_eq!(shown, text);
        Ok::<_, Error>(text)
    };
    assert_eq!(text("line").unwrap(), text("line").unwrap());
    assert!(text("").unwrap_err().to_string().contains("an empty prompt"));
}

#[test]
fn memory_matches_dry_run() {
    let folder = folder();
    let meshes: [(&str, &[(usize, usize)]); 2] = [("f32", &[(2, 1), (3, 1), (4, 2)]), ("bf16", &[(2, 1)])];
    for (dtype, meshes) in meshes {
        for kind in ParallelKind::ALL {
            for &(ranks, tensor) in meshes {
                let dtype = format!("strategy.param_dtype={dtype}");
                let (kind_of, mesh) =
                    (format!("strategy.kind={}", kind.name()), format!("mesh.tensor={tensor}"));
                let config = config(folder.path(), &[&dtype, &kind_of, &mesh, "schedule.steps=3"]);
                let expected = DryRun::new(&config, ranks).unwrap().memory(kind);
                let ledgers = run_ranks(ranks, |world| {
                    train_loop::run_rank(world, &config, &Interrupt::default()).unwrap().memory
                });
                let largest =
                    |class: usize| ledgers.iter().map(|ledger| ledger.classes[class].0).max().unwrap();
                let what = format!("{kind:?}, {ranks} ranks, {mesh}, {dtype}");
                assert_eq!([largest(0), largest(1), largest(2)], expected[..3], "{what}");
                assert_eq!(ledgers[0].formulas, expected, "{what}");
                // Whole gradients are kept until the last micro-batch, beside the shards of the
                // first that were reduced.
                let formula = DryRun::new(&config, ranks).unwrap().peak_memory()[1];
                let peak = ledgers.iter().map(|ledger| ledger.classes[1].1).max().unwrap();
                // Gradients of 16 bits are widened while modules add to them.
                let limit = if dtype.ends_with("bf16") { formula + expected[1] } else { formula };
                assert!((formula * 9 / 10..=limit).contains(&peak), "{what}: {peak}, not {formula}");
            }
        }
    }
}

#[test]
fn activations_nearly_match_formula() {
    let folder = folder();
    let options = [
        vec![],
        vec!["model.activation_checkpointing=true", "model.layers=4"],
        vec!["model.norm=rms", "model.feed_forward=swiglu"],
        vec!["model.context=96", "model.tie_word_embeddings=false"],
        vec!["mesh.tensor=2"],
        vec!["mesh.tensor=2", "strategy.sequence_parallel=true"],
        vec!["mesh.sequence_data=2"],
        vec!["mesh.sequence_data=2", "context.kv_transfer=ulysses"],
        vec!["mesh.sequence_data=2", "context.kv_transfer=ring", "context.placement=striped"],
        vec![
            "mesh.sequence_data=2",
            "model.activation_checkpointing=true",
            "model.layers=4",
            "model.cross_entropy_splits=4",
        ],
        vec!["mesh.sequence_data=2", "model.context=256", "data.micro_batch=1", "data.global_batch=2"],
        vec!["mesh.tensor=2", "model.cross_entropy_splits=3"],
        vec!["data.breadth_first=3"],
        vec!["data.micro_sequences=4", "model.context=64"],
        vec!["data.micro_sequences=2", "data.breadth_first=3"],
        vec!["data.breadth_first=3", "model.activation_checkpointing=true", "model.cross_entropy_splits=5"],
    ];
    for changes in options {
        let config = config(folder.path(), &[&changes[..], &["schedule.steps=2"]].concat());
        let ledger = train_on_threads(2, &config).unwrap().memory;
        let measured = ledger.classes[AllocClass::Activations as usize].1 as f64;
        let ratio = measured / ledger.formulas[3] as f64;
        assert!((0.9..1.1).contains(&ratio), "{changes:?}: {ratio}");
    }
}

/// Checks that a difference in `parameter` of `changed` is found, and named on every rank.
fn assert_divergence_is_named(
    ranks: usize,
    changes: &[&str],
    parameter: &str,
    changed: &[usize],
    first: usize,
) {
    let folder = folder();
    let config = config(folder.path(), changes);
    let ends: Vec<Result<()>> = run_ranks(ranks, |world| {
        let rank = world.rank();
        let mut run = Run::new(&config, world)?;
        run.step()?;
        run.check_replicas()?;
        let wanted = run.inventory.find(parameter).unwrap();
        run.strategy.for_each_shard(&mut |kept| {
            if changed.contains(&rank) && kept.parameter == wanted {
                kept.weights[0] += 1e-6;
            }
            Ok(())
        })?;
        run.check_replicas()
    });
    for end in ends {
        let Err(Error::ReplicasDiverged(what)) = end else { panic!("{changes:?}, {parameter}: {end:?}") };
        let ranks = format!("on ranks {changed:?} is not what rank {first} has");
        assert_eq!(what, format!("after step 1, {parameter} {ranks}"), "{changes:?}");
    }
}

#[test]
fn divergent_replicas_are_named() {
    assert_divergence_is_named(3, &[], "h.1.mlp.c_fc.bias", &[1], 0);
}

/// All data ranks of one tensor rank, or of one stage, are equal here.
#[test]
fn divergent_copies_of_other_dimensions_are_named() {
    for changes in [
        &["mesh.tensor=2"][..],
        &["mesh.tensor=2", "strategy.sequence_parallel=true"],
        &["mesh.tensor=2", "strategy.kind=zero3"],
    ] {
        assert_divergence_is_named(2, changes, "h.1.ln_2.weight", &[1], 0);
        assert_divergence_is_named(2, changes, "h.0.mlp.c_proj.bias", &[1], 0);
    }
    assert_divergence_is_named(4, &["mesh.tensor=2"], "wpe.weight", &[1, 3], 0);
    for changes in [&["mesh.pipeline=2"][..], &["mesh.pipeline=2", "strategy.kind=zero2"]] {
        assert_divergence_is_named(2, changes, "wte.weight", &[1], 0);
    }
    let meshes = ["mesh.pipeline=2", "mesh.tensor=2"];
    assert_divergence_is_named(4, &meshes, "wte.weight", &[3], 1);
}

/// Weights that differ after the first step are found after the next step that is a multiple of the
/// interval, and never without one.
#[test]
fn replicas_are_compared_as_often_as_configured() {
    let folder = folder();
    for every in [0, 2, 3] {
        let interval = format!("log.check_replicas_every={every}");
        let config = config(folder.path(), &["schedule.steps=4", &interval]);
        let ends: Vec<Result<usize>> = run_ranks(2, |world| {
            let rank = world.rank();
            let mut run = Run::new(&config, world)?;
            run.step()?;
            let wanted = run.inventory.find("h.1.mlp.c_fc.bias").unwrap();
            run.strategy.for_each_shard(&mut |kept| {
                if rank == 1 && kept.parameter == wanted {
                    kept.weights[0] += 1e-3;
                }
                Ok(())
            })?;
            train_loop::train(run, &config).map(|outcome| outcome.losses.len())
        });
        for end in ends {
            match end {
                Ok(steps) => assert_eq!((every, steps), (0, 3)),
                Err(Error::ReplicasDiverged(what)) => {
                    let expected = format!("after step {every}, h.1.mlp.c_fc.bias on ranks [1]");
                    assert!(every > 0 && what.starts_with(&expected), "{what}, not {expected}");
                }
                Err(error) => panic!("every {every} steps: {error}"),
            }
        }
    }
}

#[test]
fn error_is_reported_once_and_ends_all_ranks() {
    let folder = folder();
    let error =
        |changes: &[&str]| train_on_threads(2, &config(folder.path(), changes)).unwrap_err().to_string();
    assert!(error(&["data.path=/nowhere"]).starts_with("/nowhere: data.path: "));
    assert!(error(&["data.micro_batch=5"]).contains("nearest global batch: 10 or 20"));
    assert!(error(&["mesh.pipeline=2", "pipeline.schedule=2f2b"]).contains("called `2f2b`"));
    assert!(error(&["mesh.pipeline=2", "model.layers=1"]).contains("1 layer cannot be divided into 2"));
    assert!(error(&["optimizer.lr=1e30", "optimizer.max_grad_norm=0"]).contains("a lower optimizer.lr"));
    let same = config(folder.path(), &[]);
    let ends = run_ranks(2, |world| {
        let config = Config { seed: world.rank() as u32, ..same.clone() };
        Run::new(&config, world).map(drop).unwrap_err().to_string()
    });
    assert_eq!(ends, ["rank 1 has another configuration or other data than rank 0"; 2]);
}

#[test]
fn run_writes_metrics_plot_and_trace() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let changes = [
        format!("log.file={}", path("run.jsonl").display()),
        format!("log.plot={}", path("run.svg").display()),
    ];
    let trace = format!("log.trace={}", path("trace.json").display());
    let config = config(
        folder.path(),
        &[&changes[0], &changes[1], &trace, "log.validate_every=6", "strategy.kind=zero3"],
    );
    let outcome = train_on_threads(2, &config).unwrap();
    let lines = std::fs::read_to_string(path("run.jsonl")).unwrap();
    let records: Vec<StepRecord> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.iter().map(|record| record.loss).collect::<Vec<_>>(), outcome.losses);
    assert_eq!(records.iter().filter(|record| record.validation.is_some()).count(), 2);
    assert!(records.iter().all(|record| record.exposed_seconds < record.seconds && record.mfu > 0.0));
    assert!(std::fs::read_to_string(path("run.svg")).unwrap().contains("learning rate"));
    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (rank, lane, name) in
        [(0, 0, "forward h.0"), (1, 0, "backward head"), (1, 1, "weights of h.1"), (0, 0, "optimizer")]
    {
        let found = events
            .iter()
            .filter(|event| event["name"] == name && event["pid"] == rank && event["tid"] == lane);
        assert!(found.count() >= 3, "{name} of rank {rank}");
    }
}
