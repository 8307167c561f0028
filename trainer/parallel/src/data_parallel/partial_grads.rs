//! Gradients of which several ranks hold a partial sum.

use crate::bucket::{Bucket, BucketEntry, FlatBuffer};
use std::ops::Range;
use unisono::Result;
use unisono_nn::parameter::{Inventory, Parameter};
use unisono_nn::process_group::ProcessGroup;

/// Partial gradients of one bucket, to be summed before any other use.
///
/// With sequence parallelism, norms and biases see only part of the rows (Korthikanti et al.,
/// "Reducing activation recomputation in large transformer models", MLSys 2023). A head that is
/// tied to the embedding of another pipeline stage adds its part to the same gradient. Ranks that
/// repeat a head of keys and values have the gradients of their own queries only.
pub(super) struct PartialGrads {
    sums: Vec<(ProcessGroup, Range<usize>)>,
}

impl PartialGrads {
    pub(super) fn for_bucket(
        bucket: &Bucket,
        inventory: &Inventory,
        tensor: Option<&ProcessGroup>,
        tied: Option<&ProcessGroup>,
    ) -> Self {
        let sums_over = |group: Option<&ProcessGroup>, is_partial: fn(&Parameter) -> bool| {
            let meant = |entry: &&BucketEntry| is_partial(&inventory[entry.parameter]);
            let entries = group.into_iter().flat_map(|group| {
                let entries = bucket.entries.iter().filter(meant);
                entries.map(|entry| (group.clone(), entry.range.clone()))
            });
            entries.collect::<Vec<_>>()
        };
        let mut sums = sums_over(tensor, |parameter| parameter.partial_grad);
        sums.extend(sums_over(tied, |parameter| parameter.residency.is_tied()));
        Self { sums }
    }

    /// Adds the elements that the ranks of `repeats` have in common.
    pub(super) fn with_repeats(
        mut self,
        bucket: &Bucket,
        inventory: &Inventory,
        repeats: Option<&ProcessGroup>,
    ) -> Self {
        let Some(group) = repeats else { return self };
        let sums = bucket.entries.iter().filter_map(|entry| {
            let (elements, start) = (inventory[entry.parameter].repeated_elements(), entry.range.start);
            (!elements.is_empty()).then(|| (group.clone(), start + elements.start..start + elements.end))
        });
        self.sums.extend(sums);
        self
    }

    /// Sums the partial gradients over their groups.
    pub(super) fn all_reduce(&self, gradients: &mut FlatBuffer) -> Result<()> {
        // All ranks have the same ranges in the same order, as the collectives of a group require.
        let mut sums = self.sums.iter();
        sums.try_for_each(|(group, range)| gradients.all_reduce_range(range.clone(), group.comm()))
    }
}
