//! Text as bytes: a tokenizer without a vocabulary file, for the files of a folder.

use crate::file_kind;
use std::fs;
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

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
    /// Number of links that were not followed.
    pub skipped_links: usize,
}

/// Text files below a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextFiles {
    /// Paths of the files, in order.
    pub paths: Vec<PathBuf>,
    /// Number of links to folders, which are not followed, and of links to nothing.
    pub skipped_links: usize,
}

/// Reads a file, or all files below a folder with one of `extensions`, in path order. The last
/// fraction `validation` of each document is for validation.
///
/// # Errors
/// Fails if a file cannot be read, or there is no text.
pub fn read(path: &Path, extensions: &[String], validation: f64) -> Result<Text> {
    let TextFiles { paths, skipped_links } = documents(path, extensions)?;
    let mut text = Text { documents: paths.len(), skipped_links, ..Text::default() };
    for path in &paths {
        let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
        if is_pointer(&bytes) {
            return Err(file_kind::unreadable(path, "a text", ""));
        }
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

/// Returns true for a pointer of git-LFS in place of a text, which would be trained on as text.
pub(super) fn is_pointer(text: &[u8]) -> bool {
    text.starts_with(b"version https://git-lfs")
}

/// Returns the path of a file, or of all files below a folder with one of `extensions`, in order.
/// Capital and small letters in extensions are equal.
///
/// # Errors
/// Fails if a folder cannot be read, or there is no file.
pub fn documents(path: &Path, extensions: &[String]) -> Result<TextFiles> {
    let mut found = TextFiles::default();
    if path.is_dir() {
        collect(path, extensions, &mut found)?
    } else {
        found.paths.push(path.to_owned())
    }
    // The system lists a folder in any order, and all ranks must number the same samples.
    found.paths.sort();
    if found.paths.is_empty() {
        let links = match found.skipped_links {
            0 => String::new(),
            count => format!("; links that were not followed, to folders or to nothing: {count}"),
        };
        return Err(Error::file(path, format!("no file in it ends in one of {extensions:?}{links}")));
    }
    Ok(found)
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

/// Collects the files below `folder`, also behind links to files. Skips hidden files, and folders
/// tagged as caches (bford.info/cachedir) such as cargo's `target`. Counts links to folders, which
/// may lead anywhere, and links to nothing.
fn collect(folder: &Path, extensions: &[String], found: &mut TextFiles) -> Result<()> {
    if folder.join("CACHEDIR.TAG").exists() {
        return Ok(());
    }
    let failed = |error| Error::file(folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        let file_extension = path.extension().unwrap_or_default();
        let is_wanted = extensions.iter().any(|extension| file_extension.eq_ignore_ascii_case(extension));
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        } else if kind.is_dir() {
            collect(&path, extensions, found)?;
        } else if kind.is_symlink() && (path.is_dir() || is_wanted && !path.exists()) {
            found.skipped_links += 1;
        } else if is_wanted && path.is_file() {
            found.paths.push(path);
        }
    }
    Ok(())
}
