//! Stochastic gradient descent with momentum, as in PyTorch: Sutskever et al., ICML 2013.

use super::{DeviceParamSlice, Optimizer, ParamSlice, Step};
use unisono_cuda::device::GpuError;
use unisono_cuda::device::compute::Compute;
use unisono_nn::parameter::Parameter;

/// Updates by `v ← μv + g + λw`, `w ← w − ηv`. Without momentum, no `v` is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// Momentum μ.
    pub momentum: f32,
    /// Weight decay λ.
    pub weight_decay: f32,
}

impl Optimizer for Sgd {
    fn moment_count(&self, _: &Parameter) -> usize {
        usize::from(self.momentum != 0.0)
    }

    fn update(&self, span: ParamSlice<'_>, step: &Step) {
        let ParamSlice { weights, gradient, moments, weight_decay } = span;
        let decay = weight_decay.rate(self.weight_decay);
        let slope = |weight: f32, gradient: f32| gradient * step.grad_scale + decay * weight;
        let each = weights.iter_mut().zip(gradient);
        match moments {
            [velocity] => each.zip(velocity.iter_mut()).for_each(|((weight, &gradient), velocity)| {
                *velocity = *velocity * self.momentum + slope(*weight, gradient);
                *weight -= step.lr * *velocity;
            }),
            _ => each.for_each(|(weight, &gradient)| *weight -= step.lr * slope(*weight, gradient)),
        }
    }

    fn update_on(&self, compute: &Compute, span: DeviceParamSlice<'_>, step: &Step) -> Result<(), GpuError> {
        let DeviceParamSlice { mut weights, gradient, moments, weight_decay } = span;
        let decay = weight_decay.rate(self.weight_decay);
        let [velocity] = moments else {
            return compute.add(weights, gradient, -step.lr * step.grad_scale, 1.0 - step.lr * decay);
        };
        compute.add(velocity.view_mut(..), gradient, step.grad_scale, self.momentum)?;
        compute.add(velocity.view_mut(..), weights.as_view(), decay, 1.0)?;
        compute.add(weights.view_mut(..), velocity.as_view(), -step.lr, 1.0)
    }
}
