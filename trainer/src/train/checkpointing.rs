//! Checkpoints of a run.

use crate::checkpoint::{self, Manifest, SavedBy, TrainProgress};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::mesh::{GroupKind, MeshGroups};
use crate::train::run::Run;
use std::path::{Path, PathBuf};
use unisono::Communicator;

impl Run {
    /// Saves the state needed to resume, and returns the folder of the checkpoint. All ranks must
    /// call this.
    ///
    /// # Errors
    /// Fails on every rank if any rank cannot write a file.
    pub fn save(&mut self) -> Result<PathBuf> {
        let seed = u64::from(self.config.seed);
        let (position, data) = (self.sampler.position(), self.dataset.clone());
        let progress = TrainProgress {
            step: self.train_step,
            position,
            seed,
            data,
            invariants: self.config.resume_invariants()?,
        };
        let (folder, keep) = (self.config.checkpoint.folder.clone(), self.config.checkpoint.keep);
        // The weights of the checkpoint take the place of those of another folder.
        let mut config = self.config.clone();
        config.model.from.clear();
        let text = config.to_toml()?;
        let who = saved_by(&self.world, &self.groups);
        checkpoint::save(Path::new(&folder), who, &mut *self.strategy, &self.inventory, progress, &text, keep)
    }

    /// Resumes from the checkpoint in `folder`, saved on any mesh. All ranks must call this.
    ///
    /// # Errors
    /// Fails on every rank if the checkpoint is damaged, or differs in model, optimizer, seed or
    /// data.
    pub fn load(&mut self, folder: &Path) -> Result<()> {
        let who = saved_by(&self.world, &self.groups);
        let read = Manifest::read(folder);
        let checked = read.and_then(|manifest| self.check_resumable(&manifest.progress, folder));
        who.agree_on_result(checked, "comparing a run with its checkpoint")?;
        let progress = checkpoint::load(folder, who, &mut *self.strategy, &self.inventory)?;
        self.device.iter().for_each(Device::invalidate_weights);
        self.train_step = progress.step;
        self.sampler.resume(progress.position)
    }

    /// Rejects the progress of a run that this configuration cannot resume.
    fn check_resumable(&self, progress: &TrainProgress, folder: &Path) -> Result<()> {
        let (seed, saved) = (u64::from(self.config.seed), progress.seed);
        if seed != saved {
            return Err(Error::file(
                folder,
                format!("saved with seed = {saved}, and this run has {seed}; set seed={saved}"),
            ));
        }
        progress.check_invariants(&self.config.resume_invariants()?, folder, |_| true)?;
        if !progress.data.is_same(&self.dataset) {
            let what = format!(
                "saved while learning from other data: {}; this run has {}",
                progress.data, self.dataset
            );
            return Err(Error::file(folder, format!("{what}: a position in one means nothing in the other")));
        }
        Ok(())
    }
}

pub(super) fn saved_by<'a>(world: &'a Communicator, groups: &MeshGroups) -> SavedBy<'a> {
    let (data_rank, tensor_rank) = (groups.rank(GroupKind::Data), groups.rank(GroupKind::Tensor));
    SavedBy { world: Some(world), data_rank, tensor_rank }
}
