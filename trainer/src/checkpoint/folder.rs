//! Where checkpoints lie.

use super::manifest::MANIFEST;
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The folder of a step's checkpoint.
pub(super) fn step_dir(root: &Path, step: u64) -> PathBuf {
    root.join(format!("step-{step:08}"))
}

/// Where it is written before it is whole.
pub(super) fn temporary_dir(root: &Path, step: u64) -> PathBuf {
    root.join(format!("unfinished-{step:08}"))
}

/// All whole checkpoints below `root`, by step; none where there is no such folder.
pub fn list(root: &Path) -> Vec<(u64, PathBuf)> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let whole = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
        path.join(MANIFEST).is_file().then_some((step, path))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| whole(entry.ok()?.path())).collect();
    found.sort();
    found
}

/// The last whole checkpoint below `root`.
pub fn latest(root: &Path) -> Option<PathBuf> {
    list(root).pop().map(|(_, path)| path)
}

/// An empty folder to write a step's checkpoint in.
pub(super) fn create_temporary(root: &Path, step: u64) -> Result<PathBuf> {
    let path = temporary_dir(root, step);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).map_err(|error| Error::file(&path, error))?;
    Ok(path)
}

/// Gives a whole checkpoint its name, and of those up to it keeps only the last `keep`.
pub(super) fn publish(root: &Path, step: u64, keep: usize) -> Result<PathBuf> {
    let (from, into) = (temporary_dir(root, step), step_dir(root, step));
    let _ = fs::remove_dir_all(&into);
    fsync(&from)?;
    fs::rename(&from, &into).map_err(|error| Error::file(&into, error))?;
    fsync(root)?;
    // Those of later steps are another run's, and no reason to lose what was just written.
    let earlier: Vec<_> = list(root).into_iter().filter(|&(other, _)| other <= step).collect();
    for (_, path) in &earlier[..earlier.len().saturating_sub(keep.max(1))] {
        fs::remove_dir_all(path).map_err(|error| Error::file(path, error))?;
    }
    Ok(into)
}

/// Waits until a file, or the names in a folder, are on the disk.
pub(crate) fn fsync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| Error::file(path, error))
}
