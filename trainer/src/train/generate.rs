//! Text generation from trained models.

use crate::config::Config;
use crate::data::text;
use crate::error::{Error, Result};
use crate::mesh::{GroupKind, Phase};
use crate::models::{Gpt, Sampling};
use crate::pass::{Pass, Seeds};
use crate::strategy::HostStrategy;
use crate::train::Network;
use crate::train::restored::Restored;
use crate::train::run::Run;
use std::path::Path;

/// Generates the text after `prompt` with the model of a checkpoint, or of the last of several
/// checkpoints. Runs on one rank, whatever mesh saved it. `overrides` change the saved
/// configuration.
///
/// # Errors
/// Fails if there is no checkpoint, or its model generates no text.
pub fn generate(folder: &Path, prompt: &str, overrides: &[String]) -> Result<String> {
    let Restored { folder, config, network, mut strategy, memory, .. } = Restored::load(folder, overrides)?;
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
