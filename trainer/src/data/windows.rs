//! Documents packed into windows of one length.

use super::Tokens;
use crate::error::{Error, Result};

/// Windows into a row of tokens: each sample is `sequence` tokens and the one after each of them, whatever document
/// they belong to. Every token but the first is a target once.
pub struct Windows {
    tokens: Box<dyn Tokens>,
    sequence: usize,
}

/// Sequences of one length, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// Tokens to see.
    pub inputs: Vec<u32>,
    /// The token that follows each of them.
    pub targets: Vec<u32>,
    /// Tokens of each sequence.
    pub sequence: usize,
}

impl Windows {
    /// Windows of `sequence` tokens.
    ///
    /// # Errors
    /// If there is not one.
    pub fn new(tokens: impl Tokens + 'static, sequence: usize) -> Result<Self> {
        let windows = Self { tokens: Box::new(tokens), sequence };
        if sequence == 0 || windows.count() == 0 {
            let count = windows.tokens.count();
            return Err(Error::illegal(format!("{count} tokens do not make one window of {sequence} + 1")));
        }
        Ok(windows)
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        (self.tokens.count().saturating_sub(1) / self.sequence.max(1)) as u64
    }

    /// The samples of these numbers.
    ///
    /// # Errors
    /// Of files.
    pub fn batch(&self, samples: &[u64]) -> Result<TokenBatch> {
        let mut batch = TokenBatch { sequence: self.sequence, ..TokenBatch::default() };
        let mut window = vec![0; self.sequence + 1];
        for &sample in samples {
            self.tokens.copy(sample as usize * self.sequence, &mut window)?;
            batch.inputs.extend(&window[..self.sequence]);
            batch.targets.extend(&window[1..]);
        }
        Ok(batch)
    }
}
