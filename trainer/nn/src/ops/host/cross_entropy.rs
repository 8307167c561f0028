//! Cross entropy.

use super::vector::{exp_shifted, max_value, scale, vectorized};
use crate::ops::{Host, HostTargets};
use unisono_cuda::device::compute::LocalTargets;

impl Host {
    pub(crate) fn sum(&self, values: &[f32]) -> f64 {
        values.iter().copied().map(f64::from).sum()
    }

    pub(crate) fn cross_entropy(
        &self,
        logits: &mut [f32],
        columns: usize,
        targets: &[u32],
        ignored: Option<u32>,
        share: f32,
    ) -> f64 {
        let mut loss = 0.0;
        vectorized(
            #[inline(always)]
            || {
                for (row, target) in logits.chunks_exact_mut(columns).zip(targets) {
                    match Some(*target) == ignored {
                        true => row.fill(0.0),
                        false => loss += f64::from(row_loss(row, *target as usize, share)),
                    }
                }
            },
        );
        loss
    }

    pub(crate) fn class_max(&self, logits: &[f32], targets: &HostTargets, max: &mut [f32]) {
        let rows = logits.chunks_exact(targets.columns).zip(max);
        rows.for_each(|(row, max)| *max = max_value(&row[..targets.count]));
    }

    pub(crate) fn class_exp(
        &self,
        logits: &mut [f32],
        targets: &HostTargets,
        max: &[f32],
        sums_and_targets: &mut [f32],
    ) {
        let (sums, at_target) = sums_and_targets.split_at_mut(max.len());
        let rows = logits.chunks_exact_mut(targets.columns).zip(targets.places()).zip(max);
        for (((row, place), max), (sum, at_target)) in rows.zip(sums.iter_mut().zip(at_target)) {
            // The logit is read before its exponential takes its place.
            *at_target = place.map_or(0.0, |place| row[place]);
            let (classes, padding) = row.split_at_mut(targets.count);
            *sum = vectorized(
                #[inline(always)]
                || exp_shifted(classes, *max),
            );
            // Classes of padding have probability 0, from which their gradient of 0 follows.
            padding.fill(0.0);
        }
    }

    pub(crate) fn class_backward(
        &self,
        powers: &mut [f32],
        targets: &HostTargets,
        sums_and_targets: &[f32],
        max: &mut [f32],
        share: f32,
    ) {
        let (sums, at_target) = sums_and_targets.split_at(max.len());
        let rows = powers.chunks_exact_mut(targets.columns).enumerate().zip(targets.places());
        for ((index, row), place) in rows {
            let counts = targets.places[index] != LocalTargets::IGNORED;
            scale(row, if counts { share / sums[index] } else { 0.0 });
            max[index] = if counts { max[index] + (sums[index].ln() - at_target[index]) } else { 0.0 };
            place.into_iter().for_each(|place| row[place] -= share);
        }
    }
}

impl HostTargets {
    /// Returns the column of each row's target, if this rank has it.
    fn places(&self) -> impl Iterator<Item = Option<usize>> {
        self.places.iter().map(|&place| (place < LocalTargets::OTHER_RANK).then_some(place as usize))
    }
}

/// Returns the loss of one row, and replaces its logits by the gradient: (softmax - one at the
/// target) · `share`.
#[inline(always)]
fn row_loss(row: &mut [f32], target: usize, share: f32) -> f32 {
    // The logit of the target is read before exponentials take its place.
    let (most, at_target) = (max_value(row), row[target]);
    let sum = exp_shifted(row, most);
    let factor = share / sum;
    row.iter_mut().for_each(|value| *value *= factor);
    row[target] -= share;
    most - at_target + sum.ln()
}

/// Replaces logits by the gradient of `factor` times the loss of their row. `place` is the target's
/// index, if it is on this rank.
pub fn row_grad(row: &mut [f32], log_sum: f32, place: Option<usize>, factor: f32) {
    if factor == 0.0 {
        return row.fill(0.0);
    }
    vectorized(
        #[inline(always)]
        || exp_shifted(row, log_sum),
    );
    scale(row, factor);
    place.into_iter().for_each(|place| row[place] -= factor);
}
