//! Tracks the gradients that are still missing in a step.

use crate::bucket::{BucketId, Layout};
use std::sync::Arc;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Inventory, ParameterId, UnitId};
use unisono_nn::step_plan::{StepPlan, Work};

/// Counts the contributions to every parameter's gradient in one step.
///
/// Buckets are returned strictly in the order in which the plan of the step completes them, and in
/// the same visit on all ranks. So all ranks start their collectives in the same order, whichever
/// parameters a rank does not use.
pub struct BucketTracker {
    inventory: Arc<Inventory>,
    layout: Arc<Layout>,
    /// Returns a bucket after every visit, not once at the end.
    each_visit: bool,
    /// Contributions so far, by parameter.
    arrived: Vec<usize>,
    /// Contributions of the visits that ended, by parameter, also of those that never came.
    ended: Vec<usize>,
    /// True for units whose gradients of weights come after the visit with the others.
    defers: Vec<bool>,
    /// Contributions of the whole step, by parameter.
    due: Vec<usize>,
    /// Buckets in the order of completion.
    order: Vec<Completion>,
    next: usize,
}

/// Time at which a bucket's gradients are complete.
struct Completion {
    bucket: BucketId,
    /// Number of times that the bucket has been complete, including this one.
    round: usize,
}

impl BucketTracker {
    /// Creates a tracker for the parameters of `inventory` in the buckets of `layout`. With
    /// `each_visit`, a bucket is complete after every micro-batch, or group of them, and not only
    /// at the end of the step.
    pub fn new(inventory: Arc<Inventory>, layout: Arc<Layout>, each_visit: bool) -> Self {
        let counts = vec![0; inventory.parameters.len()];
        let (order, next, defers) = (Vec::new(), 0, Vec::new());
        let [arrived, ended, due] = [(); 3].map(|()| counts.clone());
        Self { inventory, layout, each_visit, arrived, ended, defers, due, order, next }
    }

    /// Begins a step.
    pub fn begin_step(&mut self, plan: &StepPlan) {
        [&mut self.arrived, &mut self.ended, &mut self.due].into_iter().for_each(|counts| counts.fill(0));
        self.next = 0;
        self.defers = vec![false; self.inventory.units.len()];
        let deferred = plan.visits().iter().filter(|visit| visit.work == Work::InputGrads);
        deferred.for_each(|visit| self.defers[visit.unit.0] = true);
        plan.contributions(&self.inventory).for_each(|id| self.due[id.0] += 1);
        self.order = self.completions(plan);
    }

    /// Returns the number of contributions to a parameter that complete it once.
    fn per_round(&self, id: ParameterId) -> usize {
        if self.each_visit { self.inventory[id].use_count } else { self.due[id.0] }
    }

    /// Returns the buckets in the order in which the plan completes them. Buckets without any
    /// contribution are last, and so are tied ones: their sum waits for another pipeline stage,
    /// whose backward may wait for this rank.
    fn completions(&self, plan: &StepPlan) -> Vec<Completion> {
        let waits = |bucket: BucketId| {
            let mut entries = self.layout[bucket].entries.iter();
            entries.any(|entry| self.inventory[entry.parameter].residency.is_tied())
        };
        let trainable = self.layout.ids().filter(|&bucket| self.layout[bucket].trainable);
        let mut left: Vec<usize> = self.layout.buckets.iter().map(|bucket| bucket.entries.len()).collect();
        let (mut rounds, mut counts) = (vec![0; left.len()], vec![0usize; self.due.len()]);
        let mut order = Vec::new();
        for id in plan.contributions(&self.inventory).filter(|&id| self.inventory[id].trainable) {
            counts[id.0] += 1;
            let bucket = self.layout.location(id).0;
            if waits(bucket) {
                continue;
            }
            if counts[id.0].is_multiple_of(self.per_round(id)) {
                left[bucket.0] -= 1;
            }
            if left[bucket.0] == 0 {
                // With a reduction after each micro-batch, the bucket becomes complete again.
                left[bucket.0] = self.layout[bucket].entries.len();
                rounds[bucket.0] += 1;
                order.push(Completion { bucket, round: rounds[bucket.0] });
            }
        }
        let unused = trainable.filter(|bucket| rounds[bucket.0] == 0);
        order.extend(unused.map(|bucket| Completion { bucket, round: 1 }));
        order
    }

    /// Counts one use of a parameter. Returns true if all uses by this visit have come.
    ///
    /// # Errors
    /// Fails if more contributions arrive than the plan has.
    pub fn mark_ready(&mut self, id: ParameterId) -> Result<bool> {
        let arrived = &mut self.arrived[id.0];
        *arrived += 1;
        // The bucket of a contribution that is not planned may be reduced already, without it.
        if *arrived > self.due[id.0] {
            let (name, due) = (&self.inventory[id].name, self.due[id.0]);
            return Err(Error::invalid(format!(
                "{name} got more gradients in one step than the {due} planned"
            )));
        }
        Ok(arrived.is_multiple_of(self.inventory[id].use_count))
    }

    /// Ends a backward visit of a unit. Contributions of the visit that have not come are zero.
    /// Without this, a rank that does not use a parameter would start the collectives that follow
    /// it later than other ranks do, and both could wait for each other. Returns the parameters
    /// whose uses by this micro-batch have all ended.
    pub fn end_visit(&mut self, unit: UnitId) -> Vec<ParameterId> {
        // The gradients of weights come after the visit, so its end does not tell that one is
        // missing.
        if self.defers[unit.0] {
            return Vec::new();
        }
        let mut complete: Vec<_> = self.inventory.present_of(unit).collect();
        complete.iter().for_each(|id| self.ended[id.0] += 1);
        complete.retain(|&id| self.ended[id.0].is_multiple_of(self.inventory[id].use_count));
        complete
    }

    /// Returns the next bucket in order, if it is complete. Returns each completion once.
    pub fn next_complete(&mut self) -> Option<BucketId> {
        let Completion { bucket, round } = self.order.get(self.next)?;
        let is_there = |id: ParameterId| {
            // A rank that does not use a parameter counts the visits that ended. It must start the
            // same collectives as ranks whose contributions came.
            let needed = round * self.per_round(id);
            needed > 0
                && self.arrived[id.0].max(self.ended[id.0]) >= needed
                && !self.inventory[id].residency.is_tied()
        };
        let complete = self.layout[*bucket].entries.iter().all(|entry| is_there(entry.parameter));
        complete.then(|| self.next_remaining()).flatten()
    }

    /// Returns the next bucket in order, even if incomplete: gradients missing after backward are
    /// zero.
    pub fn next_remaining(&mut self) -> Option<BucketId> {
        let bucket = self.order.get(self.next)?.bucket;
        self.next += 1;
        Some(bucket)
    }

    /// Returns the names of trainable parameters whose gradient is missing.
    pub fn missing(&self) -> Vec<&str> {
        let counts = self.arrived.iter().zip(&self.due).zip(&self.inventory.parameters);
        let missing = counts.filter(|((arrived, due), parameter)| parameter.trainable && arrived < due);
        missing.map(|(_, parameter)| parameter.name.as_str()).collect()
    }
}
