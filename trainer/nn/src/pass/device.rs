//! The memory where a pass computes, and the operations there.

use super::Pass;
use crate::device::Device;
use crate::error::Result;
use crate::ops::device::unsupported;
use crate::ops::{Ops, ValuesMut};
use crate::parameter::ParameterId;
use crate::pass::WeightsView;

impl<'a> Pass<'a> {
    /// Sets the GPU that computes. Tensors are then in its memory, except for inputs from the host
    /// and results for the host.
    pub fn set_device(&mut self, device: Option<&'a Device>) {
        self.device = device;
    }

    /// Returns the GPU that computes, if there is one.
    pub fn device(&self) -> Option<&'a Device> {
        self.device
    }

    /// Returns an error if a GPU computes, for operations without kernels.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) names the operation.
    pub fn expect_host(&self, what: &str) -> Result<()> {
        self.device.map_or(Ok(()), |_| unsupported(what))
    }

    /// Returns the operations of the memory where modules compute.
    pub fn ops(&self) -> &dyn Ops {
        self.device.map_or(&self.host, |device| &**device.compute())
    }

    /// Returns the weights of a parameter in the memory where modules compute.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn weights_view(&self, id: ParameterId) -> Result<WeightsView<'_>> {
        let Some(device) = self.device else { return Ok(WeightsView::Host(self.strategy.weights(id))) };
        match self.strategy.device_store(id) {
            Some(store) => Ok(WeightsView::Device(store.device_weights(id))),
            // The strategy has its weights on the host, and kernels read memory of the GPU only.
            None => device.weights(id, self.strategy.weights(id)).map(WeightsView::Copied),
        }
    }

    /// Calls `add` to add one part of this micro-batch's gradient, as [`Pass::accumulate`] does.
    /// Call [`Pass::grad_ready`] after the last part.
    ///
    /// # Errors
    /// Returns the error of `add`, or of the GPU driver.
    pub fn add(
        &mut self,
        id: ParameterId,
        add: impl FnOnce(&dyn Ops, ValuesMut<'_>) -> Result<()>,
    ) -> Result<()> {
        if let (Some(device), Some(store)) = (self.device, self.strategy.device_store_mut(id)) {
            let gradient = store.device_gradient(id)?;
            let add = |gradient| add(&**device.compute(), ValuesMut::Device(gradient));
            // A frozen parameter has no gradient, and then `add` is not called.
            return gradient.map_or(Ok(()), add);
        }
        match (self.device, self.strategy.weights_and_gradient(id)) {
            (Some(device), Some((_, gradient))) => device.with_gradient(id, gradient.len(), add),
            (None, Some((_, gradient))) => add(&self.host, ValuesMut::Host(gradient)),
            (_, None) => Ok(()),
        }
    }
}
