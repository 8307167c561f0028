//! Events: points in streams.

use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use super::gpu::Gpu;
use super::stream::Stream;
use cudarc::driver::{CudaEvent, sys::CUevent_flags};
use std::sync::atomic::{AtomicBool, Ordering};

/// A point in a stream, which streams and the host can wait for.
pub struct Event {
    gpu: Gpu,
    pub(crate) event: CudaEvent,
    /// True if the event is a node of a graph.
    captured: AtomicBool,
}

impl Event {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let event =
            gpu.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).or_gpu_error("cuEventCreate")?;
        Ok(Self { gpu: gpu.clone(), event, captured: AtomicBool::new(false) })
    }

    /// Records the event again, behind all work that is enqueued in the stream.
    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.gpu().check_same_gpu(&self.gpu, "an event")?;
        self.captured.store(stream.queue.is_captured(), Ordering::Relaxed);
        stream.enqueue(&[], "cuEventRecord", |handle| {
            // SAFETY: both are alive.
            unsafe { cudarc::driver::sys::cuEventRecord(self.event.cu_event(), handle) }
        })
    }

    /// Returns true if all work before the event is done.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        let _exempt = RelaxedCapture::enter();
        self.gpu.bind()?;
        self.event.try_is_complete().or_gpu_error("cuEventQuery")
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Waits until it has come.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _exempt = RelaxedCapture::enter();
        self.event.synchronize().or_gpu_error("cuEventSynchronize")
    }

    /// Milliseconds from it to `end`; waits for both.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f32, GpuError> {
        self.gpu.check_same_gpu(&end.gpu, "an event")?;
        self.event.elapsed_ms(&end.event).or_gpu_error("cuEventElapsedTime")
    }
}
