//! Checks before the first step, so that no training is wasted.

use crate::checkpoint;
use crate::config::Config;
use crate::train::run::Run;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use unisono_nn::error::{Error, Result};

impl Run {
    /// Refuses to start if checkpoints of another run would be mixed with this run's, or an output
    /// file cannot be written. Returns the lock of the checkpoint folder, to be kept until the end
    /// of the run. The reporting rank calls this.
    pub(super) fn preflight(&self) -> Result<Option<File>> {
        let Config { log, sample, data, .. } = &self.config;
        // Text is generated after the last step, so a tokenizer that cannot be read is found before
        // the first.
        if sample.tokens > 0 {
            data.open_tokenizer()?;
        }
        for (key, path) in [("log.file", &log.file), ("log.plot", &log.plot), ("log.trace", &log.trace)] {
            check_writable(key, Path::new(path))?;
        }
        lock_checkpoints(&self.config)
    }
}

/// Checks that the checkpoint folder is usable, and holds no checkpoint of another run. Returns its
/// lock, because two runs would remove each other's files.
fn lock_checkpoints(config: &Config) -> Result<Option<File>> {
    check_earlier_run(config)?;
    let settings = &config.checkpoint;
    let saves = settings.every > 0 || settings.last;
    saves.then(|| lock(Path::new(&settings.folder))).transpose()
}

/// Checks that the checkpoint folder holds no checkpoint of another run.
///
/// # Errors
/// Names the folder, and the ways out.
pub(super) fn check_earlier_run(config: &Config) -> Result<()> {
    let (settings, folder) = (&config.checkpoint, Path::new(&config.checkpoint.folder));
    let saves = settings.every > 0 || settings.last;
    match checkpoint::latest(folder) {
        Some(_) if saves && !settings.resume => Err(Error::file(
            folder,
            "has checkpoints of an earlier run: checkpoint.resume=true goes on from the last; otherwise give \
             another checkpoint.folder, remove this one, or save nothing (checkpoint.every=0 \
             checkpoint.last=false)",
        )),
        _ => Ok(()),
    }
}

/// Creates the checkpoint folder, and a file in it that this run locks. The lock ends with the
/// process.
fn lock(folder: &Path) -> Result<File> {
    let failed = |error| Error::file(folder, format!("checkpoint.folder: {error}"));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let file = File::create(folder.join("lock")).map_err(failed)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::file(
            folder,
            "another run saves its checkpoints here: wait for its end, or give another checkpoint.folder",
        )),
        // Some file systems have no locks.
        _ => Ok(file),
    }
}

/// Checks that the file of setting `key` is writable. Keeps existing contents.
fn check_writable(key: &str, path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let (failed, is_new) = (|error| Error::file(path, format!("{key}: {error}")), !path.exists());
    OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
    if is_new { std::fs::remove_file(path).map_err(failed) } else { Ok(()) }
}
