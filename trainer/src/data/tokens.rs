//! Token sequences in memory or in files.

use super::token_layout::TokenLayout;
use crate::file_kind;
use crate::output_file::OutputFile;
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};
use unisono_transports::sys::mapped_file::MappedFile;

/// Sequence of tokens, with documents one after the other.
pub trait TokenSource: Send + Sync {
    /// Returns the number of tokens.
    fn count(&self) -> usize;

    /// Copies the tokens from `start` on to `target`.
    ///
    /// # Errors
    /// Fails if the range is not inside, the file cannot be read, or a token exceeds the
    /// vocabulary.
    fn read(&self, start: usize, target: &mut [u32]) -> Result<()>;

    /// Examines part `rank` of `ranks` parts of the tokens, so that one beyond the vocabulary is
    /// found before it is read. In a long file, only pieces all over it are examined. After each
    /// piece, `examined` gets the number of pieces up to its end, and the number of all pieces.
    ///
    /// # Errors
    /// Fails as [`TokenSource::read`] does.
    fn examine(&self, rank: usize, ranks: usize, examined: &mut dyn FnMut(usize, usize)) -> Result<()> {
        // Tokens that a program holds in memory are its own.
        let _ = (rank, ranks, examined);
        Ok(())
    }
}

impl TokenSource for Vec<u16> {
    fn count(&self) -> usize {
        self.len()
    }

    fn read(&self, start: usize, target: &mut [u32]) -> Result<()> {
        let found = self.get(start..start + target.len());
        let found = found.ok_or_else(|| Error::invalid(format!("token {start} of {}", self.len())))?;
        target.iter_mut().zip(found).for_each(|(token, &value)| *token = u32::from(value));
        Ok(())
    }
}

/// Size of each token in a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenWidth {
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
    pub(crate) fn from_path(path: &Path) -> Result<Self> {
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
    fn decode(&self, start: usize, bytes: &[u8], target: &mut [u32]) -> Result<()> {
        for (index, (token, bytes)) in
            target.iter_mut().zip(bytes.chunks_exact(self.layout.width as usize)).enumerate()
        {
            *token = bytes.iter().rev().fold(0, |token, &byte| token << 8 | u32::from(byte));
            if *token >= self.vocabulary {
                return Err(self.beyond_vocabulary(start + index, *token));
            }
        }
        Ok(())
    }

    fn beyond_vocabulary(&self, number: usize, token: u32) -> Error {
        let what = format!("token {number} is {token}; the vocabulary has {}", self.vocabulary);
        Error::file(&self.path, what)
    }
}

impl TokenSource for TokenFile {
    fn count(&self) -> usize {
        self.layout.count
    }

    fn read(&self, start: usize, target: &mut [u32]) -> Result<()> {
        let width = self.layout.width as usize;
        // Another process can write to a mapped file, so its bytes are copied and never borrowed.
        let mut bytes = [0; READ_TOKENS * size_of::<u32>()];
        for (piece, tokens) in target.chunks_mut(READ_TOKENS).enumerate() {
            let (start, bytes) = (start + piece * READ_TOKENS, &mut bytes[..tokens.len() * width]);
            let offset = self.layout.start + start * width;
            self.mapped.read_at(offset, bytes).map_err(|error| Error::file(&self.path, error))?;
            self.decode(start, bytes, tokens)?;
        }
        Ok(())
    }

    fn examine(&self, rank: usize, ranks: usize, examined: &mut dyn FnMut(usize, usize)) -> Result<()> {
        let width = self.layout.width as usize;
        // Every number of this width is a token of a full vocabulary.
        if u64::from(self.vocabulary) >= 1 << (8 * width) {
            return Ok(());
        }
        let tokens_per_piece = PIECE_BYTES / width;
        let pieces = self.layout.count.div_ceil(tokens_per_piece);
        let mut bytes = vec![0; PIECE_BYTES.min(self.layout.count * width)];
        for (number, piece) in examined_pieces(pieces).enumerate().skip(rank).step_by(ranks) {
            let start = piece * tokens_per_piece;
            let bytes = &mut bytes[..tokens_per_piece.min(self.layout.count - start) * width];
            let offset = self.layout.start + start * width;
            // Pieces are long, and the system reads ahead for this call, which the mapping does
            // less well.
            self.mapped.read_in_order(offset, bytes).map_err(|error| Error::file(&self.path, error))?;
            if let Some((index, token)) = first_beyond(bytes, self.layout.width, self.vocabulary) {
                return Err(self.beyond_vocabulary(start + index, token));
            }
            examined(number + 1, pieces.min(PIECES_MAX));
        }
        Ok(())
    }
}

/// Returns the pieces of a file that are examined: all of them, or some that are spread over it.
fn examined_pieces(pieces: usize) -> impl Iterator<Item = usize> {
    let count = pieces.min(PIECES_MAX);
    (0..count).map(move |number| number * pieces / count)
}

/// Returns the first token that is not below `vocabulary`, with its index.
fn first_beyond(bytes: &[u8], width: TokenWidth, vocabulary: u32) -> Option<(usize, u32)> {
    fn first(tokens: impl Iterator<Item = u32> + Clone, vocabulary: u32) -> Option<(usize, u32)> {
        // The largest token is found without a branch for each.
        let largest = tokens.clone().fold(0, u32::max);
        if largest < vocabulary { None } else { tokens.enumerate().find(|&(_, token)| token >= vocabulary) }
    }
    match width {
        TokenWidth::One => first(bytes.iter().map(|&byte| u32::from(byte)), vocabulary),
        TokenWidth::Two => {
            let pairs = bytes.as_chunks::<2>().0.iter();
            first(pairs.map(|&pair| u32::from(u16::from_le_bytes(pair))), vocabulary)
        }
        TokenWidth::Four => {
            first(bytes.as_chunks::<4>().0.iter().map(|&four| u32::from_le_bytes(four)), vocabulary)
        }
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
    use crate::data::TokenWindows;
    use unisono_parallel::context_parallel::SequenceChunk;
    let vocabulary = 200;
    let Ok(file) = TokenFile::open(path, vocabulary) else { return };
    let is_sound = (0..2).all(|rank| file.examine(rank, 2, &mut |_, _| ()).is_ok());
    let Ok(windows) = TokenWindows::new(file, 3) else { return };
    let samples: Vec<u64> = (0..windows.count()).collect();
    let batch = windows.batch(&samples, SequenceChunk::WHOLE);
    assert!(batch.is_ok() || !is_sound, "a file that was examined is read");
    if let Ok(batch) = batch {
        assert!(batch.inputs.iter().chain(&batch.targets).all(|&token| token < vocabulary));
    }
}

/// Number of tokens decoded at once.
const READ_TOKENS: usize = 1024;
/// Bytes of a piece that is examined at once.
const PIECE_BYTES: usize = 1 << 20;
/// Number of pieces of a file that are examined at most. They are read in a second or less if the
/// file is in memory, and in some seconds from a disk.
const PIECES_MAX: usize = 1024;
