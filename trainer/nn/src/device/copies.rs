//! Copies of a host strategy's parameter in GPU memory.

use crate::allocator::{AllocClass, Allocator, Tracked};
use crate::device::track;
use crate::error::Result;
use crate::ops::host::vector;
use std::sync::Arc;
use unisono_cuda::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Weights and accumulated gradient.
#[derive(Default)]
pub(super) struct DeviceCopy {
    weights: Option<(Arc<Buffer<f32>>, Tracked)>,
    gradient: Option<(Buffer<f32>, Tracked)>,
}

impl DeviceCopy {
    pub(super) fn invalidate_weights(&mut self) {
        self.weights = None;
    }

    /// Returns the weights, copied from `host` if they are missing.
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

    /// Returns the gradient accumulated for `count` elements.
    pub(super) fn gradient(
        &mut self,
        compute: &Compute,
        memory: &Allocator,
        count: usize,
    ) -> Result<&mut Buffer<f32>> {
        if self.gradient.is_none() {
            // Modules add to the gradient, so it begins with zeros.
            let zeros = compute.stream().alloc(count)?;
            self.gradient = Some((zeros, track(memory, AllocClass::Gradients, count)));
        }
        Ok(&mut self.gradient.as_mut().expect("made above").0)
    }

    /// Adds the gradient to `sum`, and clears it.
    pub(super) fn take_gradient(&mut self, compute: &Compute, sum: &mut [f32]) -> Result<()> {
        if let Some((gradient, _)) = &mut self.gradient {
            // The copy to the host waits for all kernels of the stream that add to the gradient.
            vector::add(sum, &gradient.to_vec(compute.stream())?);
            // The buffer stays, because the next micro-batch adds to it.
            compute.zero(gradient.view_mut(..))?;
        }
        Ok(())
    }
}
