//! Tokens that the files beside a tokenizer add to it, or that they treat in another way.

use super::special_tokens::JsonFile;
use serde_json::Value;
use std::collections::HashSet;
use tokenizers::AddedToken;
use unisono_nn::error::{Error, Result};

/// File of tokens by their texts, in folders of earlier versions of transformers.
pub(super) const ADDED_TOKENS: &str = "added_tokens.json";
/// Key of `tokenizer_config.json` with tokens by their numbers.
pub(super) const ADDED_TOKENS_DECODER: &str = "added_tokens_decoder";

/// Keys with the text of a special token.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys with the texts of further special tokens.
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// Tokens that the files of a folder list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddedTokens {
    /// Tokens with their numbers.
    numbered: Vec<(u32, AddedToken)>,
    /// Place where the numbers are.
    listed_by: &'static str,
    /// The tokenizer's own flags count before those of the numbered tokens.
    yields_to_tokenizer: bool,
    /// Special tokens by their names, such as `eos_token`.
    named: Vec<AddedToken>,
}

impl AddedTokens {
    /// Reads the lists of `tokenizer_config.json`, `special_tokens_map.json` and
    /// `added_tokens.json`, as transformers does: the last two count if the first one has no
    /// numbered tokens.
    ///
    /// # Errors
    /// Names a file with something else in place of a list of tokens.
    pub(super) fn of_files(
        config: Option<&JsonFile>,
        map: Option<&JsonFile>,
        added: Option<&JsonFile>,
    ) -> Result<Self> {
        let decoder = config.filter(|file| file.get(ADDED_TOKENS_DECODER).is_some());
        let sources = [config, map.filter(|_| decoder.is_none())];
        let named: Vec<_> = sources.into_iter().flatten().flat_map(named_tokens).collect();
        let (mut numbered, listed_by, yields_to_tokenizer) = match (decoder, added) {
            (Some(file), _) => {
                (tokens_by_number(file)?, "added_tokens_decoder of tokenizer_config.json", false)
            }
            (None, Some(file)) => (tokens_by_text(file, &named)?, ADDED_TOKENS, true),
            (None, None) => (Vec::new(), "", false),
        };
        numbered.sort_by_key(|(number, _)| *number);
        Ok(Self { numbered, listed_by, yields_to_tokenizer, named })
    }

    /// Returns the tokens to be added to a tokenizer. It may have some of them already, as words or
    /// with other flags.
    pub(super) fn missing_in(&self, tokenizer: &tokenizers::Tokenizer) -> Vec<AddedToken> {
        let present = tokenizer.get_added_tokens_decoder();
        let mut known: HashSet<&str> = present.values().map(|token| token.content.as_str()).collect();
        let is_known = |number: &u32, token: &AddedToken| {
            present.contains_key(number) || known.contains(&*token.content)
        };
        let wanted =
            |(number, token): &&(u32, AddedToken)| !(self.yields_to_tokenizer && is_known(number, token));
        let mut missing: Vec<_> =
            self.numbered.iter().filter(wanted).map(|(_, token)| token.clone()).collect();
        known.extend(self.numbered.iter().map(|(_, token)| token.content.as_str()));
        // A named token that is no word of the tokenizer has no number in the model either.
        let is_word = |token: &AddedToken| tokenizer.token_to_id(&token.content).is_some();
        let named = self.named.iter().filter(|token| !known.contains(&*token.content) && is_word(token));
        missing.extend(named.cloned());
        missing
    }

    /// Returns how a tokenizer with all tokens contradicts their numbers; `None` if it does not.
    pub(super) fn contradiction(&self, tokenizer: &tokenizers::Tokenizer) -> Option<String> {
        self.numbered.iter().find_map(|(number, token)| {
            let found = tokenizer.token_to_id(&token.content)?;
            (found != *number).then(|| {
                format!(
                    "token `{}` has number {number} in {}, and {found} here: correct one of the files",
                    token.content, self.listed_by
                )
            })
        })
    }
}

/// Returns the special tokens that a file names.
fn named_tokens(file: &JsonFile) -> Vec<AddedToken> {
    let alone = NAMES.into_iter().filter_map(|key| file.get(key)).collect::<Vec<_>>();
    let lists = LISTS.into_iter().filter_map(|key| file.get(key)).flat_map(|list| match list {
        Value::Array(values) => values.iter().collect::<Vec<_>>(),
        // Tokens of models with images and sounds have names there.
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    });
    let values = alone.into_iter().chain(lists);
    values.filter_map(|value| parse_token(value, true)).map(|token| token.special(true)).collect()
}

/// Reads the tokens of `tokenizer_config.json` by their numbers.
fn tokens_by_number(file: &JsonFile) -> Result<Vec<(u32, AddedToken)>> {
    let entry =
        |(number, value): (&String, &Value)| Some((number.parse::<u32>().ok()?, parse_token(value, false)?));
    let entries = file.get(ADDED_TOKENS_DECODER).and_then(Value::as_object);
    let tokens = entries.and_then(|entries| entries.iter().map(entry).collect::<Option<Vec<_>>>());
    tokens.ok_or_else(|| {
        let what = "no list of tokens by their numbers: correct it, or remove the key";
        Error::file(&file.path, format!("{ADDED_TOKENS_DECODER}: {what}"))
    })
}

/// Reads the numbers of tokens by their texts. Those that have names too are special.
fn tokens_by_text(file: &JsonFile, named: &[AddedToken]) -> Result<Vec<(u32, AddedToken)>> {
    let entry = |(text, number): (&String, &Value)| {
        let number = u32::try_from(number.as_u64()?).ok()?;
        let is_named = named.iter().any(|token| token.content == *text);
        Some((number, AddedToken::from(text.as_str(), is_named)))
    };
    let entries = file.value.as_object();
    let tokens = entries.and_then(|entries| entries.iter().map(entry).collect::<Option<Vec<_>>>());
    tokens.ok_or_else(|| {
        Error::file(&file.path, "no list of the numbers of tokens by their texts: correct it, or remove it")
    })
}

/// Reads a token: its text, or an object with its text and flags. A flag that is missing has the
/// value of transformers.
fn parse_token(value: &Value, is_special: bool) -> Option<AddedToken> {
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    let is_special = flag("special").unwrap_or(is_special);
    let token = AddedToken::from(text, is_special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!is_special));
    Some(token)
}
