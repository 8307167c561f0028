//! Tests of runs on a GPU: on the software device unless `TEST_ON_GPU` is set.

use super::{config, folder};
use crate::train::{Run, TrainResult, train_on_threads};
use unisono_cuda::device::CopyStats;
use unisono_nn::error::Error;
use unisono_nn::testing::{device_kind, run_ranks};
use unisono_parallel::data_parallel::ParallelKind;

const SMALL: [&str; 4] =
    ["data.global_batch=4", "model.context=16", "model.width=16", "log.validation_batches=1"];
/// Settings of an even smaller run.
const TINY: [&str; 3] = ["schedule.steps=4", "model.layers=1", "model.context=8"];

fn run(ranks: usize, changes: &[&str], device: &str) -> TrainResult {
    let folder = folder();
    let device = format!("device={device}");
    let changes = [&SMALL[..], changes, &[&device]].concat();
    train_on_threads(ranks, &config(folder.path(), &changes)).unwrap()
}

/// Asserts that losses on the GPU equal those on the CPU within 1e-4.
fn assert_matches_cpu(ranks: usize, changes: &[&str]) {
    let (host, found) = (run(ranks, changes, "cpu"), run(ranks, changes, device_kind()));
    assert_eq!(found.losses.len(), host.losses.len());
    let losses_of = |outcome: &TrainResult| [&outcome.losses[..], outcome.validation.as_slice()].concat();
    expect_near(&format!("{changes:?}"), &losses_of(&found), &losses_of(&host));
    assert!(host.losses.last() < host.losses.first(), "it learns");
}

fn expect_near(what: &str, found: &[f64], host: &[f64]) {
    assert_eq!(found.len(), host.len(), "{what}");
    for (step, (found, host)) in found.iter().zip(host).enumerate() {
        assert!((found - host).abs() <= 1e-4 * host, "{what}, step {step}: {found}, not {host}");
    }
}

#[test]
fn device_run_matches_cpu() {
    assert_matches_cpu(1, &["schedule.steps=20"]);
}

#[test]
fn device_strategies_match_cpu() {
    for kind in ParallelKind::ALL {
        let steps = if matches!(kind, ParallelKind::Replicated | ParallelKind::Zero2) { 20 } else { 4 };
        let [kind, steps] = [format!("strategy.kind={}", kind.name()), format!("schedule.steps={steps}")];
        assert_matches_cpu(2, &[&TINY[..], &[&kind, &steps]].concat());
    }
    let deep = ["strategy.kind=zero3", "data.micro_batch=1", "data.breadth_first=2"];
    assert_matches_cpu(2, &[&TINY[..], &deep].concat());
}

/// Asserts the same with tensor parallel layers. `TEST_LONG` selects 20 steps, which take minutes.
fn assert_tensor_parallel_matches_cpu(ranks: usize, changes: &[&str]) {
    let long = std::env::var_os("TEST_LONG").is_some();
    let steps = format!("schedule.steps={}", if long { 20 } else { 4 });
    assert_matches_cpu(ranks, &[&TINY[..], &["mesh.tensor=2", &steps], changes].concat());
}

#[test]
fn device_tensor_parallel_matches_cpu() {
    assert_tensor_parallel_matches_cpu(2, &["model.dropout=0.1"]);
    assert_tensor_parallel_matches_cpu(
        2,
        &["strategy.sequence_parallel=true", "model.activation_checkpointing=true", "data.micro_batch=2"],
    );
}

#[test]
fn device_tensor_and_data_parallel_match_cpu() {
    let rows = ["strategy.kind=zero2", "strategy.sequence_parallel=true", "optimizer.kind=muon"];
    assert_tensor_parallel_matches_cpu(4, &[&rows[..], &["model.tie_word_embeddings=false"]].concat());
}

#[test]
fn device_pipelines_match_cpu() {
    let stages = ["mesh.pipeline=2", "data.micro_batch=1", "model.layers=2", "model.context=8"];
    for changes in [
        &["schedule.steps=6", "pipeline.schedule=1f1b"][..],
        &["schedule.steps=3", "pipeline.schedule=zb-v", "model.layers=4", "strategy.kind=zero3"],
    ] {
        assert_matches_cpu(2, &[&stages[..], changes].concat());
    }
    let tensor =
        ["schedule.steps=3", "mesh.tensor=2", "model.tie_word_embeddings=false", "schedule.warmup=1"];
    assert_matches_cpu(4, &[&stages[..], &tensor].concat());
}

