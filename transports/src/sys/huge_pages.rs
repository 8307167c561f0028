//! Huge pages for shared memory, which the system gives on request only.

use crate::sys::affinity::has_free_cores;
use crate::sys::segment::{HUGE_PAGE_BYTES, PAGE_BYTES};
use rustix::fs::{FallocateFlags, fallocate};
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Makes a huge page of each one in `range`, bytes of `fd` that are mapped at `pointer`. Does
/// nothing while the cores of the host are busy.
///
/// The system collapses small pages, and at least one must exist. A small page that is mapped
/// makes the collapse many times slower.
pub(super) fn collapse(fd: &OwnedFd, pointer: *mut u8, range: Range<usize>) {
    // A collapse waits until a thread of the kernel has run on every core, and no deadline ends
    // this wait (`lru_add_drain_all`). With busy cores it lasted minutes, while the peers gave this
    // rank up as silent.
    if !has_free_cores() {
        return;
    }
    for page in range.clone().step_by(HUGE_PAGE_BYTES) {
        // If this fails, so does the collapse of this page.
        let _ = fallocate(fd, FallocateFlags::KEEP_SIZE, page as u64, PAGE_BYTES as u64);
    }
    // SAFETY: advice about a mapping of our own; it changes no contents. If the system does not
    // take it, everything works with small pages.
    unsafe { libc::madvise(pointer.cast(), range.len(), MADV_COLLAPSE) };
}

/// Advice value of Linux 6.1. Not every C library names it.
const MADV_COLLAPSE: c_int = 25;
