//! Micro-batches of data.

use crate::error::{Error, Result};
use std::any::{Any, type_name};
use std::sync::Arc;

/// Target of positions after the end of a sequence, which fill it up. No vocabulary has this token.
pub const PADDING: u32 = u32::MAX;

/// Batch of sequences of one length, or of chunks of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// Input tokens.
    pub inputs: Vec<u32>,
    /// Target of each input: the token after it, or [`PADDING`].
    pub targets: Vec<u32>,
    /// Tokens per sequence or chunk.
    pub sequence: usize,
}

/// Micro-batch with data of any type: a [`TokenBatch`] for a language model, a type of the user's
/// own for another model. Copies share the data.
#[derive(Clone, Debug)]
pub struct Batch {
    data: Arc<dyn Any + Send + Sync>,
    type_name: &'static str,
}

impl Batch {
    /// Creates a micro-batch with this data.
    pub fn new<T: Any + Send + Sync>(data: T) -> Self {
        Self { data: Arc::new(data), type_name: type_name::<T>() }
    }

    /// Creates a [`TokenBatch`] from copies of its tokens.
    pub fn tokens(inputs: &[u32], targets: &[u32], sequence: usize) -> Self {
        Self::new(TokenBatch { inputs: inputs.to_vec(), targets: targets.to_vec(), sequence })
    }

    /// Returns the data.
    ///
    /// # Errors
    /// [`Error::Invalid`] names both types if the data has another one.
    pub fn get<T: Any>(&self) -> Result<&T> {
        let mismatch = || format!("a batch of type {} for a model of {}", self.type_name, type_name::<T>());
        self.data.downcast_ref().ok_or_else(|| Error::invalid(mismatch()))
    }
}
