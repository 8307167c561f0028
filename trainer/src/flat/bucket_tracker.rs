//! Tracks the gradients that are still missing in a backward pass.

use crate::error::{Error, Result};
use crate::flat::{BucketId, Layout};
use crate::parameter::{Inventory, ParameterId};
use std::sync::Arc;

/// Counts the contributions to every parameter's gradient in one backward pass.
///
/// Buckets are returned strictly in order. So all ranks start their collectives in the same order,
/// whichever parameters a rank does not use.
pub struct BucketTracker {
    inventory: Arc<Inventory>,
    layout: Arc<Layout>,
    /// Missing contributions, by parameter.
    parameters: Vec<usize>,
    /// Missing parameters, by bucket.
    buckets: Vec<usize>,
    next: usize,
}

impl BucketTracker {
    /// Creates a tracker for the parameters of `inventory` in the buckets of `layout`.
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

    /// Counts one use of a parameter. Returns true if it was the last.
    ///
    /// # Errors
    /// Fails if more contributions arrive than the parameter has uses.
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

    /// Returns the next bucket in order, if it is complete. Returns each bucket once.
    pub fn next_complete(&mut self) -> Option<BucketId> {
        self.next_where(|left| left == 0)
    }

    /// Returns the next bucket in order, even if incomplete: gradients missing after backward are
    /// zero.
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

    /// Returns the names of trainable parameters whose gradient is missing.
    pub fn missing(&self) -> Vec<&str> {
        let missing = self.parameters.iter().zip(&self.inventory.parameters).filter(|(left, _)| **left > 0);
        missing.map(|(_, parameter)| parameter.name.as_str()).collect()
    }
}
