//! Tests of runs over pipelines of stages.

use super::meshes::assert_checkpoints_move;
use super::*;
use std::time::Duration;

fn changed(folder: &Path, changes: &str) -> Config {
    let small =
        "model.layers=4 model.width=16 model.heads=2 model.context=8 data.micro_batch=1 schedule.steps=3";
    let words: Vec<&str> = small.split_whitespace().chain(changes.split_whitespace()).collect();
    config(folder, &words)
}

#[test]
fn stages_keep_their_own_parameters() {
    let folder = folder();
    let kept = |ranks, changes: &str| {
        let config = changed(folder.path(), changes);
        run_ranks(ranks, |world| {
            let mut run = Run::new(&config, world).unwrap();
            run.step().unwrap();
            [AllocClass::Weights, AllocClass::Gradients, AllocClass::Optimizer]
                .map(|class| run.memory.usage(class).current)
        })
    };
    let reference = kept(1, "model.tie_word_embeddings=false strategy.bucket_mb=10")[0];
    let stages = kept(4, "mesh.pipeline=4 model.tie_word_embeddings=false strategy.bucket_mb=10");
    for (class, reference) in reference.into_iter().enumerate() {
        let total: usize = stages.iter().map(|stage| stage[class]).sum();
        assert_eq!(total, reference, "{class}: nothing is kept twice");
    }
    // The embedding of 257 tokens is larger than a layer. Stages in the middle have one layer each.
    assert!(stages[1] == stages[2] && stages[1][0] < stages[0][0] - 4 * 257 * 16, "{stages:?}");
}

#[test]
fn operations_of_a_step_are_those_of_all_stages() {
    let folder = folder();
    let flops = |ranks, changes: &str| {
        let config = changed(folder.path(), changes);
        let of_ranks = run_ranks(ranks, |world| Run::new(&config, world).unwrap().flops_per_sample);
        assert!(of_ranks.iter().all(|flops| *flops == of_ranks[0]), "{changes}");
        of_ranks[0]
    };
    for tied in ["true", "false"] {
        let tied_mesh = |mesh: &str| format!("{mesh} model.tie_word_embeddings={tied}");
        let reference = flops(1, &tied_mesh(""));
        assert!(reference > 0.0);
        for (ranks, mesh) in
            [(2, "mesh.pipeline=2"), (4, "mesh.pipeline=4"), (4, "mesh.pipeline=2 mesh.tensor=2")]
        {
            assert_eq!(flops(ranks, &tied_mesh(mesh)), reference, "{mesh}");
        }
    }
}

#[test]
fn checkpoints_move_between_numbers_of_stages() {
    let shapes = [
        (1, "strategy.kind=bucketed"),
        (4, "mesh.pipeline=4 pipeline.schedule=zb-h1"),
        (4, "mesh.pipeline=2 pipeline.schedule=zb-v strategy.kind=zero3"),
        (4, "mesh.pipeline=2 mesh.tensor=2 pipeline.split=cost"),
        (3, "mesh.pipeline=3 pipeline.stage_ends=[1,3,4]"),
        (6, "mesh.pipeline=2 strategy.kind=zero2"),
    ];
    for tied in ["true", "false"] {
        assert_checkpoints_move(&shapes, 3, |folder, changes| {
            changed(folder, &format!("{changes} model.tie_word_embeddings={tied}"))
        });
    }
}

#[test]
fn resumed_pipeline_has_the_bits_of_an_uninterrupted_one() {
    let folder = folder();
    let mesh = "mesh.pipeline=2 mesh.tensor=2 pipeline.schedule=zb-h1 model.dropout=0.1 schedule.steps=6";
    let uninterrupted =
        train_on_threads(4, &changed(folder.path(), &format!("{mesh} checkpoint.every=3"))).unwrap();
    std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000006")).unwrap();
    let resumed = changed(folder.path(), &format!("{mesh} checkpoint.resume=true"));
    let resumed = train_on_threads(4, &resumed).unwrap();
    assert_eq!(
        (&resumed.losses[..], resumed.fingerprint),
        (&uninterrupted.losses[3..], uninterrupted.fingerprint)
    );
}

