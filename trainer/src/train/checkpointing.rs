//! Checkpoints of a run.

use crate::checkpoint::{self, Manifest, RunFiles, RunSetup, SavedBy, Snapshot, TrainProgress};
use crate::config::{ChangedKey, Config};
use crate::train::run::Run;
use std::path::{Path, PathBuf};
use unisono::Communicator;
use unisono_nn::device::Device;
use unisono_nn::error::{Error, Result};
use unisono_parallel::mesh::{GroupKind, MeshGroups};

impl Run {
    /// Saves the state needed to resume, and returns the folder of the checkpoint. With
    /// `checkpoint.async`, a thread writes it while training goes on: see [`Run::finish_save`]. All
    /// ranks must call this.
    ///
    /// # Errors
    /// Fails on every rank if any rank cannot write a file, also a file of the checkpoint before.
    pub fn save(&mut self) -> Result<PathBuf> {
        // One checkpoint is written at a time. Otherwise copies of several steps would fill memory
        // if the disk is slower than the steps between them.
        self.finish_save()?;
        let seed = u64::from(self.config.seed);
        let (position, data) = (self.sampler.position(), self.dataset.clone());
        let progress = TrainProgress {
            step: self.train_step,
            position,
            seed,
            data,
            invariants: self.config.resume_invariants()?,
        };
        let (root, keep) = (PathBuf::from(&self.config.checkpoint.folder), self.config.checkpoint.keep);
        // The weights of the checkpoint take the place of those of another folder.
        let mut config = self.config.clone();
        config.model.from.clear();
        let setup = RunSetup { configuration: config.to_toml()?, files: self.files.clone() };
        let who = saved_by(&self.world, &self.groups);
        let snapshot = Snapshot::take(&root, who, &mut *self.strategy, &self.inventory, progress, &setup)?;
        match self.config.checkpoint.asynchronous {
            true => self.writer.start(snapshot, &self.world, keep),
            false => snapshot.write(Some(&self.world), keep),
        }
    }

    /// Waits until the last checkpoint is complete.
    ///
    /// # Errors
    /// Fails on every rank if any rank could not write a file of it.
    pub fn finish_save(&mut self) -> Result<()> {
        self.writer.finish()
    }

    /// Resumes from the checkpoint in `folder`, saved on any mesh, and logs the keys that changed.
    /// All ranks must call this.
    ///
    /// # Errors
    /// Fails on every rank if the checkpoint is damaged, or a key that changes the meaning of the
    /// run differs and `checkpoint.allow_changes` does not name it.
    pub fn load(&mut self, folder: &Path) -> Result<()> {
        let checked = Manifest::read(folder).and_then(|manifest| {
            // An interval that is taken over is no change of a key, so it is set before keys are
            // compared.
            self.keep_saving(&manifest.configuration);
            let changes = self.check_resumable(&manifest, folder)?;
            Ok((manifest, changes))
        });
        let who = saved_by(&self.world, &self.groups);
        // A rank that failed alone would leave the others waiting in the collectives of loading.
        let (manifest, changes) = who.agree_on_result(checked, "comparing a run with its checkpoint")?;
        let progress = checkpoint::load(folder, who, &mut *self.strategy, &self.inventory)?;
        let files = match who.rank() {
            // Only rank 0 writes these files into checkpoints.
            0 => RunFiles::of_checkpoint(folder, &manifest),
            _ => Ok(Default::default()),
        };
        let files = who.agree_on_result(files, "reading the files of a model")?;
        self.keep_files(files, &manifest.configuration);
        // A GPU may have copies of the initial weights of a strategy on the host.
        self.device.iter().for_each(Device::invalidate_weights);
        self.train_step = progress.step;
        // The threads read ahead of the position that the sampler had before.
        self.read_ahead = None;
        self.log_resumed(folder, &changes, &manifest.configuration);
        if progress.data.is_same(&self.dataset) {
            return self.sampler.resume(progress.position);
        }
        self.log("the data are not those of the checkpoint: going on at their first sample");
        Ok(())
    }

