//! Special tokens, as the files beside a tokenizer name them.

use super::added_tokens::{ADDED_TOKENS, ADDED_TOKENS_DECODER, AddedTokens};
use crate::file_kind;
use serde_json::Value;
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

/// File with the settings of a tokenizer.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// File with the special tokens of a tokenizer, in folders of earlier versions of transformers.
pub(crate) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
/// File with the settings of generation.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// File with the dimensions of a model.
pub(crate) const MODEL_CONFIG: &str = "config.json";

/// Token, by its text or its number, and where it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedToken {
    pub(super) token: TokenName,
    /// File and key that name the token, for errors.
    pub(super) named_by: String,
}

/// Text or number of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenName {
    Text(String),
    Id(u32),
}

/// Special tokens of a folder, as its files name them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens {
    /// Token after a document.
    pub(super) end_of_text: Option<NamedToken>,
    /// Numbers of the tokens that end a generated text.
    pub(super) stops: Vec<u32>,
    /// Token before a text.
    pub(super) start_of_text: Option<NamedToken>,
    /// Says if the token before a text is added; `None` leaves it to the tokenizer.
    pub(super) adds_start: Option<bool>,
    /// Special tokens within a text are ordinary text.
    pub(super) splits_special_tokens: bool,
    /// Tokens that the files add to the tokenizer, or treat in another way.
    pub(super) added: AddedTokens,
}

impl SpecialTokens {
    /// Reads the files in `folder`, in the order in which transformers prefers them.
    ///
    /// # Errors
    /// Names a file that cannot be read, or the key whose value is no token.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let names = [TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS];
        let [config, map, added] = names.map(|name| JsonFile::read(folder, name));
        let (config, map, added) = (config?, map?, added?);
        let added = AddedTokens::of_files(config.as_ref(), map.as_ref(), added.as_ref())?;
        let mut found = Self { added, ..Self::default() };
        let describes = config.as_ref().is_some_and(|file| file.get(ADDED_TOKENS_DECODER).is_some());
        // The map says more than a configuration of the versions that wrote no tokens into it.
        let files = if describes { [&config, &map] } else { [&map, &config] };
        for file in files.into_iter().flatten() {
            found.add_texts(file)?;
        }
        for name in [GENERATION_CONFIG, MODEL_CONFIG] {
            if let Some(file) = JsonFile::read(folder, name)? {
                found.add_ids(&file)?;
            }
        }
        Ok(found)
    }

    /// Adds the tokens of a file that names them by their texts.
    fn add_texts(&mut self, file: &JsonFile) -> Result<()> {
        // Files come in the order of preference, so that the first value stays.
        let (end, start) = (file.text("eos_token")?, file.text("bos_token")?);
        self.end_of_text = self.end_of_text.take().or(end);
        self.start_of_text = self.start_of_text.take().or(start);
        self.adds_start = self.adds_start.or(file.flag("add_bos_token")?);
        self.splits_special_tokens |= file.flag("split_special_tokens")?.unwrap_or(false);
        Ok(())
    }

    /// Adds the tokens of a file that names them by their numbers.
    fn add_ids(&mut self, file: &JsonFile) -> Result<()> {
        let (key, end) = ("eos_token_id", file.ids("eos_token_id")?);
        let first = end.first().map(|&id| file.named(TokenName::Id(id), key));
        self.end_of_text = self.end_of_text.take().or(first);
        if self.stops.is_empty() {
            self.stops = end;
        }
        Ok(())
    }
}

/// File of JSON beside a tokenizer.
pub(super) struct JsonFile {
    pub(super) path: PathBuf,
    name: &'static str,
    pub(super) value: Value,
}

impl JsonFile {
    /// Reads the file `name` in `folder`; `None` if there is none.
    fn read(folder: &Path, name: &'static str) -> Result<Option<Self>> {
        let path = folder.join(name);
        if !path.is_file() {
            return Ok(None);
        }
        let text = file_kind::read_text(&path, &wanted(name))?;
        Self::parse(&text, path, name).map(Some)
    }

    fn parse(text: &str, path: PathBuf, name: &'static str) -> Result<Self> {
        match serde_json::from_str(text) {
            Ok(value) => Ok(Self { path, name, value }),
            Err(error) => Err(file_kind::unreadable(&path, &wanted(name), error)),
        }
    }

