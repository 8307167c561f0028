//! Step records in a file.

use crate::output_file::OutputFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, LineWriter, Write};
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

/// Record of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Number of the step, from 1.
    pub step: u64,
    /// Mean loss of its samples, before the step.
    pub loss: f64,
    /// Losses that blocks added to it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub losses: BTreeMap<String, f64>,
    /// Metrics of blocks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Tokens of each expert relative to equal loads, by path of the block.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expert_loads: BTreeMap<String, Vec<f64>>,
    /// Validation loss, after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// Perplexity of that loss, for language models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Duration of the step in seconds.
    pub seconds: f64,
    /// Tokens per second of all ranks, as a moving average.
    pub tokens_per_second: f64,
    /// Model FLOPs utilization, as a moving average.
    pub mfu: f64,
    /// Seconds that rank 0 waited for the exchange of gradients and weights.
    pub exposed_seconds: f64,
    /// Seconds that rank 0 waited in tensor parallel layers.
    #[serde(default)]
    pub tensor_parallel_seconds: f64,
    /// Seconds that rank 0 waited for other pipeline stages.
    #[serde(default)]
    pub pipeline_seconds: f64,
    /// Bytes of weights, gradients and optimizer state on rank 0.
    pub memory: usize,
    /// Predicted bytes of weights, gradients and optimizer state.
    pub memory_predicted: usize,
}

impl StepRecord {
    /// Returns the largest load of an expert, and the path of its block.
    pub fn largest_load(&self) -> Option<(f64, &str)> {
        let largest = |loads: &[f64]| loads.iter().copied().fold(0.0, f64::max);
        let blocks = self.expert_loads.iter().map(|(path, loads)| (largest(loads), path.as_str()));
        blocks.max_by(|left, right| left.0.total_cmp(&right.0))
    }
}

/// Step records, in memory and in a file of JSON lines.
pub(super) struct MetricsWriter {
    file: Option<(PathBuf, LineWriter<File>)>,
    records: Vec<StepRecord>,
}

impl MetricsWriter {
    /// Opens the file at `path` to append records; an empty path keeps records in memory only. A
    /// run that resumes after `step` drops the later records of the last run in the file.
    ///
    /// # Errors
    /// Fails if the file cannot be used, or if it has lines of another format. It is unchanged
    /// then.
    pub(super) fn open(path: &Path, step: u64) -> Result<Self> {
        if path.as_os_str().is_empty() {
            return Ok(Self { file: None, records: Vec::new() });
        }
        let failed = |error| Error::file(path, error);
        let earlier = EarlierRecords::read(path)?;
        let (kept, records) = earlier.up_to(step);
        if kept.len() < earlier.text.len() {
            // The file is replaced and not shortened, so that a kill leaves the old records or the
            // new ones.
            OutputFile::write(path, kept)?;
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
        // Each record is written as a whole line, so a kill leaves at most one incomplete line,
        // which the next run drops.
        Ok(Self { file: Some((path.to_owned(), LineWriter::new(file))), records })
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

/// Records of the runs that wrote a file.
struct EarlierRecords {
    text: String,
    /// Each record, and the place in the text where its line ends.
    records: Vec<(StepRecord, usize)>,
}

impl EarlierRecords {
    /// Reads the records at `path`; none if there is no file, or a device or pipe. Drops a last
    /// line that a killed run left incomplete. Rejects any other line that is no record.
    fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            Ok(found) if !found.is_file() && !found.is_dir() => Ok(String::new()),
            _ => std::fs::read_to_string(path),
        };
        Self::parse(text.map_err(|error| Error::file(path, error))?, path)
    }

    /// Reads the text of the file at `path`.
    fn parse(text: String, path: &Path) -> Result<Self> {
        let (mut records, mut end) = (Vec::new(), 0);
        for (index, line) in text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate() {
            end += line.len();
            let record = serde_json::from_str(line)
                .map_err(|error| Error::file(path, foreign_line_message(index + 1, &error)))?;
            records.push((record, end));
        }
        Ok(Self { text, records })
    }

    /// Returns the text to keep, and the records of the last run up to `step`. A new run, of step
    /// 0, keeps the text of all earlier runs.
    fn up_to(&self, step: u64) -> (&str, Vec<StepRecord>) {
        let begins = |pair: &[(StepRecord, usize)]| pair[1].0.step <= pair[0].0.step;
        let start = self.records.windows(2).rposition(begins).map_or(0, |index| index + 1);
        let last_run = &self.records[start..];
        let kept = match step {
            0 => &self.records[..],
            _ => {
                &self.records[..start + last_run.iter().take_while(|(record, _)| record.step <= step).count()]
            }
        };
        let text = &self.text[..kept.last().map_or(0, |&(_, end)| end)];
        let last_records = if step == 0 { &[] } else { &kept[start..] };
        (text, last_records.iter().map(|(record, _)| record.clone()).collect())
    }
}

/// Reads bytes as records of earlier runs, and keeps those up to several steps.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let Ok(earlier) = EarlierRecords::parse(text, Path::new("records.jsonl")) else { return };
    for step in [0, 1, 5, u64::MAX] {
        let (kept, records) = earlier.up_to(step);
        assert!(earlier.text.starts_with(kept) && records.len() <= earlier.records.len());
    }
}

/// Builds the message for a line of another format, with a remedy.
fn foreign_line_message(line: usize, error: &serde_json::Error) -> String {
    format!(
        "line {line} is no record of this version ({error}); records are appended to records only: \
         move the file away, or set log.file to another path"
    )
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
            perplexity: (step == 2).then_some(f64::exp(0.5)),
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
    }

    #[test]
    fn new_run_appends_and_a_resumed_one_changes_only_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let record = |step| StepRecord { step, ..StepRecord::default() };
        let write = |last_step: u64, steps: &[u64]| {
            let mut journal = MetricsWriter::open(&path, last_step).unwrap();
            let kept = journal.records().len();
            steps.iter().for_each(|&step| journal.write(record(step)).unwrap());
            kept
        };
        let steps = || {
            let text = std::fs::read_to_string(&path).unwrap();
            let read = |line| serde_json::from_str::<StepRecord>(line).unwrap().step;
            text.lines().map(read).collect::<Vec<_>>()
        };
        assert_eq!(write(0, &[1, 2, 3]), 0);
        assert_eq!(write(0, &[1, 2, 3, 4]), 0);
        assert_eq!(steps(), [1, 2, 3, 1, 2, 3, 4]);
        assert_eq!(write(2, &[3]), 2);
        assert_eq!(steps(), [1, 2, 3, 1, 2, 3]);
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"st").unwrap();
        assert_eq!(write(0, &[1]), 0);
        assert_eq!(steps(), [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn log_file_in_an_old_format_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let old = "{\"step\":1,\"loss\":2.0,\"norm\":1.0,\"rate\":0.1,\"seconds\":1.0}\n";
        std::fs::write(&path, old).unwrap();
        let error = MetricsWriter::open(&path, 3).err().unwrap().to_string();
        assert!(error.contains("run.jsonl: line 1 is no record of this version"), "{error}");
        assert!(error.contains("`grad_norm`") && error.ends_with("set log.file to another path"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), old);
    }
}
