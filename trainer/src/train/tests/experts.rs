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
    let all = run_ranks(ranks, |world| {
        let mut run = Run::new(&config, world).unwrap();
        let steps: Vec<_> = (0..config.schedule.steps).map(|_| run.step().unwrap()).collect();
        run.check_replicas().unwrap();
        steps
    });
    let first = &all[0];
    for other in &all {
        let same = |(one, other): (&super::super::run::StepStats, &super::super::run::StepStats)| {
            (one.loss, one.grad_norm) == (other.loss, other.grad_norm)
        };
        assert!(first.iter().zip(other).all(same), "all ranks report the same: {changes}");
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

/// Meshes of the small model, by number of ranks.
const MESHES: [(usize, &str); 12] = [
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
    (
        8,
        "mesh.tensor=2 strategy.sequence_parallel=true mesh.expert=2 mesh.pipeline=2 pipeline.schedule=zb-h1",
    ),
    (
        8,
        "mesh.expert=2 mesh.pipeline=2 mesh.sequence_data=2 pipeline.schedule=interleaved mesh.pipeline_first=true",
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
        (4, "mesh.expert=2 strategy.kind=zero2"),
    ];
    let configure = |folder: &Path, changes: &str| small(folder, &format!("experts.balance=bias {changes}"));
    assert_checkpoints_move(&shapes, 2, configure);
}
