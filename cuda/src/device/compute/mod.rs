//! Kernels for training, launched on one stream over memory of checked length: modules and
//! optimizers.
//!
//! Launches return when they are enqueued. Sums have one order, so the same launches on the same
//! GPU give the same bits.

mod attention;
mod cublas;
mod elements;
mod gradients;
mod indices;
mod matmul;
mod optimizer;
mod rows;
mod sharded_cross_entropy;
mod strided;

pub use crate::device::compute::attention::AttentionShape;
pub use crate::device::compute::matmul::{MatrixView, MatrixViewMut};
pub use crate::device::compute::optimizer::AdamStep;
pub use crate::device::compute::sharded_cross_entropy::LocalTargets;
pub use elements::Activation;
pub use indices::Indices;
pub use rows::Norm;

use super::error::GpuError;
use super::kernel::LaunchDims;
use super::memory::Memory;
use super::stream::Stream;
use super::{View, ViewMut};
use cublas::Cublas;
use cudarc::driver::sys;
use std::sync::Arc;
use unisono_reducers::Plain;

/// A stream, and what is launched on it.
pub struct Compute {
    stream: Stream,
    /// For matrix products, where it is found.
    cublas: Option<Cublas>,
    blocks_max: u32,
    /// Threads of a block that processes elements or a row.
    threads: u32,
}

/// Blocks for each multiprocessor, at most.
const BLOCKS_EACH: u32 = 8;

impl Compute {
    /// Kernels are launched on `stream`. Matrix products are those of cuBLAS, where that is found.
    ///
    /// # Errors
    /// Of the driver.
    pub fn new(stream: Stream) -> Result<Self, GpuError> {
        let cublas = Cublas::new(&stream)?;
        Ok(Self { cublas, ..Self::without_cublas(stream)? })
    }

    /// Creates a [`Compute`] like [`Compute::new`], with matrix products by a kernel instead of
    /// cuBLAS.
    ///
    /// # Errors
    /// The driver fails.
    pub fn without_cublas(stream: Stream) -> Result<Self, GpuError> {
        // Threads of the emulator are expensive, and more of them are not faster.
        let (blocks_max, threads) = match stream.gpu().is_emulated() {
            true => (2, 16),
            false => (BLOCKS_EACH * stream.gpu().multiprocessors()?, 256),
        };
        Ok(Self { stream, cublas: None, blocks_max, threads })
    }

    /// Returns the name of the library or kernel that computes matrix products.
    pub fn matmul_backend(&self) -> &'static str {
        if self.cublas.is_some() { "cuBLAS" } else { "a kernel" }
    }

    /// Returns the stream on which kernels are launched.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes all bytes 0.
    ///
    /// # Errors
    /// Of the driver.
    pub fn zero<T: Plain>(&self, to: ViewMut<'_, T>) -> Result<(), GpuError> {
        let view = to.as_view();
        self.on_this_gpu(&[view.memory])?;
        self.stream.enqueue(&[view.memory], "cuMemsetD8Async", |stream| {
            // SAFETY: the view's memory, of this length.
            unsafe { sys::cuMemsetD8Async(view.address(), 0, view.bytes(), stream) }
        })
    }

    /// Copies as many elements as both have.
    ///
    /// # Errors
    /// If that is not the same number, and of the driver.
    pub fn copy<T: Plain>(&self, to: ViewMut<'_, T>, from: View<'_, T>) -> Result<(), GpuError> {
        check_len(from.len(), to.len())?;
        let view = to.as_view();
        self.on_this_gpu(&[view.memory, from.memory])?;
        self.stream.enqueue(&[view.memory, from.memory], "cuMemcpyDtoDAsync", |stream| {
            // SAFETY: memory of two views, of the same length.
            unsafe { sys::cuMemcpyDtoDAsync_v2(view.address(), from.address(), view.bytes(), stream) }
        })
    }

    /// Enqueues a launch that uses these memories and no others. Does nothing if there are no
    /// blocks.
    ///
    /// # Safety
    /// `A` is the struct that the kernel takes. Its pointers are into the memories, and its lengths
    /// are true.
    unsafe fn launch<A: Plain>(
        &self,
        name: &'static str,
        (blocks, threads): (u64, u32),
        memories: &[&Arc<Memory>],
        arguments: &A,
    ) -> Result<(), GpuError> {
        self.on_this_gpu(memories)?;
        if blocks == 0 {
            return Ok(());
        }
        let kernel = self.stream.gpu().kernel(name)?;
        let blocks = blocks.min(self.blocks_max.into()) as u32;
        let shape = LaunchDims { blocks, threads, cooperative: false };
        self.stream.enqueue(memories, name, |stream| {
            // SAFETY: the caller's word; the stream keeps the memories until the launch has ended.
            unsafe { kernel.enqueue(stream, shape, arguments) }
        })
    }

    fn on_this_gpu(&self, memories: &[&Arc<Memory>]) -> Result<(), GpuError> {
        memories.iter().try_for_each(|memory| self.stream.gpu().check_same_gpu(&memory.gpu, "memory"))
    }

    /// Blocks and threads for so many elements, four at a time.
    fn linear(&self, count: usize) -> (u64, u32) {
        ((count as u64).div_ceil(4 * u64::from(self.threads)), self.threads)
    }

    /// Blocks and threads for so many rows, a block each.
    fn by_rows(&self, rows: usize) -> (u64, u32) {
        (rows as u64, self.threads.min(128))
    }

    /// Blocks and threads for sums over the rows of so many columns.
    fn by_columns(&self, columns: usize) -> (u64, u32) {
        (columns.div_ceil(32) as u64, self.threads.max(32))
    }
}

/// Checks that the counts are equal.
fn check_len(found: usize, wanted: usize) -> Result<(), GpuError> {
    if found == wanted { Ok(()) } else { Err(GpuError::LengthMismatch { found, wanted }) }
}

/// Checks that there is a whole number of rows of `width`, and returns it.
fn rows_of(count: usize, width: usize) -> Result<usize, GpuError> {
    let rows = if width == 0 { 0 } else { count.div_ceil(width) };
    check_len(count, rows * width).map(|()| rows)
}

/// Converts an extent to the integer type of the kernels.
fn to_u32(extent: usize) -> Result<u32, GpuError> {
    let wanted = u32::MAX as usize;
    extent.try_into().map_err(|_| GpuError::LengthMismatch { found: extent, wanted })
}

/// Returns the address that kernels read.
fn as_device_ptr<T: Plain>(view: &View<'_, T>) -> *const T {
    view.address() as *const T
}

/// Returns the address that kernels write.
fn as_device_mut_ptr<T: Plain>(view: &ViewMut<'_, T>) -> *mut T {
    view.address() as *mut T
}
