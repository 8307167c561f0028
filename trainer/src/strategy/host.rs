//! Weights of a GPU for the host.

use super::{Strategy, Way};
use crate::error::Result;
use crate::parameter::{ParameterId, UnitId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A parameter's weights in memory of the host: a copy, if a GPU has them.
///
/// # Errors
/// Of the driver.
pub(crate) fn host_weights<S: Strategy + ?Sized>(strategy: &S, id: ParameterId) -> Result<Cow<'_, [f32]>> {
    match strategy.on_device() {
        Some(store) => store.copied_weights(id).map(Cow::Owned),
        None => Ok(Cow::Borrowed(strategy.weights(id))),
    }
}

/// A strategy for passes without a way back on the host, wherever it keeps its weights: they are copied once.
pub struct OnHost<'a> {
    strategy: &'a mut dyn Strategy,
    copies: HashMap<ParameterId, Vec<f32>>,
}

impl<'a> OnHost<'a> {
    /// With the weights of `strategy`, as they are when they are first needed.
    pub fn new(strategy: &'a mut dyn Strategy) -> Self {
        Self { strategy, copies: HashMap::new() }
    }

    fn copy(&mut self, unit: UnitId) -> Result<()> {
        let Some(store) = self.strategy.on_device() else { return Ok(()) };
        for id in store.parameters_of(unit) {
            if let Entry::Vacant(place) = self.copies.entry(id) {
                place.insert(store.copied_weights(id)?);
            }
        }
        Ok(())
    }
}

impl Strategy for OnHost<'_> {
    fn need(&mut self, unit: UnitId, way: Way) -> Result<()> {
        self.strategy.need(unit, way)?;
        self.copy(unit)
    }

    fn done(&mut self, unit: UnitId, way: Way) -> Result<()> {
        self.strategy.done(unit, way)
    }

    fn ready(&mut self, id: ParameterId) -> Result<()> {
        self.strategy.ready(id)
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.copies.get(&id).map_or_else(|| self.strategy.weights(id), Vec::as_slice)
    }

    fn gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.strategy.gradient(id)
    }
}
