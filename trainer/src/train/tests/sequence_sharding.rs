//! Tests of sharded sequences, and of breadth-first micro-batches.

use crate::train::tests::*;
use unisono::Communicator;

#[test]
fn strategies_are_bitwise_equal_with_sharded_sequences() {
    let folder = folder();
    let run = |kind: &str| {
        let kind = format!("strategy.kind={kind}");
        let changes = [
            "mesh.sequence_data=2",
            &kind,
            "schedule.steps=3",
            "model.dropout=0.1",
            "model.activation_checkpointing=true",
        ];
        bits(&train_on_threads(4, &config(folder.path(), &changes)).unwrap())
    };
    let first = run("bucketed");
    assert_eq!(run("bucketed"), first, "the same masks again");
    for kind in ["zero1", "zero2", "zero3"] {
        assert_eq!(run(kind), first, "{kind}");
    }
}

#[test]
fn run_resumes_with_other_sequence_sharding() {
    let folder = folder();
    let run = |changes: &[&str]| {
        let changes = [&["sample.tokens=8", "sample.prompt=line"], changes].concat();
        train_on_threads(2, &config(folder.path(), &changes)).unwrap()
    };
    let uninterrupted = run(&["mesh.sequence_data=2", "checkpoint.every=6"]);
    let checkpoints = folder.path().join("checkpoints");
    let alone = generate(&checkpoints, "line", &[], &mut |_| Ok(())).unwrap();
    assert_eq!(uninterrupted.sample, Some("line".to_owned() + &alone), "by one rank alone");
    std::fs::remove_dir_all(checkpoints.join("step-00000012")).unwrap();
    let same = run(&["mesh.sequence_data=2", "checkpoint.resume=true"]);
    assert_eq!((&same.losses[..], same.fingerprint), (&uninterrupted.losses[6..], uninterrupted.fingerprint));
    for (left, right) in run(&["checkpoint.resume=true"]).losses.iter().zip(&same.losses) {
        assert!((left / right - 1.0).abs() < 1e-4, "{left}, not {right}");
    }
}

/// Returns the bytes that each rank sent in one step to ranks with the same part of the model, and
/// to ranks with the same sequences.
fn sent(ranks: usize, config: &Config) -> (u64, u64) {
    let of_rank = |world| {
        let mut run = Run::new(config, world).unwrap();
        let bytes = |run: &Run| {
            let bytes_of =
                |group: Option<&Communicator>| group.map_or(0, |group| group.traffic_stats().unwrap().bytes);
            (
                bytes_of(run.groups.get(unisono_parallel::mesh::GroupKind::Data)),
                bytes_of(run.sequence_group.as_ref()),
            )
        };
        let bytes_before = bytes(&run);
        run.step().unwrap();
        let bytes_after = bytes(&run);
        (bytes_after.0 - bytes_before.0, bytes_after.1 - bytes_before.1)
    };
    let results = run_ranks(ranks, of_rank);
    assert!(results.iter().all(|result| result.1 == results[0].1), "{results:?}");
    results[0]
}

#[test]
fn breadth_first_gathers_weights_once() {
    let folder = folder();
    for tied in ["model.tie_word_embeddings=true", "model.tie_word_embeddings=false"] {
        let trained_with = |breadth: usize| {
            let breadth = format!("data.breadth_first={breadth}");
            let changes = [&breadth, tied, "strategy.kind=zero3", "data.micro_batch=1"];
            let config = config(folder.path(), &changes);
            let traffic = DryRun::new(&config, 2).unwrap().traffic(ParallelKind::Zero3);
            (sent(2, &config).0, traffic.forward + traffic.backward)
        };
        let (depth, formula) = trained_with(1);
        for breadth in [2, 6] {
            let (found, expected) = trained_with(breadth);
            assert!(found < depth);
            assert_eq!((depth - found) as f64, formula - expected, "{breadth} at a time, {tied}");
            let excess = found as f64 / expected - 1.0;
            assert!(excess.abs() < 0.02, "{found}, not {expected}: more than the norm and the loss");
        }
    }
}

