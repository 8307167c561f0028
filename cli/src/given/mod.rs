//! Schedules in files that the command line names, and the algorithms of a program whose `main` is
//! the command. A file is JSON, or the XML of MSCCL.

mod msccl;
mod msccl_buffers;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use unisono::register_algorithm;
use unisono::schedule::check::{Options, Report, Violation, check_schedule};
use unisono::schedule::{Algorithm, Schedule};
use unisono_transports::text::printable;

/// The files of this command line. Commands that start themselves again as ranks pass the files on.
static FILES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// The program's own algorithms, in the processes of commands that prove them themselves.
static ALGORITHMS: OnceLock<Vec<&'static Algorithm>> = OnceLock::new();

/// Keeps the program's own algorithms for [`algorithms`], without a proof.
pub(crate) fn set_algorithms(algorithms: &[Algorithm]) -> Result<(), String> {
    let mut added: Vec<&'static Algorithm> = Vec::new();
    for algorithm in algorithms {
        let Algorithm { collective, name, .. } = *algorithm;
        let is_named = |row: &Algorithm| (row.collective, row.name) == (collective, name);
        if Algorithm::all().into_iter().any(is_named) || added.iter().any(|row| is_named(row)) {
            return Err(format!("{collective} has an algorithm `{name}` already; choose another name"));
        }
        added.push(algorithm.leak());
    }
    ALGORITHMS.set(added).expect("a command line is parsed once");
    Ok(())
}

/// Returns all algorithms that this process knows by their names, also those that are not proved.
pub(crate) fn algorithms() -> Vec<&'static Algorithm> {
    let kept = ALGORITHMS.get().into_iter().flatten().copied();
    Algorithm::all().into_iter().chain(kept).collect()
}

/// Keeps the files that the command line names.
pub(crate) fn set_files(files: Vec<PathBuf>) {
    FILES.set(files).expect("a command line is parsed once");
}

/// Returns the files that the command line names.
pub(crate) fn files() -> &'static [PathBuf] {
    FILES.get().map_or(&[], Vec::as_slice)
}

/// Reads a schedule. If the schedule has no name, it gets the name of the file.
pub(crate) fn read(path: &Path) -> Result<Schedule, String> {
    let shown = path.display();
    let mut text = String::new();
    let file = File::open(path).map_err(|error| format!("{shown}: {error}"))?;
    // One byte more than the limit tells a file that is too long from one that just fits.
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| format!("{shown}: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} has more than the {FILE_BYTES_MAX} bytes that a schedule may have"));
    }
    let schedule = parse(&text).map_err(|error| format!("{shown} is no schedule: {error}"))?;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let algorithm = if schedule.algorithm.is_empty() { stem } else { schedule.algorithm };
    Ok(Schedule { algorithm, ..schedule })
}

fn parse(text: &str) -> Result<Schedule, String> {
    match text.trim_start().starts_with('<') {
        true => msccl::parse(text),
        false => serde_json::from_str(text).map_err(|error| error.to_string()),
    }
}

/// Proves a schedule, in place if its collective has an in-place form.
pub(crate) fn prove(schedule: &Schedule) -> Result<Report, Violation> {
    check_schedule(schedule, &Options { in_place: true, ..Options::default() })
}

/// Proves the schedules of all files, and registers each under its name.
pub(crate) fn register() -> Result<(), String> {
    for path in files() {
        let schedule = read(path)?;
        let shown = path.display();
        prove(&schedule)
            .map_err(|violation| format!("{shown} is wrong: {}", printable(&violation.to_string())))?;
        let algorithm = Algorithm::of_schedule(schedule.algorithm.clone(), schedule);
        register_algorithm(algorithm).map_err(|error| format!("{shown}: {error}"))?;
    }
    Ok(())
}

/// Bytes of the largest file that is read.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Reads text as a schedule, and proves it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    let Ok(schedule) = parse(text) else { return };
    let written = serde_json::to_string(&schedule).expect("a schedule is written");
    assert_eq!(parse(&written).as_ref(), Ok(&schedule), "what is written is read again");
    let proved = prove(&schedule).is_ok();
    let drawn = unisono::schedule::draw::explain(&schedule);
    assert!(proved || drawn.contains("wrong: "), "{drawn}");
}

#[cfg(test)]
mod tests;
