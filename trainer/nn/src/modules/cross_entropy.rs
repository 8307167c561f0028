//! Cross entropy loss.

use crate::error::{Error, Result};
use crate::ops::host::cross_entropy::row_grad;
use crate::ops::host::vector::{exp_shifted, max_value, vectorized};
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Mean of -ln softmax(logits) at the target, over all rows whose target is not `ignore_index`.
///
/// (rows, classes) and (rows) targets → a number. Saves the gradient, in place of the logits. The
/// mean of no rows is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossEntropy {
    /// Target value that is ignored: padding.
    pub ignore_index: Option<u32>,
}

impl CrossEntropy {
    /// Computes the loss.
    ///
    /// # Errors
    /// Fails for a target that is no class, or if there is not one target per row.
    pub fn forward(&self, pass: &mut Pass<'_>, logits: Tensor, targets: &[u32]) -> Result<f32> {
        let count = targets.iter().filter(|target| Some(**target) != self.ignore_index).count();
        self.forward_scaled(pass, logits, targets, 1.0 / count.max(1) as f32)
    }

    /// Computes the sum over counted rows times `share`: one part of a mean over more rows.
    ///
    /// # Errors
    /// Fails as [`CrossEntropy::forward`] does.
    pub fn forward_scaled(
        &self,
        pass: &mut Pass<'_>,
        mut logits: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        // The operation reads the logit at each target, so a wrong target is refused first.
        check_targets(targets, [logits.rows(), logits.columns()], self.ignore_index)?;
        let (columns, ignored) = (logits.columns(), self.ignore_index);
        let loss = pass.ops().cross_entropy(logits.values_mut(), columns, targets, ignored, share)?;
        // The operation has put the gradient in place of the logits, so backward only scales it.
        pass.save(logits);
        Ok((loss * f64::from(share)) as f32)
    }

    /// Computes the gradient of `factor` times the loss with respect to the logits.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        let mut gradient: Tensor = pass.restore();
        pass.ops().scale(gradient.values_mut(), factor)?;
        Ok(gradient)
    }

    /// Computes the sum over counted rows without saving a gradient. Writes the log-sum-exp of each
    /// row to `log_sums` for [`CrossEntropy::logits_grad`]. `logits` are unspecified afterwards.
    ///
    /// # Errors
    /// Fails as [`CrossEntropy::forward`] does.
    pub fn loss_sum(&self, logits: &mut Tensor, targets: &[u32], log_sums: &mut [f32]) -> Result<f64> {
        check_targets(targets, [logits.rows(), logits.columns()], self.ignore_index)?;
        let (mut loss, columns) = (0.0, logits.columns());
        vectorized(
            #[inline(always)]
            || {
                let rows = logits.data_mut().chunks_exact_mut(columns);
                for ((row, log_sum), target) in rows.zip(log_sums).zip(targets) {
                    // The logit is read before exponentials take its place. A target that is
                    // ignored may be no class.
                    let at_target = row.get(*target as usize).copied();
                    let largest = max_value(row);
                    *log_sum = largest + exp_shifted(row, largest).ln();
                    if let Some(at_target) = at_target.filter(|_| Some(*target) != self.ignore_index) {
                        loss += f64::from(*log_sum - at_target);
                    }
                }
            },
        );
        Ok(loss)
    }

    /// Replaces recomputed `logits` by the gradient of `factor` times their
    /// [`CrossEntropy::loss_sum`].
    pub fn logits_grad(&self, logits: &mut Tensor, targets: &[u32], log_sums: &[f32], factor: f32) {
        let columns = logits.columns();
        let rows = logits.data_mut().chunks_exact_mut(columns);
        for ((row, log_sum), target) in rows.zip(log_sums).zip(targets) {
            let place = Some(*target as usize);
            row_grad(row, *log_sum, place, if Some(*target) == self.ignore_index { 0.0 } else { factor });
        }
    }
}