    /// Keeps the tokenizer, its token after each document, and the files of the model of a
    /// checkpoint, if this run names none.
    fn keep_files(&mut self, saved_files: RunFiles, saved_config: &str) {
        let (data, files) = (&mut self.config.data, &mut self.files);
        // Files that this run names come before those of the checkpoint.
        if data.tokenizer.is_empty() && saved_files.tokenizer.is_some() {
            files.tokenizer = saved_files.tokenizer;
            files.model = std::mem::take(&mut files.model).with_tokenizer_of(saved_files.model.clone());
        }
        files.model.or_model_of(saved_files.model);
        let Ok(Config { data: saved_data, .. }) = Config::from_checkpoint(saved_config) else { return };
        let is_same = ["", &saved_data.tokenizer].contains(&data.tokenizer.as_str());
        if data.end_of_text.is_empty() && is_same {
            data.end_of_text = saved_data.end_of_text;
        }
    }

    /// Returns the keys that changed since the checkpoint was saved.
    ///
    /// # Errors
    /// Fails if this configuration cannot resume the checkpoint, or changes the meaning of the run
    /// in a key that is not allowed to change.
    fn check_resumable(&self, manifest: &Manifest, folder: &Path) -> Result<Vec<ChangedKey>> {
        let progress = &manifest.progress;
        progress.check_invariants(&self.config.resume_invariants()?, folder, |_| true)?;
        let changes = self.config.changes_since(&manifest.configuration)?;
        let is_refused = |change: &&ChangedKey| !change.is_free() && !self.config.allows_change(&change.key);
        let refused: Vec<_> = changes.iter().filter(is_refused).collect();
        if !refused.is_empty() {
            return Err(Error::file(folder, refused_changes_message(&refused)));
        }
        if !progress.data.is_same(&self.dataset) && !self.config.allows_change("data.path") {
            let what = format!(
                "saved while learning from other data: {}; this run has {}",
                progress.data, self.dataset
            );
            let remedy = "checkpoint.allow_changes=data.path begins at the first sample of the new data";
            return Err(Error::file(
                folder,
                format!("{what}: a position in one means nothing in the other; {remedy}"),
            ));
        }
        Ok(changes)
    }

    /// Logs the step of a resumed checkpoint, and each key that changed.
    fn log_resumed(&self, folder: &Path, changes: &[ChangedKey], saved: &str) {
        self.log(&format!("`{}`: going on after step {}", folder.display(), self.train_step));
        if !changes.is_empty() {
            let changes: Vec<_> = changes.iter().map(ChangedKey::to_string).collect();
            self.log(&format!("changed since it was saved: {}", changes.join(", ")));
        }
        let rate = |config: &Config| config.peak_rate() * config.schedule.factor(self.train_step);
        let (now, Ok(saved)) = (rate(&self.config), Config::from_checkpoint(saved)) else { return };
        if now != rate(&saved) {
            let saved_rate = rate(&saved);
            self.log(&format!(
                "the next learning rate is {now:.2e}, and {saved_rate:.2e} by the saved schedule"
            ));
        }
    }
}

/// Builds the message for changed keys that change the meaning of the run.
fn refused_changes_message(refused: &[&ChangedKey]) -> String {
    let changes: Vec<_> = refused.iter().map(|change| change.to_string()).collect();
    let back: Vec<_> = refused.iter().map(|change| format!("{}={}", change.key, change.saved)).collect();
    let keys: Vec<_> = refused.iter().map(|change| change.key.as_str()).collect();
    format!(
        "this run would go on as another one: {}; set {}, or accept the change by \
         checkpoint.allow_changes={}",
        changes.join(", "),
        back.join(" "),
        keys.join(",")
    )
}

pub(super) fn saved_by<'a>(world: &'a Communicator, groups: &MeshGroups) -> SavedBy<'a> {
    SavedBy { world: Some(world), tensor_rank: groups.rank(GroupKind::Tensor) }
}
