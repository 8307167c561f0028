//! Tests of runs whose state is divided within groups of data ranks.

use super::meshes::assert_checkpoints_move;
use super::*;

fn changed(folder: &Path, changes: &str) -> Config {
    let small = "model.layers=4 model.width=16 model.heads=4 model.context=8 data.micro_batch=1 schedule.steps=3 \
                 log.check_replicas_every=1";
    let words: Vec<&str> = small.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

/// Strategies that divide state, on all units or on some.
const STRATEGIES: [&str; 3] = ["strategy.kind=zero1", "strategy.kind=zero2", "strategy.kind=zero3"];
/// Blocks with other strategies than the embedding and the head.
const MIX: &str =
    "strategy.kind=zero2 strategy.units={\"h.0\"=\"zero3\",\"h.1\"=\"zero1\",\"h.2\"=\"bucketed\"}";

#[test]
fn shard_groups_nearly_match_one_rank_on_every_mesh() {
    let folder = folder();
    let trained = |ranks, changes: &str| train_on_threads(ranks, &changed(folder.path(), changes)).unwrap();
    let reference = trained(1, "");
    let meshes = [
        (4, "strategy.shard_ranks=2"),
        (4, "strategy.shard_ranks=2 strategy.average=in-loss"),
        (6, "strategy.shard_ranks=3"),
        (4, "mesh.sequence_data=2 strategy.shard_ranks=2"),
        (8, "mesh.tensor=2 strategy.sequence_parallel=true strategy.shard_ranks=2"),
        (8, "mesh.pipeline=2 pipeline.schedule=zb-v strategy.shard_ranks=2"),
    ];
    for (ranks, mesh) in meshes {
        let [first, second, third] = STRATEGIES.map(|kind| trained(ranks, &format!("{mesh} {kind}")));
        assert_eq!(bits(&second), bits(&first), "{mesh}");
        assert_eq!(bits(&third), bits(&first), "{mesh}");
        let mixed = trained(ranks, &format!("{mesh} {MIX}"));
        for outcome in [&first, &mixed] {
            for (found, expected) in outcome.losses.iter().zip(&reference.losses) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{mesh}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn memory_of_shard_groups_matches_dry_run() {
    let folder = folder();
    for strategy in STRATEGIES.into_iter().chain([MIX]) {
        let config = changed(folder.path(), &format!("{strategy} strategy.shard_ranks=2"));
        let expected = DryRun::new(&config, 4).unwrap().own_memory();
        let ledgers =
            run_ranks(4, |world| train_loop::run_rank(world, &config, &Interrupt::default()).unwrap().memory);
        let largest = |class: usize| ledgers.iter().map(|ledger| ledger.classes[class].0).max().unwrap();
        assert_eq!([largest(0), largest(1), largest(2)], expected[..3], "{strategy}");
        assert_eq!(ledgers[0].formulas, expected, "{strategy}");
    }
}

#[test]
fn dry_run_counts_shards_and_bytes_of_groups() {
    let folder = folder();
    let predicted = |changes: &str| DryRun::new(&changed(folder.path(), changes), 4).unwrap();
    let assert_near =
        |left: f64, right: f64| assert!((left / right - 1.0).abs() < 0.05, "{left}, not {right}");
    let single_group = predicted("strategy.kind=zero2");
    let pairs = predicted("strategy.kind=zero2 strategy.shard_ranks=2");
    // A half of the state instead of a quarter. Padding differs.
    assert_near(pairs.own_memory()[2] as f64, 2.0 * single_group.own_memory()[2] as f64);
    let [single_group, pairs] = [single_group, pairs].map(|run| run.own_traffic());
    // A half of the gradients within the group and a half to the other one, not three quarters.
    assert_near(pairs.backward, 4.0 / 3.0 * single_group.backward);
    assert_near(pairs.after_step, 2.0 / 3.0 * single_group.after_step);
    let alone = predicted("strategy.kind=zero3 strategy.shard_ranks=1");
    assert_eq!(alone.own_memory(), predicted("").own_memory(), "ranks that are alone keep everything");
    assert_eq!(alone.own_traffic(), predicted("").own_traffic());
}

#[test]
fn checkpoints_move_between_shard_groups() {
    let shapes = [
        (4, "strategy.kind=zero3 strategy.shard_ranks=2"),
        (3, "strategy.kind=zero2"),
        (4, "strategy.kind=zero1 strategy.shard_ranks=2"),
        (8, "mesh.tensor=2 strategy.kind=zero2 strategy.shard_ranks=2"),
        (4, "strategy.shard_ranks=2 strategy.units={\"h.*\"=\"zero3\"}"),
        (1, ""),
    ];
    assert_checkpoints_move(&shapes, 2, changed);
}

#[test]
fn unequal_shard_groups_are_refused_with_their_numbers() {
    let folder = folder();
    let refusal = |ranks, changes: &str| {
        let config = changed(folder.path(), &format!("strategy.kind=zero2 {changes}"));
        DryRun::new(&config, ranks).err().expect("refused").to_string()
    };
    assert_eq!(
        refusal(4, "strategy.shard_ranks=3"),
        "strategy.shard_ranks = 3 does not divide the data parallel degree 4; on this mesh: 1, 2, 4"
    );
    assert_eq!(
        refusal(6, "experts.count=4 mesh.expert=2 strategy.shard_ranks=3"),
        "strategy.shard_ranks = 3 with mesh.expert = 2: one of them must be a multiple of the other"
    );
}
