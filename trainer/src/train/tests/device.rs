//! Runs whose modules compute on a GPU: the software device stands in for one, but with `UNISONO_TEST_GPU`.

use super::{config, folder};
use crate::config::StrategyKind;
use crate::error::Error;
use crate::testing::{device_kind, on};
use crate::train::{Outcome, Run, on_threads};
use unisono_cuda::device::Copied;

const SMALL: [&str; 4] =
    ["data.global_batch=4", "model.context=16", "model.width=16", "log.validation_batches=1"];
/// Less still.
const TINY: [&str; 3] = ["schedule.steps=4", "model.layers=1", "model.context=8"];

fn run(ranks: usize, changes: &[&str], device: &str) -> Outcome {
    let folder = folder();
    let device = format!("device={device}");
    let changes = [&SMALL[..], changes, &[&device]].concat();
    on_threads(ranks, &config(folder.path(), &changes)).unwrap()
}

/// Losses of the GPU are those of the CPU within 1e-4 of them.
fn agrees(ranks: usize, changes: &[&str]) {
    let (host, found) = (run(ranks, changes, "cpu"), run(ranks, changes, device_kind()));
    assert_eq!(found.losses.len(), host.losses.len());
    let of = |outcome: &Outcome| [&outcome.losses[..], outcome.validation.as_slice()].concat();
    expect_near(&format!("{changes:?}"), &of(&found), &of(&host));
    assert!(host.losses.last() < host.losses.first(), "it learns");
}

fn expect_near(what: &str, found: &[f64], host: &[f64]) {
    assert_eq!(found.len(), host.len(), "{what}");
    for (step, (found, host)) in found.iter().zip(host).enumerate() {
        assert!((found - host).abs() <= 1e-4 * host, "{what}, step {step}: {found}, not {host}");
    }
}

#[test]
fn twenty_steps_have_the_losses_of_the_cpu() {
    agrees(1, &["schedule.steps=20"]);
}

#[test]
fn ranks_share_the_work_by_any_strategy() {
    for kind in StrategyKind::ALL {
        let steps = if matches!(kind, StrategyKind::Bucketed | StrategyKind::Zero2) { 20 } else { 4 };
        let [kind, steps] = [format!("strategy.kind={}", kind.name()), format!("schedule.steps={steps}")];
        agrees(2, &[&TINY[..], &[&kind, &steps]].concat());
    }
    let deep = ["strategy.kind=zero3", "data.micro_batch=1", "data.breadth_first=2"];
    agrees(2, &[&TINY[..], &deep].concat());
}

/// Of layers that ranks share: 20 steps where `TEST_LONG` is set, which take minutes.
fn cut_agrees(ranks: usize, changes: &[&str]) {
    let long = std::env::var_os("TEST_LONG").is_some();
    let steps = format!("schedule.steps={}", if long { 20 } else { 4 });
    agrees(ranks, &[&TINY[..], &["mesh.tensor=2", &steps], changes].concat());
}

#[test]
fn layers_that_ranks_share_have_the_losses_of_the_cpu() {
    cut_agrees(2, &["model.dropout=0.1"]);
    cut_agrees(2, &["strategy.sequence_parallel=true", "model.checkpointing=true", "data.micro_batch=2"]);
}

#[test]
fn so_have_they_beside_other_ranks_with_the_data() {
    let rows = ["strategy.kind=zero2", "strategy.sequence_parallel=true", "optimiser.kind=muon"];
    cut_agrees(4, &[&rows[..], &["model.tied=false"]].concat());
}

#[test]
fn norms_count_once_what_ranks_that_share_layers_both_have() {
    for rows in ["strategy.sequence_parallel=false", "strategy.sequence_parallel=true"] {
        let of = |device: &str| {
            let (folder, device) = (folder(), format!("device={device}"));
            let config =
                config(folder.path(), &[&SMALL[..], &TINY, &["mesh.tensor=2", &device, rows]].concat());
            let norms = on(2, |world| {
                let mut run = Run::new(&config, world).unwrap();
                [(); 2].map(|()| run.step().unwrap().norm)
            });
            assert_eq!(norms[0], norms[1], "{device}, {rows}");
            norms[0]
        };
        expect_near(rows, &of(device_kind()), &of("cpu"));
    }
}

#[test]
fn other_optimisers_accumulation_and_sixteen_bits_do_as_on_the_cpu() {
    let zero2 = [&TINY[..], &["strategy.kind=zero2", "data.micro_batch=1"]].concat();
    for change in [
        &["optimiser.kind=muon"][..],
        &["optimiser.kind=sgd", "optimiser.lr=0.05", "strategy.reduce_each=micro-batch"],
        &["strategy.reduce_dtype=bf16"],
    ] {
        agrees(2, &[&zero2[..], change].concat());
    }
}

