//! Long rows of tokens, in memory or in files.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use unisono_transports::sys::mapped_file::MappedFile;

/// A row of tokens, documents one after the other.
pub trait TokenSource: Send + Sync {
    /// How many.
    fn count(&self) -> usize;

    /// Copies those from `start` on into `into`.
    ///
    /// # Errors
    /// Of files: not all inside, or tokens that no vocabulary of this size has.
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

/// Bytes of each token in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// Vocabularies up to 256.
    One = 1,
    /// Up to 65,536.
    Two = 2,
    /// Any.
    Four = 4,
}

impl TokenWidth {
    /// By the file's name: `.u8`, `.u16`, `.u32`; `.bin` has two bytes, as others write it.
    ///
    /// # Errors
    /// For any other extension.
    pub fn from_path(path: &Path) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("u8") => Ok(Self::One),
            Some("u16" | "bin") => Ok(Self::Two),
            Some("u32") => Ok(Self::Four),
            _ => Err(Error::file(path, "a token file ends in .u8, .u16, .u32 or .bin (two bytes)")),
        }
    }
}

/// Tokens in a file, little-endian and nothing else, mapped and read where they are asked for.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    mapped: MappedFile,
    width: TokenWidth,
    vocabulary: u32,
}

impl TokenFile {
    /// Maps the file at `path`, whose tokens are all below `vocabulary`.
    ///
    /// # Errors
    /// If it cannot be read or ends within a token.
    pub fn open(path: &Path, vocabulary: u32) -> Result<Self> {
        let width = TokenWidth::from_path(path)?;
        let mapped = MappedFile::open(path).map_err(|error| Error::file(path, error))?;
        let (bytes, each) = (mapped.bytes(), width as usize);
        if !bytes.is_multiple_of(each) {
            return Err(Error::file(path, format!("{bytes} bytes are no whole number of tokens of {each}")));
        }
        Ok(Self { path: path.to_owned(), mapped, width, vocabulary })
    }

    /// Writes tokens to a file of the width that its name says.
    ///
    /// # Errors
    /// If it cannot be written, or a token is too large for the width.
    pub fn write(path: &Path, tokens: impl IntoIterator<Item = u32>) -> Result<()> {
        let width = TokenWidth::from_path(path)? as usize;
        let failed = |error: std::io::Error| Error::file(path, error);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        for token in tokens {
            let bytes = token.to_le_bytes();
            let (kept, rest) = bytes.split_at(width);
            if rest.iter().any(|&byte| byte > 0) {
                return Err(Error::file(path, format!("token {token} does not fit in {width} bytes")));
            }
            file.write_all(kept).map_err(failed)?;
        }
        file.flush().map_err(failed)
    }

    /// Decodes `bytes`, which begin with token number `start`.
    fn decode(&self, start: usize, bytes: &[u8], into: &mut [u32]) -> Result<()> {
        for (index, (token, bytes)) in
            into.iter_mut().zip(bytes.chunks_exact(self.width as usize)).enumerate()
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
        self.mapped.bytes() / self.width as usize
    }

    fn read(&self, start: usize, into: &mut [u32]) -> Result<()> {
        let width = self.width as usize;
        let mut bytes = [0; READ_TOKENS * size_of::<u32>()];
        for (piece, into) in into.chunks_mut(READ_TOKENS).enumerate() {
            let (start, bytes) = (start + piece * READ_TOKENS, &mut bytes[..into.len() * width]);
            self.mapped.read_at(start * width, bytes).map_err(|error| Error::file(&self.path, error))?;
            self.decode(start, bytes, into)?;
        }
        Ok(())
    }
}

/// Tokens that are decoded at once.
const READ_TOKENS: usize = 1024;
