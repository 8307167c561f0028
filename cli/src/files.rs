//! Files that ranks wrote, as a command is given them.

use std::path::{Path, PathBuf};

/// The files named, and of folders named those that end so.
pub(crate) fn named(paths: &[PathBuf], ending: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(in_folder(path, ending)?),
            false => files.push(path.clone()),
        }
    }
    Ok(files)
}

fn in_folder(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    Ok(paths)
}
