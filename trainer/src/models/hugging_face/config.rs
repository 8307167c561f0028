//! Reads and writes `config.json`.

mod gpt2;
mod llama;

use super::layout::Layout;
use crate::error::{Error, Result};
use crate::file_kind;
use crate::models::GptConfig;
use crate::output_file::OutputFile;
use gpt2::Gpt2Json;
use llama::LlamaJson;
use serde::Deserialize;
use std::path::Path;

/// Fields that select the others.
#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
}

impl ModelType {
    /// Returns the type of the model; that of its class if the file does not say it.
    fn resolve(self, path: &Path) -> Result<String> {
        if let Some(model_type) = self.model_type {
            return Ok(model_type);
        }
        let classes = self.architectures.unwrap_or_default();
        let known = match classes.first().map(String::as_str) {
            Some("GPT2LMHeadModel" | "GPT2Model") => "gpt2",
            Some("LlamaForCausalLM" | "LlamaModel") => "llama",
            Some(other) => {
                return Err(Error::file(path, format!("no model_type, and architectures {other}: {ADD}")));
            }
            None => return Err(Error::file(path, format!("neither model_type nor architectures: {ADD}"))),
        };
        Ok(known.to_owned())
    }
}

/// Remedy for a file that does not say what it describes.
const ADD: &str = "add \"model_type\": \"gpt2\" or \"llama\" if it is one of them";

/// Contents that a reader expects, for errors.
const WANTED: &str = "a config.json of a model";

/// Reads the dimensions of a GPT-2 or Llama from the file at `path`. Dropout is left to the
/// training run.
///
/// # Errors
/// Fails if the file cannot be read, or describes a model that [`Gpt`](super::super::Gpt) does not
/// support.
pub fn read_config(path: &Path) -> Result<GptConfig> {
    let text = file_kind::read_text(path, WANTED)?;
    parse(&text, path)
}

/// Reads the text of the file at `path`.
pub(super) fn parse(text: &str, path: &Path) -> Result<GptConfig> {
    let failed = |error: serde_json::Error| file_kind::unreadable(path, WANTED, error);
    let given: ModelType = serde_json::from_str(text).map_err(failed)?;
    let model_type = given.resolve(path)?;
    let (config, unsupported) = match model_type.as_str() {
        "gpt2" => {
            let json: Gpt2Json = serde_json::from_str(text).map_err(failed)?;
            (json.dimensions(), json.unsupported_option())
        }
        "llama" => {
            let json: LlamaJson = serde_json::from_str(text).map_err(failed)?;
            (json.dimensions(), json.unsupported_option())
        }
        other => return Err(Error::file(path, format!("model_type {other}: it is gpt2 or llama"))),
    };
    if let Some(what) = unsupported {
        return Err(Error::file(path, format!("{what}: not supported")));
    }
    config.check(1).map_err(|error| Error::file(path, error))?;
    Ok(config)
}

/// Writes the file for a model.
///
/// # Errors
/// Fails if the file cannot be written, or the model is neither a GPT-2 nor a Llama.
pub fn write_config(path: &Path, config: &GptConfig) -> Result<()> {
    let text = match Layout::of(config) {
        Layout::Gpt2 => serde_json::to_string_pretty(&Gpt2Json::new(config)?),
        Layout::Llama { .. } => serde_json::to_string_pretty(&LlamaJson::new(config)?),
    };
    let text = text.map_err(|error| Error::file(path, error))?;
    OutputFile::write(path, text)
}
