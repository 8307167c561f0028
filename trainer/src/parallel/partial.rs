//! Gradients of which every rank of a tensor-parallel group has a part.

use crate::flat::{Bucket, Numbers, Ranks};
use crate::parameter::Inventory;
use std::ops::Range;
use unisono::Result;

/// The partial gradients of one bucket, to be summed before anything else is done with them.
///
/// Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023: with
/// sequence parallelism, norms and biases see a part of the rows only.
pub(super) struct Partial {
    tensor: Option<Ranks>,
    ranges: Vec<Range<usize>>,
}

impl Partial {
    pub(super) fn of(bucket: &Bucket, inventory: &Inventory, tensor: Option<&Ranks>) -> Self {
        let is_partial = |piece: &&crate::flat::Piece| tensor.is_some() && inventory[piece.parameter].partial;
        let ranges = bucket.pieces.iter().filter(is_partial).map(|piece| piece.range.clone()).collect();
        Self { tensor: tensor.cloned(), ranges }
    }

    /// Sums them over the group.
    pub(super) fn sum(&self, gradients: &mut Numbers) -> Result<()> {
        let Some(tensor) = &self.tensor else { return Ok(()) };
        self.ranges.iter().try_for_each(|range| gradients.sum_range(range.clone(), tensor.peers()))
    }
}
