//! A GPU that computes what modules compute, for one rank.
//!
//! Activations lie in its memory. So do weights, gradients and the optimizer's state, where a strategy keeps its flat memory there
//! ([`Allocator::on`]): modules see parts of its buckets, and what goes to the host is a loss, a norm, and what checkpoints are made of.
//! A strategy that keeps them on the host works as well: weights are copied when a module first needs them after they changed, and
//! when a gradient is ready, what was added to it is fetched and added to the strategy's.

mod copies;
mod device_vec;
mod weights;

pub(crate) use crate::device::device_vec::DeviceVec;
pub use weights::DeviceWeights;

use crate::allocator::{AllocClass, Allocator};
use crate::device::copies::DeviceCopy;
use crate::error::{Error, Result};
use crate::parameter::ParameterId;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{Buffer, Gpu, GpuError, ViewMut, gpus};

/// One rank's place on a GPU: a stream, and copies of what the rank's strategy keeps.
pub struct Device {
    compute: Arc<Compute>,
    memory: Allocator,
    copies: RefCell<HashMap<ParameterId, DeviceCopy>>,
}

impl Device {
    /// A stream of `gpu`; what lies in its memory is counted by `memory`.
    ///
    /// # Errors
    /// Of the driver.
    pub fn new(gpu: &Gpu, memory: &Allocator) -> Result<Self> {
        let compute = Arc::new(Compute::new(gpu.stream()?)?);
        Ok(Self { compute, memory: memory.clone(), copies: RefCell::default() })
    }

    /// The GPU of this rank, where those of all hosts are as many and ranks follow each other on a host: its number is the rank's, modulo
    /// how many there are.
    ///
    /// # Errors
    /// Where there is no driver or no GPU.
    pub fn gpu_for_rank(rank: usize) -> Result<Gpu> {
        match gpus()? {
            0 => Err(Error::Unsupported("device = \"cuda\": the driver knows of no GPU".to_owned())),
            count => Ok(Gpu::open(rank % count)?),
        }
    }

    /// The device that needs no GPU: made by the C++ compiler, for tests.
    ///
    /// # Errors
    /// Where there is no compiler.
    pub fn software() -> Result<Gpu> {
        let failed = |error| Error::Unsupported(format!("device = \"software\": {error}"));
        unisono_cuda::emulator::install().map_err(failed)?;
        Ok(Gpu::open(0)?)
    }

    /// What it is, in a line.
    pub fn describe(&self) -> String {
        let (name, products) = (self.compute.stream().gpu().name(), self.compute.matmul_backend());
        format!("computing on {name}, products by {products}")
    }

    /// What it computes with.
    pub fn compute(&self) -> &Arc<Compute> {
        &self.compute
    }

    /// A tensor in its memory, of zeros.
    ///
    /// # Errors
    /// Of the driver.
    pub fn tensor(&self, rows: usize, columns: usize) -> Result<Tensor> {
        let numbers = DeviceVec::new(&self.compute, &self.memory, rows * columns)?;
        Ok(Tensor::on_device(numbers, rows, columns))
    }

    /// A copy of `data` in its memory.
    ///
    /// # Errors
    /// Of the driver.
    pub fn tensor_from(&self, rows: usize, columns: usize, data: &[f32]) -> Result<Tensor> {
        let mut tensor = self.tensor(rows, columns)?;
        tensor.view_mut().write(self.compute.stream(), data)?;
        Ok(tensor)
    }

    /// Says that the strategy's weights have changed: they are copied again when they are next needed.
    pub fn invalidate_weights(&self) {
        self.copies.borrow_mut().values_mut().for_each(DeviceCopy::invalidate_weights);
    }

    /// The weights of a parameter, which `host` has.
    pub(crate) fn weights(&self, id: ParameterId, host: &[f32]) -> Result<Arc<Buffer<f32>>> {
        let mut mirrors = self.copies.borrow_mut();
        mirrors.entry(id).or_default().weights(&self.compute, &self.memory, host)
    }

    /// Lets `add` add to what is kept here of a gradient of `count` elements.
    pub(crate) fn with_gradient(
        &self,
        id: ParameterId,
        count: usize,
        add: impl FnOnce(&Compute, ViewMut<'_, f32>) -> std::result::Result<(), GpuError>,
    ) -> Result<()> {
        let mut mirrors = self.copies.borrow_mut();
        let gradient = mirrors.entry(id).or_default().gradient(&self.compute, &self.memory, count)?;
        Ok(add(&self.compute, gradient.view_mut(..))?)
    }

    /// Adds what is kept here of a gradient to `into`, and begins again from zero.
    pub(crate) fn take_gradient(&self, id: ParameterId, into: &mut [f32]) -> Result<()> {
        match self.copies.borrow_mut().get_mut(&id) {
            Some(mirror) => mirror.take_gradient(&self.compute, into),
            None => Ok(()),
        }
    }
}

/// Counts what lies in memory of a GPU.
fn track(memory: &Allocator, class: AllocClass, count: usize) -> crate::allocator::Tracked {
    memory.track(class, count * size_of::<f32>())
}

#[cfg(test)]
mod tests;
