//! Text generation from trained models.

use crate::config::Config;
use crate::data::{SequenceChunk, TextCodec, text};
use crate::error::{Error, Result};
use crate::mesh::{GroupKind, Phase};
use crate::models::{Gpt, OwnedBatch, Sampling};
use crate::pass::{Pass, Seeds};
use crate::strategy::HostStrategy;
use crate::train::restored::Restored;
use crate::train::run::Run;
use std::path::Path;

/// Number of tokens of a text if neither the checkpoint nor the caller has one.
const USUAL_TOKENS: usize = 256;

/// Generates the text after `prompt` with the model of a checkpoint, or of the last of several
/// checkpoints. Runs on one rank, whatever mesh saved it. `overrides` change the saved
/// configuration. Calls `show` with each part of the text as soon as it is known.
///
/// # Errors
/// Fails if there is no checkpoint, or its model generates no text. Returns the error of `show`.
pub fn generate(
    folder: &Path,
    prompt: &str,
    overrides: &[String],
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<String> {
    let Restored { folder, mut config, network, mut strategy, memory, .. } =
        Restored::load(folder, overrides)?;
    let writes_none = || Error::file(&folder, "its model writes no text");
    let gpt = network.gpt().ok_or_else(writes_none)?;
    let codec = TextCodec::for_config(&config, gpt.config().vocabulary)?.ok_or_else(writes_none)?;
    if config.sample.tokens == 0 && !overrides.iter().any(|change| change.starts_with("sample.tokens")) {
        config.sample.tokens = USUAL_TOKENS;
    }
    let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), config.threads);
    continue_prompt((gpt, &codec), &mut pass, prompt, &config, show)
}

impl Run {
    /// Generates the text after `prompt`, by the section `sample` of the configuration; `None` if
    /// the model generates no text. All ranks must call this.
    ///
    /// # Errors
    /// Fails for an empty prompt. Returns the error of a failed collective.
    pub fn generate(&mut self, prompt: &str) -> Result<Option<String>> {
        let Some(gpt) = self.network.gpt().filter(|_| self.can_generate()) else { return Ok(None) };
        let codec = TextCodec::for_config(&self.config, gpt.config().vocabulary)?;
        let Some(codec) = codec else { return Ok(None) };
        let seeds = self.seeds.seeds_for(Phase::Test, self.train_step, 0);
        let mut strategy = HostStrategy::new(&mut *self.strategy, &self.inventory);
        let mut pass = Pass::new(&mut strategy, &self.memory, seeds, self.config.threads);
        let text = continue_prompt((gpt, &codec), &mut pass, prompt, &self.config, &mut |_| Ok(()))?;
        self.strategy.wait_all()?;
        Ok(Some(text))
    }

    /// Returns a sample of text, with its prompt, as the section `sample` of the configuration
    /// says. An empty prompt is the start of the training text. All ranks must call this.
    pub(super) fn sample(&mut self) -> Result<Option<String>> {
        if !self.can_generate() {
            return Ok(None);
        }
        let prompt = match self.config.sample.prompt.as_str() {
            "" => match self.start_of_text()? {
                Some(start) => start,
                None => return Ok(None),
            },
            prompt => prompt.to_owned(),
        };
        Ok(self.generate(&prompt)?.map(|text| prompt + &text))
    }

    /// Returns the first words of the training text; `None` if its tokens are no text.
    fn start_of_text(&self) -> Result<Option<String>> {
        let first = self.loader.training.batch(&[0], SequenceChunk::WHOLE)?;
        let (OwnedBatch::Tokens(tokens), Some(gpt)) = (first, self.network.gpt()) else { return Ok(None) };
        let Some(codec) = TextCodec::for_config(&self.config, gpt.config().vocabulary)? else {
            return Ok(None);
        };
        let start = codec.decode(&tokens.inputs[..tokens.inputs.len().min(PROMPT_TOKENS)])?;
        let words = start.rsplit_once(char::is_whitespace).map_or("", |(words, _)| words);
        Ok(Some(if words.is_empty() { start } else { words.to_owned() }).filter(|start| !start.is_empty()))
    }

    /// Returns true if the model generates text, and this rank has all of it.
    pub(super) fn can_generate(&self) -> bool {
        let has_text = |gpt: &Gpt| {
            !self.config.data.tokenizer.is_empty() || gpt.config().vocabulary == text::VOCAB_SIZE as usize
        };
        self.network.gpt().is_some_and(has_text) && self.groups.get(GroupKind::Pipeline).is_none()
    }
}

/// Maximum length of a prompt that is taken from the training text.
const PROMPT_TOKENS: usize = 24;

fn continue_prompt(
    (gpt, codec): (&Gpt, &TextCodec),
    pass: &mut Pass<'_>,
    prompt: &str,
    config: &Config,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<String> {
    if prompt.is_empty() {
        return Err(Error::invalid("an empty prompt: a text begins with something"));
    }
    let own = &config.sample;
    let (temperature, top_p) = (own.temperature as f32, own.top_p as f32);
    let sampling = Sampling { temperature, top_k: own.top_k, top_p, seed: u64::from(config.seed) };
    let prompt = codec.encode(prompt)?;
    let (mut stream, mut text) = (codec.stream(&prompt)?, String::new());
    let mut each = |token| {
        if codec.end_of_text() == Some(token) {
            return Ok(false);
        }
        let part = stream(token)?;
        text.push_str(&part);
        show(&part).map(|()| true)
    };
    gpt.generate(pass, &prompt, own.tokens, sampling, &mut each)?;
    Ok(text)
}
