//! Losses and metrics that blocks add to a pass.

use super::Pass;
use std::collections::BTreeMap;

/// Sums over blocks and micro-batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddedSums {
    /// Sum of slope times value of all losses.
    pub total: f64,
    /// Sum of the values of each loss, by name.
    pub losses: BTreeMap<String, f64>,
    /// Sum and number of the values of each metric, by name.
    pub metrics: BTreeMap<String, (f64, u64)>,
    /// Tokens of each expert, by path of their block.
    pub loads: BTreeMap<String, Vec<u64>>,
}

impl AddedSums {
    fn add_loss(&mut self, name: &str, value: f32, slope: f32) {
        self.total += f64::from(slope) * f64::from(value);
        *self.losses.entry(name.to_owned()).or_default() += f64::from(value);
    }

    fn add_load(&mut self, path: &str, tokens: &[u32]) {
        let sums = self.loads.entry(path.to_owned()).or_insert_with(|| vec![0; tokens.len()]);
        sums.iter_mut().zip(tokens).for_each(|(sum, &tokens)| *sum += u64::from(tokens));
    }

    fn add_metric(&mut self, name: &str, value: f32) {
        let (sum, count) = self.metrics.entry(name.to_owned()).or_default();
        *sum += f64::from(value);
        *count += 1;
    }
}

/// Losses and metrics that blocks add to a pass.
pub struct AddedValues {
    sums: AddedSums,
    /// Factor of the loss in backward.
    pub(super) loss_scale: f32,
    /// True while backward repeats a part of forward, whose values are in the sums already.
    pub(super) is_paused: bool,
}

impl Default for AddedValues {
    fn default() -> Self {
        Self { sums: AddedSums::default(), loss_scale: 1.0, is_paused: false }
    }
}

impl AddedValues {
    /// Reports a number of the current micro-batch, in forward: the mean of all values of this
    /// name, over blocks, micro-batches and data ranks.
    pub fn metric(&mut self, name: &str, value: f32) {
        if !self.is_paused {
            self.sums.add_metric(name, value);
        }
    }

    /// Reports the tokens of each expert of the block at `path`, in forward.
    pub fn expert_load(&mut self, path: &str, tokens: &[u32]) {
        if !self.is_paused {
            self.sums.add_load(path, tokens);
        }
    }

    /// Returns what blocks have added since the last call.
    pub fn take_sums(&mut self) -> AddedSums {
        std::mem::take(&mut self.sums)
    }
}

/// Slope of a loss that a block has added, on its way to backward.
struct AddedLoss(f32);

impl Pass<'_> {
    /// Adds `slope` times a loss to the total loss of the current micro-batch, in forward. Reports
    /// have the sum of the values of this name, averaged over micro-batches and data ranks.
    ///
    /// The block passes the gradient on: in its backward, [`Pass::added_loss_gradient`] returns the
    /// gradient of the total with respect to `value`.
    pub fn add_loss(&mut self, name: &str, value: f32, slope: f32) {
        // A repeated forward would count the value twice. Backward still takes the slope from its
        // tape.
        if !self.added.is_paused {
            self.added.sums.add_loss(name, value, slope);
        }
        self.save(AddedLoss(slope));
    }

    /// Returns the gradient of the total loss with respect to the loss added last in forward. As
    /// [`Pass::restore`], it must be called once for each, in reverse order.
    ///
    /// # Panics
    /// Panics as [`Pass::restore`] does.
    pub fn added_loss_gradient(&mut self) -> f32 {
        let AddedLoss(slope) = self.restore();
        slope * self.added.loss_scale
    }
}
