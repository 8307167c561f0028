//! Optimizers: element-wise updates of weights from gradients.

mod adamw;
mod clip;
mod lr_schedule;
mod muon;
mod sgd;

pub use adamw::AdamW;
pub use clip::grad_scale;
pub use lr_schedule::{LrScaling, LrSchedule, LrShape};
pub use muon::Muon;
pub use sgd::Sgd;

use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{GpuError, View, ViewMut};
use unisono_nn::parameter::{Parameter, WeightDecay};

/// Values of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Number of the step, from 1.
    pub number: u64,
    /// Learning rate, before [`Parameter::lr_scale`].
    pub lr: f32,
    /// Factor on every gradient, from clipping ([`grad_scale`]): 1 leaves gradients as they are.
    pub grad_scale: f32,
}

impl Step {
    /// Returns the step of a parameter, with its factor of the learning rate.
    pub fn of(&self, parameter: &Parameter) -> Self {
        Self { lr: self.lr * parameter.lr_scale, ..*self }
    }
}

/// Elements of one parameter, with their state. All slices have equally many elements.
pub struct ParamSlice<'a> {
    /// Weights to update.
    pub weights: &'a mut [f32],
    /// Gradients.
    pub gradient: &'a [f32],
    /// Moments: as many arrays as [`Optimizer::moment_count`] returns, zeros before the first step.
    pub moments: &'a mut [&'a mut [f32]],
    /// Weight decay.
    pub weight_decay: WeightDecay,
}

/// Elements of one parameter in GPU memory, as in [`ParamSlice`].
pub struct DeviceParamSlice<'a> {
    /// Weights to update.
    pub weights: ViewMut<'a, f32>,
    /// Gradients.
    pub gradient: View<'a, f32>,
    /// Moments.
    pub moments: &'a mut [ViewMut<'a, f32>],
    /// Weight decay.
    pub weight_decay: WeightDecay,
}

/// Optimizer with state per element, so that any rank may keep the state of any elements.
pub trait Optimizer: Send + Sync {
    /// Returns the number of moments per element of a parameter.
    fn moment_count(&self, parameter: &Parameter) -> usize;

    /// Updates the weights of `span`, each element independently.
    ///
    /// # Panics
    /// May panic if `span` has another number of moments than [`Optimizer::moment_count`] returns.
    fn update(&self, span: ParamSlice<'_>, step: &Step);

    /// Enqueues the update on a GPU. The result equals that of [`Optimizer::update`] up to
    /// rounding.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    ///
    /// # Panics
    /// May panic as [`Optimizer::update`] does.
    fn update_on(&self, compute: &Compute, span: DeviceParamSlice<'_>, step: &Step) -> Result<(), GpuError>;

    /// Returns the whole-matrix step for this parameter, if the optimizer has one.
    fn as_matrix_optimizer(&self, _: &Parameter) -> Option<&dyn MatrixOptimizer> {
        None
    }
}

/// Step that needs a whole matrix, of which every rank keeps the state of some elements.
pub trait MatrixOptimizer {
    /// Adds `factor` times the gradient of some elements to their moment, and writes their update
    /// to `direction`.
    fn momentum_direction(&self, gradient: &[f32], factor: f32, moment: &mut [f32], direction: &mut [f32]);

    /// Transforms the update of a whole matrix of rows × columns in place.
    fn transform_direction(&self, direction: &mut [f32], rows: usize, columns: usize);

    /// Applies the update to some elements, with weight decay.
    fn apply_direction(&self, weights: &mut [f32], direction: &[f32], decay: WeightDecay, step: &Step);

    /// Enqueues [`MatrixOptimizer::momentum_direction`] on a GPU.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    fn momentum_direction_on(
        &self,
        compute: &Compute,
        gradient: View<'_, f32>,
        factor: f32,
        moment: ViewMut<'_, f32>,
        direction: ViewMut<'_, f32>,
    ) -> Result<(), GpuError>;

    /// Enqueues [`MatrixOptimizer::transform_direction`] on a GPU.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    fn transform_direction_on(
        &self,
        compute: &Compute,
        direction: ViewMut<'_, f32>,
        rows: usize,
        columns: usize,
    ) -> Result<(), GpuError>;

    /// Enqueues [`MatrixOptimizer::apply_direction`] on a GPU.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    fn apply_direction_on(
        &self,
        compute: &Compute,
        weights: ViewMut<'_, f32>,
        direction: View<'_, f32>,
        decay: WeightDecay,
        step: &Step,
    ) -> Result<(), GpuError>;
}

#[cfg(test)]
mod tests;
