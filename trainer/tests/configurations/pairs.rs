//! Pairs of features: each trains as its numbers demand, or is refused before anything is sent.
//!
//! The page docs/book/src/combinations.md has the result of each pair. A test runs some pairs and
//! compares them with the page. `TEST_LONG` runs all, and `WRITE_COMBINATIONS=1` also writes the
//! page. `TEST_PAIR` runs one pair, such as `TEST_PAIR=1,16`: the numbers of its rows on the page.
//! Each failure has that command.

use crate::small_run::{Found, config, try_run};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use unisono_nn::Error;
use unisono_trainer::train::DryRun;

/// Feature with its keys.
struct Feature {
    name: &'static str,
    /// Keys that change who computes, and not the result.
    layout: &'static str,
    /// Keys that change the result.
    result: &'static str,
}

const fn layout(name: &'static str, layout: &'static str) -> Feature {
    Feature { name, layout, result: "" }
}

const fn result(name: &'static str, result: &'static str) -> Feature {
    Feature { name, layout: "", result }
}

const FEATURES: [Feature; 34] = [
    layout("tensor parallel", "mesh.tensor=2"),
    layout("sequence parallel", "mesh.tensor=2 strategy.sequence_parallel=true"),
    layout("pipeline, naive", "mesh.pipeline=2 pipeline.schedule=naive"),
    layout("pipeline, GPipe", "mesh.pipeline=2 pipeline.schedule=gpipe"),
    layout("pipeline, 1F1B", "mesh.pipeline=2 pipeline.schedule=1f1b"),
    layout("pipeline, interleaved", "mesh.pipeline=2 pipeline.schedule=interleaved"),
    layout("pipeline, breadth-first", "mesh.pipeline=2 pipeline.schedule=breadth-first"),
    layout("pipeline, ZB-H1", "mesh.pipeline=2 pipeline.schedule=zb-h1"),
    layout("pipeline, ZB-V", "mesh.pipeline=2 pipeline.schedule=zb-v"),
    layout("context, gather", "mesh.sequence_data=2 context.kv_transfer=gather"),
    layout("context, ring", "mesh.sequence_data=2 context.kv_transfer=ring"),
    layout("context, Ulysses", "mesh.sequence_data=2 context.kv_transfer=ulysses"),
    layout(
        "context, ring of Ulysses",
        "mesh.sequence_data=4 context.kv_transfer=ring context.ulysses_ranks=2",
    ),
    layout("placement, striped", "mesh.sequence_data=2 context.placement=striped"),
    layout("placement, zig-zag", "mesh.sequence_data=2 context.placement=zig-zag"),
    layout("ZeRO-1", "strategy.kind=zero1"),
    layout("ZeRO-2", "strategy.kind=zero2"),
    layout("ZeRO-3", "strategy.kind=zero3"),
    layout("mixed units", "strategy.units={\"h.0\"=\"zero3\",\"h.1\"=\"zero1\"}"),
    layout("reduction per micro-batch", "strategy.kind=zero2 strategy.reduce_each=micro-batch"),
    layout("order of axes", "mesh.order=pipeline,batch_data,sequence_data,tensor"),
    layout("micro-sequences", "data.micro_sequences=2"),
    layout("breadth-first micro-batches", "data.breadth_first=2"),
    layout("activation checkpointing", "model.activation_checkpointing=true"),
    layout("cross-entropy splits", "model.cross_entropy_splits=2"),
    layout("offload", "strategy.offload=FOLDER/state"),
    layout("asynchronous checkpoints", "checkpoint.async=true checkpoint.every=1 checkpoint.last=true"),
    layout("generation", "sample.tokens=4"),
    Feature { name: "experts, replicated", layout: "", result: EXPERTS },
    Feature { name: "experts, shared between ranks", layout: "mesh.expert=2", result: EXPERTS },
    result("Llama, tied", "model.shape=llama model.tie_word_embeddings=true"),
    result("SGD", "optimizer.kind=sgd optimizer.lr=0.1"),
    result("Muon", "optimizer.kind=muon"),
    result("moments in bf16", "optimizer.moment_dtype=bf16"),
];

const EXPERTS: &str = "experts.count=8 experts.width=16";

const COMMON: &str =
    "model.layers=4 data.micro_batch=2 schedule.steps=2 log.check_replicas_every=1 checkpoint.every=0";

/// Data parallel ranks of each run with different sequences.
const BATCH_RANKS: usize = 2;

