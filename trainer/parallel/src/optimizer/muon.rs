//! Muon: momentum, orthogonalized by a Newton-Schulz iteration.
//!
//! Sources: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. Scale
//! and weight decay follow Liu et al., "Muon is scalable for LLM training", arXiv 2502.16982, 2025,
//! so that it shares its learning rate with AdamW.

mod device;

use super::{AdamW, DeviceParamSlice, MatrixOptimizer, Optimizer, ParamSlice, Step};
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{GpuError, View, ViewMut};
use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::parameter::{Parameter, WeightDecay};

/// Updates hidden matrices by `m ← μm + g`, `w ← w − ηλw − η · 0.2 √max(rows, columns) ·
/// orthogonal(g + μm)`, and other parameters by AdamW.
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    /// Momentum μ.
    pub momentum: f32,
    /// Weight decay λ.
    pub weight_decay: f32,
    /// Prefixes of the names of matrices that use AdamW: embeddings and heads.
    pub excluded: Vec<String>,
    /// Optimizer of all other parameters.
    pub fallback: AdamW,
}

impl Default for Muon {
    fn default() -> Self {
        let excluded = ["wte", "wpe", "lm_head"].map(str::to_owned).to_vec();
        Self { momentum: 0.95, weight_decay: 0.1, excluded, fallback: AdamW::default() }
    }
}

impl Muon {
    fn applies_to(&self, parameter: &Parameter) -> bool {
        let is_excluded = |prefix: &String| parameter.name.starts_with(prefix.as_str());
        parameter.shape.len() == 2 && !self.excluded.iter().any(is_excluded)
    }
}

impl Optimizer for Muon {
    fn moment_count(&self, parameter: &Parameter) -> usize {
        if self.applies_to(parameter) { 1 } else { self.fallback.moment_count(parameter) }
    }

    fn update(&self, span: ParamSlice<'_>, step: &Step) {
        self.fallback.update(span, step);
    }

    fn update_on(&self, compute: &Compute, span: DeviceParamSlice<'_>, step: &Step) -> Result<(), GpuError> {
        self.fallback.update_on(compute, span, step)
    }

    fn as_matrix_optimizer(&self, parameter: &Parameter) -> Option<&dyn MatrixOptimizer> {
        self.applies_to(parameter).then_some(self)
    }
}

impl MatrixOptimizer for Muon {
    fn momentum_direction(&self, gradient: &[f32], factor: f32, moment: &mut [f32], direction: &mut [f32]) {
        for ((gradient, moment), direction) in gradient.iter().zip(moment).zip(direction) {
            let gradient = gradient * factor;
            *moment = self.momentum * *moment + gradient;
            *direction = gradient + self.momentum * *moment;
        }
    }

    fn transform_direction(&self, direction: &mut [f32], rows: usize, columns: usize) {
        orthogonalize(direction, rows, columns);
        let scale = scale(rows, columns);
        direction.iter_mut().for_each(|x| *x *= scale);
    }

    fn apply_direction(&self, weights: &mut [f32], direction: &[f32], decay: WeightDecay, step: &Step) {
        let keep = 1.0 - step.lr * decay.rate(self.weight_decay);
        for (weight, direction) in weights.iter_mut().zip(direction) {
            *weight = *weight * keep - step.lr * direction;
        }
    }

    fn momentum_direction_on(
        &self,
        compute: &Compute,
        gradient: View<'_, f32>,
        factor: f32,
        moment: ViewMut<'_, f32>,
        direction: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        compute.muon_momentum(gradient, moment, direction, factor, self.momentum)
    }

    fn transform_direction_on(
        &self,
        compute: &Compute,
        mut direction: ViewMut<'_, f32>,
        rows: usize,
        columns: usize,
    ) -> Result<(), GpuError> {
        device::orthogonalize(compute, direction.view_mut(..), rows, columns)?;
        compute.scale(direction, scale(rows, columns))
    }

    fn apply_direction_on(
        &self,
        compute: &Compute,
        weights: ViewMut<'_, f32>,
        direction: View<'_, f32>,
        decay: WeightDecay,
        step: &Step,
    ) -> Result<(), GpuError> {
        let keep = 1.0 - step.lr * decay.rate(self.weight_decay);
        compute.add(weights, direction, -step.lr, keep)
    }
}

/// Returns the factor that gives updates the size of AdamW's.
fn scale(rows: usize, columns: usize) -> f32 {
    0.2 * (rows.max(columns) as f32).sqrt()
}

/// Number of iterations. Singular values are then between 0.7 and 1.2.
const NEWTON_SCHULZ_STEPS: usize = 5;
/// Iteration X ← aX + (bA + cA²)X with A = XXᵀ. The coefficients grow small singular values
/// fastest.
const A: f32 = 3.4445;
const B: f32 = -4.775;
const C: f32 = 2.0315;

/// Moves all singular values of a matrix close to one.
fn orthogonalize(matrix: &mut [f32], rows: usize, columns: usize) {
    let squares: f64 = matrix.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    // The iteration needs singular values of at most one, and none is above this norm. A matrix of
    // zeros stays one.
    let scale = 1.0 / (squares.sqrt() + 1e-7) as f32;
    matrix.iter_mut().for_each(|x| *x *= scale);
    // The product along the short side is the smaller matrix.
    let (short, is_tall) = (rows.min(columns), rows > columns);
    let (mut gram, mut poly) = (vec![0.0; short * short], vec![0.0; short * short]);
    for _ in 0..NEWTON_SCHULZ_STEPS {
        let x = Matrix::new(matrix, rows, columns);
        let (first, second) = if is_tall { (x.t(), x) } else { (x, x.t()) };
        matmul(MatrixMut::new(&mut gram, short, short), 0.0, 1.0, first, second, 1);
        poly.copy_from_slice(&gram);
        let square = Matrix::new(&gram, short, short);
        matmul(MatrixMut::new(&mut poly, short, short), B, C, square, square, 1);
        // The product reads a copy, because it writes to the matrix itself.
        let (copy, poly) = (matrix.to_vec(), Matrix::new(&poly, short, short));
        let copy = Matrix::new(&copy, rows, columns);
        let (left, right) = if is_tall { (copy, poly) } else { (poly, copy) };
        matmul(MatrixMut::new(matrix, rows, columns), A, 1.0, left, right, 1);
    }
}

#[cfg(test)]
mod tests;
