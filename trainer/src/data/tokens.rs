//! Token sequences in memory or in files.

use super::token_layout::TokenLayout;
use crate::error::{Error, Result};
use crate::file_kind;
use crate::output_file::OutputFile;
use std::path::{Path, PathBuf};
use unisono_transports::sys::mapped_file::MappedFile;

/// Sequence of tokens, with documents one after the other.
pub trait TokenSource: Send + Sync {
    /// Returns the number of tokens.
    fn count(&self) -> usize;

    /// Copies the tokens from `start` on to `into`.
    ///
    /// # Errors
    /// Fails if the range is not inside, the file cannot be read, or a token exceeds the
    /// vocabulary.
    fn read(&self, start: usize, into: &mut [u32]) -> Result<()>;
}

impl TokenSource for Vec<u16> {
    fn count(&self) -> usize {
        self.len()
    }

    fn read(&self, start: usize, into: &mut [u32]) -> Result<()> {
        let found = self.get(start..start + into.len());
        let found = found.ok_or_else(|| Error::invalid(format!("token {start} of {}", self.len())))?;
        into.iter_mut().zip(found).for_each(|(into, &token)| *into = u32::from(token));
        Ok(())
    }
}

/// Size of each token in a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// For vocabularies up to 256.
    One = 1,
    /// For vocabularies up to 65,536.
    Two = 2,
    /// For any vocabulary.
    Four = 4,
}

impl TokenWidth {
    /// Returns the width from the file extension: `.u8`, `.u16`, `.u32`, or `.bin` for two bytes,
    /// as other tools write it.
    ///
    /// # Errors
    /// Fails for any other extension.
    pub fn from_path(path: &Path) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("u8") => Ok(Self::One),
            Some("u16" | "bin") => Ok(Self::Two),
            Some("u32") => Ok(Self::Four),
            Some("idx") => Err(Error::file(path, "an index of Megatron: name the .bin file beside it")),
            _ => Err(Error::file(path, "a token file ends in .u8, .u16, .u32 or .bin (two bytes)")),
        }
    }

    /// Checks that every token of a vocabulary fits in this width.
    ///
    /// # Errors
    /// Names the file at `path`, both sizes and the width that fits.
    pub(crate) fn check_vocabulary(self, path: &Path, vocabulary: usize) -> Result<()> {
        let (width, most) = (self as usize, 1u64 << (8 * self as usize));
        if vocabulary as u64 <= most {
            return Ok(());
        }
        let fitting = if vocabulary <= 1 << 16 { ".u16 has two" } else { ".u32 has four" };
        Err(Error::file(
            path,
            format!(
                "a vocabulary of {vocabulary} does not fit in {width} bytes per token, which have {most} values: \
                 {fitting}; `unisono-train prepare` writes it"
            ),
        ))
    }
}

/// File of little-endian tokens, memory-mapped. They may stand alone, behind the header of llm.c,
/// or beside an index of Megatron.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    mapped: MappedFile,
    layout: TokenLayout,
    vocabulary: u32,
}

impl TokenFile {
    /// Maps the file at `path`, whose tokens must be below `vocabulary`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, holds no tokens or is damaged, as far as its size and
    /// header show. Fails if the vocabulary does not fit in the width of its tokens.
    pub fn open(path: &Path, vocabulary: u32) -> Result<Self> {
        TokenWidth::from_path(path)?;
        let mapped =
            MappedFile::open(path).map_err(|error| file_kind::unreadable(path, "token file", error))?;
        let layout = TokenLayout::of(path, &mapped)?;
        layout.width.check_vocabulary(path, vocabulary as usize)?;
        Ok(Self { path: path.to_owned(), mapped, layout, vocabulary })
    }

    /// Writes tokens to a file, with the width of its extension. It replaces an earlier file when
    /// it is complete.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or a token exceeds the width.
    pub fn write(path: &Path, tokens: impl IntoIterator<Item = u32>) -> Result<()> {
        let mut writer = TokenWriter::create(path)?;
        tokens.into_iter().try_for_each(|token| writer.push(token))?;
        writer.publish()
    }

    /// Decodes `bytes`, which begin with token number `start`.
    fn decode(&self, start: usize, bytes: &[u8], into: &mut [u32]) -> Result<()> {
        for (index, (token, bytes)) in
            into.iter_mut().zip(bytes.chunks_exact(self.layout.width as usize)).enumerate()
        {
            *token = bytes.iter().rev().fold(0, |token, &byte| token << 8 | u32::from(byte));
            if *token >= self.vocabulary {
                let what =
                    format!("token {} is {token}; the vocabulary has {}", start + index, self.vocabulary);
                return Err(Error::file(&self.path, what));
            }
        }
        Ok(())
    }
}

impl TokenSource for TokenFile {
    fn count(&self) -> usize {
        self.layout.count
    }

    fn read(&self, start: usize, into: &mut [u32]) -> Result<()> {
        let width = self.layout.width as usize;
        let mut bytes = [0; READ_TOKENS * size_of::<u32>()];
        for (piece, into) in into.chunks_mut(READ_TOKENS).enumerate() {
            let (start, bytes) = (start + piece * READ_TOKENS, &mut bytes[..into.len() * width]);
            let offset = self.layout.start + start * width;
            self.mapped.read_at(offset, bytes).map_err(|error| Error::file(&self.path, error))?;
            self.decode(start, bytes, into)?;
        }
        Ok(())
    }
}

/// Token file under construction. An earlier file of its name stays until it is complete.
pub(crate) struct TokenWriter {
    file: OutputFile,
    width: TokenWidth,
    count: usize,
}

impl TokenWriter {
    /// Creates the file, with the token width of its extension.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        Ok(Self { width: TokenWidth::from_path(path)?, file: OutputFile::create(path)?, count: 0 })
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: u32) -> Result<()> {
        let (bytes, width) = (token.to_le_bytes(), self.width as usize);
        let (kept, dropped) = bytes.split_at(width);
        if dropped.iter().any(|&byte| byte > 0) {
            let what = format!("token {token} does not fit in {width} bytes: .u32 has four");
            return Err(Error::file(self.file.path(), what));
        }
        self.count += 1;
        self.file.write_all(kept)
    }

    /// Returns the number of tokens.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Waits until all tokens are on disk.
    pub(crate) fn complete(&mut self) -> Result<()> {
        self.file.complete()
    }

    /// Gives the complete file its name.
    pub(crate) fn publish(self) -> Result<()> {
        self.file.publish()
    }
}

/// Reads the file at `path` as tokens, and windows of it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(path: &Path) {
    use crate::data::{SequenceChunk, TokenWindows};
    let vocabulary = 200;
    let Ok(file) = TokenFile::open(path, vocabulary) else { return };
    let Ok(windows) = TokenWindows::new(file, 3) else { return };
    let samples: Vec<u64> = (0..windows.count()).collect();
    if let Ok(batch) = windows.batch(&samples, SequenceChunk::WHOLE) {
        assert!(batch.inputs.iter().chain(&batch.targets).all(|&token| token < vocabulary));
    }
}

/// Number of tokens decoded at once.
const READ_TOKENS: usize = 1024;
