//! Cross entropy of classes that are cut between ranks.

use crate::error::{Error, Result};
use crate::nn::vector::{exp_less, greatest, scale, vectorised};
use crate::parameter::Cut;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::{Communicator, Max, Sum};

/// As [`CrossEntropy`](crate::nn::CrossEntropy), with each rank's logits of its own classes: three numbers a row go around, not
/// the logits. Every rank gets the loss.
///
/// Source: the vocabulary-parallel cross entropy of Shoeybi et al., "Megatron-LM", arXiv 1909.08053, 2019.
pub struct SplitCrossEntropy {
    /// Targets that do not count: padding.
    pub ignore: Option<u32>,
    group: Communicator,
    classes: Cut,
    /// Classes of this rank that are no padding.
    count: usize,
}

impl SplitCrossEntropy {
    /// For classes that are cut so.
    pub fn new(group: Communicator, classes: Cut, ignore: Option<u32>) -> Self {
        let count = (0..classes.local()).filter(|&index| classes.in_whole(index).is_some()).count();
        Self { ignore, group, classes, count }
    }

    /// The loss.
    ///
    /// # Errors
    /// For a target that is no class, or if there is not one for each row; and of collectives.
    pub fn forward(&self, pass: &mut Pass<'_>, mut logits: Tensor, targets: &[u32]) -> Result<f32> {
        self.check(&logits, targets)?;
        let rows = logits.rows();
        let mut greatest = self.greatest(pass, &logits)?;
        let mut sums = pass.floats(2 * rows);
        let (powers, at_target) = sums.split_at_mut(rows);
        let local: Vec<_> = targets.iter().map(|&target| self.classes.in_part(target as usize)).collect();
        for (row, place) in local.iter().enumerate() {
            at_target[row] = place.map_or(0.0, |place| logits.row(row)[place]);
            let (classes, padding) = logits.row_mut(row).split_at_mut(self.count);
            powers[row] = vectorised(
                #[inline(always)]
                || exp_less(classes, greatest[row]),
            );
            padding.fill(0.0);
        }
        pass.wait("sums of the loss", || self.group.all_reduce(&mut sums, Sum))?;
        let (powers, at_target) = sums.split_at(rows);
        let counts = |row: usize| Some(targets[row]) != self.ignore;
        let share = 1.0 / (0..rows).filter(|&row| counts(row)).count().max(1) as f32;
        let mut loss = 0.0;
        for row in 0..rows {
            let factor = if counts(row) { share / powers[row] } else { 0.0 };
            scale(logits.row_mut(row), factor);
            if counts(row) {
                greatest[row] += powers[row].ln() - at_target[row];
                loss += f64::from(greatest[row]);
                local[row].into_iter().for_each(|place| logits.row_mut(row)[place] -= share);
            }
        }
        pass.save(logits);
        Ok((loss * f64::from(share)) as f32)
    }

    /// The gradient of `factor` times the loss, with respect to this rank's logits.
    pub fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Tensor {
        let mut gradient: Tensor = pass.restore();
        scale(gradient.data_mut(), factor);
        gradient
    }

    /// The greatest logit of each row, of all ranks.
    fn greatest(&self, pass: &Pass<'_>, logits: &Tensor) -> Result<crate::memory::Floats> {
        let mut all = pass.floats(logits.rows());
        for (row, most) in all.iter_mut().enumerate() {
            *most = if self.count > 0 { greatest(&logits.row(row)[..self.count]) } else { f32::NEG_INFINITY };
        }
        pass.wait("greatest logits", || self.group.all_reduce(&mut all, Max))?;
        Ok(all)
    }

    fn check(&self, logits: &Tensor, targets: &[u32]) -> Result<()> {
        let (rows, classes) = (logits.rows(), self.classes.whole);
        if targets.len() != rows {
            return Err(Error::illegal(format!("{} targets for {rows} rows of logits", targets.len())));
        }
        let is_class = |target: &&u32| (**target as usize) < classes || Some(**target) == self.ignore;
        match targets.iter().find(|target| !is_class(target)) {
            Some(target) => Err(Error::illegal(format!("target {target} of {classes} classes"))),
            None => Ok(()),
        }
    }
}
