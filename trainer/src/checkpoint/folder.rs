//! Folders of checkpoints.

use super::manifest::MANIFEST;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

/// Returns the folder of a step's checkpoint.
pub(super) fn step_dir(root: &Path, step: u64) -> PathBuf {
    root.join(format!("step-{step:08}"))
}

/// Returns the temporary folder of a step's checkpoint.
pub(super) fn temporary_dir(root: &Path, step: u64) -> PathBuf {
    root.join(format!("unfinished-{step:08}"))
}

/// Returns all complete checkpoints below `root` by step; none if the folder is missing.
pub fn list(root: &Path) -> Vec<(u64, PathBuf)> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let complete = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
        path.join(MANIFEST).is_file().then_some((step, path))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| complete(entry.ok()?.path())).collect();
    found.sort();
    found
}

/// Returns the last complete checkpoint below `root`.
pub fn latest(root: &Path) -> Option<PathBuf> {
    list(root).pop().map(|(_, path)| path)
}

/// Creates an empty temporary folder for a step's checkpoint.
pub(super) fn create_temporary(root: &Path, step: u64) -> Result<PathBuf> {
    let path = temporary_dir(root, step);
    // Usually there is no such folder, and removing it fails. Otherwise it has the files of a run
    // that was killed while it saved this step.
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).map_err(|error| Error::file(&path, error))?;
    Ok(path)
}

/// Renames a complete checkpoint to its final name, and keeps only the last `keep` checkpoints up
/// to it.
pub(super) fn publish(root: &Path, step: u64, keep: usize) -> Result<PathBuf> {
    let (unfinished, complete) = (temporary_dir(root, step), step_dir(root, step));
    // A run that resumed from an earlier step saves this step again, and a rename does not replace
    // a folder that has files.
    let _ = fs::remove_dir_all(&complete);
    // The names of the files are on disk before the folder gets its name, so that a crash leaves no
    // checkpoint without its files.
    fsync(&unfinished)?;
    fs::rename(&unfinished, &complete).map_err(|error| Error::file(&complete, error))?;
    // The new name is on disk before earlier checkpoints are removed, so that a crash between both
    // leaves one of them.
    fsync(root)?;
    // Later steps belong to another run. They must not displace the new checkpoint.
    let earlier: Vec<_> = list(root).into_iter().filter(|&(other, _)| other <= step).collect();
    // At least the new checkpoint stays, whatever `keep` is.
    for (_, path) in &earlier[..earlier.len().saturating_sub(keep.max(1))] {
        fs::remove_dir_all(path).map_err(|error| Error::file(path, error))?;
    }
    Ok(complete)
}

/// Waits until a file, or the names in a folder, are on disk.
pub(crate) fn fsync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| Error::file(path, error))
}
