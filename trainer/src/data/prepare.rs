//! Makes token files from text.

use super::text::TextFiles;
use super::tokens::TokenWriter;
use super::{TokenWidth, Tokenizer, text};
use crate::file_kind;
use std::fs;
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

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
    /// Number of links that were not followed: to folders, and to nothing.
    pub skipped_links: usize,
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
    /// validation. The end-of-text token follows each part, and the tokens that the model has at
    /// the start of a text come before it. Without validation, there is one file.
    /// Earlier files of these names stay until all is written.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written, is not UTF-8, or the tokenizer has tokens that
    /// exceed the width of the files. Fails if no document leaves a token for validation. All texts
    /// are examined before the first is encoded, and nothing is replaced then.
    pub fn run(&self, tokenizer: &Tokenizer) -> Result<Prepared> {
        self.run_with_progress(tokenizer, &mut |_, _| ())
    }

    /// Writes tokens as [`TokenizeOptions::run`] does. Calls `progress` with the number of
    /// documents that are done and of all, as both become known.
    ///
    /// # Errors
    /// Fails as [`TokenizeOptions::run`] does.
    pub fn run_with_progress(
        &self,
        tokenizer: &Tokenizer,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Prepared> {
        // A tokenizer without the token is refused before the first text is read.
        let (start, end) = (tokenizer.start_of_text(), tokenizer.expect_end_of_text()?);
        let held_back = (self.validation > 0.0).then_some(&self.validation_out);
        self.check_outputs(held_back, tokenizer)?;
        let TextFiles { paths, skipped_links } = text::documents(&self.text, &self.extensions)?;
        check_texts(&paths)?;
        let mut training = TokenWriter::create(&self.out)?;
        let mut validation = held_back.map(|path| TokenWriter::create(path)).transpose()?;
        let (mut done, mut longest) = (0, 0);
        // Memory holds the texts and tokens of one group, and not those of all documents.
        for group in paths.chunks(GROUP) {
            progress(done, paths.len());
            let texts =
                group.iter().map(|path| file_kind::read_text(path, "a text")).collect::<Result<_>>()?;
            for tokens in tokenizer.encode_all(texts)? {
                let (first, last) = text::hold_back(&tokens, self.validation);
                longest = longest.max(tokens.len());
                append(&mut training, first, start, end)?;
                validation.as_mut().map_or(Ok(()), |file| append(file, last, start, end))?;
            }
            done += group.len();
        }
        progress(done, paths.len());
        let found = Prepared {
            documents: paths.len(),
            training: training.count(),
            validation: validation.as_ref().map_or(0, TokenWriter::count),
            skipped_links,
        };
        self.check_found(&found, longest)?;
        // Both files are complete before either replaces an earlier one: they belong together.
        training.complete()?;
        validation.as_mut().map_or(Ok(()), TokenWriter::complete)?;
        validation.map_or(Ok(()), TokenWriter::publish)?;
        training.publish()?;
        Ok(found)
    }

    /// Checks that the files can hold the tokens, before work begins.
    fn check_outputs(&self, held_back: Option<&PathBuf>, tokenizer: &Tokenizer) -> Result<()> {
        if held_back == Some(&self.out) {
            let what = "the same file is named for training and validation: give another --validation-out";
            return Err(Error::file(&self.out, what));
        }
        let mut outputs = [&self.out].into_iter().chain(held_back);
        outputs
            .try_for_each(|path| TokenWidth::from_path(path)?.check_vocabulary(path, tokenizer.vocabulary()))
    }

    /// Checks that both files have tokens. `train` would refuse them otherwise.
    fn check_found(&self, found: &Prepared, longest: usize) -> Result<()> {
        if found.training == 0 {
            let what = "its documents leave no training tokens: they are empty, or --validation takes all";
            return Err(Error::file(&self.text, what));
        }
        if self.validation > 0.0 && found.validation == 0 {
            return Err(Error::file(
                &self.text,
                format!(
                    "no document is long enough for validation: the longest has {longest} tokens, of which \
                     --validation {} is less than one; give at least {:.4}, or 0 for none",
                    self.validation,
                    1.0 / longest as f64
                ),
            ));
        }
        Ok(())
    }
}

/// Number of files that an error names.
const NAMED: usize = 3;

/// Checks that all files are text in UTF-8. A wrong one is found before hours of work, not after.
fn check_texts(paths: &[PathBuf]) -> Result<()> {
    let mut wrong = Vec::new();
    for path in paths {
        let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
        if text::is_pointer(&bytes) {
            wrong.push(file_kind::unreadable(path, "a text", ""));
        } else if std::str::from_utf8(&bytes).is_err() {
            wrong.push(file_kind::unreadable(path, "a text", file_kind::not_utf8(&bytes)));
        }
    }
    let count = wrong.len();
    if count <= 1 {
        return wrong.pop().map_or(Ok(()), Err);
    }
    let named: Vec<_> = wrong.iter().take(NAMED).map(Error::to_string).collect();
    let more = if count > NAMED { format!("; and {} more", count - NAMED) } else { String::new() };
    Err(Error::invalid(format!("{count} of {} files are no text: {}{more}", paths.len(), named.join("; "))))
}

