//! Documents packed into windows of one length.

use super::TokenSource;
use crate::error::{Error, Result};

/// Windows into a row of tokens: each sample is `sequence` tokens and the one after each of them, whatever document
/// they belong to. Every token but the first is a target once.
pub struct TokenWindows {
    tokens: Box<dyn TokenSource>,
    sequence: usize,
}

/// Sequences of one length, or chunks of such, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// Tokens to see.
    pub inputs: Vec<u32>,
    /// The token that follows each of them.
    pub targets: Vec<u32>,
    /// Tokens of each sequence, or chunk.
    pub sequence: usize,
}

/// The part of each sequence that a rank sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceChunk {
    /// Which.
    pub index: usize,
    /// Of how many equal ones.
    pub count: usize,
}

impl SequenceChunk {
    /// All of it.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

impl TokenWindows {
    /// Windows of `sequence` tokens.
    ///
    /// # Errors
    /// If there is not one.
    pub fn new(tokens: impl TokenSource + 'static, sequence: usize) -> Result<Self> {
        let windows = Self { tokens: Box::new(tokens), sequence };
        if sequence == 0 || windows.count() == 0 {
            let count = windows.tokens.count();
            return Err(Error::invalid(format!("{count} tokens do not make one window of {sequence} + 1")));
        }
        Ok(windows)
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        (self.tokens.count().saturating_sub(1) / self.sequence.max(1)) as u64
    }

    /// A chunk of each of the samples of these numbers.
    ///
    /// # Errors
    /// Of files; if sequences cannot be cut so.
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
