//! Exchange of models with Hugging Face's libraries.

use crate::checkpoint::{ModelFiles, SavedBy};
use crate::config::Config;
use crate::data::special_tokens::{GENERATION_CONFIG, MODEL_CONFIG, TOKENIZER_CONFIG};
use crate::data::{TOKENIZER, Tokenizer, text};
use crate::models::hugging_face::{self, FileOptions, Layout, Provenance};
use crate::models::{Family, GptConfig};
use crate::output_file::OutputFile;
use crate::train::checkpointing::saved_by;
use crate::train::restored::Restored;
use crate::train::run::Run;
use std::ops::RangeInclusive;
use std::path::Path;
use unisono_nn::device::Device;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::Dtype;
use unisono_transports::text::printable;

/// Writes the model of a checkpoint, or of the last of several checkpoints, to the folder `target`
/// in Hugging Face's layout, with its tokenizer and the files of the model that the run began with.
/// Runs on one rank, whatever mesh saved it. `overrides` change the saved configuration, for
/// example the tokenizer.
///
/// # Errors
/// Fails if there is no checkpoint, its model is of none of the families, or a file cannot be
/// written.
pub fn export(checkpoint: &Path, target: &Path, overrides: &[String], options: FileOptions) -> Result<()> {
    export_with_progress(checkpoint, target, overrides, options, &mut |_, _| ())
}

/// Writes a model as [`export`] does. Calls `progress` with the number of units that are written,
/// and of all.
///
/// # Errors
/// Fails as [`export`] does.
pub fn export_with_progress(
    checkpoint: &Path,
    target: &Path,
    overrides: &[String],
    options: FileOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let mut restored = Restored::load(checkpoint, overrides)?;
    let gpt = with_family(restored.model.config(), restored.files.get(MODEL_CONFIG))?;
    write_descriptions(&restored, &gpt, target, options.dtype)?;
    let layout = Layout::of(&gpt);
    hugging_face::save_with_progress(
        target,
        (layout, options),
        SavedBy::default(),
        None,
        &mut *restored.strategy,
        &restored.inventory,
        progress,
    )
}

/// Writes all files of the folder `target` except for the weights: those of the model that the run
/// began with, with what the run changed.
fn write_descriptions(restored: &Restored, gpt: &GptConfig, target: &Path, dtype: Dtype) -> Result<()> {
    let (data, files) = (&restored.config.data, &restored.files);
    let tokenizer = data.open_tokenizer()?;
    let (start, ends) = special_tokens(tokenizer.as_ref(), gpt.vocabulary);
    let known = Provenance { source: files.get(MODEL_CONFIG), start, ends: &ends, dtype };
    let path = target.join(MODEL_CONFIG);
    let config = hugging_face::config_text(&path, gpt, &known)?;
    let mut written: Vec<_> = files.iter().map(|(name, _)| name).chain([MODEL_CONFIG]).collect();
    if tokenizer.is_some() {
        written.push(TOKENIZER);
    }
    // A refused folder stays as it was, because nothing is written before this check.
    hugging_face::check_folder(target, &written)?;
    std::fs::create_dir_all(target).map_err(|error| Error::file(target, error))?;
    OutputFile::write(&path, config)?;
    for (name, bytes) in files.iter().filter(|(name, _)| *name != MODEL_CONFIG) {
        let path = target.join(ModelFiles::path_in_folder(name));
        // Templates are in a folder of their own.
        let folder = path.parent().unwrap_or(target);
        std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
        match name {
            GENERATION_CONFIG => {
                OutputFile::write(&path, hugging_face::generation_text(&path, bytes, &ends)?)?
            }
            TOKENIZER_CONFIG => OutputFile::write(&path, hugging_face::tokenizer_config_text(&path, bytes)?)?,
            _ => OutputFile::write(&path, bytes)?,
        }
    }
    if tokenizer.is_some() {
        let bytes = std::fs::read(&data.tokenizer).map_err(|error| Error::file(&data.tokenizer, error))?;
        OutputFile::write(&target.join(TOKENIZER), bytes)?;
    }
    Ok(())
}

/// Returns the token before each text, and those at which a text ends, as far as they are known.
fn special_tokens(tokenizer: Option<&Tokenizer>, vocabulary: usize) -> (Option<u32>, Vec<u32>) {
    match tokenizer {
        Some(tokenizer) => (tokenizer.start_of_text().first().copied(), tokenizer.ends()),
        None if vocabulary == text::VOCAB_SIZE as usize => (None, vec![u32::from(text::END_OF_TEXT)]),
        None if GPT2_VOCABULARY.contains(&vocabulary) => (None, vec![GPT2_END_OF_TEXT]),
        None => (None, Vec::new()),
    }
}

/// Sizes of GPT-2's vocabulary: its own, and up to the next multiple of 64.
const GPT2_VOCABULARY: RangeInclusive<usize> = 50_257..=50_304;
/// Token between documents in GPT-2's vocabulary.
const GPT2_END_OF_TEXT: u32 = 50_256;

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
/// [`Error::Unsupported`] for a model with experts that is no Mixtral.
pub(super) fn check_supported(config: &Config) -> Result<()> {
    let gpt = config.gpt_config();
    match config.model.from.is_empty() || gpt.experts.is_none() || gpt.family == Family::Mixtral {
        true => Ok(()),
        false => Err(foreign_experts(&format!("model.from has a model of the family {}", gpt.family.name()))),
    }
}

/// Returns a note on each part of the folder `model.from` that has no effect here.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let source = config.model.from.as_str();
    if source.is_empty() {
        return Vec::new();
    }
    let notes = hugging_face::notes(Path::new(source)).into_iter();
    notes.map(|note| printable(&format!("{source}: {note}")).into_owned()).collect()
}

/// Returns a model with the family of its files, as [`hugging_face::with_family`] does.
///
/// # Errors
/// [`Error::Unsupported`] for experts that transformers does not have.
fn with_family(gpt: &GptConfig, source: Option<&[u8]>) -> Result<GptConfig> {
    hugging_face::with_family(gpt, source).map_err(|error| match gpt.experts {
        Some(_) => foreign_experts(&error.to_string()),
        None => error,
    })
}

/// Returns the refusal of files of a model with experts, for a reason.
fn foreign_experts(reason: &str) -> Error {
    let what = "files of a model with experts in Hugging Face's layout, other than Mixtral's: not part of this build";
    Error::Unsupported(format!("{what} ({reason}); set experts.count to 0, or the keys of Mixtral"))
}
