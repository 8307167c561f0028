//! Tests of runs with rotary positions and grouped heads of keys and values.

use crate::train::tests::*;

const LLAMA: [&str; 6] = [
    "model.shape=llama",
    "model.heads=4",
    "model.kv_heads=2",
    "model.ffn_width=48",
    "schedule.steps=4",
    "log.check_replicas_every=0",
];

fn run(ranks: usize, changes: &[&str]) -> TrainResult {
    let folder = folder();
    train_on_threads(ranks, &config(folder.path(), &[&LLAMA[..], changes].concat())).unwrap()
}

#[test]
fn llama_meshes_nearly_match_one_rank() {
    // The updates of SGD are proportional to gradients, so that a constant factor shows.
    for optimizer in [&["optimizer.kind=sgd", "optimizer.lr=0.1"][..], &[]] {
        let losses_of = |ranks, changes: &[&str]| run(ranks, &[optimizer, changes].concat()).losses;
        let reference = losses_of(1, &[]);
        assert!(reference[3] < reference[0], "{reference:?}");
        let meshes: [(usize, &[&str]); 7] = [
            (2, &["mesh.tensor=2"]),
            (4, &["mesh.tensor=2", "strategy.sequence_parallel=true", "strategy.kind=zero3"]),
            (2, &["mesh.sequence_data=2"]),
            (4, &["mesh.sequence_data=4", "model.activation_checkpointing=true"]),
            (4, &["mesh.sequence_data=2", "mesh.tensor=2", "strategy.kind=zero2"]),
            (4, &["mesh.pipeline=2", "mesh.tensor=2"]),
            (3, &["strategy.kind=zero1", "data.breadth_first=2"]),
        ];
        for (ranks, changes) in meshes {
            for (left, right) in losses_of(ranks, changes).iter().zip(&reference) {
                assert!((left / right - 1.0).abs() < 1e-5, "{changes:?}: {left}, not {right}");
            }
        }
    }
}

#[test]
fn llama_strategies_and_recomputation_are_bitwise_equal() {
    let losses_of = |kind: &str, changes: &[&str]| {
        let kind = format!("strategy.kind={kind}");
        bits(&run(4, &[&["mesh.tensor=2", "model.dropout=0.1", &kind], changes].concat()))
    };
    let first = losses_of("bucketed", &[]);
    assert_eq!(losses_of("bucketed", &["model.activation_checkpointing=true"]), first);
    for kind in ["zero1", "zero2", "zero3"] {
        assert_eq!(losses_of(kind, &[]), first, "{kind}");
    }
}

#[test]
fn llama_memory_matches_formulas() {
    let options: [&[&str]; 6] = [
        &[],
        &["mesh.tensor=2"],
        &["mesh.sequence_data=2"],
        &["mesh.sequence_data=2", "data.micro_sequences=2"],
        &["data.micro_sequences=4", "model.activation_checkpointing=true", "model.layers=4"],
        &["mesh.sequence_data=2", "model.activation_checkpointing=true", "model.layers=4"],
    ];
    for changes in options {
        let memory = run(2, changes).memory;
        assert_eq!([0, 1, 2].map(|class| memory.classes[class].0), memory.formulas[..3], "{changes:?}");
        let measured = memory.classes[AllocClass::Activations as usize].1 as f64;
        let ratio = measured / memory.formulas[3] as f64;
        assert!((0.9..1.1).contains(&ratio), "{changes:?}: {ratio}");
    }
}

#[test]
fn llama_checkpoints_move_between_meshes() {
    let folder = folder();
    let trained_with = |ranks, changes: &[&str]| {
        let changes = [&LLAMA[..], &["schedule.steps=6"], changes].concat();
        train_on_threads(ranks, &config(folder.path(), &changes)).unwrap()
    };
    let uninterrupted = trained_with(2, &["mesh.tensor=2", "checkpoint.every=3"]);
    let last = folder.path().join("checkpoints/step-00000006");
    let again = |ranks, changes: &[&str]| {
        let _ = std::fs::remove_dir_all(&last);
        trained_with(ranks, &[&["checkpoint.resume=true"], changes].concat())
    };
    let same = again(2, &["mesh.tensor=2"]);
    assert_eq!((&same.losses[..], same.fingerprint), (&uninterrupted.losses[3..], uninterrupted.fingerprint));
    for (left, right) in again(1, &[]).losses.iter().zip(&same.losses) {
        assert!((left / right - 1.0).abs() < 1e-5, "{left}, not {right}");
    }
}

#[test]
fn heads_of_keys_that_do_not_divide_are_rejected() {
    let folder = folder();
    let config = config(folder.path(), &[&LLAMA[..], &["mesh.tensor=3"]].concat());
    match train_on_threads(3, &config) {
        Err(Error::Invalid(what)) => {
            let named = "2 heads of keys and values cannot be divided among 3 ranks";
            assert!(what.starts_with(named), "{what}");
        }
        other => panic!("{other:?}"),
    }
}
