//! Initialization of linear layers.

use crate::parameter::Init;

/// Initial values of weight and bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearInit {
    /// Initial weight.
    pub weight: Init,
    /// Initial bias; `None` for a layer without bias.
    pub bias: Option<Init>,
}

impl LinearInit {
    /// Returns uniform values within ±1/√inputs for both, as PyTorch's `Linear` and `Conv2d` use
    /// (He et al., "Delving deep into rectifiers", 2015, with a = √5).
    pub fn fan_in(inputs: usize) -> Self {
        let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
        Self { weight: init, bias: Some(init) }
    }

    /// Returns a normal weight and a zero bias. GPT-2 uses a deviation of 0.02, and 0.02 / √(number
    /// of branches) for the last layer of a residual branch.
    pub fn normal(deviation: f32) -> Self {
        Self { weight: Init::Normal(deviation), bias: Some(Init::Zeros) }
    }

    /// Removes the bias.
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }
}
