//! Host access to weights that a GPU may hold.

use super::{Direction, StepPlan, Strategy};
use crate::error::Result;
use crate::parameter::{Inventory, ParameterId, UnitId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Returns a parameter's weights in host memory, copied if a GPU holds them.
///
/// # Errors
/// Returns an error of the GPU driver.
pub fn host_weights<S: Strategy + ?Sized>(strategy: &S, id: ParameterId) -> Result<Cow<'_, [f32]>> {
    match strategy.device_store(id) {
        Some(store) => store.weights_to_host(id).map(Cow::Owned),
        None => Ok(Cow::Borrowed(strategy.weights(id))),
    }
}

/// Strategy for forward-only passes on the host. Copies each unit's weights once, wherever they are
/// kept.
pub struct HostStrategy<'a> {
    strategy: &'a mut dyn Strategy,
    inventory: &'a Inventory,
    copies: HashMap<ParameterId, Vec<f32>>,
}

impl<'a> HostStrategy<'a> {
    /// Wraps `strategy`. Weights are copied when they are first needed.
    pub fn new(strategy: &'a mut dyn Strategy, inventory: &'a Inventory) -> Self {
        Self { strategy, inventory, copies: HashMap::new() }
    }

    fn copy_unit(&mut self, unit: UnitId) -> Result<()> {
        for id in self.inventory.present_of(unit) {
            let store = self.strategy.device_store(id);
            // Generation visits a unit once for each token, and its weights do not change between.
            if let (Some(store), Entry::Vacant(place)) = (store, self.copies.entry(id)) {
                place.insert(store.weights_to_host(id)?);
            }
        }
        Ok(())
    }
}

impl Strategy for HostStrategy<'_> {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.strategy.begin_step(plan)
    }

    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        // The weights of a sharded strategy are whole only after this call, so they are copied
        // behind it.
        self.strategy.pre_unit(unit, way)?;
        self.copy_unit(unit)
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.strategy.post_unit(unit, way)
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        self.strategy.grad_ready(id)
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.copies.get(&id).map_or_else(|| self.strategy.weights(id), Vec::as_slice)
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.strategy.weights_and_gradient(id)
    }
}
