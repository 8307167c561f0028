//! Interface between strategies and modules: access to weights and gradients, and events on them.

mod host;
mod local;

pub use host::HostStrategy;
pub use host::host_weights;
pub use local::LocalStrategy;

use crate::error::Result;
use crate::parameter::{ParameterId, UnitId};
use crate::step_plan::{Direction, StepPlan};
use std::sync::Arc;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{View, ViewMut};

/// Keeps the parameters of one rank and receives the events of a pass.
///
/// A strategy knows no tensors and no modules, only flat storage and three events.
pub trait Strategy: Send {
    /// Begins a step, or a forward on its own, that visits units as `plan` says.
    ///
    /// # Errors
    /// Returns the error of a collective that was under way.
    fn begin_step(&mut self, _plan: &StepPlan) -> Result<()> {
        Ok(())
    }

    /// Makes the weights of `unit` complete before the model uses them.
    ///
    /// # Errors
    /// Returns the error of a collective that gathers the weights.
    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()>;

    /// Ends the use of `unit` in this direction of the pass.
    ///
    /// # Errors
    /// Returns the error of a collective that was due.
    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()>;

    /// Reports that one use of a parameter has added its share to the gradient in this visit.
    ///
    /// # Errors
    /// Returns the error of a collective that was due.
    fn grad_ready(&mut self, id: ParameterId) -> Result<()>;

    /// Returns the weights. Valid between `pre_unit` and `post_unit` of their unit.
    fn weights(&self, id: ParameterId) -> &[f32];

    /// Returns the weights and the gradient to add to; `None` if the parameter is frozen. Valid in
    /// backward, from `pre_unit` to the last `grad_ready`.
    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])>;

    /// Returns the store of a parameter on the GPU, if a GPU holds weights and gradients.
    /// [`Strategy::weights`] and [`Strategy::weights_and_gradient`] return nothing then.
    fn device_store(&self, _id: ParameterId) -> Option<&dyn DeviceStore> {
        None
    }

    /// Returns the store on the GPU for changes, as [`Strategy::device_store`] does.
    fn device_store_mut(&mut self, _id: ParameterId) -> Option<&mut dyn DeviceStore> {
        None
    }
}

/// Parameters in the memory of a GPU, as modules access them.
pub trait DeviceStore {
    /// Returns the operations in whose stream the parameters change.
    ///
    /// # Panics
    /// Panics if the store is in host memory.
    fn lane(&self) -> &Arc<Compute>;

    /// Returns true if the parameter has a gradient.
    fn is_trainable(&self, id: ParameterId) -> bool;

    /// Returns a parameter's weights in GPU memory.
    ///
    /// # Panics
    /// Panics if the weights are absent: the unit was used without [`Strategy::pre_unit`].
    fn device_weights(&self, id: ParameterId) -> View<'_, f32>;

    /// Copies a parameter's weights to the host, and waits for the copy.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    ///
    /// # Panics
    /// Panics as [`DeviceStore::device_weights`] does.
    fn weights_to_host(&self, id: ParameterId) -> Result<Vec<f32>>;

    /// Returns the gradient of a parameter to add to; `None` if it is frozen.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    fn device_gradient(&mut self, id: ParameterId) -> Result<Option<ViewMut<'_, f32>>>;
}
