//! Legal meshes of eight ranks, drawn at random: the steps of each are those of one rank.
//!
//! `MESH_SAMPLES` is the number of meshes, and `MESH_SEED` draws others.

use crate::small_run::{Found, config, try_run};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use unisono_trainer::Error;
use unisono_trainer::train::DryRun;

const RANKS: usize = 8;
const LAYERS_PER_RANK: usize = 2;
const GLOBAL_BATCH: usize = 16;

/// Pseudo-random numbers (Steele et al., "SplitMix", OOPSLA 2014).
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 33) as usize % count
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    /// Returns the names in a random order, with commas between them.
    fn order(&mut self, names: &[&str]) -> String {
        let mut left = names.to_vec();
        let drawn = names.iter().map(|_| left.remove(self.below(left.len())));
        drawn.collect::<Vec<_>>().join(",")
    }

    /// Returns factors of [`RANKS`]: tensor, pipeline, sequence and batch.
    fn factors(&mut self) -> [usize; 4] {
        let mut factors = [1; 4];
        while factors.iter().product::<usize>() < RANKS {
            factors[self.below(4)] *= 2;
        }
        factors
    }

    /// Returns a divisor of `number`.
    fn divisor(&mut self, number: usize) -> usize {
        let all: Vec<usize> = (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect();
        all[self.below(all.len())]
    }
}

/// Run on a mesh, and the run on fewer ranks with the same results.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    changes: String,
    reference: String,
    reference_ranks: usize,
}

/// Returns keys of experts, which the reference has too, and of their distribution.
fn draw_experts(draw: &mut Draw, data: usize) -> [String; 2] {
    if draw.below(3) > 0 {
        return [String::new(), String::new()];
    }
    let balance = draw.of(&["balance=bias", "balance=loss", "balance_loss=0"]);
    let model = format!(
        "experts.count=8 experts.width=16 experts.first_dense=1 experts.shared={} experts.{balance}",
        draw.below(2)
    );
    let (expert, folded) = (draw.divisor(data), draw.of(&["true", "false"]));
    [model, format!("mesh.expert={expert} mesh.expert_folded={folded}")]
}

/// Returns keys of the model and optimizer, which the reference has too.
fn draw_model(draw: &mut Draw, layers: usize) -> String {
    let shape = draw.of(&["gpt2", "llama"]);
    let tied = draw.of(&["true", "false"]);
    let heads = draw.of(&["4 model.kv_heads=2", "4", "8", "8 model.kv_heads=4"]);
    let optimizer = draw.of(&[
        "adamw",
        "adamw",
        "sgd optimizer.momentum=0.5 optimizer.lr=0.1",
        "muon optimizer.lr=0.001",
    ]);
    format!(
        "model.shape={shape} model.tie_word_embeddings={tied} model.layers={layers} model.heads={heads} \
         model.width=32 optimizer.kind={optimizer} schedule.steps=3 log.check_replicas_every=1"
    )
}

/// Returns the division of state over data ranks.
fn draw_strategy(draw: &mut Draw) -> String {
    let kind = draw.of(&["bucketed", "zero1", "zero2", "zero3", "zero3"]);
    let mut text = format!("strategy.kind={kind}");
    let more = match kind {
        "zero2" | "zero3" => draw.of(&["", "", " strategy.reduce_each=micro-batch"]),
        _ => "",
    };
    let extra = draw.of(&[
        "",
        "",
        "",
        " strategy.units={\"h.0\"=\"zero3\"}",
        " strategy.average=in-loss",
        " strategy.reshard_after_forward=false",
        " strategy.bucket_mb=0.001",
        " strategy.shard_ranks=2",
        " strategy.replicate_below=100",
    ]);
    write!(text, "{more}{extra}").expect("a string");
    text
}

