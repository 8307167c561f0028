//! Tests of runs whose blocks have different strategies.

use super::meshes::assert_checkpoints_move;
use super::*;

const MIXES: [&str; 4] = [
    "strategy.units={\"h.0\"=\"zero3\",\"h.1\"=\"bucketed\"} strategy.kind=zero2",
    "strategy.units={\"h\"=\"zero3\"} strategy.kind=zero1",
    "strategy.units={\"h.1\"=\"zero2\",\"head\"=\"zero3\",\"h.3\"=\"bucketed\"} strategy.kind=zero1",
    "strategy.replicate_below=100 strategy.kind=zero3",
];

fn changed(folder: &Path, changes: &str) -> Config {
    let small =
        "model.layers=4 model.width=16 model.heads=4 model.context=8 data.micro_batch=1 schedule.steps=3";
    let words: Vec<&str> = small.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

#[test]
fn mixed_runs_are_bitwise_equal_to_plain_ones() {
    let folder = folder();
    let meshes = [
        (1, ""),
        (2, "model.dropout=0.1"),
        (3, "model.tie_word_embeddings=false"),
        (4, "optimizer.kind=muon"),
        (4, "mesh.tensor=2 strategy.sequence_parallel=true"),
        (4, "mesh.tensor=2 optimizer.kind=muon model.tie_word_embeddings=false"),
        (2, "mesh.pipeline=2"),
        (4, "mesh.pipeline=2 pipeline.schedule=zb-v"),
        (4, "mesh.sequence_data=2 data.breadth_first=2"),
    ];
    for (ranks, mesh) in meshes {
        let steps_of = |changes: &str| {
            bits(&train_on_threads(ranks, &changed(folder.path(), &format!("{mesh} {changes}"))).unwrap())
        };
        let plain = steps_of("strategy.kind=zero2");
        for mix in MIXES {
            assert_eq!(steps_of(mix), plain, "{ranks} ranks, {mesh}: {mix}");
        }
    }
    // Both parts reduce after every micro-batch.
    let steps_of = |changes: &str| {
        let each = format!("strategy.kind=zero2 strategy.reduce_each=micro-batch {changes}");
        bits(&train_on_threads(2, &changed(folder.path(), &each)).unwrap())
    };
    assert_eq!(steps_of("strategy.units={\"h\"=\"zero3\"}"), steps_of(""));
}

#[test]
fn mixed_memory_matches_dry_run() {
    let folder = folder();
    for (ranks, mesh) in [(2, ""), (3, "strategy.param_dtype=bf16"), (4, "mesh.tensor=2"), (1, "")] {
        for mix in MIXES {
            let config = changed(folder.path(), &format!("{mesh} {mix}"));
            let expected = DryRun::new(&config, ranks).unwrap().own_memory();
            let ledgers = run_ranks(ranks, |world| {
                train_loop::run_rank(world, &config, &Interrupt::default()).unwrap().memory
            });
            let largest = |class: usize| ledgers.iter().map(|ledger| ledger.classes[class].0).max().unwrap();
            assert_eq!([largest(0), largest(1), largest(2)], expected[..3], "{ranks} ranks, {mesh} {mix}");
            assert_eq!(ledgers[0].formulas, expected, "{ranks} ranks, {mesh} {mix}");
        }
    }
}

#[test]
fn dry_run_adds_up_the_parts() {
    let folder = folder();
    let predicted = |changes: &str| DryRun::new(&changed(folder.path(), changes), 4).unwrap();
    let (plain, sharded) = (predicted("strategy.kind=zero3"), predicted("strategy.units={\"*\"=\"zero3\"}"));
    assert_eq!(sharded.own_traffic(), plain.traffic(ParallelKind::Zero3));
    assert_eq!(sharded.own_memory(), plain.own_memory());
    // Gathers of the blocks come on top of what replicated units send.
    let mixed = predicted("strategy.units={\"h.1\"=\"zero3\"}");
    let [none, mixed_sent, full] = [predicted("").own_traffic(), mixed.own_traffic(), plain.own_traffic()]
        .map(|traffic| traffic.forward);
    assert!(none == 0.0 && mixed_sent > 0.0 && full > 4.0 * mixed_sent, "{none} {mixed_sent} {full}");
    let report = mixed.report();
    assert!(report.lines().any(|line| line.contains("strategy.units") && line.ends_with('<')), "{report}");
}

#[test]
fn checkpoints_move_between_mixed_and_plain() {
    let shapes = [
        (2, MIXES[0]),
        (3, "strategy.kind=zero3"),
        (4, "mesh.tensor=2 strategy.units={\"h.*\"=\"zero3\"}"),
        (4, "mesh.pipeline=2 strategy.units={\"h.0\"=\"zero3\",\"head\"=\"zero2\"}"),
        (1, MIXES[2]),
        (3, MIXES[3]),
    ];
    assert_checkpoints_move(&shapes, 2, changed);
}

#[test]
fn unknown_units_are_rejected_at_the_start() {
    let folder = folder();
    let error =
        |changes: &str| train_on_threads(2, &changed(folder.path(), changes)).unwrap_err().to_string();
    let found = error("strategy.units={\"h.4\"=\"zero3\"}");
    assert!(found.contains("no unit of strategy.units is called `h.4`; near are `h.0`"), "{found}");
}
