//! Gradients of which every rank of a tensor parallel group holds a partial sum.

use crate::flat::{Bucket, FlatBuffer, ProcessGroup};
use crate::parameter::Inventory;
use std::ops::Range;
use unisono::Result;

/// Partial gradients of one bucket, to be summed before any other use.
///
/// Source: Korthikanti et al., "Reducing activation recomputation in large transformer models",
/// MLSys 2023. With sequence parallelism, norms and biases see only part of the rows.
pub(super) struct PartialGrads {
    tensor: Option<ProcessGroup>,
    ranges: Vec<Range<usize>>,
}

impl PartialGrads {
    pub(super) fn for_bucket(bucket: &Bucket, inventory: &Inventory, tensor: Option<&ProcessGroup>) -> Self {
        let is_partial =
            |piece: &&crate::flat::BucketEntry| tensor.is_some() && inventory[piece.parameter].partial_grad;
        let ranges = bucket.entries.iter().filter(is_partial).map(|piece| piece.range.clone()).collect();
        Self { tensor: tensor.cloned(), ranges }
    }

    /// Sums the partial gradients over the group.
    pub(super) fn all_reduce(&self, gradients: &mut FlatBuffer) -> Result<()> {
        let Some(tensor) = &self.tensor else { return Ok(()) };
        self.ranges.iter().try_for_each(|range| gradients.all_reduce_range(range.clone(), tensor.comm()))
    }
}
