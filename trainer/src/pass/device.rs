//! The GPU of a pass, if one computes.

use super::Pass;
use crate::device::{Device, DeviceWeights};
use crate::error::{Error, Result};
use crate::parameter::ParameterId;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{GpuError, ViewMut};

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
    /// [`Error::Unsupported`] names the operation.
    pub fn expect_host(&self, what: &str) -> Result<()> {
        match self.device {
            Some(_) => Err(Error::Unsupported(format!("{what} on a GPU: not part of this build"))),
            None => Ok(()),
        }
    }

    /// Returns the weights of a parameter in GPU memory.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn weights_on(&self, device: &Device, id: ParameterId) -> Result<DeviceWeights<'_>> {
        match self.strategy.device_store(id) {
            Some(store) => Ok(DeviceWeights::Shared(store.device_weights(id))),
            None => device.weights(id, self.strategy.weights(id)).map(DeviceWeights::Copied),
        }
    }

    /// Accumulates a gradient as [`Pass::accumulate`] does, in GPU memory.
    ///
    /// # Errors
    /// Returns an error of the GPU driver, or of a collective that becomes due.
    pub fn accumulate_on(
        &mut self,
        device: &Device,
        id: ParameterId,
        add: impl FnOnce(&Compute, ViewMut<'_, f32>) -> std::result::Result<(), GpuError>,
    ) -> Result<()> {
        if let Some(store) = self.strategy.device_store_mut(id) {
            let gradient = store.device_gradient(id)?;
            gradient.map_or(Ok(()), |gradient| add(device.compute(), gradient))?;
        } else if let Some((_, gradient)) = self.strategy.weights_and_gradient(id) {
            device.with_gradient(id, gradient.len(), add)?;
        }
        self.grad_ready(id)
    }
}
