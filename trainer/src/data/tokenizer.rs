//! Tokenizers of Hugging Face's libraries.

use super::special_tokens::{NamedToken, SpecialTokens, TokenName};
use crate::file_kind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tokenizers::{Encoding, Token};
use unisono_nn::error::{Error, Result};

/// Tokenizer of a file `tokenizer.json`.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// Token after each document, or why none is known.
    end_of_text: std::result::Result<u32, String>,
    /// Tokens before each text.
    start_of_text: Vec<u32>,
    /// Tokens besides that after each document that end a generated text.
    stops: Vec<u32>,
}

/// Name of the file in a folder of a model.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Contents that a reader expects, for errors.
const WANTED: &str = "a tokenizer.json of Hugging Face's libraries";

/// Usual names of the token after a document, for tokenizers whose folder names none.
const END_OF_TEXT: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>"];

impl Tokenizer {
    /// Reads the file at `path`. If its name is `tokenizer.json`, the files beside it name the
    /// special tokens, as in the folder of a model.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or is not a tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| file_kind::unreadable(path, WANTED, error))?;
        let tokenizer = Self::parse(&bytes, path)?;
        let folder = path.parent().filter(|_| path.file_name() == Some(TOKENIZER.as_ref()));
        match folder {
            Some(folder) => tokenizer.with_special_tokens(&SpecialTokens::read(folder)?),
            None => Ok(tokenizer),
        }
    }

    /// Reads the bytes of the file at `path`.
    fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let mut inner =
            guarded(path, || tokenizers::Tokenizer::from_bytes(bytes)).map_err(|error| match error {
                Error::File { what, .. } => file_kind::unreadable(path, WANTED, what),
                error => error,
            })?;
        // They belong to the last call before the file was saved. Whole texts are encoded here.
        guarded(path, || inner.with_padding(None).with_truncation(None).map(drop))?;
        let end_of_text = usual_end_of_text(&inner);
        let start_of_text = tokens_in_front(&inner, path).unwrap_or_default();
        Ok(Self { path: path.to_owned(), inner, end_of_text, start_of_text, stops: Vec::new() })
    }

    /// Adds the tokens that the files of a folder list, and sets the special tokens that they name.
    ///
    /// # Errors
    /// Fails if the tokenizer lacks the token before each text, or has a listed token under another
    /// number.
    fn with_special_tokens(mut self, named: &SpecialTokens) -> Result<Self> {
        let tokens = named.added.missing_in(&self.inner);
        if !tokens.is_empty() {
            guarded(&self.path, || self.inner.add_tokens(tokens))?;
            // An added token can have a usual name of the token after each document.
            self.end_of_text = usual_end_of_text(&self.inner);
        }
        if let Some(what) = named.added.contradiction(&self.inner) {
            return Err(Error::file(&self.path, what));
        }
        self.inner.set_encode_special_tokens(named.splits_special_tokens);
        if let Some(end) = &named.end_of_text {
            self.end_of_text = self.find(end);
        }
        self.stops.clone_from(&named.stops);
        match (named.adds_start, &named.start_of_text) {
            (Some(true), Some(start)) => {
                let start = self.find(start).map_err(|what| Error::file(&self.path, what))?;
                self.start_of_text = vec![start];
            }
            (Some(_), _) => self.start_of_text.clear(),
            (None, _) => {}
        }
        Ok(self)
    }

    /// Returns the number of a token, or why there is none.
    fn find(&self, NamedToken { token, named_by }: &NamedToken) -> std::result::Result<u32, String> {
        match token {
            TokenName::Text(text) => self.inner.token_to_id(text).ok_or_else(|| {
                format!("it has no token `{text}`, which is {named_by}: correct one of the files")
            }),
            TokenName::Id(id) => match self.inner.id_to_token(*id) {
                Some(_) => Ok(*id),
                None => {
                    Err(format!("it has no token number {id}, which is {named_by}: correct one of the files"))
                }
            },
        }
    }

    /// Sets the token after each document by its text.
    ///
    /// # Errors
    /// Fails if the tokenizer has no such token.
    pub fn with_end_of_text(self, token: &str) -> Result<Self> {
        let id = self.inner.token_to_id(token);
        let id = id.ok_or_else(|| Error::file(&self.path, format!("it has no token `{token}`")))?;
        Ok(Self { end_of_text: Ok(id), ..self })
    }

    /// Returns the token after each document, if one is known.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text.as_ref().ok().copied()
    }

    /// Returns the tokens before each text: that of the start, for models that have one.
    pub fn start_of_text(&self) -> &[u32] {
        &self.start_of_text
    }

    /// Returns true if a generated text ends at this token.
    pub fn ends_text(&self, token: u32) -> bool {
        self.ends().contains(&token)
    }

    /// Returns the tokens at which a generated text ends. The first is that after each document, if
    /// it is known.
    pub fn ends(&self) -> Vec<u32> {
        let end = self.end_of_text();
        let others = self.stops.iter().copied().filter(|token| Some(*token) != end);
        end.into_iter().chain(others).collect()
    }

    /// Returns the token after each document.
    ///
    /// # Errors
    /// Fails if none is known.
    pub fn expect_end_of_text(&self) -> Result<u32> {
        let known = self.end_of_text.clone();
        known.map_err(|what| Error::file(&self.path, format!("{what}; or name one with --end-of-text")))
    }

    /// Returns the text of a token, as its file has it.
    pub fn token_text(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// Returns the vocabulary size: one more than the largest token.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |token| token as usize + 1)
    }

    /// Encodes text, without special tokens around it.
    ///
    /// # Errors
    /// Fails if the tokenizer does not know a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = guarded(&self.path, || self.inner.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Encodes several texts.
    ///
    /// # Errors
    /// Fails as [`Tokenizer::encode`] does.
    pub fn encode_all(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>> {
        let encodings = guarded(&self.path, || self.inner.encode_batch_fast(texts, false))?;
        Ok(encodings.into_iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// Decodes tokens. Special tokens are left out.
    ///
    /// # Errors
    /// Fails for a tokenizer whose decoder does.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        guarded(&self.path, || self.inner.decode(tokens, true))
    }

    /// Returns a function that decodes one token after another. A character may take several of
    /// them.
    pub(super) fn stream(&self) -> impl FnMut(u32) -> Result<String> + '_ {
        let mut stream = self.inner.decode_stream(true);
        move |token| Ok(guarded(&self.path, || stream.step(token))?.unwrap_or_default())
    }
}

