//! Activation functions.

use super::vector::{erf, exp, sigmoid, vectorized};
use crate::ops::{Activation, Host};
use std::f32::consts::FRAC_1_SQRT_2;

impl Host {
    pub(crate) fn activation(&self, function: Activation, outputs: &mut [f32], inputs: &[f32]) {
        let pairs = outputs.iter_mut().zip(inputs);
        match function {
            Activation::GeluExact => vectorized(
                #[inline(always)]
                || pairs.for_each(|(y, x)| *y = x * normal(*x)),
            ),
            Activation::GeluTanh => vectorized(
                #[inline(always)]
                || pairs.for_each(|(y, x)| *y = x * sigmoid(twice_u(*x))),
            ),
        }
    }

    pub(crate) fn activation_backward(&self, function: Activation, gradient: &mut [f32], inputs: &[f32]) {
        let pairs = gradient.iter_mut().zip(inputs);
        match function {
            Activation::GeluExact => vectorized(
                #[inline(always)]
                || pairs.for_each(|(dy, x)| *dy *= exact_derivative(*x)),
            ),
            Activation::GeluTanh => vectorized(
                #[inline(always)]
                || pairs.for_each(|(dy, x)| *dy *= tanh_derivative(*x)),
            ),
        }
    }

    pub(crate) fn swiglu(&self, outputs: &mut [f32], inputs: &[f32], width: usize) {
        let rows = outputs.chunks_exact_mut(width).zip(inputs.chunks_exact(2 * width));
        vectorized(
            #[inline(always)]
            || {
                for (output, input) in rows {
                    let (gate, up) = input.split_at(width);
                    output.iter_mut().zip(gate).zip(up).for_each(|((y, x), up)| *y = x * sigmoid(*x) * up);
                }
            },
        );
    }

    pub(crate) fn swiglu_backward(&self, values: &mut [f32], gradient: &[f32], width: usize) {
        let rows = values.chunks_exact_mut(2 * width).zip(gradient.chunks_exact(width));
        vectorized(
            #[inline(always)]
            || rows.for_each(|(row, dy)| gated_grads(row, dy)),
        );
    }
}

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// Returns 2 u. Its sigmoid equals (1 + tanh u) / 2, and keeps its accuracy for small values.
#[inline(always)]
fn twice_u(x: f32) -> f32 {
    2.0 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x)
}

#[inline(always)]
fn tanh_derivative(x: f32) -> f32 {
    let s = sigmoid(twice_u(x));
    let slope_of_twice_u = 2.0 * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
    s + x * s * (1.0 - s) * slope_of_twice_u
}

/// Returns Φ.
#[inline(always)]
fn normal(x: f32) -> f32 {
    0.5 + 0.5 * erf(x * FRAC_1_SQRT_2)
}

#[inline(always)]
fn exact_derivative(x: f32) -> f32 {
    normal(x) + x * (0.5 * FRAC_1_SQRT_2 * std::f32::consts::FRAC_2_SQRT_PI) * exp(-0.5 * x * x)
}

/// Writes the gradients of gate and up in their place.
#[inline(always)]
fn gated_grads(row: &mut [f32], dy: &[f32]) {
    let (gate, up) = row.split_at_mut(dy.len());
    for ((gate, up), dy) in gate.iter_mut().zip(up).zip(dy) {
        // Both gradients need the gate, so it is read before its gradient takes its place.
        let (x, s) = (*gate, sigmoid(*gate));
        *gate = dy * *up * (s + x * s * (1.0 - s));
        *up = dy * (x * s);
    }
}
