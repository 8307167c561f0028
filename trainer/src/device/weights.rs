//! Weights for modules on a GPU.

use std::ops::RangeBounds;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, View};

/// Weights of a parameter in GPU memory.
pub enum DeviceWeights<'a> {
    /// View of the strategy's buffer.
    Shared(View<'a, f32>),
    /// Copy of the strategy's weights on the host.
    Copied(Arc<Buffer<f32>>),
}

impl DeviceWeights<'_> {
    /// Returns the elements in `range`.
    ///
    /// # Panics
    /// Panics if `range` is not inside.
    pub fn view(&self, range: impl RangeBounds<usize>) -> View<'_, f32> {
        match self {
            Self::Shared(view) => view.view(range),
            Self::Copied(buffer) => buffer.view(range),
        }
    }
}
