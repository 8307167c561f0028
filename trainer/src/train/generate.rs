//! Text generation from trained models.

use crate::allocator::Allocator;
use crate::checkpoint::{self, Manifest, SavedBy};
use crate::config::Config;
use crate::data::text;
use crate::error::{Error, Result};
use crate::mesh::{GroupKind, Phase};
use crate::models::{Gpt, Sampling};
use crate::parallel::{self, ParallelKind, ProcessGroups};
use crate::pass::{Pass, Seeds};
use crate::strategy::HostStrategy;
use crate::train::Network;
use crate::train::dry_run::data_dims;
use crate::train::run::Run;
use std::path::Path;
use std::sync::Arc;

/// Generates the text after `prompt` with the model of a checkpoint, or of the last of several
/// checkpoints. Runs on one rank, whatever mesh saved it. `overrides` change the saved
/// configuration.
///
/// # Errors
/// Fails if there is no checkpoint, or its model generates no text.
pub fn generate(folder: &Path, prompt: &str, overrides: &[String]) -> Result<String> {
    let last = checkpoint::latest(folder);
    let folder = last.as_deref().unwrap_or(folder);
    let manifest = Manifest::read(folder)?;
    let config = Config::parse(&manifest.configuration, overrides)?;
    manifest
        .progress
        .check_invariants(&config.resume_invariants()?, folder, |key| key.starts_with("model."))?;
    let (network, inventory) = Network::new(&config, data_dims(&config)?, None)?;
    let inventory = Arc::new(inventory);
    let (memory, settings) = (Allocator::default(), config.settings());
    let mut strategy = parallel::new_strategy(
        ParallelKind::Replicated,
        &inventory,
        ProcessGroups::default(),
        &settings,
        &memory,
    )?;
    let alone = SavedBy { world: None, data_rank: 0, tensor_rank: 0 };
    checkpoint::load(folder, alone, &mut *strategy, &inventory)?;
    let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), config.threads);
    let written = as_generator(&network).map(|gpt| continue_prompt(gpt, &mut pass, prompt, &config));
    written.unwrap_or_else(|| Err(Error::file(folder, "its model writes no text")))
}

impl Run {
    /// Generates the text after `prompt`, by the section `sample` of the configuration; `None` if
    /// the model generates no text. All ranks must call this.
    ///
    /// # Errors
    /// Fails for an empty prompt. Returns the error of a failed collective.
    pub fn generate(&mut self, prompt: &str) -> Result<Option<String>> {
        if !self.can_generate() {
            return Ok(None);
        }
        let Some(gpt) = as_generator(&self.network) else { return Ok(None) };
        let seeds = self.seeds.seeds_for(Phase::Test, self.train_step, 0);
        let mut strategy = HostStrategy::new(&mut *self.strategy);
        let mut pass = Pass::new(&mut strategy, &self.memory, seeds, self.config.threads);
        let text = continue_prompt(gpt, &mut pass, prompt, &self.config)?;
        self.strategy.wait_all()?;
        Ok(Some(text))
    }

    /// Returns true if the model generates text, and this rank has all of it.
    pub(super) fn can_generate(&self) -> bool {
        as_generator(&self.network).is_some() && self.groups.get(GroupKind::Pipeline).is_none()
    }
}

/// Returns the model, if its tokens are bytes.
fn as_generator(network: &Network) -> Option<&Gpt> {
    network.gpt().filter(|gpt| gpt.config().vocabulary == text::VOCAB_SIZE as usize)
}

fn continue_prompt(gpt: &Gpt, pass: &mut Pass<'_>, prompt: &str, config: &Config) -> Result<String> {
    if prompt.is_empty() {
        return Err(Error::invalid("an empty prompt: a text begins with something"));
    }
    let sampling = match config.sample.temperature as f32 {
        0.0 => Sampling::Greedy,
        temperature => Sampling::Temperature { temperature, seed: u64::from(config.seed) },
    };
    let tokens = gpt.generate(pass, &text::encode(prompt), config.sample.tokens, sampling)?;
    Ok(text::decode(&tokens))
}
