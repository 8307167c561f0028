//! Files that ranks wrote, named on the command line.

use std::path::{Path, PathBuf};
use unisono_transports::text::printable;

/// File name suffix of traces.
pub(crate) const TRACE_SUFFIX: &str = ".trace.json";

/// The files named, and of folders named those whose names are wanted.
pub(crate) fn expand_paths(paths: &[PathBuf], is_wanted: fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(files_in_dir(path, is_wanted)?),
            false => files.push(path.clone()),
        }
    }
    Ok(files)
}

fn files_in_dir(folder: &Path, is_wanted: fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| is_wanted(&path.to_string_lossy()));
    paths.sort();
    Ok(paths)
}

/// Parts the results of reading files into what was read and what is wrong with the others. One
/// damaged file says nothing about the rest.
pub(crate) fn partition<T>(read: impl Iterator<Item = Result<T, String>>) -> (Vec<T>, Vec<String>) {
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for file in read {
        match file {
            Ok(file) => whole.push(file),
            Err(why) => damaged.push(why),
        }
    }
    (whole, damaged)
}

/// Says which files are left out, and why.
pub(crate) fn print_damaged(damaged: &[String]) {
    damaged.iter().for_each(|why| eprintln!("left out: {}", printable(why)));
}
