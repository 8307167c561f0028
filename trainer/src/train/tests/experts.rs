//! Runs with experts on meshes match the run of one rank.

use super::meshes::assert_checkpoints_move;
use super::*;

/// Losses, gradient norms and loads of experts in each step.
struct Steps {
    losses: Vec<f64>,
    norms: Vec<f64>,
    loads: Vec<std::collections::BTreeMap<String, Vec<f64>>>,
}

/// Settings of a small model with a dense block and three of experts.
const EXPERTS: &str = "model.layers=4 model.width=24 model.heads=4 model.context=16 experts.count=8 experts.shared=1 \
                       experts.first_dense=1 experts.width=16 experts.z_loss=0.001 experts.balance_loss=0.02 \
                       data.global_batch=16 data.micro_batch=2 schedule.steps=4";

fn small(folder: &Path, changes: &str) -> Config {
    let words: Vec<_> = EXPERTS.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

fn steps(ranks: usize, changes: &str) -> Steps {
    let folder = folder();
    let config = small(folder.path(), changes);
    let results = run_ranks(ranks, |world| {
        let mut run = Run::new(&config, world).unwrap();
        let steps: Vec<_> = (0..config.schedule.steps).map(|_| run.step().unwrap()).collect();
        run.check_replicas().unwrap();
        steps
    });
    let first = &results[0];
    for right in &results {
        let same = |(left, right): (&crate::train::step::StepStats, &crate::train::step::StepStats)| {
            (left.loss, left.grad_norm) == (right.loss, right.grad_norm)
        };
        assert!(first.iter().zip(right).all(same), "all ranks report the same: {changes}");
    }
    Steps {
        losses: first.iter().map(|step| step.loss).collect(),
        norms: first.iter().map(|step| step.grad_norm).collect(),
        loads: first.iter().map(|step| step.added.loads.clone()).collect(),
    }
}

fn assert_matches(ranks: usize, changes: &str, reference: &Steps) {
    let found = steps(ranks, changes);
    for (what, found, expected) in
        [("loss", &found.losses, &reference.losses), ("norm", &found.norms, &reference.norms)]
    {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-5, "{what} of {changes}: {found}, not {expected}");
        }
    }
    assert_eq!(found.loads[0], reference.loads[0], "loads of {changes}");
}

#[test]
fn memory_with_experts_matches_formula() {
    let folder = folder();
    for changes in [
        "",
        "mesh.expert=4 strategy.kind=zero3",
        "mesh.expert=2 strategy.kind=zero1 experts.shared=0",
        "mesh.expert=2 strategy.kind=zero3 strategy.shard_ranks=2",
        "mesh.tensor=2 mesh.expert=2 model.feed_forward=swiglu",
        "mesh.expert=2 model.activation_checkpointing=true",
    ] {
        let config = small(folder.path(), &format!("experts.balance_loss=1 {changes}"));
        let ledger = train_on_threads(4, &config).unwrap().memory;
        for class in [AllocClass::Weights, AllocClass::Gradients, AllocClass::Optimizer] {
            let (kept, formula) =
                (ledger.classes[class as usize].0 as f64, ledger.formulas[class as usize] as f64);
            assert!(
                (kept / formula - 1.0).abs() <= 0.01,
                "{changes}: {} {kept}, not {formula}",
                class.name()
            );
        }
        let measured = ledger.classes[AllocClass::Activations as usize].1 as f64;
        let ratio = measured / ledger.formulas[3] as f64;
        assert!((0.85..1.15).contains(&ratio), "{changes}: {ratio} of the activations");
    }
}

/// Meshes of the small model, by number of ranks.
const MESHES: [(usize, &str); 14] = [
    (2, "mesh.expert=2"),
    (2, "mesh.expert=1 strategy.kind=zero3"),
    (4, "mesh.expert=4 strategy.kind=zero3"),
    (4, "mesh.expert=2 strategy.kind=zero1 strategy.average=after"),
    (4, "mesh.expert=2 strategy.kind=zero2 strategy.average=in-loss"),
    (3, "mesh.sequence_data=1 data.global_batch=12 data.micro_batch=2 strategy.kind=zero3"),
    (4, "mesh.expert=2 mesh.sequence_data=2 context.placement=striped model.activation_checkpointing=true"),
    (4, "mesh.expert=4 mesh.sequence_data=2 context.kv_transfer=ring context.placement=zig-zag"),
    (4, "mesh.expert=2 mesh.expert_folded=false mesh.sequence_data=2 context.kv_transfer=ulysses"),
    (8, "mesh.tensor=2 mesh.expert=2 strategy.kind=zero3"),
    (4, "mesh.expert=2 strategy.kind=zero3 strategy.shard_ranks=2"),
    (8, "mesh.expert=2 strategy.kind=zero2 strategy.shard_ranks=4"),
    (
        8,
        "mesh.tensor=2 strategy.sequence_parallel=true mesh.expert=2 mesh.pipeline=2 pipeline.schedule=zb-h1",
    ),
    (
        8,
        "mesh.expert=2 mesh.pipeline=2 mesh.sequence_data=2 pipeline.schedule=interleaved mesh.order=tensor,pipeline,sequence_data,batch_data",
    ),
];

