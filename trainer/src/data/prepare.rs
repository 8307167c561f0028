//! Makes token files from text.

use super::tokens::TokenWriter;
use super::{Tokenizer, text};
use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Text and its destination.
#[derive(Clone, Debug)]
pub struct TokenizeOptions {
    /// File, or folder with text files.
    pub text: PathBuf,
    /// Extensions of the text files to read.
    pub extensions: Vec<String>,
    /// Fraction of each document for validation.
    pub validation: f64,
    /// File of training tokens.
    pub out: PathBuf,
    /// File of validation tokens.
    pub validation_out: PathBuf,
}

/// Numbers of a prepared data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Number of documents.
    pub documents: usize,
    /// Number of training tokens.
    pub training: usize,
    /// Number of validation tokens.
    pub validation: usize,
}

/// Number of documents that are encoded at once.
const GROUP: usize = 64;

impl TokenizeOptions {
    /// Returns the usual file of validation tokens, beside that of training tokens.
    pub fn validation_beside(out: &Path) -> PathBuf {
        let [stem, extension] = [out.file_stem(), out.extension()]
            .map(|part| part.unwrap_or_default().to_string_lossy().into_owned());
        out.with_file_name(format!("{stem}-validation.{extension}"))
    }

    /// Writes the tokens of all documents in path order. The last part of each document is for
    /// validation. The end-of-text token follows each part. Without validation, there is one file.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written, is not UTF-8, or a token exceeds the width of the
    /// files.
    pub fn run(&self, tokenizer: &Tokenizer) -> Result<Prepared> {
        let (end, paths) = (tokenizer.expect_end_of_text()?, text::documents(&self.text, &self.extensions)?);
        let mut training = TokenWriter::create(&self.out)?;
        let mut validation =
            (self.validation > 0.0).then(|| TokenWriter::create(&self.validation_out)).transpose()?;
        let read = |path: &PathBuf| fs::read_to_string(path).map_err(|error| Error::file(path, error));
        for group in paths.chunks(GROUP) {
            let texts = group.iter().map(read).collect::<Result<Vec<_>>>()?;
            for tokens in tokenizer.encode_all(texts)? {
                let (first, last) = text::hold_back(&tokens, self.validation);
                append(&mut training, first, end)?;
                validation.as_mut().map_or(Ok(()), |file| append(file, last, end))?;
            }
        }
        let validation = validation.map_or(Ok(0), TokenWriter::finish)?;
        Ok(Prepared { documents: paths.len(), training: training.finish()?, validation })
    }
}

/// Appends a part of a document, and the token after it.
fn append(file: &mut TokenWriter, tokens: &[u32], end: u32) -> Result<()> {
    if tokens.is_empty() {
        return Ok(());
    }
    tokens.iter().chain([&end]).try_for_each(|token| file.push(*token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{TokenFile, TokenSource};

    /// Tokenizer of words, in the form of Hugging Face's library.
    const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 5, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "drei": 2, "größer": 3, "?": 4},
            "unk_token": "?"}}"#;

    fn tokens(path: &Path) -> Vec<u32> {
        let file = TokenFile::open(path, 6).unwrap();
        let mut tokens = vec![0; file.count()];
        file.read(0, &mut tokens).unwrap();
        tokens
    }

    #[test]
    fn documents_become_training_and_validation_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("tokenizer.json"), WORDS).unwrap();
        fs::write(at("b.txt"), "two größer 4 two").unwrap();
        fs::write(at("a.txt"), "one drei").unwrap();
        fs::write(at("c.txt"), "").unwrap();
        let tokenizer = Tokenizer::open(&at("tokenizer.json")).unwrap();
        assert_eq!((tokenizer.vocabulary(), tokenizer.end_of_text()), (6, Some(5)));
        let validation_out = TokenizeOptions::validation_beside(&at("tokens.u8"));
        assert_eq!(validation_out, at("tokens-validation.u8"));
        let (text, extensions) = (folder.path().to_owned(), vec!["txt".to_owned()]);
        let half =
            TokenizeOptions { text, extensions, validation: 0.5, out: at("tokens.u8"), validation_out };
        let prepared = half.run(&tokenizer).unwrap();
        assert_eq!(prepared, Prepared { documents: 3, training: 5, validation: 5 });
        assert_eq!(tokens(&at("tokens.u8")), [0, 5, 1, 3, 5]);
        assert_eq!(tokens(&at("tokens-validation.u8")), [2, 5, 4, 1, 5]);
        let all = TokenizeOptions { validation: 0.0, out: at("all.u16"), ..half };
        assert_eq!(all.run(&tokenizer).unwrap().training, 8);
        assert_eq!(tokens(&at("all.u16")), [0, 2, 5, 1, 3, 4, 1, 5]);
        assert_eq!(tokenizer.decode(&[0, 3, 5]).unwrap(), "one größer");
    }

    #[test]
    fn missing_end_of_text_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, WORDS.replace("</s>", "<end>")).unwrap();
        let tokenizer = || Tokenizer::open(&path).unwrap();
        let error = tokenizer().expect_end_of_text().unwrap_err().to_string();
        assert!(error.contains("name one with --end-of-text"), "{error}");
        assert_eq!(tokenizer().with_end_of_text("<end>").unwrap().end_of_text(), Some(5));
        let error = tokenizer().with_end_of_text("<eod>").map(drop).unwrap_err().to_string();
        assert!(error.ends_with("it has no token `<eod>`"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(Tokenizer::open(&path).is_err());
    }
}
