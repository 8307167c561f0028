//! Flight records, as ranks write them.

use crate::files;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The last operations of one rank in one communicator.
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

/// One operation of a rank.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Operation {
    /// Sequence number of the call among the calls of all ranks, or among the messages of a pair of
    /// ranks.
    pub(super) sequence: u64,
    pub(super) of_all: bool,
    pub(super) call: String,
    pub(super) state: State,
    pub(super) started_ms: Option<f64>,
    pub(super) peer: Option<usize>,
}

/// Progress of an operation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Started,
    Done,
    Failed,
}

impl Record {
    /// Returns whether the rank exists in a world of this size.
    pub(super) fn is_valid(&self) -> bool {
        self.rank < self.ranks && self.ranks <= RANKS_MAX
    }

    /// Returns the last collective that the rank has begun.
    pub(super) fn last_collective(&self) -> Option<&Operation> {
        self.operations.iter().rev().find(|operation| operation.of_all)
    }
}

/// Records by communicator name and epoch, one for each rank.
pub(super) type Communicators = BTreeMap<(String, u64), Vec<Record>>;

/// Groups records by communicator and drops repeated ranks.
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

/// Reads files, and the records in folders. Returns the records, and an error for each file that
/// cannot be read. For example, a rank that was killed, or whose disk was full, may have written
/// only a part of a file.
pub(super) fn read_all(paths: &[PathBuf]) -> Result<(Vec<Record>, Vec<String>), String> {
    // Traces may be in the same folder.
    let is_record = |name: &str| name.ends_with(".json") && !name.ends_with(files::TRACE_SUFFIX);
    Ok(files::partition(files::expand_paths(paths, is_record)?.iter().map(|file| read(file))))
}

fn read(file: &Path) -> Result<Record, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    parse(&text).map_err(|error| format!("{} is no flight record: {error}", file.display()))
}

/// Parses a record. The text is not trusted.
pub(super) fn parse(text: &str) -> Result<Record, String> {
    let record: Record = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match record.is_valid() {
        true => Ok(record),
        false => Err(format!("rank {} of {} ranks", record.rank, record.ranks)),
    }
}

/// Largest number of ranks of a world.
const RANKS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Diagnosis;
    use super::*;
    use proptest::prelude::*;

    fn text(rank: usize, ranks: usize, sequence: u64, state: &str) -> String {
        format!(
            r#"{{"communicator":"c","epoch":0,"rank":{rank},"ranks":{ranks},"host":"h","transport":"shm","now_ms":1e300,
            "enqueued":0,"error":null,"operations":[{{"sequence":{sequence},"of_all":true,"call":"barrier","state":"{state}",
            "started_ms":-1e300,"peer":7}}]}}"#
        )
    }

    #[test]
    fn record_with_invalid_world_is_rejected() {
        assert!(parse(&text(1, 2, 0, "done")).is_ok());
        for (rank, ranks) in [(2, 2), (0, 0), (1, 1 << 60)] {
            assert!(
                parse(&text(rank, ranks, 0, "done"))
                    .is_err_and(|why| why.contains(&format!("{ranks} ranks")))
            );
        }
    }

    proptest! {
        #[test]
        fn analyze_arbitrary_records_never_panics(
            ranks in prop::collection::vec((0usize..5, 0usize..5, any::<u64>(), 0usize..4), 0..5), noise: String, cut in 0usize..200,
        ) {
            let states = ["done", "failed", "started", "lost"];
            let texts = ranks.iter().map(|&(rank, ranks, sequence, state)| text(rank, ranks, sequence, states[state]));
            let records: Vec<Record> = texts.filter_map(|text| parse(&text).ok()).collect();
            for records in by_communicator(records).values() {
                let _ = Diagnosis::of(records).to_string();
            }
            let valid = text(0, 1, 0, &noise);
            let _ = parse(valid.get(..cut).unwrap_or(&valid));
            let _ = parse(&noise);
        }
    }
}
