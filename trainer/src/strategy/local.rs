//! One rank alone: whole buffers, nothing to exchange.

use super::{Strategy, Way};
use crate::error::Result;
use crate::memory::{Class, Floats, Memory};
use crate::parameter::{Inventory, ParameterId, UnitId};

/// All weights and all gradients, each in one buffer, in the order of the inventory.
pub struct Local {
    inventory: Inventory,
    /// Where each parameter begins; one more for the end.
    starts: Vec<usize>,
    weights: Floats,
    gradients: Floats,
}

impl Local {
    /// Weights as they start with `seed`, and gradients of zero.
    pub fn new(inventory: Inventory, memory: &Memory, seed: u64) -> Self {
        let mut starts = vec![0];
        starts.extend(inventory.parameters.iter().scan(0, |end, parameter| {
            *end += parameter.count();
            Some(*end)
        }));
        let mut weights = memory.take(Class::Weights, inventory.count());
        for (parameter, start) in inventory.parameters.iter().zip(&starts) {
            parameter.initialise(seed, 0..parameter.count(), &mut weights[*start..][..parameter.count()]);
        }
        let gradients = memory.zeros(Class::Gradients, inventory.count());
        Self { inventory, starts, weights, gradients }
    }

    /// What there is.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The weights of a parameter, to change.
    pub fn weights_mut(&mut self, id: ParameterId) -> &mut [f32] {
        let range = self.range(id);
        &mut self.weights[range]
    }

    /// The weights of a parameter, to change, beside its gradient.
    pub fn both_mut(&mut self, id: ParameterId) -> (&mut [f32], &[f32]) {
        let range = self.range(id);
        (&mut self.weights[range.clone()], &self.gradients[range])
    }

    /// The gradient of a parameter, as far as it has been added up.
    pub fn gradient_of(&self, id: ParameterId) -> &[f32] {
        &self.gradients[self.range(id)]
    }

    /// All gradients, in the order of the inventory.
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }

    /// Lets the gradients begin again from zero.
    pub fn zero_gradients(&mut self) {
        self.gradients.fill(0.0);
    }

    /// Every weight less `rate` times its gradient: the plainest optimiser.
    pub fn descend(&mut self, rate: f32) {
        self.weights
            .iter_mut()
            .zip(self.gradients.iter())
            .for_each(|(weight, slope)| *weight -= rate * slope);
    }

    fn range(&self, id: ParameterId) -> std::ops::Range<usize> {
        self.starts[id.0]..self.starts[id.0 + 1]
    }
}

impl Strategy for Local {
    fn need(&mut self, _unit: UnitId, _way: Way) -> Result<()> {
        Ok(())
    }

    fn done(&mut self, _unit: UnitId, _way: Way) -> Result<()> {
        Ok(())
    }

    fn ready(&mut self, _id: ParameterId) -> Result<()> {
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        &self.weights[self.range(id)]
    }

    fn gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        let range = self.range(id);
        let trainable = self.inventory[id].trainable;
        trainable.then(|| (&self.weights[range.clone()], &mut self.gradients[range]))
    }
}