#[test]
fn meshes_with_experts_match_one_rank() {
    let [reference, smaller] = ["", "data.global_batch=12"].map(|changes| steps(1, changes));
    for (ranks, changes) in MESHES {
        let is_smaller = changes.contains("global_batch=12");
        assert_matches(ranks, changes, if is_smaller { &smaller } else { &reference });
    }
}

#[test]
fn capacity_and_biases_do_not_depend_on_the_mesh() {
    let changes = "experts.capacity_factor=1.0 experts.balance=bias experts.bias_rate=0.05 experts.score=sigmoid \
                   experts.z_loss=0";
    let reference = steps(1, changes);
    for mesh in [
        "mesh.expert=2 mesh.sequence_data=2 context.placement=zig-zag",
        "mesh.expert=4 strategy.kind=zero3 strategy.param_dtype=f32",
        "mesh.tensor=2 mesh.expert=2 strategy.kind=zero2",
    ] {
        assert_matches(4, &format!("{changes} {mesh}"), &reference);
    }
}

#[test]
fn muon_steps_with_experts_match_one_rank() {
    let reference = steps(1, "optimizer.kind=muon");
    for (ranks, mesh) in
        [(2, "mesh.expert=2"), (4, "mesh.expert=2 strategy.kind=zero3"), (4, "mesh.tensor=2 mesh.expert=2")]
    {
        assert_matches(ranks, &format!("optimizer.kind=muon {mesh}"), &reference);
    }
}

#[test]
fn checkpoints_with_experts_move_between_meshes() {
    let shapes = [
        (1, "strategy.kind=bucketed"),
        (4, "mesh.expert=4 strategy.kind=zero3"),
        (2, "mesh.expert=2 strategy.kind=bucketed"),
        (4, "mesh.tensor=2 mesh.expert=2 strategy.kind=zero1"),
        (4, "mesh.expert=2 mesh.pipeline=2 strategy.kind=bucketed"),
        (4, "mesh.expert=2 strategy.kind=zero2 strategy.shard_ranks=2"),
    ];
    let configure = |folder: &Path, changes: &str| small(folder, &format!("experts.balance=bias {changes}"));
    assert_checkpoints_move(&shapes, 2, configure);
}

#[test]
fn experts_elsewhere_are_refused_by_name() {
    let folder = folder();
    let on_a_gpu = small(folder.path(), "device=software");
    let error =
        run_ranks(1, |world| Run::new(&on_a_gpu, world).err().expect("no kernels").to_string()).remove(0);
    assert!(error.contains("experts.count = 8") && error.contains("not part of this build"), "{error}");
    let saving = small(folder.path(), "checkpoint.last=true schedule.steps=3");
    train_on_threads(1, &saving).unwrap();
    let export_folder = folder.path().join("exported");
    let options = crate::models::hugging_face::FileOptions::default();
    let error =
        export(&folder.path().join("checkpoints"), &export_folder, &[], options).unwrap_err().to_string();
    assert!(error.contains("model with experts") && error.contains("not part of this build"), "{error}");
    let wrong_size = small(folder.path(), "mesh.expert=4");
    let error =
        run_ranks(2, |world| Run::new(&wrong_size, world).err().expect("4 > 2").to_string()).remove(0);
    assert!(error.contains("expert = 4 does not divide the data parallel degree 2"), "{error}");
}

#[test]
fn experts_write_the_text_of_one_rank() {
    let folder = folder();
    let words =
        "checkpoint.last=true schedule.steps=30 sample.tokens=12 sample.prompt=line sample.temperature=0";
    let saved =
        train_on_threads(4, &small(folder.path(), &format!("mesh.expert=2 mesh.tensor=2 {words}"))).unwrap();
    let alone = generate(&folder.path().join("checkpoints"), "line", &[], &mut |_| Ok(())).unwrap();
    assert_eq!(saved.sample.unwrap(), format!("line{alone}"));
}

/// Returns the largest load of an expert in each block, relative to equal loads: the mean of the
/// last 20 of 200 steps.
fn largest_loads(balance: &str) -> Vec<f64> {
    let folder = folder();
    let changes = format!(
        "schedule.steps=200 experts.first_dense=2 experts.shared=0 experts.score=sigmoid \
         experts.z_loss=0 experts.bias_rate=0.01 experts.balance={balance}"
    );
    let config = small(folder.path(), &changes);
    let mut results = run_ranks(2, |world| {
        let mut run = Run::new(&config, world).unwrap();
        (0..200).map(|_| run.step().unwrap().added.loads).collect::<Vec<_>>()
    });
    let last = results.remove(0).split_off(180);
    let mean = |path: &str, expert: usize| last.iter().map(|step| step[path][expert]).sum::<f64>() / 20.0;
    let largest = |path: &String| (0..8).map(|expert| mean(path, expert)).fold(0.0, f64::max);
    last[0].keys().map(largest).collect()
}

#[test]
fn biases_balance_loads_without_a_loss() {
    let (unbalanced, balanced) = (largest_loads("none"), largest_loads("bias"));
    assert!(unbalanced.iter().any(|most| *most > 1.5), "{unbalanced:?}");
    assert!(balanced.iter().all(|most| *most <= 1.5), "{balanced:?}");
}
