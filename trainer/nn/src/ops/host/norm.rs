//! Normalization of rows.

use super::vector::{sum, vectorized};
use crate::ops::{Host, NormKind};

impl Host {
    pub(crate) fn normalize(
        &self,
        [input, gain]: [&[f32]; 2],
        bias: Option<&[f32]>,
        epsilon: f32,
        output: &mut [f32],
        moments: &mut [f32],
    ) {
        let rows = input.chunks_exact(gain.len()).zip(output.chunks_exact_mut(gain.len()));
        match bias {
            Some(bias) => vectorized(
                #[inline(always)]
                || {
                    for ((input, output), moments) in rows.zip(moments.as_chunks_mut::<2>().0) {
                        *moments = row_moments(input, epsilon);
                        layer_norm(input, *moments, gain, bias, output);
                    }
                },
            ),
            None => vectorized(
                #[inline(always)]
                || {
                    for ((input, output), rate) in rows.zip(moments) {
                        let square = sum(input, input, |x, _| x * x) / gain.len() as f32;
                        *rate = 1.0 / (square + epsilon).sqrt();
                        let elements = output.iter_mut().zip(input).zip(gain);
                        elements.for_each(|((y, x), gain)| *y = x * *rate * gain);
                    }
                },
            ),
        }
    }

    pub(crate) fn normalize_backward(
        &self,
        kind: NormKind,
        [input, moments, gain]: [&[f32]; 3],
        gradient: &mut [f32],
        sums: &mut [f32],
    ) {
        let (of_gain, of_bias) = sums.split_at_mut(gain.len());
        let rows = input.chunks_exact(gain.len()).zip(gradient.chunks_exact_mut(gain.len()));
        match kind {
            NormKind::Layer => vectorized(
                #[inline(always)]
                || {
                    for ((input, row), moments) in rows.zip(moments.as_chunks::<2>().0) {
                        // The sums need the gradient of the output, which the second call replaces.
                        add_layer_grads(input, *moments, row, of_gain, of_bias);
                        layer_input_grad(input, *moments, gain, row);
                    }
                },
            ),
            NormKind::Rms => vectorized(
                #[inline(always)]
                || {
                    for ((input, row), rate) in rows.zip(moments) {
                        // The sum needs the gradient of the output, which the second call replaces.
                        add_rms_grads(input, *rate, row, of_gain);
                        rms_input_grad(input, *rate, gain, row);
                    }
                },
            ),
        }
    }
}

/// Returns the mean and inverse standard deviation.
#[inline(always)]
fn row_moments(row: &[f32], epsilon: f32) -> [f32; 2] {
    let count = row.len() as f32;
    let mean = sum(row, row, |x, _| x) / count;
    // A mean square less the squared mean would lose the digits that both have in common.
    let variance = sum(row, row, |x, _| (x - mean) * (x - mean)) / count;
    [mean, 1.0 / (variance + epsilon).sqrt()]
}

#[inline(always)]
fn layer_norm(input: &[f32], [mean, rate]: [f32; 2], gain: &[f32], bias: &[f32], output: &mut [f32]) {
    for (((y, x), gain), bias) in output.iter_mut().zip(input).zip(gain).zip(bias) {
        *y = (x - mean) * rate * gain + bias;
    }
}

/// Adds one row's share to the gradients of gain and bias.
#[inline(always)]
fn add_layer_grads(input: &[f32], [mean, rate]: [f32; 2], row: &[f32], gain: &mut [f32], bias: &mut [f32]) {
    for (((gain, bias), x), dy) in gain.iter_mut().zip(bias).zip(input).zip(row) {
        *gain += dy * ((x - mean) * rate);
        *bias += dy;
    }
}

/// Replaces dy by dx = (g - mean of g - x̂ · mean of g x̂) / deviation, with the normalized row x̂
/// and g = dy · gain.
#[inline(always)]
fn layer_input_grad(input: &[f32], [mean, rate]: [f32; 2], gain: &[f32], row: &mut [f32]) {
    row.iter_mut().zip(gain).for_each(|(dy, gain)| *dy *= gain);
    let count = row.len() as f32;
    let level = sum(row, row, |g, _| g) / count;
    let slope = sum(row, input, |g, x| g * ((x - mean) * rate)) / count;
    for (g, x) in row.iter_mut().zip(input) {
        *g = (*g - level - (x - mean) * rate * slope) * rate;
    }
}

/// Adds one row's share to the gradient of the gain.
#[inline(always)]
fn add_rms_grads(input: &[f32], rate: f32, row: &[f32], gain: &mut [f32]) {
    for ((gain, x), dy) in gain.iter_mut().zip(input).zip(row) {
        *gain += dy * (x * rate);
    }
}

/// Replaces dy by dx = (g - x̂ · mean of g x̂) · rate, with the normalized row x̂ and g = dy ·
/// gain.
#[inline(always)]
fn rms_input_grad(input: &[f32], rate: f32, gain: &[f32], row: &mut [f32]) {
    row.iter_mut().zip(gain).for_each(|(dy, gain)| *dy *= gain);
    let slope = sum(row, input, |g, x| g * (x * rate)) / row.len() as f32;
    for (g, x) in row.iter_mut().zip(input) {
        *g = (*g - x * rate * slope) * rate;
    }
}
