//! Optimizers: how weights follow from gradients, element by element.

mod adamw;
mod muon;
mod sgd;

pub use adamw::AdamW;
pub use muon::Muon;
pub use sgd::Sgd;

use crate::parameter::Parameter;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{GpuError, View, ViewMut};

/// What is the same for all parameters of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Number of the step, from 1.
    pub number: u64,
    /// Learning rate.
    pub lr: f32,
    /// Factor on every gradient: what clipping makes of it.
    pub grad_scale: f32,
}

/// Some elements of one parameter, with what belongs to them.
pub struct ParamSlice<'a> {
    /// The weights, to change.
    pub weights: &'a mut [f32],
    /// Their gradient.
    pub gradient: &'a [f32],
    /// Their moments: as many arrays as [`Optimizer::moments`] says of the parameter.
    pub moments: &'a mut [&'a mut [f32]],
    /// Whether weight decay applies.
    pub weight_decay: bool,
}

/// As [`ParamSlice`], in memory of a GPU.
pub struct DeviceParamSlice<'a> {
    /// The weights, to change.
    pub weights: ViewMut<'a, f32>,
    /// Their gradient.
    pub gradient: View<'a, f32>,
    /// Their moments.
    pub moments: &'a mut [ViewMut<'a, f32>],
    /// Whether weight decay applies.
    pub weight_decay: bool,
}

/// An optimizer whose state belongs to elements, so that any rank may keep that of any elements.
pub trait Optimizer: Send + Sync {
    /// Numbers that it keeps for every element of a parameter.
    fn moment_count(&self, parameter: &Parameter) -> usize;

    /// Changes the weights of `span`, each element by itself.
    fn update(&self, span: ParamSlice<'_>, step: &Step);

    /// As [`Optimizer::update`], enqueued on a GPU: the same to the rounding of the last bits.
    ///
    /// # Errors
    /// Of the driver.
    fn update_on(&self, compute: &Compute, span: DeviceParamSlice<'_>, step: &Step) -> Result<(), GpuError>;

    /// What it does with this parameter as a whole, if it does that.
    fn as_matrix_optimizer(&self, _: &Parameter) -> Option<&dyn MatrixOptimizer> {
        None
    }
}

/// A step that needs a whole matrix, of which every rank keeps the state of some elements.
pub trait MatrixOptimizer {
    /// Takes `factor` times the gradient of some elements into their moment, and puts into `direction` where they would go.
    fn momentum_direction(&self, gradient: &[f32], factor: f32, moment: &mut [f32], direction: &mut [f32]);

    /// Makes of the direction of a whole matrix, rows × columns, the one that is taken.
    fn transform_direction(&self, direction: &mut [f32], rows: usize, columns: usize);

    /// Moves some elements' weights along their direction; `decays`: weight decay applies.
    fn apply_direction(&self, weights: &mut [f32], direction: &[f32], decays: bool, step: &Step);

    /// As [`MatrixOptimizer::gather`], enqueued on a GPU.
    ///
    /// # Errors
    /// Of the driver, here and below.
    fn momentum_direction_on(
        &self,
        compute: &Compute,
        gradient: View<'_, f32>,
        factor: f32,
        moment: ViewMut<'_, f32>,
        direction: ViewMut<'_, f32>,
    ) -> Result<(), GpuError>;

    /// As [`MatrixOptimizer::transform`], enqueued on a GPU.
    ///
    /// # Errors
    /// As [`MatrixOptimizer::gather_on`].
    fn transform_direction_on(
        &self,
        compute: &Compute,
        direction: ViewMut<'_, f32>,
        rows: usize,
        columns: usize,
    ) -> Result<(), GpuError>;

    /// As [`MatrixOptimizer::apply`], enqueued on a GPU.
    ///
    /// # Errors
    /// As [`MatrixOptimizer::gather_on`].
    fn apply_direction_on(
        &self,
        compute: &Compute,
        weights: ViewMut<'_, f32>,
        direction: View<'_, f32>,
        decays: bool,
        step: &Step,
    ) -> Result<(), GpuError>;
}

#[cfg(test)]
mod tests;
