//! Exchange of models with Hugging Face's libraries.

use crate::checkpoint::SavedBy;
use crate::config::Config;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::models::GptConfig;
use crate::models::hugging_face::{self, FileOptions, Layout};
use crate::train::checkpointing::saved_by;
use crate::train::restored::Restored;
use crate::train::run::Run;
use std::path::Path;

/// Writes the model of a checkpoint, or of the last of several checkpoints, to the folder `to` in
/// Hugging Face's layout, and its tokenizer. Runs on one rank, whatever mesh saved it. `overrides`
/// change the saved configuration, for example the tokenizer.
///
/// # Errors
/// Fails if there is no checkpoint, its model is neither a GPT-2 nor a Llama, or a file cannot be
/// written.
pub fn export(checkpoint: &Path, to: &Path, overrides: &[String], options: FileOptions) -> Result<()> {
    export_with_progress(checkpoint, to, overrides, options, &mut |_, _| ())
}

/// Writes a model as [`export`] does. Calls `progress` with the number of units that are written,
/// and of all.
///
/// # Errors
/// Fails as [`export`] does.
pub fn export_with_progress(
    checkpoint: &Path,
    to: &Path,
    overrides: &[String],
    options: FileOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let mut restored = Restored::load(checkpoint, overrides)?;
    let gpt = restored.model.config();
    check_dense(gpt)?;
    std::fs::create_dir_all(to).map_err(|error| Error::file(to, error))?;
    hugging_face::write_config(&to.join("config.json"), gpt)?;
    let tokenizer = &restored.config.data.tokenizer;
    if !tokenizer.is_empty() {
        let copied = std::fs::copy(tokenizer, to.join("tokenizer.json"));
        copied.map_err(|error| Error::file(tokenizer, error))?;
    }
    let layout = Layout::of(gpt);
    hugging_face::save_with_progress(
        to,
        (layout, options),
        SavedBy::default(),
        None,
        &mut *restored.strategy,
        &restored.inventory,
        progress,
    )
}

impl Run {
    /// Loads the weights of the model in the folder `model.from`, if there is one. All ranks must
    /// call this.
    ///
    /// # Errors
    /// Fails on every rank if a file cannot be read, or belongs to another model.
    pub(super) fn load_pretrained(&mut self) -> Result<()> {
        let Config { model, .. } = &self.config;
        if model.from.is_empty() {
            return Ok(());
        }
        let (path, layout) = (Path::new(&model.from), Layout::of(self.model.config()));
        let who = saved_by(&self.world, &self.groups);
        hugging_face::load(path, layout, who, &mut *self.strategy, &self.inventory)?;
        self.device.iter().for_each(Device::invalidate_weights);
        Ok(())
    }
}

/// Checks that the files of `model.from` can be those of the configured model.
///
/// # Errors
/// [`Error::Unsupported`] for a model with experts.
pub(super) fn check_supported(config: &Config) -> Result<()> {
    if config.model.from.is_empty() { Ok(()) } else { check_dense(&config.gpt_config()) }
}

/// Rejects models that Hugging Face's GPT-2 and Llama cannot express.
fn check_dense(gpt: &GptConfig) -> Result<()> {
    match gpt.experts {
        Some(_) => {
            let what = "files of a model with experts in Hugging Face's layout: not part of this build";
            Err(Error::Unsupported(format!("{what}; set experts.count to 0")))
        }
        None => Ok(()),
    }
}
