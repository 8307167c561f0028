//! Vectors in GPU memory.

use crate::allocator::{AllocClass, Allocator, Tracked};
use crate::error::Result;
use std::fmt;
use std::sync::Arc;
use unisono_cuda::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Activations in GPU memory, with the stream that works on them.
pub(crate) struct DeviceVec {
    pub(crate) buffer: Buffer<f32>,
    pub(crate) compute: Arc<Compute>,
    memory: Allocator,
    _tracked: Tracked,
}

impl DeviceVec {
    /// Allocates zeros.
    pub(crate) fn new(compute: &Arc<Compute>, memory: &Allocator, count: usize) -> Result<Self> {
        Ok(Self::from_buffer(compute, memory, compute.stream().alloc(count)?))
    }

    fn from_buffer(compute: &Arc<Compute>, memory: &Allocator, buffer: Buffer<f32>) -> Self {
        let counted = memory.track(AllocClass::Activations, buffer.len() * size_of::<f32>());
        Self { buffer, compute: Arc::clone(compute), memory: memory.clone(), _tracked: counted }
    }

    /// Copies the vector.
    pub(crate) fn copy(&self) -> Result<Self> {
        // The copy writes every element, so the new memory needs no zeros.
        let room = self.compute.stream().alloc_uninit(self.buffer.len())?;
        let mut copy = Self::from_buffer(&self.compute, &self.memory, room);
        self.compute.copy(copy.buffer.view_mut(..), self.buffer.view(..))?;
        Ok(copy)
    }
}

impl fmt::Debug for DeviceVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers on {}", self.buffer.len(), self.buffer.gpu().name())
    }
}
