//! Tokenizers of Hugging Face's libraries.

use crate::error::{Error, Result};
use crate::file_kind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Tokenizer of a file `tokenizer.json`.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    end_of_text: Option<u32>,
}

/// Contents that a reader expects, for errors.
const WANTED: &str = "a tokenizer.json of Hugging Face's libraries";

/// Usual names of the token after a document.
const END_OF_TEXT: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>"];

impl Tokenizer {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not a tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| file_kind::unreadable(path, WANTED, error))?;
        Self::parse(&bytes, path)
    }

    /// Reads the bytes of the file at `path`.
    fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let inner =
            guarded(path, || tokenizers::Tokenizer::from_bytes(bytes)).map_err(|error| match error {
                Error::File { what, .. } => file_kind::unreadable(path, WANTED, what),
                error => error,
            })?;
        let end_of_text = END_OF_TEXT.iter().find_map(|name| inner.token_to_id(name));
        Ok(Self { path: path.to_owned(), inner, end_of_text })
    }

    /// Sets the token after each document by its text.
    ///
    /// # Errors
    /// Fails if the tokenizer has no such token.
    pub fn with_end_of_text(self, token: &str) -> Result<Self> {
        let id = self.inner.token_to_id(token);
        let id = id.ok_or_else(|| Error::file(&self.path, format!("it has no token `{token}`")))?;
        Ok(Self { end_of_text: Some(id), ..self })
    }

    /// Returns the token after each document, if one is known.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text
    }

    /// Returns the token after each document.
    ///
    /// # Errors
    /// Fails if none is known.
    pub fn expect_end_of_text(&self) -> Result<u32> {
        self.end_of_text.ok_or_else(|| {
            let what = format!("it has none of the tokens {END_OF_TEXT:?}: name one with --end-of-text");
            Error::file(&self.path, what)
        })
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
    let _ = (tokenizer.vocabulary(), tokenizer.expect_end_of_text());
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
