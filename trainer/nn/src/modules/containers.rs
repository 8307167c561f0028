//! Modules that contain modules.

use crate::error::Result;
use crate::modules::Module;
use crate::pass::Pass;
use crate::tensor::Tensor;

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        (**self).forward(pass, input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        (**self).backward(pass, gradient)
    }
}

/// Sequence of modules.
pub struct Sequential(pub Vec<Box<dyn Module>>);

impl Module for Sequential {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        self.0.iter().try_fold(input, |input, module| module.forward(pass, input))
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        // The tape is a stack, so the module that saved last restores first.
        self.0.iter().rev().try_fold(gradient, |gradient, module| module.backward(pass, gradient))
    }
}

/// Residual connection y = x + f(x) (He, Zhang, Ren, Sun, "Deep residual learning for image
/// recognition", 2015).
pub struct Residual<M>(pub M);

impl<M: Module> Module for Residual<M> {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        with_residual(input, |input| self.0.forward(pass, input))
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        with_residual(gradient, |gradient| self.0.backward(pass, gradient))
    }
}

/// Returns `value` plus `map` of it.
fn with_residual(value: Tensor, map: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    // The map takes `value`, and may put its result in the same memory.
    let mut sum = value.copy()?;
    sum.add(&map(value)?)?;
    Ok(sum)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::modules::GradCheck;
    use crate::modules::{Dropout, Gelu, Linear, LinearInit, RngStream};
    use crate::parameter::Registry;

    pub(in crate::modules) fn body(registry: &mut Registry) -> Residual<Sequential> {
        let first = registry.scope("one", |r| Linear::new(r, 5, 7, LinearInit::fan_in(5)));
        let dropout = Dropout::new(registry, "dropout", 0.3, RngStream::Shared);
        let second = registry.scope("two", |r| Linear::new(r, 7, 5, LinearInit::fan_in(7)));
        Residual(Sequential(vec![Box::new(first), Box::new(Gelu::Tanh), Box::new(dropout), Box::new(second)]))
    }

    #[test]
    fn sequential_and_residual_gradients_are_correct() {
        GradCheck::new(body, 4, 5).check_gradients(2e-4);
    }
}
