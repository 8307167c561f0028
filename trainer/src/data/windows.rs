//! Sequences of one length from concatenated documents.

use super::TokenSource;
use crate::error::{Error, Result};

/// Windows over a token sequence. Each sample has `sequence` inputs and the token after each of
/// them, across document boundaries. Every token but the first is a target once.
pub struct TokenWindows {
    tokens: Box<dyn TokenSource>,
    sequence: usize,
}

/// Batch of sequences of one length, or of chunks of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// Input tokens.
    pub inputs: Vec<u32>,
    /// Target of each input: the token after it.
    pub targets: Vec<u32>,
    /// Tokens per sequence or chunk.
    pub sequence: usize,
}

/// Part of each sequence that a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceChunk {
    /// Index of the chunk.
    pub index: usize,
    /// Number of equal chunks.
    pub count: usize,
}

impl SequenceChunk {
    /// The whole sequence.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns this chunk of part `part` of `parts` equal parts of the sequence.
    pub fn within(self, part: usize, parts: usize) -> Self {
        Self { index: part * self.count + self.index, count: parts * self.count }
    }
}

impl TokenWindows {
    /// Creates windows of `sequence` tokens.
    ///
    /// # Errors
    /// Fails if there are too few tokens for one window.
    pub fn new(tokens: impl TokenSource + 'static, sequence: usize) -> Result<Self> {
        let windows = Self { tokens: Box::new(tokens), sequence };
        if sequence == 0 || windows.count() == 0 {
            let count = windows.tokens.count();
            return Err(Error::invalid(format!("{count} tokens do not make one window of {sequence} + 1")));
        }
        Ok(windows)
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        (self.tokens.count().saturating_sub(1) / self.sequence.max(1)) as u64
    }

    /// Returns a chunk of each sample with these numbers.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or sequences cannot be split evenly.
    pub fn batch(&self, samples: &[u64], chunk: SequenceChunk) -> Result<TokenBatch> {
        let SequenceChunk { index: part, count: parts } = chunk;
        if !self.sequence.is_multiple_of(parts) || part >= parts {
            let what = format!("a sequence of {} has no chunk {part} of {parts} equal ones", self.sequence);
            return Err(Error::invalid(what));
        }
        let length = self.sequence / parts;
        let mut batch = TokenBatch { sequence: length, ..TokenBatch::default() };
        let mut window = vec![0; length + 1];
        for &sample in samples {
            self.tokens.read(sample as usize * self.sequence + part * length, &mut window)?;
            batch.inputs.extend(&window[..length]);
            batch.targets.extend(&window[1..]);
        }
        Ok(batch)
    }
}
