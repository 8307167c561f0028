//! The capture mode of threads that call the driver while another library captures a stream.
//!
//! While a stream is captured in the mode *global*, the driver refuses calls of every thread that
//! might wait, for example a query of an event, and invalidates the capture. A thread whose own
//! mode is *relaxed* is exempt. PyTorch captures in the mode *global* unless told otherwise.

use super::driver::gpus;
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};

/// Keeps the calling thread in the relaxed mode until it is dropped.
pub(crate) struct RelaxedCapture {
    /// `None` if the driver does not exchange the mode.
    previous: Option<CUstreamCaptureMode>,
}

impl RelaxedCapture {
    /// Enters the relaxed mode. The driver is loaded.
    pub(crate) fn enter() -> Self {
        Self { previous: exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        self.previous.map(exchange);
    }
}

/// Sets the mode of this thread, and returns the one before.
fn exchange(mut mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    // SAFETY: the mode is a local, and the function has no other precondition.
    let answer = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    (answer == CUresult::CUDA_SUCCESS).then_some(mode)
}

/// Makes the calling thread one whose driver calls spoil no capture, for as long as it runs. Call
/// it first in threads that a library starts for itself. Without a driver it does nothing.
pub fn exempt_thread_from_captures() {
    if gpus().is_ok() {
        exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    }
}
