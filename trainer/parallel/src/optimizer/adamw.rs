//! Adam with decoupled weight decay: Loshchilov, Hutter, ICLR 2019 (arXiv 1711.05101).

use super::{DeviceParamSlice, Optimizer, ParamSlice, Step};
use unisono_cuda::device::GpuError;
use unisono_cuda::device::compute::{AdamStep, Compute};
use unisono_nn::ops::host::vector::vectorized;
use unisono_nn::parameter::{Parameter, WeightDecay};

/// Updates by `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, `w ← w − ηλw − η · m̂ / (√v̂ + ε)`, with
/// bias-corrected moments. The learning rate η is that of the [`Step`]. The defaults are those of
/// PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay rates β₁ and β₂ of the moments, from 0 to below 1.
    pub betas: (f32, f32),
    /// Constant ε in the denominator, above 0.
    pub epsilon: f32,
    /// Weight decay λ, for parameters with [`WeightDecay::OfOptimizer`].
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    /// Returns the values that are equal for all elements of a step.
    fn step_params(&self, decay: WeightDecay, step: &Step) -> AdamStep {
        // In 32 bits, the difference would lose digits in the first steps, when the power is close
        // to one.
        let bias = |beta: f32| 1.0 - f64::from(beta).powf(step.number as f64);
        let (beta1, beta2) = self.betas;
        AdamStep {
            factor: step.grad_scale,
            betas: self.betas,
            rate: (f64::from(step.lr) / bias(beta1)) as f32,
            root: bias(beta2).sqrt() as f32,
            epsilon: self.epsilon,
            keep: 1.0 - step.lr * decay.rate(self.weight_decay),
        }
    }
}

impl Optimizer for AdamW {
    fn moment_count(&self, _: &Parameter) -> usize {
        2
    }

    fn update(&self, span: ParamSlice<'_>, step: &Step) {
        let ParamSlice { weights, gradient, moments: [first, second], weight_decay } = span else {
            unreachable!("two moments were asked for")
        };
        let AdamStep { factor, betas: (beta1, beta2), rate, root, epsilon, keep } =
            self.step_params(weight_decay, step);
        let elements = weights.iter_mut().zip(gradient).zip(first.iter_mut().zip(second.iter_mut()));
        vectorized(
            #[inline(always)]
            || {
                for ((weight, gradient), (first, second)) in elements {
                    let gradient = gradient * factor;
                    *first += (gradient - *first) * (1.0 - beta1);
                    *second = *second * beta2 + gradient * gradient * (1.0 - beta2);
                    *weight = *weight * keep - rate * *first / (second.sqrt() / root + epsilon);
                }
            },
        );
    }

    fn update_on(&self, compute: &Compute, span: DeviceParamSlice<'_>, step: &Step) -> Result<(), GpuError> {
        let DeviceParamSlice { weights, gradient, moments: [first, second], weight_decay } = span else {
            unreachable!("two moments were asked for")
        };
        let moments = [first, second].map(|moment| moment.view_mut(..));
        compute.adamw(self.step_params(weight_decay, step), weights, gradient, moments)
    }
}
