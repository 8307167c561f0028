//! Tests of runs whose ranks do not divide sequences evenly, and pad them.

use crate::train::tests::*;

const COMMON: &str = "model.context=29 model.heads=4 schedule.steps=4 schedule.warmup=0";

/// Keys of models, each with an optimizer. The updates of SGD are proportional to gradients, so
/// that a constant factor shows.
const MODELS: [&str; 2] = [
    "optimizer.kind=sgd optimizer.lr=0.1",
    "model.shape=llama model.kv_heads=2 model.ffn_width=48 optimizer.kind=adamw",
];

/// Meshes, with the positions that a sequence of 29 tokens has on them.
const MESHES: [(usize, usize, &str); 12] = [
    (2, 30, "mesh.sequence_data=2"),
    (4, 32, "mesh.sequence_data=4 context.kv_transfer=ring model.activation_checkpointing=true"),
    (4, 32, "mesh.sequence_data=4 context.kv_transfer=ring context.placement=zig-zag strategy.kind=zero3"),
    (4, 32, "mesh.sequence_data=4 context.kv_transfer=ulysses context.placement=striped"),
    (4, 32, "mesh.sequence_data=4 context.kv_transfer=ring context.ulysses_ranks=2"),
    (3, 30, "mesh.sequence_data=3 data.micro_sequences=5 model.cross_entropy_splits=2"),
    (4, 36, "mesh.sequence_data=2 data.micro_sequences=3 context.placement=zig-zag data.breadth_first=3"),
    (2, 30, "mesh.tensor=2 strategy.sequence_parallel=true data.micro_batch=1"),
    (4, 30, "mesh.tensor=4 strategy.sequence_parallel=true model.cross_entropy_splits=3"),
    (4, 32, "mesh.tensor=2 strategy.sequence_parallel=true mesh.sequence_data=2 data.micro_batch=1"),
    (4, 30, "mesh.pipeline=2 mesh.sequence_data=2 pipeline.schedule=zb-h1 strategy.kind=zero2"),
    (4, 30, "mesh.pipeline=2 mesh.sequence_data=2 data.micro_sequences=3 context.placement=striped"),
];

fn configured(folder: &Path, changes: &str) -> Config {
    let words: Vec<_> = COMMON.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

fn steps(ranks: usize, changes: &str) -> Vec<[f64; 2]> {
    let folder = folder();
    losses_and_norms(ranks, &configured(folder.path(), changes), 4)
}

#[test]
fn padded_sequences_nearly_match_one_rank() {
    for model in MODELS {
        let reference = steps(1, model);
        assert!(reference[3][0] < reference[0][0], "{model}: {reference:?}");
        for (ranks, _, mesh) in MESHES {
            let found = steps(ranks, &format!("{model} {mesh}"));
            assert_near_steps(&format!("{model} {mesh}"), &found, &reference);
        }
    }
}

/// Nine tokens on eight ranks: three ranks have padding alone.
#[test]
fn ranks_without_tokens_take_the_steps_of_others() {
    let model = "model.context=9 optimizer.kind=sgd optimizer.lr=0.1";
    let reference = steps(1, model);
    for transfer in ["gather", "ring", "ulysses"] {
        let found = steps(8, &format!("{model} mesh.sequence_data=8 context.kv_transfer={transfer}"));
        assert_near_steps(transfer, &found, &reference);
    }
}

#[test]
fn padding_is_that_of_the_mesh() {
    let folder = folder();
    for (ranks, positions, mesh) in MESHES {
        let config = configured(folder.path(), mesh);
        assert_eq!(29 + config.sequence_padding(), positions, "{mesh}");
        let report = DryRun::new(&config, ranks).unwrap().report();
        let advice = format!("model.context = {positions} would cost the same");
        assert!(report.contains(&advice), "{mesh}: {report}");
    }
}

#[test]
fn validation_of_padded_sequences_matches_one_rank() {
    let folder = folder();
    let loss = |ranks, mesh: &str| {
        let config = configured(folder.path(), mesh);
        let losses = run_ranks(ranks, |world| Run::new(&config, world).unwrap().validate().unwrap());
        losses[0].expect("samples for validation")
    };
    let expected = loss(1, "");
    for (ranks, _, mesh) in MESHES {
        let found = loss(ranks, mesh);
        assert!((found / expected - 1.0).abs() < 1e-5, "{mesh}: {found}, not {expected}");
    }
}

#[test]
fn memory_of_padded_sequences_matches_formulas() {
    for (ranks, changes) in [
        (4, "mesh.sequence_data=4 model.context=61"),
        (4, "mesh.sequence_data=4 model.context=61 context.kv_transfer=ring context.placement=zig-zag"),
        (2, "mesh.tensor=2 strategy.sequence_parallel=true model.context=61 data.micro_batch=1"),
    ] {
        let folder = folder();
        let memory = train_on_threads(ranks, &configured(folder.path(), changes)).unwrap().memory;
        assert_eq!([0, 1, 2].map(|class| memory.classes[class].0), memory.formulas[..3], "{changes}");
        let measured = memory.classes[AllocClass::Activations as usize].1 as f64;
        let ratio = measured / memory.formulas[3] as f64;
        assert!((0.9..1.1).contains(&ratio), "{changes}: {ratio}");
    }
}

#[test]
fn padded_runs_resume_on_other_meshes() {
    let losses = |folder: &Path, ranks, changes: &str| {
        let config = configured(folder, &format!("checkpoint.every=2 {changes}"));
        train_on_threads(ranks, &config).unwrap().losses
    };
    let rows = "mesh.tensor=2 strategy.sequence_parallel=true data.micro_batch=1";
    for (ranks, saved, next_ranks, resumed) in [(4, "mesh.sequence_data=4", 1, ""), (1, "", 2, rows)] {
        let folder = folder();
        let uninterrupted = losses(folder.path(), ranks, saved);
        std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000004")).unwrap();
        let continued = losses(folder.path(), next_ranks, &format!("{resumed} checkpoint.resume=true"));
        assert_eq!(continued.len(), 2);
        for (found, expected) in continued.iter().zip(&uninterrupted[2..]) {
            assert!((found / expected - 1.0).abs() < 1e-5, "{saved} to {resumed}: {found}, not {expected}");
        }
    }
}

/// Experts count rows, so that padding would change their loads.
#[test]
fn padding_with_experts_is_refused_with_numbers() {
    for (ranks, positions, mesh) in MESHES {
        let folder = folder();
        let experts = "experts.count=4 experts.balance=none";
        let config = configured(folder.path(), &format!("{mesh} {experts}"));
        let Err(Error::Unsupported(what)) = DryRun::new(&config, ranks) else { panic!("{mesh}") };
        assert!(what.contains("model.context = 29 is padded"), "{what}");
        assert!(what.ends_with(&format!("or {positions}")), "{what}");
    }
}