#[test]
fn state_in_files_stays_on_the_host() {
    let folder = folder();
    let offload = format!("strategy.offload={}", folder.path().display());
    agrees(2, &[&TINY[..], &["strategy.kind=zero1", &offload]].concat());
}

#[test]
fn a_text_is_written_by_what_was_learned_there() {
    let changes = [&TINY[..], &["sample.tokens=5", "sample.prompt=line"]].concat();
    assert_eq!(run(1, &changes, device_kind()).sample, run(1, &changes, "cpu").sample);
}

#[test]
fn checkpoints_go_from_one_to_the_other() {
    for (first, second) in [("cpu", device_kind()), (device_kind(), "cpu")] {
        let folder = folder();
        let of = |device: &str, change: &str| {
            let device = format!("device={device}");
            let changes = [&SMALL[..], &TINY, &["strategy.kind=zero3", &device, change]].concat();
            on_threads(2, &config(folder.path(), &changes)).unwrap()
        };
        let whole = of(first, "checkpoint.every=2");
        std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000004")).unwrap();
        let rest = of(second, "checkpoint.resume=true");
        expect_near(first, &rest.losses, &whole.losses[2..]);
    }
}

#[test]
fn a_steady_step_with_layers_that_ranks_share_copies_no_activations() {
    // Both ranks have all four sequences; with rows that are shared, half the places.
    let tokens = 4 * 16;
    for (rows, places) in
        [("strategy.sequence_parallel=false", tokens), ("strategy.sequence_parallel=true", tokens / 2)]
    {
        for (found, buckets, _) in copied(&["mesh.tensor=2", rows]) {
            let expected =
                Copied { to_device: 4 * (2 * tokens + places), from_device: 4 * tokens + 8 * buckets };
            assert_eq!(found, expected, "{rows}");
        }
    }
}

/// Bytes that each of two ranks copied to and from the GPU in a step, its buckets and its parameters.
fn copied(changes: &[&str]) -> Vec<(Copied, u64, u64)> {
    let folder = folder();
    let device = format!("device={}", device_kind());
    let config = config(folder.path(), &[&SMALL[..], &[&device], changes].concat());
    on(2, |world| {
        let mut run = Run::new(&config, world).unwrap();
        run.step().unwrap();
        let of = |run: &Run| run.device.as_ref().unwrap().compute().stream().copied();
        let before = of(&run);
        run.step().unwrap();
        let after = of(&run);
        let data = 2 / config.mesh.tensor;
        let layout = config.settings().layout(config.strategy.kind.strategy(), &run.inventory, data);
        let copied = Copied {
            to_device: after.to_device - before.to_device,
            from_device: after.from_device - before.from_device,
        };
        (copied, layout.buckets.len() as u64, run.inventory.count() as u64)
    })
}

#[test]
fn a_steady_step_copies_tokens_losses_and_norms_and_nothing_else() {
    // Two sequences of a rank.
    let tokens = 2 * 16;
    for kind in ["bucketed", "zero1", "zero3"] {
        let kind = format!("strategy.kind={kind}");
        for micro in ["data.micro_batch=1", "data.micro_batch=2"] {
            for (found, buckets, _) in copied(&[&kind, micro]) {
                // Tokens, their places and what follows them; losses, and a sum of squares for each bucket.
                let expected = Copied { to_device: 3 * 4 * tokens, from_device: 4 * tokens + 8 * buckets };
                assert_eq!(found, expected, "{kind}, {micro}");
            }
        }
    }
}

#[test]
fn by_way_of_the_host_weights_and_gradients_are_copied_too() {
    let folder = folder();
    let offload = format!("strategy.offload={}", folder.path().display());
    for (found, _, weights) in copied(&["strategy.kind=zero1", "model.tied=false", &offload]) {
        let expected = Copied { to_device: 4 * (weights + 3 * 32), from_device: 4 * (weights + 32) };
        assert_eq!(found, expected);
    }
}

#[test]
fn options_of_models_are_those_of_the_cpu() {
    let modern = ["model.norm=rms", "model.feed_forward=swiglu", "model.tied=false", "model.dropout=0.1"];
    agrees(
        1,
        &[&modern[..], &["schedule.steps=4", "model.checkpointing=true", "optimiser.kind=muon"]].concat(),
    );
}

#[test]
fn what_only_the_cpu_does_is_refused_before_the_first_step() {
    let folder = folder();
    let device = format!("device={}", device_kind());
    let config = config(folder.path(), &[&device, "model.cross_entropy_splits=2"]);
    match on_threads(1, &config) {
        Err(Error::Unavailable(what)) => assert_eq!(
            what,
            "model.cross_entropy_splits = 2 with a device that is not the CPU: not part of this build; set \
             model.cross_entropy_splits to 1, or device to \"cpu\""
        ),
        other => panic!("{other:?}"),
    }
}
