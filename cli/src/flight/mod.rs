//! Commands for flight records: `analyze` reads the records that failed ranks wrote, and `status`
//! requests them from running ranks.

mod diagnosis;
mod record;
mod status;

pub(crate) use status::{StatusArguments, status};

use crate::files;
use diagnosis::Diagnosis;
use record::{Record, by_communicator, read_all};
use std::path::PathBuf;
use unisono_transports::text::printable;

#[derive(clap::Args)]
pub(crate) struct AnalyzeArguments {
    /// Files that ranks wrote into the folder of `UNISONO_FLIGHT_RECORDER_DIR`, or whole folders of
    /// such files.
    #[arg(required = true)]
    dumps: Vec<PathBuf>,
}

/// Prints where the ranks differ, and returns 1 if they differ or if a rank waits.
pub(crate) fn analyze(arguments: &AnalyzeArguments) -> Result<u8, String> {
    let (records, damaged) = read_all(&arguments.dumps)?;
    files::print_damaged(&damaged);
    if records.is_empty() {
        let qualifier = if damaged.is_empty() { "" } else { "whole " };
        return Err(format!(
            "there are no {qualifier}flight records; ranks write them to UNISONO_FLIGHT_RECORDER_DIR when they fail"
        ));
    }
    Ok(u8::from(print(records)))
}

/// Parses bytes in three ways: as files of flight records that are separated by zero bytes, as the
/// answer of a rank, and as the environment of a process.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut records: Vec<Record> = text.split('\0').filter_map(|file| record::parse(file).ok()).collect();
    records.extend(status::records_in(&text).unwrap_or_default());
    for records in by_communicator(records).values() {
        let diagnosis = Diagnosis::of(records);
        let shown = diagnosis.to_string();
        assert!(shown.starts_with("communicator "), "{shown}");
        let _ = (diagnosis.is_problem(), printable(&shown));
    }
    let _ = status::env_value(bytes, "RANK");
}

/// Prints the state of each communicator, and returns true if ranks of a communicator differ or
/// wait.
fn print(records: Vec<Record>) -> bool {
    let mut trouble = false;
    for records in by_communicator(records).values() {
        let diagnosis = Diagnosis::of(records);
        trouble |= diagnosis.is_problem();
        // Records come from files and from other processes.
        print!("{}", printable(&diagnosis.to_string()));
    }
    trouble
}
