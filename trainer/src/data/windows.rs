//! Sequences of one length from concatenated documents.

use super::{SequenceChunk, TokenSource};
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

    /// Examines part `rank` of `ranks` parts of the tokens; see [`TokenSource::examine`].
    ///
    /// # Errors
    /// Fails if a file cannot be read, or a token exceeds the vocabulary.
    pub fn examine(&self, rank: usize, ranks: usize, examined: &mut dyn FnMut(usize, usize)) -> Result<()> {
        self.tokens.examine(rank, ranks, examined)
    }

    /// Returns a chunk of each sample with these numbers.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or sequences cannot be split evenly.
    pub fn batch(&self, samples: &[u64], chunk: SequenceChunk) -> Result<TokenBatch> {
        let length = chunk.length(self.sequence)?;
        let positions: Vec<_> = (0..length).map(|row| chunk.position(row, length)).collect();
        // Tokens between the first position and the last target.
        let (first, last) = (positions[0], positions[length - 1]);
        let mut window = vec![0; last + 2 - first];
        let mut batch = TokenBatch { sequence: length, ..TokenBatch::default() };
        for &sample in samples {
            self.tokens.read(sample as usize * self.sequence + first, &mut window)?;
            batch.inputs.extend(positions.iter().map(|position| window[position - first]));
            batch.targets.extend(positions.iter().map(|position| window[position - first + 1]));
        }
        Ok(batch)
    }
}
