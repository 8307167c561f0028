//! Text generation from trained models.

use crate::checkpoint::ModelFiles;
use crate::config::Config;
use crate::data::special_tokens::GENERATION_CONFIG;
use crate::data::{TextCodec, text};
use crate::models::hugging_face::{self, GenerationSettings, RANDOM};
use crate::models::{Gpt, Sampling};
use crate::train::report::print_line;
use crate::train::restored::Restored;
use crate::train::run::Run;
use std::path::Path;
use unisono::Communicator;
use unisono_nn::error::{Error, Result};
use unisono_nn::model::{self, Model};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_nn::strategy::HostStrategy;
use unisono_parallel::context_parallel::SequenceChunk;
use unisono_parallel::mesh::{GroupKind, Phase};
use unisono_parallel::pipeline::{self, Program};
use unisono_transports::text::printable;

/// Number of tokens of a text if neither the checkpoint nor the caller has one.
const USUAL_TOKENS: usize = 256;

/// Generates the text after `prompt` with the model of a checkpoint, or of the last of several
/// checkpoints. Runs on one rank, whatever mesh saved it. `overrides` change the saved
/// configuration. Calls `show` with each part of the text as soon as it is known.
///
/// Settings that neither the run nor `overrides` have are those of the `generation_config.json` of
/// the model, if it has one. Its settings that are not applied are named on standard error.
///
/// # Errors
/// Fails if there is no checkpoint, its model generates no text, or a setting of its
/// `generation_config.json` is not valid. Returns the error of `show`.
pub fn generate(
    folder: &Path,
    prompt: &str,
    overrides: &[String],
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<String> {
    let Restored { folder, config, model, mut strategy, memory, files, .. } =
        Restored::load(folder, overrides)?;
    let codec = config.text_codec(model.config().vocabulary)?;
    let codec = codec.ok_or_else(|| Error::file(&folder, "its model writes no text"))?;
    let mut config = with_settings_of_model(config, &folder, &files, overrides)?;
    if config.sample.tokens == 0 && !overrides.iter().any(|change| change.starts_with("sample.tokens")) {
        config.sample.tokens = USUAL_TOKENS;
    }
    let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), config.threads);
    let plan = Program { plan: StepPlan::forward_only(model.block_count()), ..Program::default() };
    let mut forward = |pass: &mut Pass<'_>| next_logits(&model, pass, &plan, None);
    let writer = Writer { gpt: &model, codec: &codec, config: &config };
    writer.continue_prompt(&mut pass, prompt, &mut forward, show)
}

/// Returns the configuration of a checkpoint in `folder` with the settings of the file of its model
/// that neither the run nor `overrides` have. Names the settings that are not applied.
fn with_settings_of_model(
    config: Config,
    folder: &Path,
    files: &ModelFiles,
    overrides: &[String],
) -> Result<Config> {
    let Some(bytes) = files.get(GENERATION_CONFIG) else { return Ok(config) };
    let path = folder.join(GENERATION_CONFIG);
    let GenerationSettings { is_greedy, sample, ignored } = hugging_face::generation_settings(&path, bytes)?;
    if !ignored.is_empty() {
        let named = printable(&ignored.join(", ")).into_owned();
        print_line(&format!(
            "{}: not applied, because `generate` has no such setting: {named}",
            path.display()
        ));
    }
    let changed = config.keys_off_default()?;
    let is_given = |name: &str| {
        let key = format!("sample.{name}");
        let given = overrides.iter().filter_map(|change| change.split_once('='));
        // A run that writes no text at its end has 0 tokens, which is no choice for this text.
        let is_of_run = changed.contains(&key) && (name != "tokens" || config.sample.tokens > 0);
        is_of_run
            || given
                .map(|(given_key, _)| given_key.trim())
                .any(|given_key| given_key == key || given_key == "sample")
    };
    // The file can ask for the most probable tokens. A given setting of random choices would then
    // have no effect, so it turns this off.
    let is_random = is_greedy && RANDOM.into_iter().any(is_given);
    let applies = |name: &str| !(is_given(name) || is_random && RANDOM.contains(&name));
    let changes = sample.into_iter().filter(|(name, _)| applies(name));
    let changes: Vec<String> = changes.map(|(name, value)| format!("sample.{name}={value}")).collect();
    config.with_override(&changes).map_err(|error| {
        Error::file(&path, format!("{error}: correct the file, or give this setting to the command"))
    })
}

