//! Cross entropy of sharded classes.

mod device;

use crate::allocator::F32Vec;
use crate::error::{Error, Result};
use crate::flat::ProcessGroup;
use crate::nn::vector::{exp_shifted, max_value, scale, vectorized};
use crate::nn::{CrossEntropy, row_grad};
use crate::parameter::ShardSpec;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::{Max, Sum};

/// Computes the loss as [`CrossEntropy`] does, from each rank's logits of
/// its own classes. Ranks exchange three numbers per row, not the logits. Every rank receives the
/// loss.
///
/// Source: vocabulary-parallel cross entropy of Shoeybi et al., "Megatron-LM", arXiv 1909.08053,
/// 2019.
pub struct VocabParallelCrossEntropy {
    /// Target value that is ignored: padding.
    pub ignore_index: Option<u32>,
    group: ProcessGroup,
    classes: ShardSpec,
    /// Number of classes of this rank without padding.
    count: usize,
}

/// Statistics of each row over all ranks.
struct SoftmaxStats {
    row_max: F32Vec,
    /// Sums of the exponentials, followed by the logits at the targets.
    exp_sums: F32Vec,
}

impl SoftmaxStats {
    fn sum(&self, row: usize) -> f32 {
        self.exp_sums[row]
    }

    fn loss(&self, row: usize) -> f32 {
        self.row_max[row] + (self.sum(row).ln() - self.exp_sums[self.row_max.len() + row])
    }
}

impl VocabParallelCrossEntropy {
    /// Creates the loss for classes with this sharding.
    pub fn new(group: ProcessGroup, classes: ShardSpec, ignore: Option<u32>) -> Self {
        let count = (0..classes.local_size()).filter(|&index| classes.global_index(index).is_some()).count();
        Self { ignore_index: ignore, group, classes, count }
    }

    /// Computes the sum over counted rows times `share`: 1 / their number for the mean.
    ///
    /// # Errors
    /// Fails for a target that is no class, or if there is not one target per row. Returns the
    /// error of a failed collective.
    pub fn forward_scaled(
        &self,
        pass: &mut Pass<'_>,
        mut logits: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        if let Some(device) = pass.device() {
            return self.forward_scaled_on(device, pass, logits, targets, share);
        }
        let powers = self.softmax_stats(pass, &mut logits, targets)?;
        let mut loss = 0.0;
        for (row, &target) in targets.iter().enumerate() {
            let counts = Some(target) != self.ignore_index;
            scale(logits.row_mut(row), if counts { share / powers.sum(row) } else { 0.0 });
            if counts {
                loss += f64::from(powers.loss(row));
                let place = self.classes.local_index(target as usize);
                place.into_iter().for_each(|place| logits.row_mut(row)[place] -= share);
            }
        }
        pass.save(logits);
        Ok((loss * f64::from(share)) as f32)
    }

    /// Computes the sum as [`CrossEntropy::loss_sum`](crate::nn::CrossEntropy::loss_sum) does.
    ///
    /// # Errors
    /// Fails as [`VocabParallelCrossEntropy::forward_scaled`] does.
    pub fn loss_sum(
        &self,
        pass: &Pass<'_>,
        logits: &mut Tensor,
        targets: &[u32],
        log_sums: &mut [f32],
    ) -> Result<f64> {
        let powers = self.softmax_stats(pass, logits, targets)?;
        let mut loss = 0.0;
        for (row, &target) in targets.iter().enumerate() {
            log_sums[row] = powers.row_max[row] + powers.sum(row).ln();
            loss += if Some(target) == self.ignore_index { 0.0 } else { f64::from(powers.loss(row)) };
        }
        Ok(loss)
    }

    /// Computes the gradient as [`CrossEntropy::logits_grad`](crate::nn::CrossEntropy::logits_grad)
    /// does, without communication.
    pub fn logits_grad(&self, logits: &mut Tensor, targets: &[u32], log_sums: &[f32], factor: f32) {
        for (row, &target) in targets.iter().enumerate() {
            let factor = if Some(target) == self.ignore_index { 0.0 } else { factor };
            let place = self.classes.local_index(target as usize);
            let (classes, padding) = logits.row_mut(row).split_at_mut(self.count);
            row_grad(classes, log_sums[row], place, factor);
            padding.fill(0.0);
        }
    }

    /// Replaces logits by exponentials, relative to the maximum of each row.
    fn softmax_stats(&self, pass: &Pass<'_>, logits: &mut Tensor, targets: &[u32]) -> Result<SoftmaxStats> {
        self.check(logits, targets)?;
        let rows = logits.rows();
        let greatest = self.row_max(pass, logits)?;
        let mut both = pass.floats(2 * rows);
        let (sums, at_target) = both.split_at_mut(rows);
        for (row, &target) in targets.iter().enumerate() {
            let place = self.classes.local_index(target as usize);
            at_target[row] = place.map_or(0.0, |place| logits.row(row)[place]);
            let (classes, padding) = logits.row_mut(row).split_at_mut(self.count);
            sums[row] = vectorized(
                #[inline(always)]
                || exp_shifted(classes, greatest[row]),
            );
            padding.fill(0.0);
        }
        pass.timed_wait("sums of the loss", || self.group.host().all_reduce(&mut both, Sum))?;
        Ok(SoftmaxStats { row_max: greatest, exp_sums: both })
    }

    /// Computes the gradient of `factor` times the loss with respect to this rank's logits.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        CrossEntropy { ignore_index: self.ignore_index }.backward(pass, factor)
    }

    /// Returns the maximum logit of each row over all ranks.
    fn row_max(&self, pass: &Pass<'_>, logits: &Tensor) -> Result<F32Vec> {
        let mut all = pass.floats(logits.rows());
        for (row, most) in all.iter_mut().enumerate() {
            *most =
                if self.count > 0 { max_value(&logits.row(row)[..self.count]) } else { f32::NEG_INFINITY };
        }
        pass.timed_wait("greatest logits", || self.group.host().all_reduce(&mut all, Max))?;
        Ok(all)
    }

    fn check(&self, logits: &Tensor, targets: &[u32]) -> Result<()> {
        let (rows, classes) = (logits.rows(), self.classes.global_size);
        if targets.len() != rows {
            return Err(Error::invalid(format!("{} targets for {rows} rows of logits", targets.len())));
        }
        let is_class = |target: &&u32| (**target as usize) < classes || Some(**target) == self.ignore_index;
        match targets.iter().find(|target| !is_class(target)) {
            Some(target) => Err(Error::invalid(format!("target {target} of {classes} classes"))),
            None => Ok(()),
        }
    }
}
