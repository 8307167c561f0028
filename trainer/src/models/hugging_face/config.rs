//! Reads and writes `config.json`.

mod gpt2;
mod llama;

use super::layout::Layout;
use crate::error::{Error, Result};
use crate::file_kind;
use crate::models::GptConfig;
use crate::output_file::OutputFile;
use crate::parameter::Dtype;
use gpt2::Gpt2Json;
use llama::LlamaJson;
use serde::Deserialize;
use serde_json::{Map, Value, json};
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
    OutputFile::write(path, config_text(path, config, &Provenance::default())?)
}

/// Facts about a model besides its dimensions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Provenance<'a> {
    /// Text of the file that the model began with, if it began with one.
    pub(crate) source: Option<&'a [u8]>,
    /// Token before each text.
    pub(crate) start: Option<u32>,
    /// Tokens at which a text ends. The first comes after each document.
    pub(crate) ends: &'a [u32],
    /// Type of the weights.
    pub(crate) dtype: Dtype,
}

/// Returns the text of the file for a model, at `path`. Fields of the file that the model began
/// with stay, as far as the model has not changed.
pub(crate) fn config_text(path: &Path, config: &GptConfig, known: &Provenance<'_>) -> Result<String> {
    let failed = |error: serde_json::Error| Error::file(path, error);
    let model_json = match Layout::of(config) {
        Layout::Gpt2 => serde_json::to_value(Gpt2Json::new(config)?),
        Layout::Llama { .. } => serde_json::to_value(LlamaJson::new(config)?),
    };
    let model_fields: Map<String, Value> =
        serde_json::from_value(model_json.map_err(failed)?).map_err(failed)?;
    let source =
        known.source.map(serde_json::from_slice::<Map<String, Value>>).transpose().map_err(failed)?;
    let is_same = |source: &Map<String, Value>| {
        parse_map(source, path).is_ok_and(|found| found == model_fields["model_type"])
    };
    let source = source.filter(is_same).unwrap_or_default();
    let mut fields = source.clone();
    // The model is one of the library's own, and its folder has no code.
    fields.remove("auto_map");
    fields.extend(model_fields);
    let positions = "max_position_embeddings";
    let longest = |fields: &Map<String, Value>| fields.get(positions).and_then(Value::as_u64);
    if longest(&source) > longest(&fields) && fields.contains_key(positions) {
        fields.insert(positions.to_owned(), source[positions].clone());
    }
    let is_new = source.is_empty();
    set_ends(&mut fields, known.ends, is_new);
    if is_new || known.start.is_some() && !fields.contains_key("bos_token_id") {
        fields.insert("bos_token_id".to_owned(), json!(known.start));
    }
    let dtype = match known.dtype {
        Dtype::F32 => "float32",
        Dtype::Bf16 => "bfloat16",
    };
    // Versions before 5 of transformers read the second name.
    fields.extend(["dtype", "torch_dtype"].map(|key| (key.to_owned(), json!(dtype))));
    serde_json::to_string_pretty(&fields).map_err(failed)
}

/// Returns the text of `generation_config.json` at `path` from that of the model that was trained.
/// Texts also end at the token after each document of the training.
pub(crate) fn generation_text(path: &Path, source: &[u8], ends: &[u32]) -> Result<String> {
    let failed = |error: serde_json::Error| Error::file(path, error);
    let mut fields: Map<String, Value> = serde_json::from_slice(source).map_err(failed)?;
    if fields.get("eos_token_id").is_some_and(|ends| !ends.is_null()) {
        set_ends(&mut fields, ends, false);
    }
    serde_json::to_string_pretty(&fields).map_err(failed)
}

/// Sets the tokens at which a text ends. Those of a source stay, and the one after each document is
/// added to them.
fn set_ends(fields: &mut Map<String, Value>, ends: &[u32], is_new: bool) {
    let key = "eos_token_id";
    let mut tokens: Vec<Value> = match fields.get(key) {
        Some(Value::Array(known)) => known.clone(),
        Some(Value::Null) | None => Vec::new(),
        Some(known) => vec![known.clone()],
    };
    let missing: Vec<Value> = match is_new {
        true => ends.iter().map(|&end| json!(end)).collect(),
        false => {
            ends.first().map(|&end| json!(end)).into_iter().filter(|end| !tokens.contains(end)).collect()
        }
    };
    if missing.is_empty() && !is_new {
        return;
    }
    tokens.extend(missing);
    let value = if tokens.len() > 1 { Value::Array(tokens) } else { tokens.pop().unwrap_or(Value::Null) };
    fields.insert(key.to_owned(), value);
}

/// Returns the type of the model that the fields of a file describe.
fn parse_map(fields: &Map<String, Value>, path: &Path) -> Result<String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let first = fields.get("architectures").and_then(|classes| classes.get(0)?.as_str());
    ModelType { model_type: text("model_type"), architectures: first.map(|class| vec![class.to_owned()]) }
        .resolve(path)
}