#[test]
fn device_mixed_strategies_match_cpu() {
    let units = "strategy.units={\"h.0\"=\"zero3\",\"head\"=\"zero2\"}";
    assert_matches_cpu(2, &[&TINY[..], &[units]].concat());
    let stages =
        ["mesh.pipeline=2", "data.micro_batch=1", "model.layers=2", "model.context=8", "schedule.steps=3"];
    assert_matches_cpu(4, &[&stages[..], &[units]].concat());
}

#[test]
fn device_moments_of_16_bits_are_refused() {
    let folder = folder();
    let device = format!("device={}", device_kind());
    let config = config(folder.path(), &[&device, "optimizer.moment_dtype=bf16"]);
    let error = train_on_threads(1, &config).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("set optimizer.moment_dtype to \"f32\""), "{error}");
}

#[test]
fn device_norm_counts_replicated_parameters_once() {
    for rows in ["strategy.sequence_parallel=false", "strategy.sequence_parallel=true"] {
        let steps_on = |device: &str| {
            let (folder, device) = (folder(), format!("device={device}"));
            let config =
                config(folder.path(), &[&SMALL[..], &TINY, &["mesh.tensor=2", &device, rows]].concat());
            let norms = run_ranks(2, |world| {
                let mut run = Run::new(&config, world).unwrap();
                [(); 2].map(|()| run.step().unwrap().grad_norm)
            });
            assert_eq!(norms[0], norms[1], "{device}, {rows}");
            norms[0]
        };
        expect_near(rows, &steps_on(device_kind()), &steps_on("cpu"));
    }
}

#[test]
fn device_optimizers_accumulation_and_bf16_match_cpu() {
    let zero2 = [&TINY[..], &["strategy.kind=zero2", "data.micro_batch=1"]].concat();
    for change in [
        &["optimizer.kind=muon"][..],
        &["optimizer.kind=sgd", "optimizer.lr=0.05", "strategy.reduce_each=micro-batch"],
        &["strategy.reduce_dtype=bf16"],
        &["optimizer.groups=[{parameters=[\"*.bias\",\"wte\"],lr_scale=0.2,weight_decay=0.3}]"],
    ] {
        assert_matches_cpu(2, &[&zero2[..], change].concat());
    }
}

#[test]
fn offloaded_state_stays_on_host() {
    let folder = folder();
    let offload = format!("strategy.offload={}", folder.path().display());
    assert_matches_cpu(2, &[&TINY[..], &["strategy.kind=zero1", &offload]].concat());
}

#[test]
fn device_trained_model_generates() {
    let changes = [&TINY[..], &["sample.tokens=5", "sample.prompt=line"]].concat();
    assert_eq!(run(1, &changes, device_kind()).sample, run(1, &changes, "cpu").sample);
}

#[test]
fn checkpoints_move_between_cpu_and_device() {
    for (first, second) in [("cpu", device_kind()), (device_kind(), "cpu")] {
        let folder = folder();
        let run_on = |device: &str, change: &str| {
            let device = format!("device={device}");
            let changes = [&SMALL[..], &TINY, &["strategy.kind=zero3", &device, change]].concat();
            train_on_threads(2, &config(folder.path(), &changes)).unwrap()
        };
        let uninterrupted = run_on(first, "checkpoint.every=2");
        std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000004")).unwrap();
        let resumed = run_on(second, "checkpoint.resume=true");
        expect_near(first, &resumed.losses, &uninterrupted.losses[2..]);
    }
}

#[test]
fn steady_tensor_parallel_step_copies_no_activations() {
    // Both ranks have all four sequences; with sharded rows, half of the positions.
    let tokens = 4 * 16;
    for (rows, places) in
        [("strategy.sequence_parallel=false", tokens), ("strategy.sequence_parallel=true", tokens / 2)]
    {
        for (found, buckets, _) in copied(&["mesh.tensor=2", rows]) {
            let expected =
                CopyStats { to_device: 4 * (2 * tokens + places), from_device: 4 * tokens + 8 * buckets };
            assert_eq!(found, expected, "{rows}");
        }
    }
}

