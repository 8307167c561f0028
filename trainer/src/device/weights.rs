//! Weights that modules on a GPU read.

use std::ops::RangeBounds;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, View};

/// The weights of a parameter in memory of a GPU.
pub enum DeviceWeights<'a> {
    /// Where the strategy keeps them.
    Shared(View<'a, f32>),
    /// A copy of what it keeps on the host.
    Copied(Arc<Buffer<f32>>),
}

impl DeviceWeights<'_> {
    /// The part `range`.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn view(&self, range: impl RangeBounds<usize>) -> View<'_, f32> {
        match self {
            Self::Shared(view) => view.view(range),
            Self::Copied(buffer) => buffer.view(range),
        }
    }
}
