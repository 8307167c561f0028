//! One rank alone: whole buffers, nothing to exchange.

use super::{Direction, Strategy};
use crate::allocator::{AllocClass, Allocator, F32Vec};
use crate::error::Result;
use crate::parameter::{Inventory, ParameterId, UnitId};

/// All weights and all gradients, each in one buffer, in the order of the inventory.
pub struct LocalStrategy {
    inventory: Inventory,
    /// Where each parameter begins; one more for the end.
    offsets: Vec<usize>,
    weights: F32Vec,
    gradients: F32Vec,
}

impl LocalStrategy {
    /// Weights as they start with `seed`, and gradients of zero.
    pub fn new(inventory: Inventory, memory: &Allocator, seed: u64) -> Self {
        let mut starts = vec![0];
        starts.extend(inventory.parameters.iter().scan(0, |end, parameter| {
            *end += parameter.count();
            Some(*end)
        }));
        let mut weights = memory.alloc(AllocClass::Weights, inventory.count());
        for (parameter, start) in inventory.parameters.iter().zip(&starts) {
            parameter.initialize(seed, 0..parameter.count(), &mut weights[*start..][..parameter.count()]);
        }
        let gradients = memory.zeros(AllocClass::Gradients, inventory.count());
        Self { inventory, offsets: starts, weights, gradients }
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
    pub fn weights_mut_and_gradient(&mut self, id: ParameterId) -> (&mut [f32], &[f32]) {
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

    /// Every weight less `rate` times its gradient: the plainest optimizer.
    pub fn sgd_step(&mut self, rate: f32) {
        self.weights
            .iter_mut()
            .zip(self.gradients.iter())
            .for_each(|(weight, slope)| *weight -= rate * slope);
    }

    fn range(&self, id: ParameterId) -> std::ops::Range<usize> {
        self.offsets[id.0]..self.offsets[id.0 + 1]
    }
}

impl Strategy for LocalStrategy {
    fn pre_unit(&mut self, _unit: UnitId, _way: Direction) -> Result<()> {
        Ok(())
    }

    fn post_unit(&mut self, _unit: UnitId, _way: Direction) -> Result<()> {
        Ok(())
    }

    fn grad_ready(&mut self, _id: ParameterId) -> Result<()> {
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        &self.weights[self.range(id)]
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        let range = self.range(id);
        let trainable = self.inventory[id].trainable;
        trainable.then(|| (&self.weights[range.clone()], &mut self.gradients[range]))
    }
}
