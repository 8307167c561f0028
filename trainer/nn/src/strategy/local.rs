//! Strategy of a single rank: whole buffers and no communication.

use super::{Direction, Strategy};
use crate::allocator::{AllocClass, Allocator, F32Vec};
use crate::error::Result;
use crate::parameter::{Inventory, ParameterId, UnitId};

/// Keeps all weights in one buffer and all gradients in another, in host memory and in inventory
/// order. Gradients add up until [`LocalStrategy::zero_gradients`].
///
/// Its functions panic for a parameter that is not in the inventory.
pub struct LocalStrategy {
    inventory: Inventory,
    /// Offset of each parameter, followed by the total number of elements.
    offsets: Vec<usize>,
    weights: F32Vec,
    gradients: F32Vec,
}

impl LocalStrategy {
    /// Creates initial weights from `seed`, and zero gradients.
    pub fn new(inventory: Inventory, memory: &Allocator, seed: u64) -> Self {
        let mut starts = vec![0];
        starts.extend(inventory.parameters.iter().scan(0, |end, parameter| {
            *end += parameter.count();
            Some(*end)
        }));
        let count = *starts.last().expect("at least 0");
        let mut weights = memory.alloc(AllocClass::Weights, count);
        for (parameter, start) in inventory.parameters.iter().zip(&starts) {
            parameter.initialize(seed, 0..parameter.count(), &mut weights[*start..][..parameter.count()]);
        }
        let gradients = memory.zeros(AllocClass::Gradients, count);
        Self { inventory, offsets: starts, weights, gradients }
    }

    /// Returns the inventory of parameters.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Returns the weights of a parameter for changes.
    pub fn weights_mut(&mut self, id: ParameterId) -> &mut [f32] {
        let range = self.range(id);
        &mut self.weights[range]
    }

    /// Returns the weights of a parameter for changes, and its gradient.
    pub fn weights_mut_and_gradient(&mut self, id: ParameterId) -> (&mut [f32], &[f32]) {
        let range = self.range(id);
        (&mut self.weights[range.clone()], &self.gradients[range])
    }

    /// Returns the gradient accumulated for a parameter.
    pub fn gradient_of(&self, id: ParameterId) -> &[f32] {
        &self.gradients[self.range(id)]
    }

    /// Returns all gradients in inventory order.
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }

    /// Sets all gradients to zero.
    pub fn zero_gradients(&mut self) {
        self.gradients.fill(0.0);
    }

    /// Subtracts `rate` times the gradient from every weight: plain SGD.
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
