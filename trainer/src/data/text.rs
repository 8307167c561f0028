//! Text as bytes: a tokenizer without a vocabulary file, for the files of a folder.

use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Token after each document.
pub const END_OF_TEXT: u16 = 256;

/// Vocabulary size: bytes and [`END_OF_TEXT`].
pub const VOCAB_SIZE: u32 = 257;

/// Documents as tokens, each followed by [`END_OF_TEXT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Training tokens: the beginning of every document.
    pub training: Vec<u16>,
    /// Validation tokens: the end of every document.
    pub validation: Vec<u16>,
    /// Number of documents.
    pub documents: usize,
}

/// Reads a file, or all files below a folder with one of `extensions`, in path order. The last
/// fraction `validation` of each document is for validation.
///
/// # Errors
/// Fails if a file cannot be read, or there is no text.
pub fn read(path: &Path, extensions: &[String], validation: f64) -> Result<Text> {
    let paths = documents(path, extensions)?;
    let mut text = Text { documents: paths.len(), ..Text::default() };
    for path in &paths {
        let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
        let (training, validating) = hold_back(&bytes, validation);
        append(&mut text.training, training);
        append(&mut text.validation, validating);
    }
    Ok(text)
}

/// Splits a document into its start, for training, and the fraction `validation` at its end.
pub(super) fn hold_back<T>(document: &[T], validation: f64) -> (&[T], &[T]) {
    let held_back = (document.len() as f64 * validation) as usize;
    document.split_at(document.len().saturating_sub(held_back))
}

/// Returns the path of a file, or of all files below a folder with one of `extensions`, in order.
///
/// # Errors
/// Fails if a folder cannot be read, or there is no file.
pub fn documents(path: &Path, extensions: &[String]) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    if path.is_dir() {
        collect(path, extensions, &mut paths)?
    } else {
        paths.push(path.to_owned())
    }
    paths.sort();
    match paths.is_empty() {
        true => Err(Error::file(path, format!("no file in it ends in one of {extensions:?}"))),
        false => Ok(paths),
    }
}

/// Encodes text as tokens, without [`END_OF_TEXT`].
pub fn encode(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn append(tokens: &mut Vec<u16>, document: &[u8]) {
    if !document.is_empty() {
        tokens.extend(document.iter().map(|&byte| u16::from(byte)).chain([END_OF_TEXT]));
    }
}

/// Collects the files below `folder`. Skips hidden files, links, and folders tagged as caches
/// (bford.info/cachedir) such as cargo's `target`.
fn collect(folder: &Path, extensions: &[String], paths: &mut Vec<PathBuf>) -> Result<()> {
    if folder.join("CACHEDIR.TAG").exists() {
        return Ok(());
    }
    let failed = |error| Error::file(folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        let is_wanted = |extension: &String| path.extension().is_some_and(|own| own == extension.as_str());
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        } else if kind.is_dir() {
            collect(&path, extensions, paths)?;
        } else if kind.is_file() && extensions.iter().any(is_wanted) {
            paths.push(path);
        }
    }
    Ok(())
}
