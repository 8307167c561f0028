//! Weights that modules on a GPU read.

use std::ops::RangeBounds;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, View};

/// The weights of a parameter in memory of a GPU.
pub enum Weights<'a> {
    /// Where the strategy keeps them.
    Flat(View<'a, f32>),
    /// A copy of what it keeps on the host.
    Copied(Arc<Buffer<f32>>),
}

impl Weights<'_> {
    /// The part `range`.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn view(&self, range: impl RangeBounds<usize>) -> View<'_, f32> {
        match self {
            Self::Flat(view) => view.view(range),
            Self::Copied(buffer) => buffer.view(range),
        }
    }
}
