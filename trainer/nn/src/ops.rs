//! Operations of modules, in host memory or on a GPU.
//!
//! A module calls the operations of its pass ([`Pass::ops`](crate::pass::Pass::ops)), so it has one
//! implementation. The list below has the contract of each operation. [`Host`] has a method of the
//! same name over slices. The function after `=` launches kernels over views of GPU memory. A call
//! dispatches once, for all elements.
//!
//! # Adding an operation
//!
//! Add a line to the list, a method of [`Host`] in `ops/host`, and a kernel of [`Compute`]. A GPU
//! without a kernel gets a function in `ops/device.rs` that returns `unsupported`.

pub(crate) mod device;
pub mod host;
mod operand;

pub use crate::ops::host::InstructionSets;
pub use crate::ops::host::{AttentionShape, Host, Rotation};
pub use crate::ops::operand::{
    HostTargets, LocalTargets, Mat, NOT_LOCAL, Operand, Placed, RowIndices, Values, ValuesMut,
};
pub use unisono_cuda::device::compute::{Activation, Norm as NormKind};

use crate::error::Result;
use std::ops::Range;
use unisono_cuda::device::compute::Compute;

/// Declares [`Ops`] and implements it for [`Host`] and [`Compute`]: each operand is converted to a
/// slice or to a view.
macro_rules! operations {
    ($($(#[$doc:meta])*
    fn $name:ident($($arg:ident: $kind:ty),*) -> Result<$output:ty> = $device:path;)*) => {
        /// Operations on operands that are all in host memory, or all in the memory of one GPU.
        ///
        /// They panic for other operands. The host has finished when an operation returns. A GPU
        /// enqueues it on its stream.
        pub trait Ops {
            $($(#[$doc])*
            ///
            /// # Errors
            /// Returns an error of the GPU driver, or an error that says which kernel is missing.
            fn $name(&self, $($arg: $kind),*) -> Result<$output>;)*
        }

        impl Ops for Host {
            $(fn $name(&self, $($arg: $kind),*) -> Result<$output> {
                Ok(Host::$name(self, $(Operand::host($arg)),*))
            })*
        }

        impl Ops for Compute {
            $(fn $name(&self, $($arg: $kind),*) -> Result<$output> {
                let output = $device(self, $(Operand::device($arg)),*)?;
                Ok(output)
            })*
        }
    };
}

operations! {
    /// Computes `output` = `alpha` · `left` · `right` + `beta` · `output`. With `beta` zero,
    /// `output` is not read.
    fn matmul(output: Mat<ValuesMut<'_>>, beta: f32, alpha: f32, left: Mat<Values<'_>>,
        right: Mat<Values<'_>>) -> Result<()>
        = device::matmul;

    /// Sets every row of `rows` to `row`.
    fn fill_rows(rows: ValuesMut<'_>, row: Values<'_>) -> Result<()> = Compute::fill_rows;

    /// Adds `row` to every row of `rows`.
    fn add_to_rows(rows: ValuesMut<'_>, row: Values<'_>) -> Result<()> = Compute::add_to_rows;

    /// Adds every row of `rows` to `sum`.
    fn add_rows(sum: ValuesMut<'_>, rows: Values<'_>) -> Result<()> = Compute::add_rows;

    /// Adds `values` to `sum`.
    fn add(sum: ValuesMut<'_>, values: Values<'_>) -> Result<()> = device::add;

    /// Multiplies `values` by `factor`.
    fn scale(values: ValuesMut<'_>, factor: f32) -> Result<()> = Compute::scale;

    /// Returns the sum of the elements, added in order in 64 bits. A GPU waits for it.
    fn sum(values: Values<'_>) -> Result<f64> = device::sum;

    /// Copies row `indices[i]` of `table` to row i of `rows`, or zeros for [`NOT_LOCAL`].
    fn embed(rows: ValuesMut<'_>, table: Values<'_>, indices: &RowIndices) -> Result<()> = Compute::embed;

    /// Adds row i of `rows` to row `indices[i]` of `table`, unless that is [`NOT_LOCAL`].
    fn embed_backward(table: ValuesMut<'_>, rows: Values<'_>, indices: &RowIndices) -> Result<()>
        = Compute::embed_backward;

    /// Computes y = f(x) of each element.
    fn activation(function: Activation, y: ValuesMut<'_>, x: Values<'_>) -> Result<()>
        = Compute::activation;

    /// Multiplies each element of `gradient` by f'(x).
    fn activation_backward(function: Activation, gradient: ValuesMut<'_>, x: Values<'_>) -> Result<()>
        = Compute::activation_backward;

    /// Computes y = silu(gate) · up from rows of gate | up, with `width` elements each.
    fn swiglu(y: ValuesMut<'_>, input: Values<'_>, width: usize) -> Result<()> = Compute::swiglu;

    /// Replaces rows of gate | up by their gradients, from the gradient of y.
    fn swiglu_backward(input: ValuesMut<'_>, gradient: Values<'_>, width: usize) -> Result<()>
        = Compute::swiglu_backward;

    /// Normalizes each row of the input, multiplies it by the gain, and adds the bias. LayerNorm
    /// has a bias and writes mean and inverse deviation of each row to `moments`. RMSNorm has none
    /// and writes the inverse root mean square.
    fn normalize(input_and_gain: [Values<'_>; 2], bias: Option<Values<'_>>, epsilon: f32,
        output: ValuesMut<'_>, moments: ValuesMut<'_>) -> Result<()>
        = Compute::normalize;

    /// Replaces the gradient of the output by that of the input. Adds the gradient of the gain to
    /// `sums` and, for LayerNorm, the gradient of the bias to the elements after it.
    fn normalize_backward(kind: NormKind, input_moments_gain: [Values<'_>; 3], gradient: ValuesMut<'_>,
        sums: ValuesMut<'_>) -> Result<()>
        = device::normalize_backward;

    /// Replaces rows of logits by the gradient of `share` times the sum of their losses, and
    /// returns that sum. Rows whose target is `ignored` have no loss.
    fn cross_entropy(logits: ValuesMut<'_>, columns: usize, targets: &[u32], ignored: Option<u32>,
        share: f32) -> Result<f64>
        = device::cross_entropy;

    /// Writes the maximum of each row of this rank's logits to `max`.
    fn class_max(logits: Values<'_>, targets: &LocalTargets, max: ValuesMut<'_>) -> Result<()>
        = Compute::class_max;

    /// Replaces logits by exponentials, relative to the `max` of their row. Writes the sum of the
    /// exponentials of each row to `sums_and_targets`, followed by the logit at the target of each
    /// row, or zero.
    fn class_exp(logits: ValuesMut<'_>, targets: &LocalTargets, max: Values<'_>,
        sums_and_targets: ValuesMut<'_>) -> Result<()>
        = Compute::class_exp;

    /// Replaces exponentials by the gradient of `share` times the sum of the losses, and `max` by
    /// the losses, from the sums over all ranks.
    fn class_backward(powers: ValuesMut<'_>, targets: &LocalTargets, sums_and_targets: Values<'_>,
        max: ValuesMut<'_>, share: f32) -> Result<()>
        = Compute::class_backward;

    /// Sets elements to zero whose draw out of 2^32 is below `least`, and multiplies the others by
    /// `factor`. A draw is a function of the element's index and `key`.
    fn dropout(values: ValuesMut<'_>, key: u64, least: u32, factor: f32) -> Result<()>
        = Compute::dropout;

    /// Computes attention of the sequences `numbers`, from rows of queries | keys | values,
    /// or with `keys` from the keys | values of one sequence. Writes the log-sum-exp of the scores
    /// of each query and head to `log_sums`, for backward.
    fn attention(shape: &AttentionShape<'_>, numbers: Range<usize>, input: Values<'_>,
        keys: Option<Values<'_>>, output: ValuesMut<'_>, log_sums: ValuesMut<'_>) -> Result<()>
        = device::attention;

    /// Adds attention to more keys, with their log-sums, to `output` and `log_sums`.
    fn merge_attention(shape: &AttentionShape<'_>, output_and_sums: [Values<'_>; 2],
        output: ValuesMut<'_>, log_sums: ValuesMut<'_>) -> Result<()>
        = device::merge_attention;

    /// Computes the product of output and gradient of each query and head, in the order of
    /// `log_sums`.
    fn attention_dots(shape: &AttentionShape<'_>, output_and_gradient: [Values<'_>; 2],
        dots: ValuesMut<'_>) -> Result<()>
        = device::attention_dots;

    /// Adds the gradient of the input to the zeros of `result`, from the gradient of the output.
    /// With keys, adds the gradients of keys | values to `of_keys` instead. If the queries attend
    /// to more keys than these, dots has the product of output and gradient of each query and head,
    /// as in `log_sums`.
    fn attention_backward(shape: &AttentionShape<'_>, numbers: Range<usize>,
        input_sums_gradient: [Values<'_>; 3], keys_and_dots: [Option<Values<'_>>; 2], result: ValuesMut<'_>,
        of_keys: Option<ValuesMut<'_>>) -> Result<()>
        = device::attention_backward;

    /// Rotates the heads of each row of `columns` elements by the angles of its position.
    fn rotate(values: ValuesMut<'_>, columns: usize, rotation: &Rotation<'_>) -> Result<()>
        = device::rotate;
}
