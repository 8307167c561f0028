//! What lies in memory of a GPU of one parameter.

use crate::allocator::{AllocClass, Allocator, Tracked};
use crate::device::track;
use crate::error::Result;
use crate::nn::vector;
use std::sync::Arc;
use unisono_cuda::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Its weights, and what has been added to its gradient.
#[derive(Default)]
pub(super) struct DeviceCopy {
    weights: Option<(Arc<Buffer<f32>>, Tracked)>,
    gradient: Option<(Buffer<f32>, Tracked)>,
}

impl DeviceCopy {
    pub(super) fn invalidate_weights(&mut self) {
        self.weights = None;
    }

    /// The weights, copied from `host` if they are not here.
    pub(super) fn weights(
        &mut self,
        compute: &Compute,
        memory: &Allocator,
        host: &[f32],
    ) -> Result<Arc<Buffer<f32>>> {
        if let Some((weights, _)) = &self.weights {
            return Ok(Arc::clone(weights));
        }
        let weights = Arc::new(compute.stream().upload(host)?);
        self.weights = Some((Arc::clone(&weights), track(memory, AllocClass::Weights, host.len())));
        Ok(weights)
    }

    /// What has been added to the gradient of `count` elements.
    pub(super) fn gradient(
        &mut self,
        compute: &Compute,
        memory: &Allocator,
        count: usize,
    ) -> Result<&mut Buffer<f32>> {
        if self.gradient.is_none() {
            let zeros = compute.stream().alloc(count)?;
            self.gradient = Some((zeros, track(memory, AllocClass::Gradients, count)));
        }
        Ok(&mut self.gradient.as_mut().expect("made above").0)
    }

    /// Adds it to `into`, and begins again from zero.
    pub(super) fn take_gradient(&mut self, compute: &Compute, into: &mut [f32]) -> Result<()> {
        if let Some((gradient, _)) = &mut self.gradient {
            vector::add(into, &gradient.to_vec(compute.stream())?);
            compute.zero(gradient.view_mut(..))?;
        }
        Ok(())
    }
}
