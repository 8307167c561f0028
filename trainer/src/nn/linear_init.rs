//! How the parameters of linear maps start.

use crate::parameter::Init;

/// How weight and bias start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearInit {
    /// The weight.
    pub weight: Init,
    /// The bias; none: there is no bias.
    pub bias: Option<Init>,
}

impl LinearInit {
    /// Both uniform within ±1/√inputs: what PyTorch's `Linear` and `Conv2d` start with (of He and others, Delving deep into
    /// rectifiers, 2015, with a = √5).
    pub fn fan_in(inputs: usize) -> Self {
        let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
        Self { weight: init, bias: Some(init) }
    }

    /// A normal weight and a bias of zeros: what GPT-2 starts with, 0.02, and for the last map of a residual branch
    /// 0.02 / √(number of branches).
    pub fn normal(deviation: f32) -> Self {
        Self { weight: Init::Normal(deviation), bias: Some(Init::Zeros) }
    }

    /// The weight alone.
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }
}