/// Appends a part of a document, between the tokens before it and the token after it.
fn append(file: &mut TokenWriter, tokens: &[u32], start: &[u32], end: u32) -> Result<()> {
    if tokens.is_empty() {
        return Ok(());
    }
    start.iter().chain(tokens).chain([&end]).try_for_each(|token| file.push(*token))
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
        let path = |name: &str| folder.path().join(name);
        fs::write(path("tokenizer.json"), WORDS).unwrap();
        fs::write(path("b.txt"), "two größer 4 two").unwrap();
        fs::write(path("a.txt"), "one drei").unwrap();
        fs::write(path("c.txt"), "").unwrap();
        let tokenizer = Tokenizer::open(&path("tokenizer.json")).unwrap();
        assert_eq!((tokenizer.vocabulary(), tokenizer.end_of_text()), (6, Some(5)));
        let validation_out = TokenizeOptions::validation_beside(&path("tokens.u8"));
        assert_eq!(validation_out, path("tokens-validation.u8"));
        let (text, extensions) = (folder.path().to_owned(), vec!["txt".to_owned()]);
        let half =
            TokenizeOptions { text, extensions, validation: 0.5, out: path("tokens.u8"), validation_out };
        let prepared = half.run(&tokenizer).unwrap();
        assert_eq!(prepared, Prepared { documents: 3, training: 5, validation: 5, skipped_links: 0 });
        assert_eq!(tokens(&path("tokens.u8")), [0, 5, 1, 3, 5]);
        assert_eq!(tokens(&path("tokens-validation.u8")), [2, 5, 4, 1, 5]);
        let unsplit = TokenizeOptions { validation: 0.0, out: path("all.u16"), ..half };
        assert_eq!(unsplit.run(&tokenizer).unwrap().training, 8);
        assert_eq!(tokens(&path("all.u16")), [0, 2, 5, 1, 3, 4, 1, 5]);
        assert_eq!(tokenizer.decode(&[0, 3, 5]).unwrap(), "one größer");
    }

    /// Options for the texts of a folder with a tokenizer, and the tokenizer.
    fn options(folder: &Path, out: &str) -> (TokenizeOptions, Tokenizer) {
        fs::write(folder.join("tokenizer.json"), WORDS).unwrap();
        let options = TokenizeOptions {
            text: folder.to_owned(),
            extensions: vec!["txt".to_owned()],
            validation: 0.5,
            out: folder.join(out),
            validation_out: folder.join(format!("validation-{out}")),
        };
        (options, Tokenizer::open(&folder.join("tokenizer.json")).unwrap())
    }

    #[test]
    fn failed_run_leaves_earlier_files_and_names_texts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (options, tokenizer) = options(folder.path(), "t.u8");
        fs::write(path("a.txt"), "one drei").unwrap();
        options.run(&tokenizer).unwrap();
        let previous = [fs::read(path("t.u8")).unwrap(), fs::read(path("validation-t.u8")).unwrap()];
        let files = || fs::read_dir(folder.path()).unwrap().count();
        fs::write(path("b.txt"), "two two two two").unwrap();
        for (contents, words) in [
            (&b"two \xff"[..], "byte 4 is 0xff, which is not UTF-8"),
            (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of git-LFS"),
        ] {
            fs::write(path("z.txt"), contents).unwrap();
            let count = files();
            let error = options.run(&tokenizer).unwrap_err().to_string();
            assert!(error.contains("z.txt") && error.contains(words), "{error}");
            assert_eq!(
                [fs::read(path("t.u8")).unwrap(), fs::read(path("validation-t.u8")).unwrap()],
                previous
            );
            assert_eq!(files(), count, "nothing is left");
        }
        fs::write(path("y.txt"), b"\xfe").unwrap();
        let error = options.run(&tokenizer).unwrap_err().to_string();
        assert!(error.starts_with("2 of 4 files are no text: "), "{error}");
        assert!(error.contains("y.txt") && error.contains("z.txt"), "{error}");
    }

    #[test]
    fn documents_too_short_for_validation_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (options, tokenizer) = options(folder.path(), "t.u8");
        fs::write(folder.path().join("a.txt"), "one drei two").unwrap();
        let tenth = TokenizeOptions { validation: 0.1, ..options.clone() };
        let error = tenth.run(&tokenizer).unwrap_err().to_string();
        assert!(error.contains("the longest has 3 tokens") && error.contains("at least 0.3333"), "{error}");
        assert!(!tenth.out.exists());
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let error = options.run(&tokenizer).unwrap_err().to_string();
        assert!(error.contains("no training tokens"), "{error}");
        let same = TokenizeOptions { validation_out: options.out.clone(), ..options };
        let error = same.run(&tokenizer).unwrap_err().to_string();
        assert!(error.contains("another --validation-out"), "{error}");
    }

    #[test]
    fn vocabulary_beyond_the_width_is_refused_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, WORDS.replace("\"?\": 4}", "\"?\": 4, \"last\": 65536}")).unwrap();
        fs::write(folder.path().join("a.txt"), "one").unwrap();
        let tokenizer = Tokenizer::open(&path).unwrap();
        let out = |name: &str| TokenizeOptions {
            text: folder.path().to_owned(),
            extensions: vec!["txt".to_owned()],
            validation: 0.0,
            out: folder.path().join(name),
            validation_out: PathBuf::new(),
        };
        for name in ["t.bin", "t.u16", "t.u8"] {
            let error = out(name).run(&tokenizer).unwrap_err().to_string();
            assert!(error.contains("a vocabulary of 65537") && error.contains(".u32 has four"), "{error}");
            assert!(!out(name).out.exists(), "{name}");
        }
        assert_eq!(out("t.u32").run(&tokenizer).unwrap().training, 2);
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
