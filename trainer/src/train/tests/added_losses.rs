//! Tests of losses and metrics that blocks add.

use super::*;
use crate::train::report::Report;
use crate::train::step::StepStats;
use unisono_nn::testing::BalanceLoss;

fn changed(folder: &Path, changes: &str) -> Config {
    let small =
        "model.layers=4 model.width=16 model.heads=2 model.context=8 data.micro_batch=1 schedule.steps=3";
    let words: Vec<&str> = small.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

/// Creates a run whose first block adds a loss.
fn run_with_loss(config: &Config, world: unisono::Communicator, slope: f32) -> Run {
    let mut run = Run::new(config, world).unwrap();
    run.model.wrap_block(0, |module| Box::new(BalanceLoss { module, slope }));
    run
}

/// Returns the statistics of three steps, which are equal on all ranks.
fn steps(folder: &Path, ranks: usize, changes: &str, slope: f32) -> Vec<StepStats> {
    let config = changed(folder, changes);
    let by_rank = run_ranks(ranks, |world| {
        let mut run = run_with_loss(&config, world, slope);
        (0..3).map(|_| run.step().unwrap()).collect::<Vec<_>>()
    });
    for (left, right) in by_rank.iter().flat_map(|steps| steps.iter().zip(&by_rank[0])) {
        assert_eq!((left.loss.to_bits(), &left.added), (right.loss.to_bits(), &right.added), "{changes}");
    }
    by_rank.into_iter().next().unwrap()
}

fn near(left: f64, right: f64) -> bool {
    (left / right - 1.0).abs() < 1e-5
}

#[test]
fn added_loss_reaches_total_and_gradients_on_every_mesh() {
    let folder = folder();
    let [plain, reference] = [0.0, 0.5].map(|slope| steps(folder.path(), 1, "", slope));
    let balance = |taken: &StepStats| taken.added.losses["balance"];
    let (total, plain_total) = (reference[0].loss, plain[0].loss);
    assert!(near(total, plain_total + 0.5 * balance(&plain[0])), "{total}, {plain_total}");
    assert!(balance(&reference[2]) < balance(&plain[2]), "the loss is reduced by training");
    let meshes = [
        (2, "model.activation_checkpointing=true"),
        (3, "strategy.kind=zero3"),
        (2, "strategy.average=in-loss strategy.kind=zero2"),
        (2, "mesh.tensor=2"),
        (2, "mesh.pipeline=2"),
        (4, "mesh.pipeline=2 pipeline.schedule=zb-v"),
        (1, "data.breadth_first=4"),
    ];
    for (ranks, mesh) in meshes {
        for (found, expected) in steps(folder.path(), ranks, mesh, 0.5).iter().zip(&reference) {
            assert!(near(found.loss, expected.loss), "{mesh}: {found:?}, not {expected:?}");
            assert!(near(balance(found), balance(expected)), "{mesh}: {found:?}, not {expected:?}");
            assert!(near(found.grad_norm, expected.grad_norm), "{mesh}: {found:?}, not {expected:?}");
            assert_eq!(found.added.metrics["numbers"], 8.0 * 16.0, "{mesh}");
        }
    }
}

#[test]
fn added_losses_and_metrics_are_recorded() {
    let folder = folder();
    let path = folder.path().join("run.jsonl");
    let mut config = changed(folder.path(), "");
    config.log.file = path.display().to_string();
    run_ranks(1, |world| {
        let mut run = run_with_loss(&config, world, 0.5);
        let mut report = Report::new(&run, 1e9).unwrap();
        let taken = run.step().unwrap();
        report.step(&taken, run.ledger(), None).unwrap();
        report.finish().unwrap();
        let record: StepRecord = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((record.loss, record.losses), (taken.loss, taken.added.losses));
        assert_eq!(record.metrics["numbers"], 8.0 * 16.0);
    });
}
