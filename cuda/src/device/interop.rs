//! Memory of a GPU by whichever library allocated it.

use super::buffer::{Buffer, View, ViewMut, check_length};
use super::error::{GpuError, IntoGpuResult};
use super::stream::{CaptureState, Stream};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DeviceSlice, sys};
use std::sync::Arc;
use unisono_reducers::Plain;

mod sealed {
    pub trait Sealed {}
}

/// Elements in memory of a GPU, to read: [`Buffer`], [`View`], [`ViewMut`], and cudarc's
/// `CudaSlice`, `CudaView` and `CudaViewMut`.
///
/// Memory of cudarc belongs to a stream. Before a use, this stream waits for that one, and that one
/// waits for this stream afterwards. Ranks that wait for each other must not share such a stream.
/// Each brings memory of a stream of its own, or enqueues in the stream that the memory belongs to
/// ([`Stream::from_cudarc`]).
pub trait DeviceBuffer<T: Plain>: sealed::Sealed {
    /// Returns the address of the first element, for kernels.
    fn address(&self) -> u64;

    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns true if there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prepares a use of the memory in this stream. Fails on another GPU, and for memory of cudarc
    /// in a captured stream, because a graph cannot keep it.
    fn begin_use(&self, stream: &Stream) -> Result<(), GpuError>;

    /// Ends a use of the memory: it lasts until the enqueued work is done. `capture` is what
    /// captures the stream.
    fn end_use(&self, stream: &Stream, capture: CaptureState) -> Result<(), GpuError>;
}

/// Elements in memory of a GPU, to write: [`Buffer`], [`ViewMut`], and cudarc's `CudaSlice` and
/// `CudaViewMut`.
pub trait DeviceBufferMut<T: Plain>: DeviceBuffer<T> {}

macro_rules! own {
    ($($type:ty),*) => {$(
        impl<T: Plain> sealed::Sealed for $type {}

        impl<T: Plain> DeviceBuffer<T> for $type {
            fn address(&self) -> u64 {
                self.address()
            }

            fn len(&self) -> usize {
                self.len()
            }

            fn begin_use(&self, stream: &Stream) -> Result<(), GpuError> {
                stream.gpu().check_same_gpu(self.gpu(), "memory")
            }

            fn end_use(&self, stream: &Stream, capture: CaptureState) -> Result<(), GpuError> {
                stream.record_use_in(capture, self.memory());
                Ok(())
            }
        }
    )*};
}

own!(Buffer<T>, View<'_, T>, ViewMut<'_, T>);

macro_rules! cudarc {
    ($($type:ty),*) => {$(
        impl<T: Plain> sealed::Sealed for $type {}

        impl<T: Plain> DeviceBuffer<T> for $type {
            fn address(&self) -> u64 {
                // This stream is the memory's own, so it waits for nothing.
                DevicePtr::device_ptr(self, DeviceSlice::stream(self)).0
            }

            fn len(&self) -> usize {
                DeviceSlice::len(self)
            }

            fn begin_use(&self, stream: &Stream) -> Result<(), GpuError> {
                wait_for_owner(DeviceSlice::stream(self), stream)
            }

            fn end_use(&self, stream: &Stream, _: CaptureState) -> Result<(), GpuError> {
                block_owner_until_done(DeviceSlice::stream(self), stream)
            }
        }
    )*};
}

cudarc!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

impl<T: Plain> DeviceBufferMut<T> for Buffer<T> {}
impl<T: Plain> DeviceBufferMut<T> for ViewMut<'_, T> {}
impl<T: Plain> DeviceBufferMut<T> for CudaSlice<T> {}
impl<T: Plain> DeviceBufferMut<T> for CudaViewMut<'_, T> {}

fn wait_for_owner(owner: &Arc<CudaStream>, stream: &Stream) -> Result<(), GpuError> {
    let (context, gpu) = (owner.context(), stream.gpu());
    if context.cu_ctx() != gpu.context().cu_ctx() {
        return Err(GpuError::WrongGpu { what: "memory", owner: context.ordinal(), user: gpu.ordinal() });
    }
    stream.expect_no_capture("keeping memory of cudarc")?;
    follow(stream.cudarc(), owner)
}

fn block_owner_until_done(owner: &Arc<CudaStream>, stream: &Stream) -> Result<(), GpuError> {
    follow(owner, stream.cudarc())
}

/// Makes later work of one stream wait for all work that is enqueued in the other.
fn follow(later: &CudaStream, sooner: &CudaStream) -> Result<(), GpuError> {
    if later.cu_stream() == sooner.cu_stream() {
        return Ok(());
    }
    later.join(sooner).or_gpu_error("cuStreamWaitEvent")
}

impl Stream {
    /// Enqueues a copy, within the GPU.
    pub fn copy<T: Plain>(
        &self,
        to: &mut dyn DeviceBufferMut<T>,
        from: &dyn DeviceBuffer<T>,
    ) -> Result<(), GpuError> {
        check_length(from.len(), to.len())?;
        from.begin_use(self)?;
        to.begin_use(self)?;
        let bytes = from.len() * size_of::<T>();
        let copied = self.enqueue(&[], "cuMemcpyDtoDAsync", |handle| {
            // SAFETY: both have this length, and last until the copy is done by what follows.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, handle) }
        });
        let capture = self.capture_state();
        from.end_use(self, capture).and(to.end_use(self, capture)).and(copied)
    }
}
