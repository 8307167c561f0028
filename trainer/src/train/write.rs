//! Text from trained models.

use super::Network;
use super::dry_run::extents;
use super::run::Run;
use crate::checkpoint::{self, Manifest, Who};
use crate::config::Config;
use crate::data::text;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mesh::Phase;
use crate::models::{Gpt, Sampling};
use crate::parallel::{self, Kind, Team};
use crate::pass::{Pass, Seeds};
use crate::strategy::OnHost;
use std::path::Path;

/// The text that follows `prompt`, by the model in a checkpoint, or the last of several: on one rank, whatever it was trained
/// on. `overrides` change the configuration that was saved.
///
/// # Errors
/// If there is none, or its model writes no text.
pub fn generate(folder: &Path, prompt: &str, overrides: &[String]) -> Result<String> {
    let last = checkpoint::latest(folder);
    let folder = last.as_deref().unwrap_or(folder);
    let manifest = Manifest::read(folder)?;
    let config = Config::parse(&manifest.configuration, overrides)?;
    manifest.progress.agrees(&config.fixed()?, folder, |key| key.starts_with("model."))?;
    let (network, inventory) = Network::new(&config, extents(&config)?, None)?;
    let (memory, settings) = (Memory::default(), config.settings());
    let mut strategy = parallel::make(Kind::Replicated, &inventory, Team::default(), &settings, &memory)?;
    let alone = Who { world: None, data_rank: 0, tensor_rank: 0 };
    checkpoint::load(folder, alone, &mut *strategy, &inventory)?;
    let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), config.threads);
    let written = writer(&network).map(|gpt| go_on(gpt, &mut pass, prompt, &config));
    written.unwrap_or_else(|| Err(Error::file(folder, "its model writes no text")))
}

impl Run {
    /// The text that follows `prompt`, as the configuration's section `sample` says; none if the model writes none. All ranks
    /// call it.
    ///
    /// # Errors
    /// For an empty prompt, and of collectives.
    pub fn write_on(&mut self, prompt: &str) -> Result<Option<String>> {
        let Some(gpt) = writer(&self.network) else { return Ok(None) };
        let seeds = self.seeding.pass(Phase::Test, self.step, 0);
        let mut strategy = OnHost::new(&mut *self.strategy);
        let mut pass = Pass::new(&mut strategy, &self.memory, seeds, self.config.threads);
        let text = go_on(gpt, &mut pass, prompt, &self.config)?;
        self.strategy.settle()?;
        Ok(Some(text))
    }

    /// Whether its model writes text.
    pub(super) fn writes(&self) -> bool {
        writer(&self.network).is_some()
    }
}

/// The model, if its tokens are bytes.
fn writer(network: &Network) -> Option<&Gpt> {
    network.gpt().filter(|gpt| gpt.config().vocabulary == text::VOCABULARY as usize)
}

fn go_on(gpt: &Gpt, pass: &mut Pass<'_>, prompt: &str, config: &Config) -> Result<String> {
    if prompt.is_empty() {
        return Err(Error::illegal("an empty prompt: a text begins with something"));
    }
    let sampling = match config.sample.temperature as f32 {
        0.0 => Sampling::Greedy,
        temperature => Sampling::Temperature { temperature, seed: u64::from(config.seed) },
    };
    let tokens = gpt.generate(pass, &text::encode(prompt), config.sample.tokens, sampling)?;
    Ok(text::decode(&tokens))
}
