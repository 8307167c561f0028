//! GPU that computes the modules of one rank.
//!
//! Activations are in its memory. Weights, gradients and optimizer state are there too, if the
//! strategy keeps flat buffers on the GPU ([`Allocator::with_lane`]). Modules then see views of its
//! buckets, and the host receives only losses, norms and checkpoints. A strategy with buffers on
//! the host works as well. Weights are copied to the GPU when a module first needs them after a
//! change. When a gradient is ready, it is copied back and added to the strategy's gradient.

mod copies;
mod local_rank;

pub use crate::device::local_rank::local_rank;

use crate::allocator::{AllocClass, Allocator};
use crate::device::copies::DeviceCopy;
use crate::error::{Error, Result};
use crate::ops::{Ops, ValuesMut};
use crate::parameter::ParameterId;
use crate::tensor::{DeviceVec, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{Buffer, Gpu, gpus};

/// One rank's use of a GPU: a stream, and copies of the parameters of a host strategy.
pub struct Device {
    compute: Arc<Compute>,
    memory: Allocator,
    copies: RefCell<HashMap<ParameterId, DeviceCopy>>,
}

impl Device {
    /// Creates a stream on `gpu`. `memory` counts what is allocated there.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn new(gpu: &Gpu, memory: &Allocator) -> Result<Self> {
        let compute = Arc::new(Compute::new(gpu.stream()?)?);
        Ok(Self { compute, memory: memory.clone(), copies: RefCell::default() })
    }

    /// Returns the GPU of this rank: the number of the rank on its host, modulo the number of GPUs.
    /// `LOCAL_RANK` says that number; without it, consecutive ranks are on equal hosts.
    ///
    /// # Errors
    /// Fails if there is no driver or no GPU.
    pub fn gpu_for_rank(rank: usize) -> Result<Gpu> {
        let local_rank = local_rank(|name| std::env::var(name).ok())?.unwrap_or(rank);
        match gpus()? {
            0 => Err(Error::Unsupported("device = \"cuda\": the driver knows of no GPU".to_owned())),
            count => Ok(Gpu::open(local_rank % count)?),
        }
    }

    /// Returns the software GPU for tests, compiled by the C++ compiler.
    ///
    /// # Errors
    /// Fails if there is no compiler.
    pub fn software() -> Result<Gpu> {
        let failed = |error| Error::Unsupported(format!("device = \"software\": {error}"));
        unisono_cuda::emulator::install().map_err(failed)?;
        Ok(Gpu::open(0)?)
    }

    /// Returns a description in one line.
    pub fn describe(&self) -> String {
        let (gpu, products) = (self.compute.stream().gpu(), self.compute.matmul_backend());
        match gpu.is_emulated() {
            true => {
                "computing on the software GPU, which emulates kernels and libraries on the CPU".to_owned()
            }
            false => format!("computing on {}, products by {products}", gpu.name()),
        }
    }

    /// Returns the stream of the computation.
    pub fn compute(&self) -> &Arc<Compute> {
        &self.compute
    }

    /// Allocates a tensor of zeros in GPU memory.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn tensor(&self, rows: usize, columns: usize) -> Result<Tensor> {
        let numbers = DeviceVec::new(&self.compute, &self.memory, rows * columns)?;
        Ok(Tensor::on_device(numbers, rows, columns))
    }

    /// Copies `data` to a tensor in GPU memory.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn tensor_from(&self, rows: usize, columns: usize, data: &[f32]) -> Result<Tensor> {
        let mut tensor = self.tensor(rows, columns)?;
        tensor.view_mut().write(self.compute.stream(), data)?;
        Ok(tensor)
    }

    /// Invalidates the copies of weights after an update by a host strategy.
    pub fn invalidate_weights(&self) {
        // The next use copies the weights again, so that a parameter without a use costs no copy.
        self.copies.borrow_mut().values_mut().for_each(DeviceCopy::invalidate_weights);
    }

    /// Returns the weights of a parameter, copied from `host` if necessary.
    pub(crate) fn weights(&self, id: ParameterId, host: &[f32]) -> Result<Arc<Buffer<f32>>> {
        // The buffer is shared and not borrowed, because the next parameter needs the map of copies
        // for changes.
        let mut mirrors = self.copies.borrow_mut();
        mirrors.entry(id).or_default().weights(&self.compute, &self.memory, host)
    }

    /// Calls `add` with the GPU's gradient of `count` elements.
    pub(crate) fn with_gradient(
        &self,
        id: ParameterId,
        count: usize,
        add: impl FnOnce(&dyn Ops, ValuesMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut mirrors = self.copies.borrow_mut();
        let gradient = mirrors.entry(id).or_default().gradient(&self.compute, &self.memory, count)?;
        add(&*self.compute, ValuesMut::Device(gradient.view_mut(..)))
    }

    /// Adds the GPU's gradient to `sum`, and clears it.
    pub(crate) fn take_gradient(&self, id: ParameterId, sum: &mut [f32]) -> Result<()> {
        match self.copies.borrow_mut().get_mut(&id) {
            Some(mirror) => mirror.take_gradient(&self.compute, sum),
            None => Ok(()),
        }
    }
}

/// Counts an allocation in GPU memory.
fn track(memory: &Allocator, class: AllocClass, count: usize) -> crate::allocator::Tracked {
    memory.track(class, count * size_of::<f32>())
}

#[cfg(test)]
mod tests;
