//! Models of checkpoints, loaded on one rank.

use crate::checkpoint::{self, Manifest, ModelFiles, SavedBy};
use crate::config::{Config, new_model};
use crate::models::Gpt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::Inventory;
use unisono_parallel::data_parallel::{self, DataParallel, ParallelKind, ProcessGroups};

/// Model of a checkpoint with its weights.
pub(super) struct Restored {
    /// Folder of the checkpoint.
    pub(super) folder: PathBuf,
    /// Saved configuration with its changes.
    pub(super) config: Config,
    pub(super) model: Gpt,
    pub(super) inventory: Arc<Inventory>,
    pub(super) strategy: Box<dyn DataParallel>,
    pub(super) memory: Allocator,
    /// Files of the model's folder, and of the tokenizer's.
    pub(super) files: ModelFiles,
}

impl Restored {
    /// Loads the checkpoint in `folder`, or the last of several checkpoints, saved on any mesh.
    /// `overrides` change the saved configuration.
    ///
    /// # Errors
    /// Fails if there is no checkpoint, or it is damaged.
    pub(super) fn load(folder: &Path, overrides: &[String]) -> Result<Self> {
        let last = checkpoint::latest(folder);
        let folder = last.unwrap_or_else(|| folder.to_owned());
        let damaged = |error| checkpoint::with_last_good(error, &folder);
        let manifest = Manifest::read(&folder).map_err(damaged)?;
        let mut config = Config::from_checkpoint(&manifest.configuration)?;
        // The author of a checkpoint could name any file of its reader, so the saved path is not
        // opened. An override comes from the reader.
        let named = std::mem::take(&mut config.data.tokenizer);
        if let Some(tokenizer) = &manifest.tokenizer {
            config.data.tokenizer = folder.join(&tokenizer.file).display().to_string();
        }
        let saved = config.data.tokenizer.clone();
        let config = config.with_override(overrides)?;
        if config.data.tokenizer.is_empty() && !named.is_empty() {
            return Err(Error::file(folder, outside_message(&named)));
        }
        let invariants = config.resume_invariants()?;
        manifest.progress.check_invariants(&invariants, &folder, |key| key.starts_with("model."))?;
        let (model, inventory) = new_model(&config, None)?;
        let inventory = Arc::new(inventory);
        let (memory, settings) = (Allocator::default(), config.settings());
        let (kind, alone) = (ParallelKind::Replicated, ProcessGroups::default());
        let mut strategy = data_parallel::new_strategy(kind, &inventory, alone, &settings, &memory)?;
        checkpoint::load(&folder, SavedBy::default(), &mut *strategy, &inventory).map_err(damaged)?;
        let mut files = ModelFiles::of_checkpoint(&folder, &manifest)?;
        if config.data.tokenizer != saved {
            files = files.with_tokenizer_of(ModelFiles::read("", &config.data.tokenizer)?);
        }
        Ok(Self { folder, config, model, inventory, strategy, memory, files })
    }
}

/// Builds the message for a checkpoint without the tokenizer that it names.
fn outside_message(tokenizer: &str) -> String {
    format!(
        "it names the tokenizer `{tokenizer}` outside of its folder, and does not contain it; such a file is \
         not read, because the author of a checkpoint could name any file: if it is yours, add \
         data.tokenizer={tokenizer}"
    )
}