/// Numbers of two features, the smaller one first.
type Pair = (usize, usize);

/// Returns the names of a pair, and the command that runs it again.
fn title((row, column): Pair) -> String {
    let names = [row, column].map(|number| FEATURES[number].name).join(" with ");
    format!("{names} (TEST_PAIR={},{} {COMMAND})", row + 1, column + 1)
}

const COMMAND: &str =
    "cargo test --release -p unisono-trainer --test configurations -- --nocapture pairs_of_features";

/// Result of a pair.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Works,
    /// First words of the error.
    Refused(String),
    /// The features are values of one key.
    Alternatives,
}

/// Returns the keys with their values. The larger of two degrees of parallelism counts. `None` if
/// another key has two values.
fn merged(
    features: [&Feature; 2],
    keys: fn(&Feature) -> &'static str,
) -> Option<BTreeMap<&'static str, &'static str>> {
    let mut merged = BTreeMap::new();
    for word in features.into_iter().flat_map(|feature| keys(feature).split_whitespace()) {
        let (key, value) = word.split_once('=').expect("key=value");
        let known = merged.insert(key, value).filter(|&known| known != value);
        match (known, key.starts_with("mesh.")) {
            (None, _) => {}
            (Some(known), true) => drop(merged.insert(key, known.max(value))),
            (Some(_), false) => return None,
        }
    }
    Some(merged)
}

fn words(keys: &BTreeMap<&str, &str>) -> String {
    keys.iter().fold(COMMON.to_owned(), |text, (key, value)| format!("{text} {key}={value}"))
}

/// Runs a pair, and compares its losses and norms with those of one rank in `references`.
fn outcome((row, column): Pair, references: &mut BTreeMap<String, Found>) -> Outcome {
    let (first, second) = (&FEATURES[row], &FEATURES[column]);
    let layout = merged([first, second], |feature| feature.layout);
    let result = merged([first, second], |feature| feature.result);
    let (Some(layout), Some(result)) = (layout, result) else { return Outcome::Alternatives };
    let degree = |key: &str| layout.get(key).map_or(1, |value| value.parse::<usize>().expect("a degree"));
    let ranks: usize = BATCH_RANKS
        * ["mesh.tensor", "mesh.pipeline", "mesh.sequence_data"].map(degree).iter().product::<usize>();
    let reference = words(&result);
    let changes = words(&layout.into_iter().chain(result).collect());
    let name = title((row, column));
    let planned = config(Path::new("FOLDER"), &changes).and_then(|config| DryRun::new(&config, ranks));
    match (try_run(ranks, &changes), planned) {
        (Ok(found), Ok(_)) => {
            let reference = references
                .entry(reference.clone())
                .or_insert_with(|| try_run(1, &reference).expect("one rank"));
            assert_near(&name, &found, reference);
            Outcome::Works
        }
        (Err(error @ (Error::Invalid(_) | Error::Unsupported(_))), Err(planned)) => {
            assert_eq!(error.to_string(), planned.to_string(), "{name}");
            Outcome::Refused(first_words(&error.to_string()))
        }
        (found, planned) => {
            panic!(
                "{name}: {:?}, and planned: {:?}\n{changes}",
                found.map(|found| found.losses),
                planned.err()
            )
        }
    }
}

fn assert_near(name: &str, found: &Found, reference: &Found) {
    let numbers = |run: &Found| [&run.losses[..], &run.norms[..]].concat();
    for (left, right) in numbers(found).into_iter().zip(numbers(reference)) {
        assert!((left / right - 1.0).abs() < 1e-4, "{name}: {found:?}, not {reference:?}");
    }
}

/// Returns an error up to its first semicolon.
fn first_words(error: &str) -> String {
    error.split(';').next().unwrap_or_default().to_owned()
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/combinations.md")
}

const HEAD: &str = "<!-- Generated by trainer/tests/configurations/pairs.rs: do not edit. -->

# Combinations of features

Each field is the result of a run of two steps with both features, on the ranks that they need and
two data ranks. `+` means that losses and gradient norms are those of one rank. A letter means that
the start refuses the pair before anything is sent, with the error of that letter below. An empty
field has two values of one key. After a change,
`WRITE_COMBINATIONS=1 cargo test -p unisono-trainer --release --test configurations pairs` writes
this page.

";

