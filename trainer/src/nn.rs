//! Modules with an explicit forward and an explicit backward.
//!
//! A module's `forward` saves on the tape of the [`Pass`] what its `backward` takes back. `backward` gets the gradient of the
//! loss with respect to its output, adds to the gradients of its parameters, in the reverse of the order in which forward used
//! them, and returns the gradient with respect to its input. Of several micro-batches, units compute all before the next unit
//! does: modules that are units, or made of such, say so in `forward_each` and `backward_each`.

mod attention;
mod containers;
mod conv2d;
mod cross_entropy;
mod device_norm;
mod dropout;
mod embedding;
mod gelu;
#[cfg(test)]
pub(crate) mod grad_check;
mod layer_norm;
mod linear;
mod linear_init;
mod rms_norm;
mod swiglu;
pub(crate) mod vector;

pub use crate::nn::containers::{ActivationCheckpoint, Residual, Sequential, UnitModule};
pub use crate::nn::linear_init::LinearInit;
pub use attention::CausalAttention;
pub use conv2d::{Conv2d, Conv2dShape};
pub use cross_entropy::CrossEntropy;
pub(crate) use cross_entropy::{row_grad, sum_losses};
pub use dropout::{Dropout, RngStream};
pub use embedding::Embedding;
pub use gelu::Gelu;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use rms_norm::RmsNorm;
pub use swiglu::SwiGlu;

use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;

/// A part of a model that takes rows of features to rows of features.
pub trait Module: Send {
    /// The output for `input`.
    ///
    /// # Errors
    /// Of collectives.
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor>;

    /// The gradient with respect to the input, from that with respect to the output.
    ///
    /// # Errors
    /// Of collectives.
    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor>;

    /// The outputs of all micro-batches of the pass.
    ///
    /// # Errors
    /// Of collectives.
    fn forward_each(&self, pass: &mut Pass<'_>, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        pass.each(inputs, |pass, input| self.forward(pass, input))
    }

    /// [`Module::backward`] of all of them, in the same order: gradients add up as they do depth first.
    ///
    /// # Errors
    /// Of collectives.
    fn backward_each(&self, pass: &mut Pass<'_>, gradients: Vec<Tensor>) -> Result<Vec<Tensor>> {
        pass.each(gradients, |pass, gradient| self.backward(pass, gradient))
    }
}
