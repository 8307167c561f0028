//! Operations on a GPU that are no single kernel.

use crate::error::{Error, Result};
use crate::ops::{AttentionShape, Mat, NormKind, Rotation};
use std::ops::Range;
use unisono_cuda::device::compute::{
    AttentionShape as DeviceShape, Compute, Indices, MatrixView, MatrixViewMut,
};
use unisono_cuda::device::{GpuError, View, ViewMut};

/// Returns the error of an operation that GPUs have no kernel for.
pub(crate) fn unsupported<T>(what: &str) -> Result<T> {
    Err(Error::Unsupported(format!("{what} on a GPU: not part of this build")))
}

pub(super) fn matmul(
    compute: &Compute,
    output: Mat<ViewMut<'_, f32>>,
    beta: f32,
    alpha: f32,
    left: Mat<View<'_, f32>>,
    right: Mat<View<'_, f32>>,
) -> Result<(), GpuError> {
    let output = MatrixViewMut::new(output.values, output.rows, output.columns)?;
    compute.matmul(output, beta, alpha, matrix(&left)?, matrix(&right)?)
}

fn matrix<'a>(operand: &'a Mat<View<'a, f32>>) -> Result<MatrixView<'a>, GpuError> {
    let matrix = MatrixView::new(&operand.values, operand.rows, operand.columns)?;
    Ok(if operand.is_transposed { matrix.t() } else { matrix })
}

pub(super) fn add(compute: &Compute, sum: ViewMut<'_, f32>, values: View<'_, f32>) -> Result<(), GpuError> {
    compute.add(sum, values, 1.0, 1.0)
}

pub(super) fn normalize_backward(
    compute: &Compute,
    kind: NormKind,
    [input, moments, gain]: [View<'_, f32>; 3],
    gradient: ViewMut<'_, f32>,
    mut sums: ViewMut<'_, f32>,
) -> Result<(), GpuError> {
    let (of_gain, of_bias) = sums.split_at_mut(gain.len());
    if kind == NormKind::Layer {
        compute.add_rows(of_bias, gradient.as_view())?;
    }
    compute.normalize_backward_gain(kind, [input, moments, gradient.as_view()], of_gain)?;
    // The gradient of the input comes last, because it overwrites the gradient that the sums need.
    compute.normalize_backward(kind, [input, moments, gain], gradient)
}

pub(super) fn rotate(_: &Compute, _: ViewMut<'_, f32>, _: usize, _: &Rotation<'_>) -> Result<()> {
    unsupported("rotary positions (model.positions)")
}

pub(super) fn sum(compute: &Compute, values: View<'_, f32>) -> Result<f64, GpuError> {
    Ok(values.to_vec(compute.stream())?.into_iter().map(f64::from).sum())
}

pub(super) fn cross_entropy(
    compute: &Compute,
    logits: ViewMut<'_, f32>,
    columns: usize,
    targets: &[u32],
    ignored: Option<u32>,
    share: f32,
) -> Result<f64, GpuError> {
    let targets = Indices::new(compute.stream(), targets, columns, ignored)?;
    let mut losses = compute.stream().alloc_uninit(targets.len())?;
    compute.cross_entropy(logits, &targets, losses.view_mut(..), share)?;
    sum(compute, losses.view(..))
}

/// Computes all sequences of the input.
pub(super) fn attention(
    compute: &Compute,
    shape: &AttentionShape<'_>,
    _: Range<usize>,
    input: View<'_, f32>,
    keys: Option<View<'_, f32>>,
    output: ViewMut<'_, f32>,
    log_sums: ViewMut<'_, f32>,
) -> Result<()> {
    Ok(compute.attention(device_shape(shape, keys.is_some())?, input, output, log_sums)?)
}

pub(super) fn attention_backward(
    compute: &Compute,
    shape: &AttentionShape<'_>,
    _: Range<usize>,
    [input, log_sums, gradient]: [View<'_, f32>; 3],
    [keys, _]: [Option<View<'_, f32>>; 2],
    result: ViewMut<'_, f32>,
    _: Option<ViewMut<'_, f32>>,
) -> Result<()> {
    // The kernels need room for one number per query and head, as many as `log_sums` has.
    let mut room = compute.stream().alloc_uninit(log_sums.len())?;
    let shape = device_shape(shape, keys.is_some())?;
    Ok(compute.attention_backward(shape, [input, log_sums, gradient], result, room.view_mut(..))?)
}

pub(super) fn merge_attention(
    _: &Compute,
    _: &AttentionShape<'_>,
    _: [View<'_, f32>; 2],
    _: ViewMut<'_, f32>,
    _: ViewMut<'_, f32>,
) -> Result<()> {
    unsupported("ring attention")
}

pub(super) fn attention_dots(
    _: &Compute,
    _: &AttentionShape<'_>,
    _: [View<'_, f32>; 2],
    _: ViewMut<'_, f32>,
) -> Result<()> {
    unsupported("ring attention")
}

fn device_shape(shape: &AttentionShape<'_>, are_apart: bool) -> Result<DeviceShape> {
    if shape.kv_heads != shape.heads {
        return unsupported("grouped-query attention (model.kv_heads)");
    }
    if are_apart {
        return unsupported("attention to keys apart from queries");
    }
    Ok(DeviceShape { count: shape.heads, depth: shape.head_dim, sequence: shape.sequence() })
}
