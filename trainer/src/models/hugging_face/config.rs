//! Reads and writes `config.json`.

mod gpt2;
mod keys;
mod llama;
mod rope;

use super::family::Family;
use crate::checkpoint::{check_source, left_out};
use crate::data::special_tokens::MODEL_CONFIG;
use crate::file_kind;
use crate::models::GptConfig;
use crate::output_file::OutputFile;
use gpt2::Gpt2Json;
use llama::LlamaJson;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::Dtype;

/// Fields of a file by key.
type Fields = Map<String, Value>;

/// Fields that select the others.
#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
}

impl ModelType {
    /// Returns the family of the model; that of its class if the file does not say its type.
    fn resolve(self, path: &Path) -> Result<Family> {
        let remedy = || format!("add \"model_type\" with one of {} if it is one", Family::names());
        if let Some(model_type) = self.model_type {
            let unknown = || format!("model_type {model_type}: it is one of {}", Family::names());
            return Family::named(&model_type).ok_or_else(|| Error::file(path, unknown()));
        }
        let classes = self.architectures.unwrap_or_default();
        let Some(class) = classes.first() else {
            return Err(Error::file(path, format!("neither model_type nor architectures: {}", remedy())));
        };
        let unknown = || format!("no model_type, and architectures {class}: {}", remedy());
        Family::of_class(class).ok_or_else(|| Error::file(path, unknown()))
    }
}

/// Contents that a reader expects, for errors.
const WANTED: &str = "a config.json of a model";

/// Reads the dimensions of a model of one of the families from the file at `path`. Dropout is left
/// to the training run.
///
/// # Errors
/// Fails if the file cannot be read, or describes a model that [`Gpt`](super::super::Gpt) does not
/// support.
pub fn read_config(path: &Path) -> Result<GptConfig> {
    let text = file_kind::read_text(path, WANTED)?;
    parse(&text, path)
}

/// Reads the dimensions of the model in a folder, as [`read_config`] does.
///
/// # Errors
/// Fails as [`read_config`] does, and for a folder whose weights are not those of the model,
/// because they are quantized or have an adapter.
pub fn read_folder(folder: &Path) -> Result<GptConfig> {
    check_source(folder)?;
    read_config(&folder.join(MODEL_CONFIG))
}

/// Returns a note on each part of a model's folder that says how to use the model and has no effect
/// here.
pub(crate) fn notes(folder: &Path) -> Vec<String> {
    let path = folder.join(MODEL_CONFIG);
    // A file that cannot be read was refused before.
    let text = file_kind::read_text(&path, WANTED).unwrap_or_default();
    let fields: Fields = serde_json::from_str(&text).unwrap_or_default();
    let of_keys = family_of(&fields, &path).map(|family| keys::notes(family, &fields));
    left_out(folder).into_iter().chain(of_keys.unwrap_or_default()).collect()
}

/// Reads the text of the file at `path`.
pub(super) fn parse(text: &str, path: &Path) -> Result<GptConfig> {
    let fields = serde_json::from_str(text).map_err(|error| file_kind::unreadable(path, WANTED, error))?;
    parse_fields(&fields, path)
}

fn parse_fields(fields: &Fields, path: &Path) -> Result<GptConfig> {
    let failed = |error: serde_json::Error| file_kind::unreadable(path, WANTED, error);
    let family = family_of(fields, path)?;
    if let Some(what) = keys::refusal(family, fields) {
        return Err(Error::file(path, what));
    }
    let fields = keys::with_own_names(family, fields.clone());
    let (config, unsupported) = match family {
        Family::Gpt2 => {
            let json: Gpt2Json = serde_json::from_value(Value::Object(fields)).map_err(failed)?;
            (json.dimensions(), json.unsupported_option())
        }
        _ => {
            let json = LlamaJson::read(family, &fields).map_err(failed)?;
            (json.dimensions(family), json.unsupported_option(family))
        }
    };
    if let Some(what) = unsupported {
        return Err(Error::file(path, format!("{what}: not supported")));
    }
    // A file says nothing about ranks. Their number is checked when the model is made.
    config.check(1).map_err(|error| Error::file(path, error))?;
    Ok(config)
}

/// Returns the family that the fields of a file name.
fn family_of(fields: &Fields, path: &Path) -> Result<Family> {
    let given: ModelType = serde_json::from_value(Value::Object(fields.clone()))
        .map_err(|error| file_kind::unreadable(path, WANTED, error))?;
    given.resolve(path)
}

/// Writes the file for a model.
///
/// # Errors
/// Fails if the file cannot be written, or the model is of none of the families.
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