impl Run {
    /// Generates the text after `prompt`, by the section `sample` of the configuration; `None` if
    /// the model generates no text. All ranks must call this, and return the same text.
    ///
    /// # Errors
    /// Fails for an empty prompt. Returns the error of a failed collective.
    pub fn generate(&mut self, prompt: &str) -> Result<Option<String>> {
        if !self.can_generate() {
            return Ok(None);
        }
        let codec = self.config.text_codec(self.model.config().vocabulary)?;
        let Some(codec) = codec else { return Ok(None) };
        let seeds = self.seeds.seeds_for(Phase::Test, self.train_step, 0);
        let mut strategy = HostStrategy::new(&mut *self.strategy, &self.inventory);
        let mut pass = Pass::new(&mut strategy, &self.memory, seeds, self.config.threads);
        let (program, stages) = (&self.validation, self.groups.get(GroupKind::Pipeline));
        let data_group = self.groups.get(GroupKind::Data);
        let mut forward = |pass: &mut Pass<'_>| -> Result<Vec<f32>> {
            let mut logits = next_logits(&self.model, pass, program, stages)?;
            // Unequal processors can round logits so that ranks would choose different tokens. A
            // rank whose text ended first would be missing in the forward passes of the others.
            data_group.map_or(Ok(()), |group| group.broadcast(&mut logits, 0))?;
            Ok(logits)
        };
        let writer = Writer { gpt: &self.model, codec: &codec, config: &self.config };
        let text = writer.continue_prompt(&mut pass, prompt, &mut forward, &mut |_| Ok(()))?;
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
        let tokens = self.loader.training.batch(&[0], SequenceChunk::WHOLE)?;
        let Some(codec) = self.config.text_codec(self.model.config().vocabulary)? else {
            return Ok(None);
        };
        let start = codec.decode(&tokens.inputs[..tokens.inputs.len().min(PROMPT_TOKENS)])?;
        let words = start.rsplit_once(char::is_whitespace).map_or("", |(words, _)| words);
        Ok(Some(if words.is_empty() { start } else { words.to_owned() }).filter(|start| !start.is_empty()))
    }

    /// Returns true if the model generates text.
    pub(super) fn can_generate(&self) -> bool {
        let is_of_bytes = self.model.config().vocabulary == text::VOCAB_SIZE as usize;
        is_of_bytes || !self.config.data.tokenizer.is_empty()
    }
}

/// Maximum length of a prompt that is taken from the training text.
const PROMPT_TOKENS: usize = 24;

/// Computes the logits of the next token on every rank, for the batch of the pass.
fn next_logits(
    gpt: &Gpt,
    pass: &mut Pass<'_>,
    program: &Program,
    stages: Option<&Communicator>,
) -> Result<Vec<f32>> {
    pass.begin_step(&program.plan)?;
    let Some(stages) = stages else {
        let output = model::run_forward(gpt, pass, &program.plan)?;
        return gpt.next_logits(pass, output);
    };
    let mut logits = match pipeline::run_forward_program(gpt, pass, program, stages)? {
        Some(output) => gpt.next_logits(pass, output)?,
        // All stages choose the next token, with which the first one goes on, so all of them need
        // the logits.
        None => vec![0.0; gpt.config().vocabulary],
    };
    stages.broadcast(&mut logits, program.last_rank)?;
    Ok(logits)
}

/// Model that continues texts, as the section `sample` of the configuration says.
struct Writer<'a> {
    gpt: &'a Gpt,
    codec: &'a TextCodec,
    config: &'a Config,
}

impl Writer<'_> {
    fn continue_prompt(
        &self,
        pass: &mut Pass<'_>,
        prompt: &str,
        forward: &mut dyn FnMut(&mut Pass<'_>) -> Result<Vec<f32>>,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<String> {
        if prompt.is_empty() {
            return Err(Error::invalid("an empty prompt: a text begins with something"));
        }
        let (sample, codec, seed) = (&self.config.sample, self.codec, u64::from(self.config.seed));
        let sampling = Sampling {
            temperature: sample.temperature as f32,
            top_k: sample.top_k,
            top_p: sample.top_p as f32,
            repetition_penalty: sample.repetition_penalty as f32,
            seed,
        };
        let (prompt, vocabulary) = (codec.encode_start(prompt)?, self.gpt.config().vocabulary);
        if let Some(unknown) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            let path = &self.config.data.tokenizer;
            let what = format!("the prompt has token {unknown}, and the model {vocabulary}");
            return Err(Error::file(path, what));
        }
        let (mut stream, mut text) = (codec.stream(&prompt)?, String::new());
        let mut each = |token| {
            if codec.ends_text(token) {
                return Ok(false);
            }
            let part = stream(token)?;
            text.push_str(&part);
            show(&part).map(|()| true)
        };
        self.gpt.generate_with(pass, &prompt, sample.tokens, sampling, forward, &mut each)?;
        Ok(text)
    }
}