/// Checks that there is one target per row, and that each is a class or `ignored`.
///
/// # Errors
/// [`Error::Invalid`] names the numbers of targets and rows, or the first wrong target.
pub fn check_targets(targets: &[u32], [rows, classes]: [usize; 2], ignored: Option<u32>) -> Result<()> {
    if targets.len() != rows {
        return Err(Error::invalid(format!("{} targets for {rows} rows of logits", targets.len())));
    }
    let is_class = |target: &&u32| (**target as usize) < classes || Some(**target) == ignored;
    match targets.iter().find(|target| !is_class(target)) {
        Some(target) => Err(Error::invalid(format!("target {target} of {classes} classes"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::modules::{random_values, to_f64};
    use crate::parameter::Inventory;
    use crate::pass::Seeds;
    use crate::strategy::LocalStrategy;

    const CLASSES: usize = 21;

    fn forward_and_backward(logits: &[f32], targets: &[u32], factor: f32) -> Result<(f32, Vec<f32>)> {
        let (memory, loss) = (Allocator::default(), CrossEntropy { ignore_index: Some(99) });
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let logits = Tensor::from_slice(&memory, logits.len() / CLASSES, CLASSES, logits);
        let value = loss.forward(&mut pass, logits, targets)?;
        Ok((value, loss.backward(&mut pass, factor)?.data().to_vec()))
    }

    #[test]
    fn loss_and_gradient_match_formula() {
        let logits: Vec<f32> = random_values(3, 4 * CLASSES).iter().map(|x| 30.0 * x).collect();
        let targets = [3, 99, 20, 0];
        let (loss, gradient) = forward_and_backward(&logits, &targets, 0.5).expect("legal");
        let mut expected = 0.0;
        for (row, target) in targets.iter().enumerate() {
            let of_row = to_f64(&logits[row * CLASSES..][..CLASSES]);
            let sum: f64 = of_row.iter().map(|x| x.exp()).sum();
            let counts = f64::from(u8::from(*target != 99)) / 3.0;
            expected += if *target == 99 { 0.0 } else { (sum.ln() - of_row[*target as usize]) / 3.0 };
            for class in 0..CLASSES {
                let indicator = f64::from(u8::from(class == *target as usize));
                let slope = 0.5 * counts * (of_row[class].exp() / sum - indicator);
                assert!((f64::from(gradient[row * CLASSES + class]) - slope).abs() < 1e-7, "{row}, {class}");
            }
        }
        assert!((f64::from(loss) - expected).abs() < 1e-5, "{loss}, not {expected}");
    }

    #[test]
    fn loss_sum_and_grad_match_mean() {
        let (logits, targets) = (random_values(3, 4 * CLASSES), [3, 99, 20, 0]);
        let (loss, gradient) = forward_and_backward(&logits, &targets, 0.5).expect("legal");
        let (memory, entropy) = (Allocator::default(), CrossEntropy { ignore_index: Some(99) });
        let fresh = || Tensor::from_slice(&memory, 4, CLASSES, &logits);
        let (mut spent, mut log_sums) = (fresh(), [0.0; 4]);
        let sum = entropy.loss_sum(&mut spent, &targets, &mut log_sums).expect("legal");
        assert!((sum / 3.0 - f64::from(loss)).abs() < 1e-6, "{sum}");
        let mut slopes = fresh();
        entropy.logits_grad(&mut slopes, &targets, &log_sums, 0.5 / 3.0);
        let is_near = |(left, right): (&f32, &f32)| (left - right).abs() < 1e-7;
        assert!(slopes.data().iter().zip(&gradient).all(is_near), "{slopes:?}");
    }

    #[test]
    fn loss_of_padding_is_zero() {
        let (loss, gradient) = forward_and_backward(&[1.0; CLASSES], &[99], 1.0).expect("legal");
        assert_eq!((loss, gradient), (0.0, vec![0.0; CLASSES]));
    }

    #[test]
    fn mean_ignores_padding_rows() {
        let (loss, gradient) = forward_and_backward(&[1.0; 2 * CLASSES], &[4, 99], 1.0).expect("legal");
        assert!((loss - 21.0f32.ln()).abs() < 1e-6, "{loss}");
        assert!((gradient[4] + 20.0 / 21.0).abs() < 1e-6, "{}", gradient[4]);
    }

    #[test]
    fn invalid_targets_are_rejected() {
        let message = |targets: &[u32]| {
            forward_and_backward(&[1.0; CLASSES], targets, 1.0).expect_err("illegal").to_string()
        };
        assert_eq!(message(&[21]), "target 21 of 21 classes");
        assert_eq!(message(&[1, 2]), "2 targets for 1 rows of logits");
    }
}
