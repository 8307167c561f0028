//! What is looked at before a run takes its first step, so that nothing is trained in vain.

use super::run::Run;
use crate::checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use std::path::Path;

impl Run {
    /// Refuses to start where checkpoints of another run would be mixed with this one's. The rank that speaks for all calls it.
    pub(super) fn check_start(&self) -> Result<()> {
        checkpoints(&self.config)
    }
}

/// That the folder of checkpoints can be had, and has none that this run does not go on from.
fn checkpoints(config: &Config) -> Result<()> {
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
