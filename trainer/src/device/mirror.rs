//! What lies in memory of a GPU of one parameter.

use super::noted;
use crate::error::Result;
use crate::memory::{Class, Memory, Noted};
use crate::nn::vector;
use std::sync::Arc;
use unisono_cuda::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Its weights, and what has been added to its gradient.
#[derive(Default)]
pub(super) struct Mirror {
    weights: Option<(Arc<Buffer<f32>>, Noted)>,
    gradient: Option<(Buffer<f32>, Noted)>,
}

impl Mirror {
    pub(super) fn forget_weights(&mut self) {
        self.weights = None;
    }

    /// The weights, copied from `host` if they are not here.
    pub(super) fn weights(
        &mut self,
        compute: &Compute,
        memory: &Memory,
        host: &[f32],
    ) -> Result<Arc<Buffer<f32>>> {
        if let Some((weights, _)) = &self.weights {
            return Ok(Arc::clone(weights));
        }
        let weights = Arc::new(compute.stream().upload(host)?);
        self.weights = Some((Arc::clone(&weights), noted(memory, Class::Weights, host.len())));
        Ok(weights)
    }

    /// What has been added to the gradient of `count` elements.
    pub(super) fn gradient(
        &mut self,
        compute: &Compute,
        memory: &Memory,
        count: usize,
    ) -> Result<&mut Buffer<f32>> {
        if self.gradient.is_none() {
            let zeros = compute.stream().alloc(count)?;
            self.gradient = Some((zeros, noted(memory, Class::Gradients, count)));
        }
        Ok(&mut self.gradient.as_mut().expect("made above").0)
    }

    /// Adds it to `into`, and begins again from zero.
    pub(super) fn fetch(&mut self, compute: &Compute, into: &mut [f32]) -> Result<()> {
        if let Some((gradient, _)) = &mut self.gradient {
            vector::add(into, &gradient.to_vec(compute.stream())?);
            compute.clear(gradient.view_mut(..))?;
        }
        Ok(())
    }
}
