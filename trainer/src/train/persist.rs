//! A run and its checkpoints.

use super::run::Run;
use crate::checkpoint::{self, Progress, Who};
use crate::error::{Error, Result};
use crate::mesh::{GroupKind, Groups};
use std::path::{Path, PathBuf};
use unisono::Communicator;

impl Run {
    /// Saves everything that it takes to go on; the folder of the checkpoint. All ranks call it.
    ///
    /// # Errors
    /// On every rank, if a file cannot be written on any.
    pub fn save(&mut self) -> Result<PathBuf> {
        let seed = u64::from(self.config.seed);
        let (position, data) = (self.sampler.position(), self.data.clone());
        let progress = Progress { step: self.step, position, seed, data };
        let (folder, keep) = (self.config.checkpoint.folder.clone(), self.config.checkpoint.keep);
        let text = self.config.to_toml()?;
        let who = who(&self.world, &self.groups);
        checkpoint::save(Path::new(&folder), who, &mut *self.strategy, &self.inventory, progress, &text, keep)
    }

    /// Goes on from the checkpoint in `folder`, whatever mesh it was saved on. All ranks call it.
    ///
    /// # Errors
    /// On every rank: if it is damaged, or of another model, seed or data.
    pub fn load(&mut self, folder: &Path) -> Result<()> {
        let who = who(&self.world, &self.groups);
        let progress = checkpoint::load(folder, who, &mut *self.strategy, &self.inventory)?;
        let (seed, saved) = (u64::from(self.config.seed), progress.seed);
        if seed != saved {
            return Err(Error::file(
                folder,
                format!("saved with seed = {saved}, and this run has {seed}; set seed={saved}"),
            ));
        }
        if !progress.data.is(&self.data) {
            let what = format!(
                "saved while learning from other data: {}; this run has {}",
                progress.data, self.data
            );
            return Err(Error::file(folder, format!("{what}: a position in one means nothing in the other")));
        }
        self.step = progress.step;
        self.sampler.resume(progress.position)
    }
}

fn who<'a>(world: &'a Communicator, groups: &Groups) -> Who<'a> {
    let (data_rank, tensor_rank) = (groups.rank(GroupKind::Data), groups.rank(GroupKind::Tensor));
    Who { world: Some(world), data_rank, tensor_rank }
}
