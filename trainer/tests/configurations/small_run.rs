//! Short runs of small models on threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use unisono_nn::Result;
use unisono_nn::allocator::Allocator;
use unisono_parallel::data_parallel::{LocalShard, ParallelKind, ProcessGroups, new_strategy};
use unisono_trainer::checkpoint::{self, SavedBy};
use unisono_trainer::config::{Config, new_model};
use unisono_trainer::train::{StepRecord, train_on_threads};

/// Compared results.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    pub(crate) validation: Option<f64>,
    pub(crate) weights: Vec<f32>,
}

/// Model, batch and length of a run. `sample.tokens` and reports are off.
const SMALL: &str = "model.layers=2 model.width=24 model.heads=4 model.context=16 model.tie_word_embeddings=false \
                     data.global_batch=16 data.micro_batch=16 schedule.steps=4 schedule.warmup=1 \
                     strategy.bucket_mb=0.01 sample.tokens=0 log.every=1000 log.check_replicas_every=2 \
                     log.validate_every=0 checkpoint.last=false";

/// Returns a small model on the text in `folder`, which also receives the outputs, changed by
/// `changes`. `FOLDER` in a change is the folder.
pub(crate) fn config(folder: &Path, changes: &str) -> Result<Config> {
    let place = folder.display();
    let paths = [
        format!("data.path={place}"),
        format!("checkpoint.folder={place}/checkpoints"),
        format!("log.file={place}/log.jsonl"),
    ];
    let words = SMALL.split_whitespace().chain(changes.split_whitespace());
    let words = words.map(|word| word.replace("FOLDER", &place.to_string()));
    Config::load(None, &paths.into_iter().chain(words).collect::<Vec<_>>())
}

/// Trains on `ranks` threads in a new folder, and returns what was found but no weights.
///
/// # Errors
/// Fails as the run does.
pub(crate) fn try_run(ranks: usize, changes: &str) -> Result<Found> {
    in_folder(|folder| train(folder, ranks, changes).map(|(_, found)| found))
}

/// Trains as [`try_run`] does, and returns the weights of the last checkpoint too.
pub(crate) fn run(ranks: usize, changes: &str) -> Found {
    in_folder(|folder| {
        let (config, found) = train(folder, ranks, &format!("checkpoint.every=4 {changes}")).expect("a run");
        Found { weights: weights(&config), ..found }
    })
}

fn in_folder<R>(body: impl FnOnce(&Path) -> R) -> R {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |line: usize| format!("line {line} of {} is {}\n", line * 7 % 13, line % 5);
    std::fs::write(folder.path().join("text.txt"), (0..150).map(line).collect::<String>()).expect("a file");
    body(folder.path())
}

fn train(folder: &Path, ranks: usize, changes: &str) -> Result<(Config, Found)> {
    let config = config(folder, changes)?;
    let outcome = train_on_threads(ranks, &config)?;
    let log = std::fs::read_to_string(&config.log.file).expect("a log");
    let norm = |line: &str| serde_json::from_str::<StepRecord>(line).expect("a record").grad_norm;
    let norms = log.lines().map(norm).collect();
    let (losses, validation) = (outcome.losses, outcome.validation);
    Ok((config, Found { losses, norms, validation, weights: Vec::new() }))
}

/// Returns all weights of the last checkpoint, loaded on one rank.
fn weights(config: &Config) -> Vec<f32> {
    let (_, inventory) = new_model(config, None).expect("a model");
    let inventory = Arc::new(inventory);
    let (memory, settings) = (Allocator::default(), config.settings());
    let mut strategy =
        new_strategy(ParallelKind::Replicated, &inventory, ProcessGroups::default(), &settings, &memory)
            .expect("alone");
    let folder = checkpoint::latest(Path::new(&config.checkpoint.folder)).expect("a checkpoint");
    let alone = SavedBy::default();
    checkpoint::load(&folder, alone, &mut *strategy, &inventory).expect("loaded");
    let mut parts = BTreeMap::new();
    let mut keep = |kept: LocalShard<'_>| {
        parts.insert((kept.parameter, kept.range.start), kept.weights.to_vec());
        Ok(())
    };
    strategy.for_each_shard(&mut keep).expect("weights");
    parts.into_values().flatten().collect()
}
