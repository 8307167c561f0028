//! Stochastic gradient descent with momentum, as PyTorch has it: Sutskever et al., ICML 2013.

use super::{Optimiser, Span, SpanOn, Step};
use crate::parameter::Parameter;
use unisono_cuda::device::GpuError;
use unisono_cuda::device::compute::Compute;

/// `v ← μv + g + λw`, `w ← w − ηv`; without momentum no `v` is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// μ.
    pub momentum: f32,
    /// λ.
    pub decay: f32,
}

impl Optimiser for Sgd {
    fn moments(&self, _: &Parameter) -> usize {
        usize::from(self.momentum != 0.0)
    }

    fn update(&self, span: Span<'_>, step: &Step) {
        let Span { weights, gradient, moments, decays } = span;
        let decay = if decays { self.decay } else { 0.0 };
        let slope = |weight: f32, gradient: f32| gradient * step.factor + decay * weight;
        let each = weights.iter_mut().zip(gradient);
        match moments {
            [velocity] => each.zip(velocity.iter_mut()).for_each(|((weight, &gradient), velocity)| {
                *velocity = *velocity * self.momentum + slope(*weight, gradient);
                *weight -= step.rate * *velocity;
            }),
            _ => each.for_each(|(weight, &gradient)| *weight -= step.rate * slope(*weight, gradient)),
        }
    }

    fn update_on(&self, compute: &Compute, span: SpanOn<'_>, step: &Step) -> Result<(), GpuError> {
        let SpanOn { mut weights, gradient, moments, decays } = span;
        let decay = if decays { self.decay } else { 0.0 };
        let [velocity] = moments else {
            return compute.add(weights, gradient, -step.rate * step.factor, 1.0 - step.rate * decay);
        };
        compute.add(velocity.view_mut(..), gradient, step.factor, self.momentum)?;
        compute.add(velocity.view_mut(..), weights.as_view(), decay, 1.0)?;
        compute.add(weights.view_mut(..), velocity.as_view(), -step.rate, 1.0)
    }
}
