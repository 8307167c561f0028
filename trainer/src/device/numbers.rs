//! Numbers in memory of a GPU.

use super::noted;
use crate::error::Result;
use crate::memory::{Class, Memory, Noted};
use std::fmt;
use std::sync::Arc;
use unisono_cuda::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Activations in memory of a GPU, with the stream that works on them.
pub(crate) struct Numbers {
    pub(crate) buffer: Buffer<f32>,
    pub(crate) compute: Arc<Compute>,
    memory: Memory,
    _counted: Noted,
}

impl Numbers {
    /// So many zeros.
    pub(super) fn new(compute: &Arc<Compute>, memory: &Memory, count: usize) -> Result<Self> {
        Ok(Self::of(compute, memory, compute.stream().alloc(count)?))
    }

    fn of(compute: &Arc<Compute>, memory: &Memory, buffer: Buffer<f32>) -> Self {
        let counted = noted(memory, Class::Activations, buffer.len());
        Self { buffer, compute: Arc::clone(compute), memory: memory.clone(), _counted: counted }
    }

    /// A copy.
    pub(crate) fn copy(&self) -> Result<Self> {
        let room = self.compute.stream().room(self.buffer.len())?;
        let mut copy = Self::of(&self.compute, &self.memory, room);
        self.compute.copy(copy.buffer.view_mut(..), self.buffer.view(..))?;
        Ok(copy)
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers on {}", self.buffer.len(), self.buffer.gpu().name())
    }
}