#[test]
fn sequence_sharding_traffic_matches_formula() {
    let folder = folder();
    let cases: [(usize, &[&str]); 10] = [
        (2, &[]),
        (4, &["mesh.tensor=2"]),
        (8, &["mesh.tensor=4", "model.heads=4", "model.kv_heads=2"]),
        (2, &["context.kv_transfer=ulysses"]),
        (
            2,
            &[
                "context.kv_transfer=ulysses",
                "model.kv_heads=2",
                "model.heads=4",
                "model.width=32",
                "model.activation_checkpointing=true",
            ],
        ),
        (2, &["context.kv_transfer=ring"]),
        (3, &["context.kv_transfer=ring", "model.activation_checkpointing=true", "model.context=48"]),
        (2, &["data.micro_sequences=4"]),
        (2, &["data.micro_sequences=2", "model.activation_checkpointing=true"]),
        (3, &["model.activation_checkpointing=true", "model.context=48"]),
    ];
    for (ranks, more) in cases {
        let degree = format!("mesh.sequence_data={}", if ranks == 3 { 3 } else { 2 });
        let config = config(folder.path(), &[&[degree.as_str()], more].concat());
        let traffic = DryRun::new(&config, ranks).unwrap().traffic(ParallelKind::Replicated);
        assert_eq!(sent(ranks, &config).1 as f64, traffic.sequence_parallel, "{ranks} ranks, {more:?}");
    }
}

/// Bytes of the requests to end the run and to save, which are no traffic of layers.
const REQUEST_BYTES: f64 = 16.0;

/// Returns the bytes that tensor parallel ranks sent in one step for their layers.
fn tensor_parallel_bytes_sent(ranks: usize, config: &Config) -> f64 {
    let results = run_ranks(ranks, |world| {
        let mut run = Run::new(config, world).unwrap();
        let bytes = |run: &Run| {
            run.groups.get(unisono_parallel::mesh::GroupKind::Tensor).unwrap().traffic_stats().unwrap().bytes
        };
        let bytes_before = bytes(&run);
        run.step().unwrap();
        bytes(&run) - bytes_before
    });
    results.iter().sum::<u64>() as f64 / ranks as f64 - REQUEST_BYTES
}

#[test]
fn tensor_parallel_traffic_matches_formula() {
    let folder = folder();
    let cases: [(usize, &[&str]); 3] =
        [(2, &[]), (4, &["strategy.kind=zero2"]), (2, &["model.activation_checkpointing=true"])];
    for (ranks, more) in cases {
        let config = config(folder.path(), &[&["mesh.tensor=2"], more].concat());
        let traffic = DryRun::new(&config, ranks).unwrap().traffic(config.strategy.kind);
        let found = tensor_parallel_bytes_sent(ranks, &config);
        assert_eq!(found, traffic.tensor_parallel, "{ranks} ranks, {more:?}");
        let rows = self::config(
            folder.path(),
            &[&["mesh.tensor=2", "strategy.sequence_parallel=true"], more].concat(),
        );
        let traffic = DryRun::new(&rows, ranks).unwrap().traffic(rows.strategy.kind);
        // Gradients of norms are summed on a communicator of their own.
        assert_eq!(tensor_parallel_bytes_sent(ranks, &rows), found, "{more:?}");
        assert!(traffic.tensor_parallel > found);
    }
}

#[test]
fn muon_traffic_matches_formula() {
    let folder = folder();
    for kind in ["zero1", "zero2", "zero3"] {
        let trained_with = |optimizer: &str| {
            let changes = [&format!("strategy.kind={kind}"), &format!("optimizer.kind={optimizer}")];
            let config = config(folder.path(), &changes.map(String::as_str));
            let traffic = DryRun::new(&config, 2).unwrap().traffic(config.strategy.kind);
            (sent(2, &config).0 as f64, traffic.forward + traffic.backward + traffic.after_step)
        };
        let ((adamw, plain), (muon, formula)) = (trained_with("adamw"), trained_with("muon"));
        assert!(muon > adamw, "{kind}");
        assert!((muon / formula - adamw / plain).abs() < 0.01, "{kind}: {muon}, not {formula}");
    }
}

#[test]
fn invalid_sharding_suggests_valid_ones() {
    let folder = folder();
    let error = |changes: &[&str]| DryRun::new(&config(folder.path(), changes), 6).err().unwrap().to_string();
    assert_eq!(
        error(&["mesh.sequence_data=3", "experts.count=4"]),
        "ranks divide sequences in multiples of 3 positions, so model.context = 32 is padded with 1, which \
         experts (experts.count = 4) would count: not part of this build; set model.context to 30 or 33"
    );
    assert!(error(&["mesh.sequence_data=4"]).contains("does not divide the data parallel degree 6"));
    assert!(error(&["data.breadth_first=2", "data.micro_batch=1", "data.global_batch=18"]).ends_with("1, 3"));
}
