//! The face that strategies show to modules: where weights and gradients are, and the events on them.

mod host;
mod local;

pub use host::HostStrategy;
pub(crate) use host::host_weights;
pub use local::LocalStrategy;

use crate::error::Result;
use crate::flat::ParamStore;
use crate::parameter::{ParameterId, UnitId};

/// Which way through the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the input to the loss.
    Forward,
    /// From the loss to the input.
    Backward,
}

/// Keeps the parameters of one rank, and hears what the model does with them.
///
/// It knows no tensor and no module: flat storage, and three events.
pub trait Strategy: Send {
    /// The model is about to use the weights of `unit`: they must be whole when this returns.
    ///
    /// # Errors
    /// Of the collectives that make them so.
    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()>;

    /// The model will not use them again on this way.
    ///
    /// # Errors
    /// Of collectives that are due.
    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()>;

    /// The gradient of a parameter got all that one use of it adds in this backward pass.
    ///
    /// # Errors
    /// Of collectives that are due.
    fn grad_ready(&mut self, id: ParameterId) -> Result<()>;

    /// The weights, between `need` and `done` of their unit.
    fn weights(&self, id: ParameterId) -> &[f32];

    /// The weights, and the gradient to add to, in backward between `need` and the last `ready`; none if
    /// it is frozen.
    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])>;

    /// Where weights and gradients are, if a GPU has them; [`Strategy::weights`] and [`Strategy::gradient`] have none then.
    fn device_store(&self) -> Option<&ParamStore> {
        None
    }

    /// As [`Strategy::on_device`], to change them.
    fn device_store_mut(&mut self) -> Option<&mut ParamStore> {
        None
    }
}
