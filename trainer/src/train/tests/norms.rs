//! Norms and clipping, against the change of the weights by plain gradient descent.

use super::*;
use unisono_nn::parameter::ParameterId;
use unisono_parallel::testing::{Bits, collect_shards, merge_shards};

/// Plain gradient descent: a step changes the weights by the learning rate times the gradient.
const PLAIN: [&str; 7] = [
    "optimizer.kind=sgd",
    "optimizer.momentum=0",
    "optimizer.weight_decay=0",
    "optimizer.lr=1",
    "schedule.shape=constant",
    "schedule.warmup=0",
    "schedule.steps=1",
];

/// Returns the length of a step by the norm that it reports, and that of the change of the weights.
/// Each parameter counts once, however many ranks have it: copies are merged if they are equal.
fn norms(ranks: usize, changes: &[&str]) -> [f64; 2] {
    let folder = folder();
    let config = config(folder.path(), &[&PLAIN, changes].concat());
    let found = run_ranks(ranks, |world| {
        let mut run = Run::new(&config, world).unwrap();
        let inventory = Arc::clone(&run.inventory);
        let old_bits = collect_shards(&mut *run.strategy, &inventory);
        let taken = run.step().unwrap();
        (taken.grad_norm * taken.lr, old_bits, collect_shards(&mut *run.strategy, &inventory))
    });
    let reported = found[0].0;
    assert!(found.iter().all(|(norm, ..)| *norm == reported), "{changes:?}: ranks report the same");
    let (old_bits, new_bits): (Vec<Bits>, Vec<Bits>) =
        found.into_iter().map(|(_, old_bits, new_bits)| (old_bits, new_bits)).unzip();
    let (old_bits, new_bits) = (merge_shards(old_bits), merge_shards(new_bits));
    let change = |(place, bits): (&(ParameterId, usize), &Vec<u32>)| {
        f64::from(f32::from_bits(bits[0])) - f64::from(f32::from_bits(new_bits[place][0]))
    };
    [reported, old_bits.iter().map(|part| change(part).powi(2)).sum::<f64>().sqrt()]
}

/// Meshes on which some parameters are on several ranks: those of norms, tied embeddings, and
/// shards of several groups.
const MESHES: [(usize, &[&str]); 10] = [
    (1, &[]),
    (3, &["strategy.kind=zero3"]),
    (2, &["mesh.tensor=2"]),
    (4, &["mesh.tensor=2", "strategy.sequence_parallel=true", "strategy.kind=zero2"]),
    (2, &["mesh.pipeline=2"]),
    (4, &["mesh.pipeline=2", "mesh.tensor=2", "strategy.kind=zero1"]),
    (2, &["mesh.sequence_data=2"]),
    (2, &["experts.count=4", "mesh.expert=2"]),
    (4, &["data.micro_batch=1", "strategy.kind=zero3", "strategy.shard_ranks=2"]),
    (
        4,
        &[
            "data.micro_batch=1",
            "experts.count=4",
            "mesh.expert=2",
            "strategy.kind=zero1",
            "strategy.shard_ranks=2",
        ],
    ),
];

#[test]
fn norms_count_each_parameter_once_on_every_mesh() {
    for (ranks, changes) in MESHES {
        let [reported, changed] = norms(ranks, &[changes, &["optimizer.max_grad_norm=0"]].concat());
        assert!((reported / changed - 1.0).abs() < 1e-5, "{changes:?}: {reported}, not {changed}");
    }
}

#[test]
fn clipped_steps_are_as_long_as_configured() {
    for (ranks, changes) in MESHES {
        let [reported, changed] = norms(ranks, &[changes, &["optimizer.max_grad_norm=0.25"]].concat());
        assert!(reported > 0.3, "{changes:?}: {reported} is clipped");
        assert!((changed / 0.25 - 1.0).abs() < 1e-4, "{changes:?}: {changed} after clipping");
        let [reported, changed] = norms(ranks, &[changes, &["optimizer.max_grad_norm=1000"]].concat());
        assert!((reported / changed - 1.0).abs() < 1e-5, "{changes:?}: {reported} is not clipped");
    }
}
