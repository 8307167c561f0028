//! Flight records, as ranks write them.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What one rank of one communicator did last.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    pub(super) communicator: String,
    pub(super) epoch: u64,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) host: String,
    pub(super) transport: String,
    pub(super) now_ms: f64,
    pub(super) enqueued: u64,
    pub(super) error: Option<String>,
    pub(super) operations: Vec<Operation>,
}

/// One operation of it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Operation {
    /// Number of the call among those of all ranks, or among the messages of a pair.
    pub(super) sequence: u64,
    pub(super) of_all: bool,
    pub(super) call: String,
    pub(super) state: State,
    pub(super) started_ms: Option<f64>,
    pub(super) peer: Option<usize>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Started,
    Done,
    Failed,
}

impl Record {
    /// The last operation of all ranks that it has begun.
    pub(super) fn last_of_all(&self) -> Option<&Operation> {
        self.operations.iter().rev().find(|operation| operation.of_all)
    }

    /// The call of all ranks with this number, if it is still on record.
    pub(super) fn call(&self, sequence: u64) -> Option<&str> {
        let mut calls = self.operations.iter().filter(|operation| operation.of_all);
        calls.find(|operation| operation.sequence == sequence).map(|operation| operation.call.as_str())
    }
}

/// The records of each communicator, by name and epoch; of each rank, one.
pub(super) type Communicators = BTreeMap<(String, u64), Vec<Record>>;

/// Sorts records.
pub(super) fn by_communicator(records: impl IntoIterator<Item = Record>) -> Communicators {
    let mut communicators = Communicators::new();
    for record in records {
        communicators.entry((record.communicator.clone(), record.epoch)).or_default().push(record);
    }
    for ranks in communicators.values_mut() {
        ranks.sort_by_key(|record| record.rank);
        ranks.dedup_by_key(|record| record.rank);
    }
    communicators
}

/// Reads files, and what is in folders.
pub(super) fn read_all(paths: &[PathBuf]) -> Result<Vec<Record>, String> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(dumps_in(path)?),
            false => files.push(path.clone()),
        }
    }
    files.iter().map(|file| read(file)).collect()
}

fn dumps_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    Ok(paths)
}

fn read(file: &Path) -> Result<Record, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{} is no flight record: {error}", file.display()))
}
