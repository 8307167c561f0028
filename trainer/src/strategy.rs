//! Interface between strategies and modules: access to weights and gradients, and events on them.

mod host;
mod local;

pub use host::HostStrategy;
pub(crate) use host::host_weights;
pub use local::LocalStrategy;

use crate::error::Result;
use crate::flat::ParamStore;
use crate::parameter::{ParameterId, UnitId};
use crate::step_plan::{Direction, StepPlan};

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
    fn device_store(&self, _id: ParameterId) -> Option<&ParamStore> {
        None
    }

    /// Returns the store on the GPU for changes, as [`Strategy::device_store`] does.
    fn device_store_mut(&mut self, _id: ParameterId) -> Option<&mut ParamStore> {
        None
    }
}
