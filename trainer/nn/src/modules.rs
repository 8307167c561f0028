//! Neural network modules with explicit forward and backward.
//!
//! A module's `forward` saves values on the tape of the [`Pass`], and its `backward` restores them.
//! `backward` receives the gradient of the loss with respect to the output, and returns the
//! gradient with respect to the input. It adds to the gradients of its parameters, in the reverse
//! order of their use in forward.

mod activation_checkpoint;
mod attention;
mod containers;
mod cross_entropy;
mod dropout;
mod embedding;
mod gelu;
mod grad_check;
mod linear;
mod linear_init;
mod norm;
mod query_key_norm;
mod rope;
mod swiglu;

pub use crate::modules::activation_checkpoint::ActivationCheckpoint;
pub use crate::modules::containers::{Residual, Sequential};
pub use crate::modules::linear_init::LinearInit;
pub use attention::{
    Attention, ChunkExchange, KvBlock, KvBlocks, KvCache, KvSource, LocalRows, SequenceKv, chunk_count,
    row_positions, sequence_count, set_kv_source,
};
pub use cross_entropy::CrossEntropy;
pub use cross_entropy::check_targets;
pub use dropout::{Dropout, RngStream};
pub use embedding::Embedding;
pub use gelu::Gelu;
pub use grad_check::{GradCheck, random_values, to_f64};
pub use linear::Linear;
pub use norm::Norm;
pub use query_key_norm::QueryKeyNorm;
pub use rope::{Llama3Scaling, RopeConfig, RopeScaling, RotaryEmbedding, YarnScaling};
pub use swiglu::SwiGlu;

use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Part of a model that maps rows of features to rows of features.
pub trait Module: Send {
    /// Computes the output for `input`.
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    ///
    /// # Panics
    /// May panic for an input of another shape than the module has.
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor>;

    /// Computes the gradient with respect to the input, from the gradient with respect to the
    /// output.
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    ///
    /// # Panics
    /// May panic for a gradient of another shape than the output, or without a forward before.
    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor>;
}
