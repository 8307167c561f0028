//! Losses and metrics that blocks add to a pass.

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
}

impl AddedSums {
    pub(super) fn add_loss(&mut self, name: &str, value: f32, slope: f32) {
        self.total += f64::from(slope) * f64::from(value);
        *self.losses.entry(name.to_owned()).or_default() += f64::from(value);
    }

    pub(super) fn add_metric(&mut self, name: &str, value: f32) {
        let (sum, count) = self.metrics.entry(name.to_owned()).or_default();
        *sum += f64::from(value);
        *count += 1;
    }
}
