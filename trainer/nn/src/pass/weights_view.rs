//! Weights for modules, in host or GPU memory.

use crate::ops::Values;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, View};

/// Weights of a parameter in the memory where modules compute.
pub enum WeightsView<'a> {
    /// Weights of the strategy in host memory.
    Host(&'a [f32]),
    /// Weights of the strategy in GPU memory.
    Device(View<'a, f32>),
    /// Copy in GPU memory of the strategy's weights on the host.
    Copied(Arc<Buffer<f32>>),
}

impl WeightsView<'_> {
    /// Returns all elements.
    pub fn values(&self) -> Values<'_> {
        match self {
            Self::Host(weights) => Values::Host(weights),
            Self::Device(view) => Values::Device(*view),
            Self::Copied(buffer) => Values::Device(buffer.view(..)),
        }
    }
}