#[test]
fn stages_write_the_text_of_one_rank() {
    for (ranks, changes) in [
        (2, "mesh.pipeline=2"),
        (2, "mesh.pipeline=2 pipeline.schedule=zb-v strategy.kind=zero3"),
        (4, "mesh.pipeline=2 mesh.tensor=2 strategy.sequence_parallel=true pipeline.schedule=interleaved"),
        (4, "mesh.pipeline=2 strategy.kind=zero3 data.micro_sequences=2"),
        (4, "mesh.pipeline=2 pipeline.schedule=zb-v strategy.kind=zero2 data.micro_sequences=2"),
    ] {
        let folder = folder();
        let words = format!("{changes} checkpoint.every=3 sample.tokens=20 sample.prompt=line");
        let uninterrupted = train_on_threads(ranks, &changed(folder.path(), &words)).unwrap();
        let alone = generate(&folder.path().join("checkpoints"), "line", &[], &mut |_| Ok(())).unwrap();
        assert_eq!(uninterrupted.sample, Some("line".to_owned() + &alone), "{changes}");
    }
}

#[test]
fn impossible_pipelines_are_refused_before_they_start() {
    let folder = folder();
    let error =
        |changes: &str| train_on_threads(2, &changed(folder.path(), changes)).unwrap_err().to_string();
    let refused = |changes: &str| error(&format!("mesh.pipeline=2 {changes}"));
    assert!(refused("data.breadth_first=2").contains("pipeline.schedule"));
    assert!(refused("pipeline.schedule=interleaved data.global_batch=3").contains("no multiple of 2 ranks"));
    assert!(refused("pipeline.chunks=3").contains("chunks = 3"));
    assert!(refused("data.micro_sequences=3").contains("does not divide the 8 tokens"));
}

#[test]
fn memory_and_traffic_of_stages_match_formulas() {
    let folder = folder();
    let larger = "model.layers=8 model.width=64 model.context=64 data.global_batch=8";
    for changes in [
        "pipeline.schedule=gpipe",
        "pipeline.schedule=1f1b",
        "pipeline.schedule=interleaved",
        "pipeline.schedule=zb-h1 model.tie_word_embeddings=false",
        "pipeline.schedule=1f1b model.activation_checkpointing=true strategy.kind=zero1",
        "pipeline.schedule=1f1b data.micro_sequences=4",
        "pipeline.schedule=breadth-first data.micro_sequences=2",
        "pipeline.schedule=interleaved data.micro_sequences=4",
        "pipeline.schedule=zb-h1 data.micro_sequences=4 model.tie_word_embeddings=false",
    ] {
        let words = format!("mesh.pipeline=2 {larger} {changes}");
        let config = changed(folder.path(), &words);
        let found = run_ranks(2, |world| {
            let mut run = Run::new(&config, world).unwrap();
            run.step().unwrap();
            let stages = run.groups.get(unisono_parallel::mesh::GroupKind::Pipeline).unwrap().clone();
            let bytes_before = stages.traffic_stats().unwrap().bytes;
            run.step().unwrap();
            let sent = stages.traffic_stats().unwrap().bytes - bytes_before;
            (run.ledger().clone(), sent)
        });
        let traffic = DryRun::new(&config, 2).unwrap().traffic(config.strategy.kind).pipeline;
        // The gradient of the embedding goes to the last stage over a group of its own.
        let tied = if config.model.tie_word_embeddings { 4.0 * 257.0 * 64.0 } else { 0.0 };
        for (report, sent) in &found {
            let kept = report.classes[..3].iter().map(|class| class.0);
            assert!(kept.eq(report.formulas[..3].iter().copied()), "{changes}: {report}");
            let (most, formula) = (report.classes[3].1 as f64, report.formulas[3] as f64);
            // Recomputation needs less than the formula if the head does not run at the same time.
            let ratio = formula / most;
            assert!((0.95..1.35).contains(&ratio), "{changes}: {formula} bytes, and {most} were counted");
            let messages = traffic - tied;
            let remaining = *sent as f64 - messages;
            assert!((0.0..512.0).contains(&remaining), "{changes}: {sent} bytes, {messages} by formula");
        }
    }
}