    /// Returns the value of `key`; `None` if it is missing or null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    fn named(&self, token: TokenName, key: &str) -> NamedToken {
        NamedToken { token, named_by: format!("{key} of {}", self.name) }
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        let found = self.get(key).unwrap_or(&Value::Null);
        Error::file(
            &self.path,
            format!("{key} is {found}, and must be {wanted}: correct it, or remove the key"),
        )
    }

    /// Returns the token whose text is at `key`, alone or as the content of an object.
    fn text(&self, key: &str) -> Result<Option<NamedToken>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_str().or_else(|| value.get("content")?.as_str()) {
            Some(text) => Ok(Some(self.named(TokenName::Text(text.to_owned()), key))),
            None => Err(self.wrong(key, "the text of a token")),
        }
    }

    /// Returns the numbers of tokens at `key`: one, or a list.
    fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let ids = match value {
            Value::Array(values) => values.iter().map(number).collect(),
            // Files of some models say in this way that they have no such token.
            value if value.as_i64() == Some(-1) => Some(Vec::new()),
            value => number(value).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.wrong(key, "the number of a token, or a list of them"))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false"))
    }
}

/// Returns the contents that a reader of the file `name` expects, for errors.
fn wanted(name: &str) -> String {
    format!("a {name} of Hugging Face's libraries")
}

/// Reads bytes as each of the files.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(file) = JsonFile::parse(&text, PathBuf::from("folder"), MODEL_CONFIG) else { return };
    let mut found = SpecialTokens::default();
    let _ = (found.add_texts(&file), found.add_ids(&file));
    let _ = AddedTokens::of_files(Some(&file), None, None);
    let _ = AddedTokens::of_files(None, Some(&file), Some(&file));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_in_the_order_of_transformers() {
        let folder = tempfile::tempdir().unwrap();
        let read = |files: &[(&str, &str)]| {
            for (name, text) in files {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
            SpecialTokens::read(folder.path())
        };
        assert_eq!(read(&[]).unwrap(), SpecialTokens::default());
        let end =
            |found: &SpecialTokens| found.end_of_text.clone().map(|end| (end.token, end.named_by)).unwrap();
        let found = read(&[(MODEL_CONFIG, r#"{"eos_token_id": 7}"#)]).unwrap();
        assert_eq!(end(&found), (TokenName::Id(7), "eos_token_id of config.json".to_owned()));
        assert_eq!(found.stops, [7]);
        let found = read(&[(GENERATION_CONFIG, r#"{"eos_token_id": [9, 8]}"#)]).unwrap();
        assert_eq!((end(&found).0, &found.stops[..]), (TokenName::Id(9), &[9, 8][..]));
        let found =
            read(&[(SPECIAL_TOKENS_MAP, r#"{"eos_token": {"content": "</s>", "lstrip": false}}"#)]).unwrap();
        assert_eq!(end(&found).0, TokenName::Text("</s>".to_owned()));
        let tokenizer_config = r#"{"eos_token": "<eos>", "bos_token": "<bos>", "add_bos_token": true}"#;
        let found = read(&[(TOKENIZER_CONFIG, tokenizer_config)]).unwrap();
        assert_eq!(end(&found).0, TokenName::Text("</s>".to_owned()), "no tokens by their numbers");
        assert_eq!((found.adds_start, &found.stops[..]), (Some(true), &[9, 8][..]));
        assert_eq!(found.start_of_text.unwrap().token, TokenName::Text("<bos>".to_owned()));
        let later = tokenizer_config.replace("true", r#"true, "added_tokens_decoder": {}"#);
        assert_eq!(end(&read(&[(TOKENIZER_CONFIG, &later)]).unwrap()).0, TokenName::Text("<eos>".to_owned()));
        for (name, text, words) in [
            (TOKENIZER_CONFIG, r#"{"eos_token": 5}"#, "eos_token is 5, and must be the text of a token"),
            (
                TOKENIZER_CONFIG,
                r#"{"add_bos_token": "yes"}"#,
                "add_bos_token is \"yes\", and must be true or false",
            ),
            (TOKENIZER_CONFIG, "{", "this is no tokenizer_config.json"),
            (
                GENERATION_CONFIG,
                r#"{"eos_token_id": "</s>"}"#,
                "eos_token_id is \"</s>\", and must be the number",
            ),
        ] {
            let error = read(&[(TOKENIZER_CONFIG, "{}"), (name, text)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
    }
}