/// Returns the page for all pairs, by row and column.
fn page(outcomes: &BTreeMap<Pair, Outcome>) -> String {
    let (mut text, mut reasons) = (HEAD.to_owned(), Vec::<&String>::new());
    let heads: Vec<String> = (1..=FEATURES.len()).map(|number| number.to_string()).collect();
    writeln!(text, "| | | {} |", heads.join(" | ")).expect("a string");
    writeln!(text, "|--:|---|{}", "---|".repeat(FEATURES.len())).expect("a string");
    for (row, feature) in FEATURES.iter().enumerate() {
        let cell = |column: usize| match outcomes.get(&(row.min(column), row.max(column))) {
            None | Some(Outcome::Alternatives) => "",
            Some(Outcome::Works) => "+",
            Some(Outcome::Refused(reason)) => {
                let index = reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
                    reasons.push(reason);
                    reasons.len() - 1
                });
                &LETTERS[index..=index]
            }
        };
        let cells: Vec<&str> = (0..FEATURES.len()).map(cell).collect();
        writeln!(text, "| {} | {} | {} |", row + 1, feature.name, cells.join(" | ")).expect("a string");
    }
    text.push_str("\nRefused:\n\n");
    for (index, reason) in reasons.iter().enumerate() {
        writeln!(text, "- {}: `{reason}`", &LETTERS[index..=index]).expect("a string");
    }
    text
}

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

/// Returns the field of a pair on a page, and the reason if that is a letter.
fn field(page: &str, row: usize, column: usize) -> Outcome {
    let line = page.lines().find(|line| line.starts_with(&format!("| {} | ", row + 1))).expect("a row");
    let cell = line.split('|').nth(column + 3).expect("a column").trim();
    match cell {
        "" => Outcome::Alternatives,
        "+" => Outcome::Works,
        letter => {
            let reason = page.lines().find_map(|line| line.strip_prefix(&format!("- {letter}: `")));
            Outcome::Refused(reason.expect("a reason").trim_end_matches('`').to_owned())
        }
    }
}

/// Distance of the pairs that run without `TEST_LONG`.
const STRIDE: usize = 7;

/// Returns the pairs to run: the one that `only` names by the numbers of its rows, or every
/// `stride`-th.
fn chosen_pairs(only: Option<&str>, stride: usize) -> Vec<Pair> {
    let pairs =
        (0..FEATURES.len()).flat_map(|row| (row + 1..FEATURES.len()).map(move |column| (row, column)));
    let Some(only) = only else { return pairs.step_by(stride).collect() };
    let numbers = only.split_once(',').and_then(|(row, column)| {
        let number = |text: &str| text.trim().parse::<usize>().ok()?.checked_sub(1);
        Some((number(row)?, number(column)?))
    });
    let named: Vec<Pair> = pairs.filter(|pair| numbers == Some(*pair)).collect();
    assert!(!named.is_empty(), "TEST_PAIR={only}: two rows of the page, the smaller first, such as 1,16");
    named
}

#[test]
fn pairs_of_features_work_or_are_refused() {
    let is_set = |name| std::env::var_os(name).is_some();
    let (writes, is_long) = (is_set("WRITE_COMBINATIONS"), is_set("TEST_LONG"));
    let only = std::env::var("TEST_PAIR").ok().filter(|_| !writes);
    let pairs = chosen_pairs(only.as_deref(), if writes || is_long { 1 } else { STRIDE });
    let mut references = BTreeMap::new();
    let mut run = |pair: Pair| {
        // A run that hangs has no failure, so its line comes before it.
        println!("pair {}", title(pair));
        outcome(pair, &mut references)
    };
    let outcomes: BTreeMap<Pair, Outcome> = pairs.into_iter().map(|pair| (pair, run(pair))).collect();
    if writes {
        std::fs::write(page_path(), page(&outcomes)).expect("writable");
    }
    let known = std::fs::read_to_string(page_path()).expect("the page of the book");
    for (pair, outcome) in outcomes {
        assert_eq!(field(&known, pair.0, pair.1), outcome, "{}: the page is stale", title(pair));
    }
}

#[test]
fn pairs_are_chosen_by_stride_or_by_number() {
    let count = FEATURES.len() * (FEATURES.len() - 1) / 2;
    assert_eq!(chosen_pairs(None, 1).len(), count);
    assert_eq!(chosen_pairs(None, STRIDE).len(), count.div_ceil(STRIDE));
    assert_eq!(chosen_pairs(Some("1,16"), STRIDE), [(0, 15)]);
    assert!(title((0, 15)).starts_with("tensor parallel with ZeRO-1 (TEST_PAIR=1,16 cargo test "));
}
