//! Which gradients are still to come.

use crate::error::{Error, Result};
use crate::flat::{BucketId, Layout};
use crate::parameter::{Inventory, ParameterId};
use std::sync::Arc;

/// Counts the contributions to every parameter's gradient in one backward pass.
///
/// Buckets are handed out strictly in order, so that all ranks start their collectives alike whatever
/// parameters a rank happens not to use.
pub struct BucketTracker {
    inventory: Arc<Inventory>,
    layout: Arc<Layout>,
    /// Contributions still to come, by parameter.
    parameters: Vec<usize>,
    /// Parameters still to come, by bucket.
    buckets: Vec<usize>,
    next: usize,
}

impl BucketTracker {
    /// For the parameters of `inventory`, packed as `layout` says.
    pub fn new(inventory: Arc<Inventory>, layout: Arc<Layout>) -> Self {
        let mut countdown = Self { inventory, layout, parameters: Vec::new(), buckets: Vec::new(), next: 0 };
        countdown.reset();
        countdown
    }

    /// Begins another backward pass.
    pub fn reset(&mut self) {
        let uses =
            |parameter: &crate::parameter::Parameter| usize::from(parameter.trainable) * parameter.use_count;
        self.parameters.clear();
        self.parameters.extend(self.inventory.parameters.iter().map(uses));
        let due = |bucket: &crate::flat::Bucket| if bucket.trainable { bucket.entries.len() } else { 0 };
        self.buckets.clear();
        self.buckets.extend(self.layout.buckets.iter().map(due));
        self.next = 0;
    }

    /// One use of a parameter has been added to its gradient. Whether that was the last.
    ///
    /// # Errors
    /// If more were added than there are uses.
    pub fn mark_ready(&mut self, id: ParameterId) -> Result<bool> {
        let left = &mut self.parameters[id.0];
        *left = left.checked_sub(1).ok_or_else(|| {
            let name = &self.inventory[id].name;
            Error::invalid(format!("{name} got more gradients in one pass than it has uses"))
        })?;
        let last = *left == 0;
        if last {
            self.buckets[self.layout.location(id).0.0] -= 1;
        }
        Ok(last)
    }

    /// The next bucket in order, if it is complete; hands out each one once.
    pub fn next_complete(&mut self) -> Option<BucketId> {
        self.next_where(|left| left == 0)
    }

    /// The next bucket in order, complete or not: what has not come by the end of backward is zero.
    pub fn next_remaining(&mut self) -> Option<BucketId> {
        self.next_where(|_| true)
    }

    fn next_where(&mut self, may: impl Fn(usize) -> bool) -> Option<BucketId> {
        while self.layout.buckets.get(self.next).is_some_and(|bucket| !bucket.trainable) {
            self.next += 1;
        }
        let left = *self.buckets.get(self.next)?;
        may(left).then(|| {
            self.next += 1;
            BucketId(self.next - 1)
        })
    }

    /// Names of trainable parameters whose gradient has not come.
    pub fn missing(&self) -> Vec<&str> {
        let missing = self.parameters.iter().zip(&self.inventory.parameters).filter(|(left, _)| **left > 0);
        missing.map(|(_, parameter)| parameter.name.as_str()).collect()
    }
}
