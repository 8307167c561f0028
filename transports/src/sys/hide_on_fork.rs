//! Memory that forked children do not have, because their parent shares it with its peers.
//!
//! A child has every mapping of its parent. In shared memory, it would see the stores of the parent
//! and of peers at any time, and they would see its stores. So a child finds inaccessible pages
//! there. The addresses stay in use, so that the child may drop the objects of its parent.

use crate::sys::slot_list::SlotList;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hides memory from children that are forked while this lives. Drop it before the mapping.
#[derive(Debug)]
pub(crate) struct HideOnFork(&'static HiddenRange);

#[derive(Debug)]
struct HiddenRange {
    /// Address of the range, or `FREE`, or `TAKEN` while the range is being written.
    begin: AtomicUsize,
    bytes: AtomicUsize,
}

const FREE: usize = 0;
const TAKEN: usize = 1;
static RANGES: SlotList<HiddenRange> = SlotList::new();

impl HideOnFork {
    /// Hides `bytes` bytes at `begin`.
    ///
    /// # Safety
    /// They are whole pages of a mapping that belongs to the caller for as long as this lives.
    pub(crate) unsafe fn new(begin: NonNull<u8>, bytes: usize) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler does only what a child of a process with threads may do.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let takes = |range: &HiddenRange| {
            range.begin.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let new = HiddenRange { begin: AtomicUsize::new(TAKEN), bytes: AtomicUsize::new(0) };
        let range = RANGES.take(takes, new);
        range.bytes.store(bytes, Ordering::Relaxed);
        range.begin.store(begin.as_ptr().expose_provenance(), Ordering::Release);
        Self(range)
    }
}

impl Drop for HideOnFork {
    fn drop(&mut self) {
        self.0.begin.store(FREE, Ordering::Release);
    }
}

/// Puts inaccessible pages in the place of every range.
extern "C" fn in_child() {
    for range in RANGES.values() {
        let begin = range.begin.load(Ordering::Acquire);
        if begin > TAKEN {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            let bytes = range.bytes.load(Ordering::Relaxed);
            let address = std::ptr::with_exposed_provenance_mut::<c_void>(begin);
            // SAFETY: over a mapping that belonged to a `HideOnFork` of the parent. The child is
            // about to run, and has no reference into it that it may use.
            let _ = unsafe { mmap_anonymous(address, bytes, ProtFlags::empty(), flags) };
        }
    }
}
