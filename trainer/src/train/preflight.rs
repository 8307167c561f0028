//! What is looked at before a run takes its first step, so that nothing is trained in vain.

use crate::checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::train::run::Run;
use std::fs::OpenOptions;
use std::path::Path;

impl Run {
    /// Refuses to start where checkpoints of another run would be mixed with this one's, or something could not be written at
    /// the end. The rank that speaks for all calls it.
    pub(super) fn preflight(&self) -> Result<()> {
        let Config { log, sample, .. } = &self.config;
        if sample.tokens > 0 && sample.prompt.is_empty() && self.can_generate() {
            let what = "sample.prompt is empty: a text begins with something; sample.tokens=0 shows none";
            return Err(Error::invalid(what));
        }
        for (key, path) in [("log.file", &log.file), ("log.plot", &log.plot), ("log.trace", &log.trace)] {
            check_writable(key, Path::new(path))?;
        }
        check_checkpoints(&self.config)
    }
}

/// That the folder of checkpoints can be had, and has none that this run does not go on from.
fn check_checkpoints(config: &Config) -> Result<()> {
    let (own, folder) = (&config.checkpoint, Path::new(&config.checkpoint.folder));
    if own.every == 0 {
        return Ok(());
    }
    match checkpoint::latest(folder) {
        Some(_) if !own.resume => Err(Error::file(
            folder,
            "has checkpoints of an earlier run: checkpoint.resume=true goes on from the last; otherwise give \
             another checkpoint.folder, or remove this one",
        )),
        _ => std::fs::create_dir_all(folder)
            .map_err(|error| Error::file(folder, format!("checkpoint.folder: {error}"))),
    }
}

/// That a file can be written where one is named; what is there already stays.
fn check_writable(key: &str, path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let (failed, is_new) = (|error| Error::file(path, format!("{key}: {error}")), !path.exists());
    OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
    if is_new { std::fs::remove_file(path).map_err(failed) } else { Ok(()) }
}
