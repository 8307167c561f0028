//! Memory that a graph of another library uses. The driver tells when it destroys the graph.

use super::error::{GpuError, IntoGpuResult};
use super::gpu::lock;
use super::memory::Memory;
use cudarc::driver::sys::{
    self, CUstream, CUstreamCaptureStatus as Status, CUuserObject_flags as Flags,
    CUuserObjectRetain_flags as Retain,
};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Memory whose graphs are gone. The driver's thread that destroys graphs must not call the driver,
/// so the memory waits here for a thread that may.
static RELEASED: Mutex<Vec<Arc<Memory>>> = Mutex::new(Vec::new());

/// Keeps the memory until the graph that is being captured in the stream, and all that is made of
/// it, are destroyed.
///
/// # Safety
/// The stream is alive, and no other thread ends its capture meanwhile.
pub(super) unsafe fn keep(stream: CUstream, memories: Vec<Arc<Memory>>) -> Result<(), GpuError> {
    let (mut status, mut graph) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, null_mut());
    // SAFETY: the results are locals, and null pointers ask for nothing.
    unsafe {
        sys::cuStreamGetCaptureInfo_v2(stream, &mut status, null_mut(), &mut graph, null_mut(), null_mut())
    }
    .or_gpu_error("cuStreamGetCaptureInfo")?;
    if status != Status::CU_STREAM_CAPTURE_STATUS_ACTIVE || graph.is_null() {
        // A capture that failed makes no graph.
        return Ok(());
    }
    let kept = Box::into_raw(Box::new(memories)).cast::<c_void>();
    let (mut object, flags) = (null_mut(), Flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32);
    // SAFETY: `release` takes what `kept` points to, once.
    let created = unsafe { sys::cuUserObjectCreate(&mut object, kept, Some(release), 1, flags) };
    if let Err(error) = created.or_gpu_error("cuUserObjectCreate") {
        // SAFETY: no object refers to it.
        drop(unsafe { Box::from_raw(kept.cast::<Vec<Arc<Memory>>>()) });
        return Err(error);
    }
    let moved = Retain::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the graph is being captured, and takes over the only reference.
    let retained = unsafe { sys::cuGraphRetainUserObject(graph, object, 1, moved) };
    retained.or_gpu_error("cuGraphRetainUserObject").inspect_err(|_| {
        // SAFETY: the graph did not take the reference.
        let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
    })
}

/// Takes memory that a destroyed graph used. A thread of the driver calls it.
unsafe extern "C" fn release(kept: *mut c_void) {
    // SAFETY: `keep` made it of such a box, and the driver calls this once.
    let memories = unsafe { Box::from_raw(kept.cast::<Vec<Arc<Memory>>>()) };
    lock(&RELEASED).extend(*memories);
}

/// Drops memory whose graphs are gone. The calling thread may call the driver.
pub(super) fn drop_released() {
    // The lock is not held while memory is dropped, because that calls the driver.
    let released = std::mem::take(&mut *lock(&RELEASED));
    drop(released);
}
