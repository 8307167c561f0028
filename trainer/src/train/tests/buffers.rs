//! Steps after the first make no buffers: all vectors come from the cache of the allocator.

use super::*;
use std::collections::HashSet;

/// Fresh allocations of a rank.
struct Fresh {
    by_step: Vec<u64>,
    /// Number of different lengths of buckets.
    lengths: u64,
}

/// Returns the fresh allocations of the first `steps` steps on every rank.
fn fresh(ranks: usize, changes: &str, steps: usize) -> Vec<Fresh> {
    let folder = folder();
    let words = format!("model.width=16 model.context=16 schedule.steps={steps} {changes}");
    let words: Vec<&str> = words.split_whitespace().collect();
    let config = config(folder.path(), &words);
    run_ranks(ranks, |world| {
        let mut run = Run::new(&config, world).unwrap();
        let kind = config.strategy.kind;
        let layout = config.strategy.settings(0).layout(kind, &run.inventory, ranks);
        let lengths: HashSet<_> = layout.buckets.iter().map(|bucket| bucket.count).collect();
        let mut count_step = || {
            let allocations_before = run.memory.fresh_allocations();
            run.step().unwrap();
            run.memory.fresh_allocations() - allocations_before
        };
        Fresh { by_step: (0..steps).map(|_| count_step()).collect(), lengths: lengths.len() as u64 }
    })
}

fn assert_first_only(ranks: usize, changes: &str) {
    for Fresh { by_step, .. } in fresh(ranks, changes, 3) {
        assert!(by_step[0] > 0, "{changes}: the first step makes the buffers");
        assert_eq!(by_step[1..], [0, 0], "{changes}");
    }
}

#[test]
fn later_steps_make_no_buffers() {
    for kind in ["bucketed", "zero1"] {
        for dtype in ["f32", "bf16"] {
            assert_first_only(2, &format!("strategy.kind={kind} strategy.param_dtype={dtype}"));
        }
    }
    assert_first_only(1, "optimizer.kind=muon model.activation_checkpointing=true");
    assert_first_only(2, "mesh.tensor=2 model.dropout=0.1");
    assert_first_only(2, "mesh.sequence_data=2 model.cross_entropy_splits=3");
    for way in ["gather", "ring", "ulysses"] {
        assert_first_only(
            2,
            &format!("mesh.sequence_data=2 context.kv_transfer={way} context.placement=striped"),
        );
    }
    assert_first_only(1, "data.micro_sequences=4");
}

#[test]
fn later_steps_of_pipelines_make_no_buffers() {
    for schedule in ["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "breadth-first"] {
        let words = format!("mesh.pipeline=2 model.layers=4 data.micro_batch=3 pipeline.schedule={schedule}");
        assert_first_only(2, &words);
    }
}

/// ZeRO-2 and ZeRO-3 free whole gradients when their reduction ends. A step whose reductions are
/// slow so needs a buffer more for each length of bucket, and later steps have it.
#[test]
fn later_steps_of_sharded_gradients_make_only_what_is_under_way() {
    const STEPS: usize = 40;
    for kind in ["zero2", "zero3"] {
        let words = format!("strategy.kind={kind} strategy.reduction_limit=1");
        for Fresh { by_step, lengths } in fresh(2, &words, STEPS) {
            let later: u64 = by_step[1..].iter().sum();
            assert!(later <= lengths && lengths < STEPS as u64 / 2, "{kind}, {lengths} lengths: {by_step:?}");
        }
    }
}
