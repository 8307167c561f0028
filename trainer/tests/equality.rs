//! Strategies, transports and reruns are bitwise equal.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::path::Path;
use support::World;
use unisono::ReductionOrder;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_trainer::config::Config;
use unisono_trainer::train::Run;

const STEPS: u64 = 50;

/// Losses and norms of all steps, and a hash of the final weights.
type Bits = (Vec<(u64, u64)>, u64);

fn config(folder: &Path, ranks: usize, kind: ParallelKind) -> Config {
    let varying = [
        format!("data.path={}", folder.display()),
        format!("data.global_batch={}", 2 * ranks),
        format!("schedule.steps={STEPS}"),
        format!("strategy.kind={}", kind.name()),
    ];
    let tiny = [
        "model.layers=1",
        "model.width=8",
        "model.heads=2",
        "model.context=8",
        "data.micro_batch=1",
        "schedule.warmup=5",
        "strategy.bucket_mb=0.002",
        "optimizer.lr=1e-2",
    ];
    let changes: Vec<_> = tiny.map(str::to_owned).into_iter().chain(varying).collect();
    Config::load(None, &changes).expect("a configuration")
}

fn run(folder: &Path, world: World, ranks: usize, kind: ParallelKind) -> Bits {
    let config = config(folder, ranks, kind);
    let in_order = unisono::Config::default().with_reduction_order(ReductionOrder::RankOrder);
    let mut ends = world.run(ranks, &in_order, |world| {
        let mut run = Run::new(&config, world).expect("a run");
        let mut step = || {
            let taken = run.step().expect("a step");
            (taken.loss.to_bits(), taken.grad_norm.to_bits())
        };
        ((0..STEPS).map(|_| step()).collect(), run.fingerprint().expect("a fingerprint"))
    });
    let first: Bits = ends.remove(0);
    assert!(ends.iter().all(|other| *other == first), "ranks differ: {world:?}, {ranks} ranks, {kind:?}");
    first
}

#[test]
fn strategies_transports_and_reruns_are_bitwise_equal() {
    let folder = tempfile::tempdir().expect("a folder");
    let text: String = (0..200).map(|line| format!("line {line} of {}\n", line * 7 % 13)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("a text");
    for ranks in [2, 3, 4, 5] {
        let reference = run(folder.path(), World::Threads, ranks, ParallelKind::Replicated);
        let (first, last) =
            (f64::from_bits(reference.0[0].0), f64::from_bits(reference.0[STEPS as usize - 1].0));
        assert!(last < first - 1.0, "it learns: from {first} to {last}");
        for kind in ParallelKind::ALL {
            let found = run(folder.path(), World::Threads, ranks, kind);
            assert!(found == reference, "{kind:?} on {ranks} threads");
        }
        for world in [World::Shm, World::Tcp] {
            for kind in
                [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3]
            {
                let found = run(folder.path(), world, ranks, kind);
                assert!(found == reference, "{kind:?} on {ranks} ranks over {world:?}");
            }
        }
    }
}
