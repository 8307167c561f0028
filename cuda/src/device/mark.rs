//! Events as the driver has them. They leave no error to callers of cudarc.

use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream};
use std::ptr::null_mut;

/// A point in a stream. cudarc's own event would leave an error of its end in the context, where
/// the next call of any thread finds it.
pub(crate) struct Mark(CUevent);

// SAFETY: the driver's functions on events may be called by any thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// Makes a mark that is not recorded yet. The GPU's context is current.
    pub(crate) fn new() -> Result<Self, GpuError> {
        Self::with_flags(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Makes a mark that tells its time. The GPU's context is current.
    pub(crate) fn timed() -> Result<Self, GpuError> {
        Self::with_flags(CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(flags: CUevent_flags) -> Result<Self, GpuError> {
        let mut event = null_mut();
        // SAFETY: the event is a local.
        unsafe { sys::cuEventCreate(&mut event, flags as u32) }.or_gpu_error("cuEventCreate")?;
        Ok(Self(event))
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.0
    }

    /// Returns true if the mark has been passed, or the driver's error.
    pub(crate) fn query(&self) -> Result<bool, GpuError> {
        let _exempt = RelaxedCapture::enter();
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => answer.or_gpu_error("cuEventQuery").map(|()| true),
        }
    }

    /// Waits for the mark.
    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        let _exempt = RelaxedCapture::enter();
        // SAFETY: the event is alive.
        unsafe { sys::cuEventSynchronize(self.0) }.or_gpu_error("cuEventSynchronize")
    }

    /// Returns the milliseconds from this mark to `end`. Both tell their time.
    pub(crate) fn elapsed_ms(&self, end: &Mark) -> Result<f32, GpuError> {
        // SAFETY: both events are alive.
        unsafe { result::event::elapsed(self.0, end.0) }.or_gpu_error("cuEventElapsedTime")
    }

    /// Records the mark behind all work of the stream.
    ///
    /// # Safety
    /// The stream is alive and of the current context.
    pub(crate) unsafe fn record(&self, stream: CUstream) -> Result<(), GpuError> {
        // SAFETY: the event is alive, and the stream by the caller's word.
        unsafe { sys::cuEventRecord(self.0, stream) }.or_gpu_error("cuEventRecord")
    }

    /// Makes later work of the stream wait for the mark as it is recorded now.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn block(&self, stream: CUstream) -> Result<(), GpuError> {
        // SAFETY: the event is alive, and the stream by the caller's word.
        unsafe { sys::cuStreamWaitEvent(stream, self.0, 0) }.or_gpu_error("cuStreamWaitEvent")
    }

    /// Returns true if the driver says that the mark has been passed. Every error means that this
    /// is not known: a driver refuses the question during some captures, and memory that counted as
    /// unused then would be given away while a kernel uses it.
    pub(crate) fn is_passed(&self) -> bool {
        self.query() == Ok(true)
    }

    /// Waits for the mark. Returns false if the driver fails.
    pub(crate) fn wait(&self) -> bool {
        self.synchronize().is_ok()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _exempt = RelaxedCapture::enter();
        // SAFETY: this is the only handle. The driver frees the event once it has been passed.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