/// Reads bytes as the file of a tokenizer, and encodes and decodes by it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::parse(bytes, Path::new("tokenizer.json")) else { return };
    let _ = (tokenizer.vocabulary(), tokenizer.expect_end_of_text(), tokenizer.start_of_text());
    let tokens = tokenizer.encode("The text é, 7 words <|endoftext|>.\n").unwrap_or_default();
    let tokens = [&tokens[..tokens.len().min(32)], &[0, 1, 255, u32::MAX]].concat();
    let _ = tokenizer.decode(&tokens);
    let mut stream = tokenizer.stream();
    tokens.iter().for_each(|token| drop(stream(*token)));
}

/// Calls a function of the library, and returns its error, or its panic as an error. Some files
/// parse well, and make the library index out of bounds later.
fn guarded<T>(path: &Path, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| Error::file(path, error)),
        Err(_) => Err(Error::file(path, "no valid tokenizer: the tokenizers library failed in it")),
    }
}

/// Returns the token that has a usual name of the one after each document. A token that is not
/// special is part of texts: Gemma's `</s>` is a tag of HTML.
fn usual_end_of_text(inner: &tokenizers::Tokenizer) -> std::result::Result<u32, String> {
    let added = inner.get_added_tokens_decoder();
    let special = |name: &&str| {
        let id = inner.token_to_id(name)?;
        added.get(&id).is_some_and(|token| token.special).then_some(id)
    };
    let found = END_OF_TEXT.iter().find_map(special);
    found.ok_or_else(|| {
        format!("it has none of the tokens {END_OF_TEXT:?} as a special one, and no file names one")
    })
}

