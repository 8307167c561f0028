//! Sequences of one length from concatenated documents.

use super::TokenSource;
use unisono_nn::batch::{PADDING, TokenBatch};
use unisono_nn::error::{Error, Result};
use unisono_parallel::context_parallel::SequenceChunk;

/// Windows over a token sequence. Each sample has `sequence` inputs and the token after each of
/// them, across document boundaries. Every token but the first is a target once.
pub(crate) struct TokenWindows {
    tokens: Box<dyn TokenSource>,
    sequence: usize,
}

impl TokenWindows {
    /// Creates windows of `sequence` tokens.
    ///
    /// # Errors
    /// Fails if there are too few tokens for one window.
    pub(crate) fn new(tokens: impl TokenSource + 'static, sequence: usize) -> Result<Self> {
        let windows = Self { tokens: Box::new(tokens), sequence };
        if sequence == 0 || windows.count() == 0 {
            let count = windows.tokens.count();
            return Err(Error::invalid(format!("{count} tokens do not make one window of {sequence} + 1")));
        }
        Ok(windows)
    }

    /// Returns the number of samples.
    pub(crate) fn count(&self) -> u64 {
        (self.tokens.count().saturating_sub(1) / self.sequence.max(1)) as u64
    }

    /// Examines part `rank` of `ranks` parts of the tokens; see [`TokenSource::examine`].
    ///
    /// # Errors
    /// Fails if a file cannot be read, or a token exceeds the vocabulary.
    pub(crate) fn examine(
        &self,
        rank: usize,
        ranks: usize,
        examined: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        self.tokens.examine(rank, ranks, examined)
    }

    /// Returns a chunk of each sample with these numbers. Padding of the chunk has the input 0 and
    /// the target [`PADDING`].
    ///
    /// # Errors
    /// Fails if a file cannot be read, or sequences cannot be split evenly.
    pub(crate) fn batch(&self, samples: &[u64], chunk: SequenceChunk) -> Result<TokenBatch> {
        let length = chunk.length(self.sequence)?;
        // Positions ascend, so that padding is at the end.
        let positions = (0..length).map(|row| chunk.position(row, length));
        let positions: Vec<_> = positions.take_while(|&position| position < self.sequence).collect();
        // Tokens between the first position and the last target; none if all rows are padding.
        let first = positions.first().copied().unwrap_or(0);
        let mut window = vec![0; positions.last().map_or(0, |last| last + 2 - first)];
        let mut batch = TokenBatch { sequence: length, ..TokenBatch::default() };
        for (&sample, rows) in samples.iter().zip((1..).map(|number: usize| number * length)) {
            self.tokens.read(sample as usize * self.sequence + first, &mut window)?;
            batch.inputs.extend(positions.iter().map(|position| window[position - first]));
            batch.targets.extend(positions.iter().map(|position| window[position - first + 1]));
            batch.inputs.resize(rows, 0);
            batch.targets.resize(rows, PADDING);
        }
        Ok(batch)
    }
}
