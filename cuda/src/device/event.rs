//! Events: points in streams.

use super::error::GpuError;
use super::gpu::Gpu;
use super::mark::Mark;
use super::stream::Stream;
use std::sync::atomic::{AtomicBool, Ordering};

/// A point in a stream, which streams and the host can wait for.
pub struct Event {
    gpu: Gpu,
    pub(crate) mark: Mark,
    /// True if the event is a node of a graph.
    captured: AtomicBool,
}

impl Event {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        gpu.bind()?;
        Ok(Self { gpu: gpu.clone(), mark: Mark::timed()?, captured: AtomicBool::new(false) })
    }

    /// Records the event again, behind all work that is enqueued in the stream.
    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.gpu().check_same_gpu(&self.gpu, "an event")?;
        self.captured.store(stream.queue.is_captured(), Ordering::Relaxed);
        stream.enqueue(&[], "cuEventRecord", |handle| {
            // SAFETY: both are alive.
            unsafe { cudarc::driver::sys::cuEventRecord(self.mark.raw(), handle) }
        })
    }

    /// Returns true if all work before the event is done.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        self.mark.query()
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Waits until it has come.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.mark.synchronize()
    }

    /// Milliseconds from it to `end`; waits for both.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f32, GpuError> {
        self.gpu.check_same_gpu(&end.gpu, "an event")?;
        self.mark.synchronize()?;
        end.mark.synchronize()?;
        self.mark.elapsed_ms(&end.mark)
    }
}
