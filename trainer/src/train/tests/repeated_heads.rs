//! Tests of runs with more tensor parallel ranks than heads of keys and values, which ranks repeat.

use crate::models::hugging_face::FileOptions;
use crate::train::tests::*;

const COMMON: &str = "model.shape=llama model.heads=4 model.ffn_width=48 schedule.steps=4 schedule.warmup=0";

/// Switches of Llama, of Qwen2, and of Qwen3 with biases, each with an optimizer. The updates of
/// SGD are proportional to gradients, so that a constant factor shows.
const MODELS: [&str; 3] = [
    "optimizer.kind=sgd optimizer.lr=0.1",
    "model.qkv_bias=true optimizer.kind=sgd optimizer.lr=0.1 optimizer.max_grad_norm=0",
    "model.qk_norm=true model.qkv_bias=true model.head_dim=12 optimizer.kind=adamw",
];

const MESHES: [(usize, &str); 9] = [
    (2, "mesh.tensor=2"),
    (2, "mesh.tensor=2 strategy.sequence_parallel=true strategy.kind=zero3"),
    (4, "mesh.tensor=4"),
    (4, "mesh.tensor=4 strategy.sequence_parallel=true model.activation_checkpointing=true"),
    (8, "mesh.tensor=4 strategy.kind=zero2 strategy.reduce_each=micro-batch"),
    (8, "mesh.tensor=4 strategy.sequence_parallel=true mesh.pipeline=2 pipeline.schedule=zb-h1"),
    (8, "mesh.tensor=4 mesh.sequence_data=2 context.kv_transfer=gather strategy.kind=zero1"),
    (8, "mesh.tensor=4 mesh.sequence_data=2 context.kv_transfer=ring context.placement=zig-zag"),
    (8, "mesh.tensor=2 mesh.sequence_data=4 context.kv_transfer=ulysses strategy.kind=zero3"),
];