fn draw(draw: &mut Draw) -> Sample {
    let [tensor, pipeline, sequence, batch] = draw.factors();
    let of_rank = GLOBAL_BATCH / batch;
    let micro = draw.divisor(of_rank);
    let parts = [1, 1, 1, 2][draw.below(4)];
    let placement = draw.of(&["contiguous", "striped", "zig-zag"]);
    let sequence_parallel = tensor > 1 && draw.below(2) == 0;
    let dropout = draw.of(&["0", "0", "0.2"]);
    let [experts, sharing] = draw_experts(draw, sequence * batch);
    let model = format!("{} {experts}", draw_model(draw, LAYERS_PER_RANK * pipeline));
    let schedule = match pipeline {
        1 => format!("data.breadth_first={}", draw.divisor(of_rank / micro)),
        _ => {
            let kinds = ["naive", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-v"];
            format!("pipeline.schedule={}", draw.of(&kinds))
        }
    };
    let transfer = draw.of(&[
        "gather",
        "ring",
        "ulysses",
        "ring context.ulysses_ranks=2",
        "ring context.ulysses_ranks=4",
    ]);
    let order = draw.order(&["tensor", "sequence_data", "batch_data", "pipeline"]);
    let splits = draw.of(&["1", "2"]);
    let checkpointing = draw.of(&["true", "false"]);
    let strategy = draw_strategy(draw);
    // Masks belong to chunks of micro-batches and to rows of sequence parallel ranks.
    let chunks = format!(
        "mesh.sequence_data={sequence} context.placement={placement} data.micro_batch={micro} \
         data.micro_sequences={parts}"
    );
    let rows = format!("mesh.tensor={tensor} strategy.sequence_parallel={sequence_parallel}");
    let (reference, reference_ranks) = match (dropout, sequence_parallel) {
        ("0", _) => (model.clone(), 1),
        (_, false) => (format!("{model} model.dropout={dropout} {chunks}"), sequence * batch),
        (_, true) => (format!("{model} model.dropout={dropout} {chunks} {rows}"), sequence * batch * tensor),
    };
    let changes = format!(
        "{model} {sharing} model.dropout={dropout} {rows} {chunks} mesh.pipeline={pipeline} mesh.order={order} {schedule} \
         context.kv_transfer={transfer} model.cross_entropy_splits={splits} \
         model.activation_checkpointing={checkpointing} {strategy}"
    );
    Sample { changes, reference, reference_ranks }
}

/// Draws until a sample is legal.
fn draw_legal(random: &mut Draw) -> Sample {
    loop {
        let sample = draw(random);
        let refused =
            config(Path::new("."), &sample.changes).and_then(|config| DryRun::new(&config, RANKS)).err();
        match refused {
            None => return sample,
            Some(Error::Invalid(_) | Error::Unsupported(_)) => {}
            Some(other) => panic!("{}: {other:?}", sample.changes),
        }
    }
}

/// Returns the largest relative difference of losses and norms.
fn difference(found: &Found, reference: &Found) -> f64 {
    let pairs = |one: &Found| [&one.losses[..], &one.norms[..]].concat();
    assert_eq!(pairs(found).len(), pairs(reference).len());
    let apart = pairs(found).into_iter().zip(pairs(reference)).map(|(one, other)| (one / other - 1.0).abs());
    apart.fold(0.0, |most, one| if one.is_nan() { f64::INFINITY } else { most.max(one) })
}

const TOLERANCE: f64 = 1e-5;

fn number_of(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn random_meshes_match_one_rank() {
    let (count, seed) = (number_of("MESH_SAMPLES", 12), number_of("MESH_SEED", 1));
    let (mut random, mut references) = (Draw(seed), BTreeMap::new());
    let (mut failures, mut most) = (Vec::new(), 0.0f64);
    for number in 0..count {
        let sample = draw_legal(&mut random);
        let reference = references
            .entry(sample.reference.clone())
            .or_insert_with(|| try_run(sample.reference_ranks, &sample.reference).expect("a reference"));
        let failure = match try_run(RANKS, &sample.changes) {
            Err(error) => Some(error.to_string()),
            Ok(found) => {
                let apart = difference(&found, reference);
                most = most.max(apart);
                (apart > TOLERANCE).then(|| format!("{apart:e} apart: {found:?}, not {reference:?}"))
            }
        };
        failures.extend(failure.map(|failure| format!("{number}: {failure}\n  {}", sample.changes)));
    }
    println!("{count} meshes are at most {most:e} apart from one rank");
    assert!(failures.is_empty(), "{} of {count} with seed {seed}:\n{}", failures.len(), failures.join("\n"));
}