/// Returns the bytes that each of two ranks copied to and from the GPU in a step, its number of
/// buckets, and of parameters.
fn copied(changes: &[&str]) -> Vec<(CopyStats, u64, u64)> {
    let folder = folder();
    let device = format!("device={}", device_kind());
    let config = config(folder.path(), &[&SMALL[..], &[&device], changes].concat());
    run_ranks(2, |world| {
        let mut run = Run::new(&config, world).unwrap();
        run.step().unwrap();
        let copies_of = |run: &Run| run.device.as_ref().unwrap().compute().stream().copy_stats();
        let earlier = copies_of(&run);
        run.step().unwrap();
        let later = copies_of(&run);
        let data = 2 / config.mesh.tensor;
        let layout = config.settings().layout(config.strategy.kind, &run.inventory, data);
        let copied = CopyStats {
            to_device: later.to_device - earlier.to_device,
            from_device: later.from_device - earlier.from_device,
        };
        (copied, layout.buckets.len() as u64, run.inventory.count() as u64)
    })
}

#[test]
fn steady_step_copies_only_tokens_losses_and_norms() {
    // Two sequences per rank.
    let tokens = 2 * 16;
    for kind in ["bucketed", "zero1", "zero3"] {
        let kind = format!("strategy.kind={kind}");
        for micro in ["data.micro_batch=1", "data.micro_batch=2"] {
            for (found, buckets, _) in copied(&[&kind, micro]) {
                // To the device: tokens, positions and targets. Back: losses, and a sum of squares
                // per bucket.
                let expected = CopyStats { to_device: 3 * 4 * tokens, from_device: 4 * tokens + 8 * buckets };
                assert_eq!(found, expected, "{kind}, {micro}");
            }
        }
    }
}

#[test]
fn host_strategy_copies_weights_and_gradients() {
    let folder = folder();
    let offload = format!("strategy.offload={}", folder.path().display());
    for (found, _, weights) in copied(&["strategy.kind=zero1", "model.tie_word_embeddings=false", &offload]) {
        let expected = CopyStats { to_device: 4 * (weights + 3 * 32), from_device: 4 * (weights + 32) };
        assert_eq!(found, expected);
    }
}

#[test]
fn device_model_options_match_cpu() {
    let modern = [
        "model.norm=rms",
        "model.feed_forward=swiglu",
        "model.tie_word_embeddings=false",
        "model.dropout=0.1",
    ];
    assert_matches_cpu(
        1,
        &[&modern[..], &["schedule.steps=4", "model.activation_checkpointing=true", "optimizer.kind=muon"]]
            .concat(),
    );
}

#[test]
fn cpu_only_options_are_rejected_at_start() {
    let folder = folder();
    let device = format!("device={}", device_kind());
    let cases = [
        ("model.cross_entropy_splits=2", "model.cross_entropy_splits = 2", "1"),
        ("model.positions=rotary", "model.positions = \"rotary\"", "\"learned\""),
        ("model.kv_heads=1", "model.kv_heads = 1", "2"),
        ("model.qk_norm=true", "model.qk_norm = true", "false"),
    ];
    for (change, named, other) in cases {
        let config = config(folder.path(), &[&device, "model.heads=2", change]);
        let key = change.split_once('=').unwrap().0;
        match train_on_threads(1, &config) {
            Err(Error::Unsupported(what)) => assert_eq!(
                what,
                format!(
                    "{named} with a device that is not the CPU: not part of this build; set {key} to {other}, \
                     or device to \"cpu\""
                )
            ),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn trace_has_tracks_of_the_gpu() {
    let folder = folder();
    let trace = folder.path().join("trace.json");
    let (device, log) = (format!("device={}", device_kind()), format!("log.trace={}", trace.display()));
    let changes = [&SMALL[..], &TINY, &[&device, &log, "log.trace_steps=2", "strategy.kind=zero2"]].concat();
    train_on_threads(2, &config(folder.path(), &changes)).unwrap();
    let text = std::fs::read_to_string(&trace).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let events_on = |track: u64| {
        let spans = events.iter().filter(move |event| event["ph"] == "X" && event["tid"] == track);
        spans.map(|span| (span["name"].as_str().unwrap(), span["dur"].as_f64().unwrap()))
    };
    // Two ranks, two steps, forward and backward of three units.
    assert_eq!(events_on(2).count(), 2 * 2 * 2 * 3);
    assert!(events_on(2).all(|(_, time)| time > 0.0) && events_on(2).any(|(name, _)| name == "backward h.0"));
    assert!(
        events_on(3).count() >= 2 * 2 && events_on(3).all(|(name, _)| name.starts_with("collective of "))
    );
}