fn configured(folder: &Path, changes: &str) -> Config {
    let words: Vec<_> = COMMON.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

/// Returns the losses and norms of four steps.
fn steps(ranks: usize, changes: &str) -> Vec<[f64; 2]> {
    let folder = folder();
    losses_and_norms(ranks, &configured(folder.path(), changes), 4)
}

#[test]
fn repeated_heads_nearly_match_one_rank() {
    for model in MODELS {
        for kv_heads in [1, 2] {
            let changes = format!("{model} model.kv_heads={kv_heads}");
            let reference = steps(1, &changes);
            assert!(reference[3][0] < reference[0][0], "{changes}: {reference:?}");
            for (ranks, mesh) in MESHES {
                let found = steps(ranks, &format!("{changes} {mesh}"));
                assert_near_steps(&format!("{changes} {mesh}"), &found, &reference);
            }
        }
    }
}

/// Muon computes with whole matrices, of which ranks have repeated rows.
#[test]
fn repeated_heads_take_steps_of_whole_matrices() {
    let model = "model.kv_heads=2 optimizer.kind=muon optimizer.lr=0.001";
    let reference = steps(1, model);
    for (ranks, mesh) in [(4, "mesh.tensor=4"), (8, "mesh.tensor=4 strategy.kind=zero3")] {
        let found = steps(ranks, &format!("{model} {mesh}"));
        assert_near_steps(mesh, &found, &reference);
    }
}

#[test]
fn strategies_with_repeated_heads_are_bitwise_equal() {
    let changes = "mesh.tensor=4 model.kv_heads=2 model.dropout=0.1 model.qk_norm=true model.qkv_bias=true";
    let first = steps(8, changes);
    let others = [
        "strategy.kind=zero1",
        "strategy.kind=zero2",
        "strategy.kind=zero3 model.activation_checkpointing=true",
        "strategy.units={\"h.0\"=\"zero3\"}",
    ];
    for other in others {
        assert_eq!(steps(8, &format!("{changes} {other}")), first, "{other}");
    }
}

#[test]
fn memory_with_repeated_heads_matches_formulas() {
    let options = [
        (4, "mesh.tensor=4 model.kv_heads=1"),
        (4, "mesh.tensor=4 model.kv_heads=2 model.qk_norm=true model.head_dim=16"),
        (4, "mesh.tensor=4 model.kv_heads=2 model.activation_checkpointing=true model.layers=4"),
        (8, "mesh.tensor=4 model.kv_heads=2 mesh.sequence_data=2 strategy.kind=zero3"),
    ];
    for (ranks, changes) in options {
        let folder = folder();
        let config = configured(folder.path(), &format!("{changes} log.check_replicas_every=0"));
        let memory = train_on_threads(ranks, &config).unwrap().memory;
        assert_eq!([0, 1, 2].map(|class| memory.classes[class].0), memory.formulas[..3], "{changes}");
        let measured = memory.classes[AllocClass::Activations as usize].1 as f64;
        let ratio = measured / memory.formulas[3] as f64;
        assert!((0.9..1.1).contains(&ratio), "{changes}: {ratio}");
    }
}

#[test]
fn checkpoints_with_repeated_heads_move_between_meshes() {
    let shapes = [
        (1, "strategy.kind=bucketed"),
        (4, "mesh.tensor=4 strategy.kind=zero1"),
        (2, "mesh.tensor=2 strategy.kind=zero3"),
        (8, "mesh.tensor=4 mesh.pipeline=2 strategy.kind=zero3"),
        (8, "mesh.tensor=4 strategy.kind=zero2"),
    ];
    for kv_heads in [1, 2] {
        let configure = |folder: &Path, changes: &str| {
            let model = format!("model.kv_heads={kv_heads} model.qk_norm=true model.qkv_bias=true");
            configured(folder, &format!("{model} {changes}"))
        };
        super::meshes::assert_checkpoints_move(&shapes, 2, configure);
    }
}

#[test]
fn runs_with_repeated_heads_resume_on_other_meshes() {
    let losses = |folder: &Path, ranks, changes: &str| {
        let config = configured(folder, &format!("model.kv_heads=2 checkpoint.every=2 {changes}"));
        train_on_threads(ranks, &config).unwrap().losses
    };
    for (ranks, saved, next_ranks, resumed) in
        [(4, "mesh.tensor=4", 1, ""), (1, "", 4, "mesh.tensor=4 strategy.kind=zero2")]
    {
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

#[test]
fn models_with_repeated_heads_are_exported_whole() {
    let folder = folder();
    let run = |ranks, changes: &str| {
        train_on_threads(ranks, &configured(folder.path(), &format!("model.kv_heads=2 {changes}"))).unwrap()
    };
    let trained = run(4, "mesh.tensor=4 checkpoint.last=true");
    let export_folder = folder.path().join("exported");
    let checkpoint = crate::checkpoint::latest(&folder.path().join("checkpoints")).unwrap();
    export(&checkpoint, &export_folder, &[], FileOptions::default()).unwrap();
    let model_from = format!("model.from={}", export_folder.display());
    let loaded = run(4, &format!("{model_from} mesh.tensor=4 strategy.kind=zero3 schedule.steps=0"));
    assert_eq!(loaded.fingerprint, trained.fingerprint);
}

#[test]
fn divergent_copies_of_repeated_heads_are_named() {
    for (changed, first, strategy) in [(1, 0, "bucketed"), (3, 2, "zero3")] {
        let folder = folder();
        let config =
            configured(folder.path(), &format!("mesh.tensor=4 model.kv_heads=2 strategy.kind={strategy}"));
        let ends: Vec<Result<()>> = run_ranks(4, |world| {
            let rank = world.rank();
            let mut run = Run::new(&config, world)?;
            run.step()?;
            run.check_replicas()?;
            let wanted = run.inventory.find("h.1.attn.c_attn.weight").unwrap();
            run.strategy.for_each_shard(&mut |kept| {
                if rank == changed && kept.parameter == wanted {
                    *kept.weights.last_mut().unwrap() += 1e-3;
                }
                Ok(())
            })?;
            run.check_replicas()
        });
        for end in ends {
            let Err(Error::ReplicasDiverged(what)) = end else { panic!("{end:?}") };
            let ranks = format!("on ranks [{changed}] is not what rank {first} has");
            assert_eq!(what, format!("after step 1, h.1.attn.c_attn.weight {ranks}"));
        }
    }
}

#[test]
fn uneven_heads_of_keys_are_refused_with_numbers() {
    let refused = |ranks: usize, changes: &str| {
        let folder = folder();
        let config = configured(folder.path(), &format!("model.kv_heads=2 mesh.tensor={ranks} {changes}"));
        match (train_on_threads(ranks, &config), DryRun::new(&config, ranks)) {
            (Err(Error::Invalid(what)), Err(Error::Invalid(planned))) if what == planned => what,
            (found, planned) => panic!("{changes}: {:?}, and planned: {:?}", found.err(), planned.err()),
        }
    };
    assert_eq!(
        refused(4, "model.heads=6 model.head_dim=8"),
        "2 heads of keys and values cannot be divided among 4 ranks, and these cannot repeat them evenly for 6 heads \
         of queries: set mesh.tensor to one of 1, 2, 6"
    );
    assert!(refused(3, "").ends_with("4 heads of queries: set mesh.tensor to one of 1, 2, 4"));
}
