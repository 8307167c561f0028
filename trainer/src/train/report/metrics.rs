//! What is written of each step.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};

/// One step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number, from 1.
    pub step: u64,
    /// Mean loss of its samples, before it.
    pub loss: f64,
    /// Loss on what was held back, after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// Norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// How long it took.
    pub seconds: f64,
    /// Tokens of all ranks in a second, of late.
    pub tokens_per_second: f64,
    /// Floating-point operations of the model as a share of what the ranks can do, of late.
    pub mfu: f64,
    /// Seconds that rank 0 waited for the exchange of gradients and weights.
    pub exposed_seconds: f64,
    /// Seconds that it waited within layers that ranks share.
    #[serde(default)]
    pub tensor_parallel_seconds: f64,
    /// Bytes that rank 0 keeps: weights, gradients, optimizer's state.
    pub memory: usize,
    /// The same by formula.
    pub memory_predicted: usize,
}

/// All steps so far, in memory and, a line of JSON for each, in a file.
pub(super) struct MetricsWriter {
    file: Option<(PathBuf, LineWriter<File>)>,
    records: Vec<StepRecord>,
}

impl MetricsWriter {
    /// A journal in the file at `path`, or in memory only if that is empty. Of a run that goes on after `step`, what is
    /// there of the steps up to it stays.
    pub(super) fn open(path: &Path, step: u64) -> Result<Self> {
        let mut journal = Self { file: None, records: Vec::new() };
        if path.as_os_str().is_empty() {
            return Ok(journal);
        }
        let earlier =
            if step > 0 { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
        let file = File::create(path).map_err(|error| Error::file(path, error))?;
        journal.file = Some((path.to_owned(), LineWriter::new(file)));
        let records = earlier.lines().map_while(|line| serde_json::from_str::<StepRecord>(line).ok());
        for record in records.take_while(|record| record.step <= step) {
            journal.write(record)?;
        }
        Ok(journal)
    }

    pub(super) fn write(&mut self, record: StepRecord) -> Result<()> {
        if let Some((path, file)) = &mut self.file {
            let line = serde_json::to_string(&record).map_err(|error| Error::file(&*path, error))?;
            writeln!(file, "{line}").map_err(|error| Error::file(&*path, error))?;
        }
        self.records.push(record);
        Ok(())
    }

    pub(super) fn records(&self) -> &[StepRecord] {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumed_run_keeps_earlier_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let record = |step| StepRecord {
            step,
            loss: step as f64,
            validation: (step == 2).then_some(0.5),
            ..StepRecord::default()
        };
        let mut journal = MetricsWriter::open(&path, 0).unwrap();
        (1..=5).for_each(|step| journal.write(record(step)).unwrap());
        drop(journal);
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"step\": 6, \"lo").unwrap();
        let mut journal = MetricsWriter::open(&path, 3).unwrap();
        journal.write(StepRecord { loss: 9.0, ..record(4) }).unwrap();
        let lines = std::fs::read_to_string(&path).unwrap();
        let read: Vec<StepRecord> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, [record(1), record(2), record(3), StepRecord { loss: 9.0, ..record(4) }]);
        assert_eq!(read, journal.records());
        assert!(MetricsWriter::open(&path, 0).unwrap().records().is_empty());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