/// Returns the special tokens that the tokenizer adds before a text.
fn tokens_in_front(inner: &tokenizers::Tokenizer, path: &Path) -> Result<Vec<u32>> {
    let body = || Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
    let encoding = guarded(path, || inner.post_process(body(), None, true))?;
    let tokens = encoding.get_ids().iter().zip(encoding.get_special_tokens_mask());
    Ok(tokens.take_while(|(_, special)| **special == 1).map(|(&token, _)| token).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::data::TextCodec;
    use serde_json::{Value, json};

    /// Tokenizer of words, of which the first is `<s>`. `</s>` is special if `special` says so.
    fn words(special: bool) -> Value {
        let added = |id: usize, content: &str, special: bool| {
            json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        };
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [added(0, "<s>", true), added(4, "</s>", special), added(5, "<end>", true)],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"<s>": 0, "one": 1, "two": 2, "?": 3, "</s>": 4, "<end>": 5},
                "unk_token": "?"}
        })
    }

    /// Folder with the files of a model.
    struct Files(tempfile::TempDir);

    impl Files {
        fn new(files: &[(&str, Value)]) -> Self {
            let files_of_model = Self(tempfile::tempdir().unwrap());
            files.iter().for_each(|(name, value)| files_of_model.add(name, value));
            files_of_model
        }

        fn add(&self, name: &str, value: &Value) {
            std::fs::write(self.0.path().join(name), value.to_string()).unwrap();
        }

        fn open(&self) -> Result<Tokenizer> {
            Tokenizer::open(&self.0.path().join(TOKENIZER))
        }
    }

    #[test]
    fn saved_truncation_and_padding_are_off() {
        let mut tokenizer_json = words(true);
        tokenizer_json["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        tokenizer_json["padding"] = json!({"strategy": {"Fixed": 7}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 3, "pad_type_id": 0, "pad_token": "?"});
        let tokenizer = Files::new(&[(TOKENIZER, tokenizer_json)]).open().unwrap();
        assert_eq!(tokenizer.encode("one two one two").unwrap(), [1, 2, 1, 2]);
        let texts = ["one", "two two two"].map(str::to_owned).to_vec();
        assert_eq!(tokenizer.encode_all(texts).unwrap(), [vec![1], vec![2, 2, 2]]);
    }

    #[test]
    fn folder_names_the_end_of_text() {
        let files = Files::new(&[(TOKENIZER, words(true))]);
        assert_eq!(files.open().unwrap().end_of_text(), Some(4), "the usual name");
        files.add(TOKENIZER, &words(false));
        let error = files.open().unwrap().expect_end_of_text().unwrap_err().to_string();
        assert!(
            error.contains("as a special one") && error.contains("--end-of-text"),
            "a tag of HTML: {error}"
        );
        files.add("generation_config.json", &json!({"eos_token_id": [5, 2]}));
        let tokenizer = files.open().unwrap();
        assert_eq!(tokenizer.end_of_text(), Some(5));
        assert_eq!([1, 2, 5].map(|token| tokenizer.ends_text(token)), [false, true, true]);
        files.add("tokenizer_config.json", &json!({"eos_token": {"content": "</s>"}}));
        let tokenizer = files.open().unwrap();
        assert_eq!(tokenizer.end_of_text(), Some(4));
        assert_eq!([1, 2, 4, 5].map(|token| tokenizer.ends_text(token)), [false, true, true, true]);
        files.add("tokenizer_config.json", &json!({"eos_token": "<eod>"}));
        let error = files.open().unwrap().expect_end_of_text().unwrap_err().to_string();
        assert!(error.contains("no token `<eod>`, which is eos_token of tokenizer_config.json"), "{error}");
        let mut config = Config::default();
        config.data.tokenizer = files.0.path().join(TOKENIZER).display().to_string();
        config.data.end_of_text = "two".to_owned();
        let codec = config.text_codec(6).unwrap().unwrap();
        assert_eq!([2, 4].map(|token| codec.ends_text(token)), [true, false]);
        config.data.end_of_text = "three".to_owned();
        let error = config.text_codec(6).err().unwrap().to_string();
        assert!(error.ends_with("it has no token `three`"), "{error}");
    }

    #[test]
    fn files_of_a_folder_set_flags_and_add_tokens() {
        let files = Files::new(&[(TOKENIZER, words(false))]);
        assert_eq!(files.open().unwrap().decode(&[1, 4, 1, 2]).unwrap(), "one </s> one two");
        let flags = json!({"content": "</s>", "special": true, "lstrip": true, "rstrip": false, "normalized": false,
            "single_word": false});
        let decoder = json!({"4": flags, "6": {"content": "<new>", "special": false}});
        files.add("tokenizer_config.json", &json!({"eos_token": "two", "added_tokens_decoder": decoder}));
        let tokenizer = files.open().unwrap();
        assert_eq!(tokenizer.encode("one</s><new>two").unwrap(), [1, 4, 6, 2]);
        assert_eq!(tokenizer.decode(&[1, 4, 6, 2]).unwrap(), "one <new>", "others are special");
        assert_eq!((tokenizer.end_of_text(), tokenizer.vocabulary()), (Some(2), 7));
        for (decoder, words) in [
            (json!({"1": {"content": "two"}}), "token `two` has number 1 in added_tokens_decoder of"),
            (json!({"9": {"content": "<new>"}}), "token `<new>` has number 9"),
            (
                json!({"x": {"content": "two"}}),
                "tokenizer_config.json: added_tokens_decoder: no list of tokens",
            ),
            (json!([1]), "added_tokens_decoder: no list of tokens by their numbers"),
        ] {
            files.add("tokenizer_config.json", &json!({"added_tokens_decoder": decoder}));
            let error = files.open().err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn files_of_earlier_versions_add_tokens() {
        let files = Files::new(&[(TOKENIZER, words(true))]);
        files.add(
            "tokenizer_config.json",
            &json!({"pad_token": "<pad>", "additional_special_tokens": ["two"]}),
        );
        files.add("added_tokens.json", &json!({"</s>": 4, "<new>": 6}));
        let tokenizer = files.open().unwrap();
        assert_eq!(tokenizer.encode("one<new>two").unwrap(), [1, 6, 2]);
        assert_eq!(tokenizer.decode(&[1, 6, 2, 4]).unwrap(), "one <new>");
        assert_eq!(tokenizer.vocabulary(), 7, "a token without a number is no part of the model");
        files.add("added_tokens.json", &json!({"<new>": 8}));
        let error = files.open().err().unwrap().to_string();
        assert!(error.contains("token `<new>` has number 8 in added_tokens.json, and 6 here"), "{error}");
        files.add("added_tokens.json", &json!({}));
        files.add("tokenizer_config.json", &json!({"split_special_tokens": true}));
        assert_eq!(files.open().unwrap().encode("one</s> one").unwrap(), [3, 1]);
    }

    #[test]
    fn texts_begin_as_those_of_the_model() {
        let part = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let start = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        let mut tokenizer_json = words(true);
        tokenizer_json["post_processor"] = json!({"type": "TemplateProcessing", "single": [start, part("A")],
            "pair": [start, part("A"), part("B")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}});
        let files = Files::new(&[(TOKENIZER, tokenizer_json)]);
        let started = |text: &str| {
            let codec = TextCodec::Tokenizer(Box::new(files.open().unwrap()));
            codec.encode_start(text).unwrap()
        };
        assert_eq!(started("one two"), [0, 1, 2]);
        assert_eq!(started("<s> one two"), [0, 1, 2], "one is enough");
        assert_eq!(files.open().unwrap().encode("one").unwrap(), [1]);
        files.add("tokenizer_config.json", &json!({"bos_token": "<s>", "add_bos_token": false}));
        assert_eq!(started("one two"), [1, 2]);
        files.add(TOKENIZER, &words(true));
        files.add("tokenizer_config.json", &json!({"bos_token": "<s>", "add_bos_token": true}));
        assert_eq!(started("one two"), [0, 1, 2]);
        files.add("tokenizer_config.json", &json!({"bos_token": "<start>", "add_bos_token": true}));
        let error = files.open().err().unwrap().to_string();
        assert!(error.contains("no token `<start>`, which is bos_token of tokenizer_config.json"), "{error}");
        files.add("tokenizer_config.json", &json!({"bos_token": "<s>"}));
        assert_eq!(started("one two"), [1, 2]);
    }
}
