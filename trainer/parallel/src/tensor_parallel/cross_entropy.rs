//! Cross entropy of sharded classes.

use unisono::{Max, Sum};
use unisono_cuda::device::compute::LocalTargets as DeviceTargets;
use unisono_nn::error::Result;
use unisono_nn::modules::{CrossEntropy, check_targets};
use unisono_nn::ops::host::cross_entropy::row_grad;
use unisono_nn::ops::{HostTargets, LocalTargets};
use unisono_nn::parameter::ShardSpec;
use unisono_nn::pass::Pass;
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::tensor::Tensor;

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
    targets: LocalTargets,
    row_max: Tensor,
    /// Sums of the exponentials, followed by the logits at the targets.
    sums: Tensor,
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
        let mut stats = self.softmax_stats(pass, &mut logits, targets)?;
        let (powers, max) = (logits.values_mut(), stats.row_max.values_mut());
        pass.ops().class_backward(powers, &stats.targets, stats.sums.values(), max, share)?;
        let loss = pass.ops().sum(stats.row_max.values())?;
        // The operation has put the gradient in place of the logits, so backward only scales it.
        pass.save(logits);
        Ok((loss * f64::from(share)) as f32)
    }

    /// Computes the sum as [`unisono_nn::modules::CrossEntropy::loss_sum`] does.
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
        let stats = self.softmax_stats(pass, logits, targets)?;
        let (max, (sums, at_target)) = (stats.row_max.data(), stats.sums.data().split_at(targets.len()));
        let mut loss = 0.0;
        for (row, &target) in targets.iter().enumerate() {
            let log = sums[row].ln();
            log_sums[row] = max[row] + log;
            let counts = Some(target) != self.ignore_index;
            loss += if counts { f64::from(max[row] + (log - at_target[row])) } else { 0.0 };
        }
        Ok(loss)
    }

    /// Computes the gradient as [`unisono_nn::modules::CrossEntropy::logits_grad`] does, without
    /// communication.
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
        let (rows, ops) = (logits.rows(), pass.ops());
        check_targets(targets, [rows, self.classes.global_size], self.ignore_index)?;
        let places = targets.iter().map(|&target| self.local_class(target)).collect();
        let targets = local_targets(pass, places, logits.columns(), self.count)?;
        let (mut row_max, mut sums) = (pass.tensor_in_place(rows, 1)?, pass.tensor_in_place(2, rows)?);
        ops.class_max(logits.values(), &targets, row_max.values_mut())?;
        // Exponentials of all ranks are relative to the same number, so that their sums can be
        // added.
        pass.waits().time("greatest logits", || row_max.all_reduce(&self.group, Max))?;
        ops.class_exp(logits.values_mut(), &targets, row_max.values(), sums.values_mut())?;
        // One collective sums the exponentials and the logits at the targets, which are in one
        // tensor.
        pass.waits().time("sums of the loss", || sums.all_reduce(&self.group, Sum))?;
        Ok(SoftmaxStats { targets, row_max, sums })
    }

    /// Returns this rank's index of a class.
    fn local_class(&self, target: u32) -> u32 {
        match self.classes.local_index(target as usize) {
            _ if Some(target) == self.ignore_index => DeviceTargets::IGNORED,
            Some(place) => place as u32,
            None => DeviceTargets::OTHER_RANK,
        }
    }

    /// Computes the gradient of `factor` times the loss with respect to this rank's logits.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        CrossEntropy { ignore_index: self.ignore_index }.backward(pass, factor)
    }
}

/// Moves targets to the memory where modules compute. They are columns of logits with `columns`
/// columns, of which the first `count` are classes, or marks of [`DeviceTargets`].
fn local_targets(pass: &Pass<'_>, places: Vec<u32>, columns: usize, count: usize) -> Result<LocalTargets> {
    let Some(device) = pass.device() else {
        return Ok(LocalTargets::Host(HostTargets { places, columns, count }));
    };
    let stream = device.compute().stream();
    Ok(LocalTargets::Device(DeviceTargets::new(stream, &places, columns, count)?))
}
