//! Legal meshes of eight ranks, drawn at random: the steps of each are those of one rank.
//!
//! `TEST_LONG` draws more meshes, with a new seed. `TEST_MESHES` sets their number, and
//! `TEST_MESH_SEED` the seed. The first line of the test has the seed, and a failure has the
//! command that repeats one mesh: `TEST_MESH` is its number.

use crate::small_run::{Found, config, try_run};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use unisono_nn::Error;
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
        let divisors: Vec<usize> = (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect();
        divisors[self.below(divisors.len())]
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
    let pairs = |outcome: &Found| [&outcome.losses[..], &outcome.norms[..]].concat();
    assert_eq!(pairs(found).len(), pairs(reference).len());
    let apart =
        pairs(found).into_iter().zip(pairs(reference)).map(|(left, right)| (left / right - 1.0).abs());
    apart.fold(0.0, |most, distance| if distance.is_nan() { f64::INFINITY } else { most.max(distance) })
}

const TOLERANCE: f64 = 1e-5;

/// Meshes that are drawn and run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Drawing {
    seed: u64,
    count: u64,
    /// Number of the only mesh that runs; `None` runs all.
    only: Option<u64>,
}

impl Drawing {
    /// Returns what the variables say, by their names. A long test without a seed gets a new one.
    fn from_variables(value: impl Fn(&str) -> Option<String>, new_seed: impl Fn() -> u64) -> Self {
        let number_of = |name: &str| -> Option<u64> {
            let text = value(name)?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
        };
        let is_long = value("TEST_LONG").is_some();
        let only = number_of("TEST_MESH");
        let usual_count = if is_long { LONG_COUNT } else { COUNT };
        // The meshes before the only one are drawn, because each depends on those before it.
        let count = only.map_or_else(|| number_of("TEST_MESHES").unwrap_or(usual_count), |only| only + 1);
        let seed = number_of("TEST_MESH_SEED");
        let seed = seed.unwrap_or_else(|| if is_long { new_seed() } else { USUAL_SEED });
        Self { seed, count, only }
    }

    /// Returns the command that runs one mesh again.
    fn command(&self, number: impl std::fmt::Display) -> String {
        let Self { seed, .. } = self;
        format!("TEST_MESH_SEED={seed} TEST_MESH={number} {COMMAND}")
    }
}

const COMMAND: &str =
    "cargo test --release -p unisono-trainer --test configurations -- --nocapture random_meshes";

/// Number and seed of the meshes of every change.
const COUNT: u64 = 12;
const USUAL_SEED: u64 = 1;
/// Number of the meshes of a long test.
const LONG_COUNT: u64 = 500;

/// Returns a number that is another in each process. It has 32 bits, so that it is short to type.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}

#[test]
fn random_meshes_match_one_rank() {
    let drawing = Drawing::from_variables(|name| std::env::var(name).ok(), random_seed);
    println!("seed {}: {} runs mesh N again", drawing.seed, drawing.command("N"));
    let (mut random, mut references) = (Draw(drawing.seed), BTreeMap::new());
    let (mut failures, mut most) = (Vec::new(), 0.0f64);
    for number in 0..drawing.count {
        let sample = draw_legal(&mut random);
        if drawing.only.is_some_and(|only| only != number) {
            continue;
        }
        // A run that hangs or panics has no failure below, so its line comes before it.
        println!("mesh {number} of {}, seed {}: {}", drawing.count, drawing.seed, sample.changes);
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
        failures.extend(
            failure.map(|failure| format!("{failure}\n  {}\n  {}", sample.changes, drawing.command(number))),
        );
    }
    println!("meshes of seed {} are at most {most:e} apart from one rank", drawing.seed);
    let (count, seed) = (drawing.count, drawing.seed);
    assert!(failures.is_empty(), "{} of {count} with seed {seed}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn only_long_tests_draw_a_new_seed() {
    let drawing = |variables: &[(&str, &str)]| {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Drawing::from_variables(value, || 77)
    };
    assert_eq!(drawing(&[]), Drawing { seed: 1, count: 12, only: None });
    assert_eq!(drawing(&[("TEST_LONG", "1")]), Drawing { seed: 77, count: 500, only: None });
    let fewer = [("TEST_LONG", "1"), ("TEST_MESHES", "3"), ("TEST_MESH_SEED", "5")];
    assert_eq!(drawing(&fewer), Drawing { seed: 5, count: 3, only: None });
    let again = drawing(&[("TEST_MESH_SEED", "77"), ("TEST_MESH", "41")]);
    assert_eq!(again, Drawing { seed: 77, count: 42, only: Some(41) });
    assert!(again.command(41).starts_with("TEST_MESH_SEED=77 TEST_MESH=41 cargo test "));
}