#[test]
fn waits_for_stages_are_reported_and_traced() {
    let folder = folder();
    let trace = folder.path().join("trace.json");
    let mut config = changed(folder.path(), "mesh.pipeline=2 pipeline.schedule=naive");
    config.log.trace = trace.display().to_string();
    let waits = run_ranks(2, |world| {
        let mut run = Run::new(&config, world).unwrap();
        let taken = run.step().unwrap();
        run.trace.write(&trace, &run.world).unwrap();
        assert!(taken.pipeline_wait < taken.time && taken.tensor_parallel_wait.is_zero());
        taken.pipeline_wait
    });
    assert!(waits.iter().all(|wait| !wait.is_zero()), "one micro-batch at a time: both ranks wait");
    let text = std::fs::read_to_string(&trace).unwrap();
    for name in ["receive from a stage", "backward h.3", "forward h.0"] {
        assert!(text.contains(name), "no {name}");
    }
}

/// Returns the number of layers on each of two ranks.
fn layers_of_stages(changes: &str) -> Vec<usize> {
    let folder = folder();
    let config = changed(folder.path(), &format!("mesh.pipeline=2 {changes}"));
    run_ranks(2, |world| {
        let run = Run::new(&config, world).unwrap();
        let units = run.inventory.own_units().map(|unit| &run.inventory[unit].name);
        units.filter(|name| name.starts_with("h.")).count()
    })
}

#[test]
fn layers_of_a_run_are_divided_as_configured() {
    assert_eq!(layers_of_stages(""), [2, 2]);
    assert_eq!(layers_of_stages("pipeline.layers_per_stage=3"), [3, 1]);
    assert_eq!(layers_of_stages("model.layers=5 pipeline.layers_per_stage=2.5"), [3, 2]);
    assert_eq!(layers_of_stages("pipeline.stage_ends=[1,4]"), [1, 3]);
    // The head of 257 tokens costs more than a layer.
    assert_eq!(layers_of_stages("pipeline.split=cost model.tie_word_embeddings=false"), [3, 1]);
}

/// The line at the end of a run has the shares of the times that its steps report.
#[test]
fn shares_of_stages_are_those_of_reported_times() {
    let folder = folder();
    for (ranks, mesh) in [(2, "mesh.pipeline=2"), (4, "mesh.pipeline=2 mesh.tensor=2")] {
        let config = changed(folder.path(), &format!("{mesh} pipeline.schedule=naive"));
        let found = run_ranks(ranks, |world| {
            let mut run = Run::new(&config, world).unwrap();
            let (mut total, mut worked) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..3 {
                let taken = run.step().unwrap();
                let waited = taken.exposed + taken.tensor_parallel_wait + taken.pipeline_wait;
                total += taken.time;
                worked += taken.time.saturating_sub(waited);
            }
            let share = format!("{:.0} %", 100.0 * (worked.as_secs_f64() / total.as_secs_f64()));
            (run.groups.coordinates(), share, run.stage_balance().unwrap().expect("stages"))
        });
        for (coordinates, _, line) in &found {
            let of_stage = |stage: usize| {
                let same = found
                    .iter()
                    .find(|(other, ..)| (other.pipeline, other.tensor) == (stage, coordinates.tensor));
                same.map(|(_, share, _)| share.as_str()).expect("a rank of the stage")
            };
            let expected = format!("stages worked {}, {} of the time", of_stage(0), of_stage(1));
            assert!(line.starts_with(&expected), "{mesh}: {line}, not {expected}");
        }
    }
    let config = changed(folder.path(), "");
    let lines = run_ranks(1, |world| {
        let mut run = Run::new(&config, world).unwrap();
        run.step().unwrap();
        run.stage_balance().unwrap()
    });
    assert_eq!(lines, [None], "there is one stage");
}
