//! Weights, gradients and optimizer state of a model in plain vectors.

use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono::Communicator;
use unisono_nn::Result;
use unisono_nn::parameter::{Inventory, ParameterId};
use unisono_parallel::optimizer::{Optimizer, ParamSlice, Step};

/// Whole model of one rank, with a buffer for each parameter.
pub struct Replica {
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) group: Communicator,
    pub(crate) weights: Vec<Vec<f32>>,
    pub(crate) gradients: Vec<Vec<f32>>,
    moments: Vec<Vec<Vec<f32>>>,
    wait_time: Duration,
}

impl Replica {
    /// Creates the model with initial weights by `seed`. They become those of rank 0.
    ///
    /// # Errors
    /// Returns the error of a failed broadcast.
    pub fn new(inventory: &Arc<Inventory>, group: &Communicator, seed: u64) -> Result<Self> {
        let zeros = || inventory.parameters.iter().map(|parameter| vec![0.0; parameter.count()]).collect();
        let mut weights: Vec<Vec<f32>> = zeros();
        for (parameter, weights) in inventory.parameters.iter().zip(&mut weights) {
            parameter.initialize(seed, 0..weights.len(), weights);
            group.broadcast(weights, 0)?;
        }
        Ok(Self {
            inventory: Arc::clone(inventory),
            group: group.clone(),
            weights,
            gradients: zeros(),
            moments: vec![Vec::new(); inventory.parameters.len()],
            wait_time: Duration::ZERO,
        })
    }

    /// Returns the trained parameters. Ranks communicate in this order, that of backward.
    pub(crate) fn trained(&self) -> Vec<ParameterId> {
        let ids = (0..self.inventory.parameters.len()).rev().map(ParameterId);
        ids.filter(|&id| self.inventory[id].trainable).collect()
    }

    /// Returns the weights and the gradient to add to; `None` if the parameter is frozen.
    pub(crate) fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        let trains = self.inventory[id].trainable;
        trains.then(|| (&self.weights[id.0][..], &mut self.gradients[id.0][..]))
    }

    /// Updates one parameter.
    pub(crate) fn update(&mut self, id: ParameterId, optimizer: &dyn Optimizer, step: &Step) {
        let (parameter, weights) = (&self.inventory[id], &mut self.weights[id.0]);
        let moments = &mut self.moments[id.0];
        moments.resize_with(optimizer.moment_count(parameter), || vec![0.0; weights.len()]);
        let mut moments: Vec<&mut [f32]> = moments.iter_mut().map(Vec::as_mut_slice).collect();
        let (gradient, weight_decay) = (&self.gradients[id.0], parameter.weight_decay);
        let slice = ParamSlice { weights, gradient, moments: &mut moments, weight_decay };
        optimizer.update(slice, &step.of(parameter));
    }

    /// Clears all gradients.
    pub(crate) fn clear_gradients(&mut self) {
        self.gradients.iter_mut().for_each(|gradient| gradient.fill(0.0));
    }

    /// Returns the bits of all weights.
    pub(crate) fn weight_bits(&self) -> Vec<u32> {
        self.weights.iter().flatten().map(|weight| weight.to_bits()).collect()
    }

    /// Returns the numbers of optimizer state that this rank keeps.
    pub fn state_count(&self) -> usize {
        self.moments.iter().flatten().map(Vec::len).sum()
    }

    /// Runs an operation that waits for other ranks, and adds its duration to the waiting time.
    pub(crate) fn timed<R>(&mut self, wait: impl FnOnce(&mut Self) -> R) -> R {
        let start = Instant::now();
        let result = wait(self);
        self.wait_time += start.elapsed();
        result
    }

    pub(crate) fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.wait_time)
    }
}