/// Returns a model with the family of its files. It is that of the text `source` of the file that
/// the model began with, if the family has such models, or else the one of [`Family::of`].
///
/// # Errors
/// Fails if the model is of none of the families.
pub(crate) fn with_family(config: &GptConfig, source: Option<&[u8]>) -> Result<GptConfig> {
    let fields = source.and_then(|source| serde_json::from_slice::<Fields>(source).ok());
    let named = fields.and_then(|fields| family_of(&fields, Path::new("")).ok());
    let config = GptConfig { family: named.unwrap_or(config.family), ..config.clone() };
    Ok(GptConfig { family: Family::of(&config)?, ..config })
}

/// Returns the text of the file for a model, at `path`. Fields of the file that the model began
/// with stay, as far as the model has not changed.
pub(crate) fn config_text(path: &Path, config: &GptConfig, known: &Provenance<'_>) -> Result<String> {
    let failed = |error: serde_json::Error| Error::file(path, error);
    let family = Family::of(config)?;
    let model_fields = fields_of(family, config)?;
    let source = known.source.map(serde_json::from_slice::<Fields>).transpose().map_err(failed)?;
    let is_same = |source: &Fields| family_of(source, path).is_ok_and(|found| found == family);
    let source = source.filter(is_same).map(|source| keys::with_own_names(family, source));
    let source = source.unwrap_or_default();
    let mut fields = source.clone();
    // The model is one of the library's own, and its folder has no code.
    fields.remove(CODE);
    set_changed(&mut fields, &model_fields, path);
    let longest = |fields: &Fields| fields.get(POSITIONS).and_then(Value::as_u64);
    if longest(&source) > longest(&fields) && fields.contains_key(POSITIONS) {
        fields.insert(POSITIONS.to_owned(), source[POSITIONS].clone());
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

/// Key of the longest text.
const POSITIONS: &str = "max_position_embeddings";

/// Returns the fields that describe a model in the files of a family.
fn fields_of(family: Family, config: &GptConfig) -> Result<Fields> {
    match family {
        Family::Gpt2 => Gpt2Json::new(config).to_fields(),
        _ => llama::fields(family, config),
    }
}

/// Sets the fields of a model in those of the model that it began with. A key whose meaning has not
/// changed stays as it is, or stays away: for example, a file with `rope_theta` gets no
/// `rope_parameters`, because both say the same.
fn set_changed(fields: &mut Fields, model_fields: &Fields, path: &Path) {
    let described = |fields: &Fields| {
        let config = parse_fields(fields, path).ok()?;
        let mut described = fields_of(config.family, &config).ok()?;
        // The longest text is a limit, and not a dimension of the weights.
        let longest = model_fields.get(POSITIONS).map(|longest| (POSITIONS.to_owned(), longest.clone()));
        described.extend(longest);
        Some(described)
    };
    let initial_fields = described(fields).unwrap_or_default();
    let has_changed = |key: &str| initial_fields.get(key) != model_fields.get(key);
    let groups = [&rope::KEYS[..], &llama::WINDOW_KEYS];
    for (key, value) in model_fields {
        let group = groups.into_iter().find(|group| group.contains(&key.as_str()));
        let is_changed = match group {
            Some(group) => group.iter().any(|key| has_changed(key)),
            None => has_changed(key) || ALWAYS.contains(&key.as_str()),
        };
        if is_changed {
            fields.insert(key.clone(), value.clone());
        }
    }
    // For example, a default that depends on a changed key.
    if described(fields).as_ref() != Some(model_fields) {
        llama::WINDOW_KEYS.iter().for_each(|key| drop(fields.remove(*key)));
        fields.extend(model_fields.clone());
    }
}

/// Keys that a file has in any case.
const ALWAYS: [&str; 3] = ["model_type", "architectures", POSITIONS];

/// Returns the text of `generation_config.json` at `path` from that of the model that was trained.
/// Texts also end at the token after each document of the training.
pub(crate) fn generation_text(path: &Path, source: &[u8], ends: &[u32]) -> Result<String> {
    let failed = |error: serde_json::Error| Error::file(path, error);
    let mut fields: Fields = serde_json::from_slice(source).map_err(failed)?;
    if fields.get("eos_token_id").is_some_and(|ends| !ends.is_null()) {
        set_ends(&mut fields, ends, false);
    }
    serde_json::to_string_pretty(&fields).map_err(failed)
}

/// Returns the text of `tokenizer_config.json` at `path` from that of the model that was trained,
/// without names of code, because an export has none.
pub(crate) fn tokenizer_config_text(path: &Path, source: &[u8]) -> Result<Vec<u8>> {
    let failed = |error: serde_json::Error| Error::file(path, error);
    let mut fields: Fields = serde_json::from_slice(source).map_err(failed)?;
    match fields.remove(CODE) {
        None => Ok(source.to_vec()),
        Some(_) => serde_json::to_vec_pretty(&fields).map_err(failed),
    }
}

/// Key of the classes of a folder's own code.
const CODE: &str = "auto_map";

/// Sets the tokens at which a text ends. Those of a source stay, and the one after each document is
/// added to them.
fn set_ends(fields: &mut Fields, ends: &[u32], is_new: bool) {
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
