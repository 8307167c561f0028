//! Access to the symmetric heaps of peers, and its end.
//!
//! A rank exposes memory of its heap for one operation ([`HeapExposure`]), and accesses memory of
//! its peers only within a [`HeapAccess`]. An operation that succeeds ends when all ranks have
//! signaled that they are done. If an operation fails, peers may be in the middle of a copy, or may
//! not have begun one. Its exposure then closes the heap forever, because a communicator does not
//! outlive its first error. Accesses that begin later are refused, and the exposure waits for
//! accesses that have begun.
//!
//! A peer that is a thread of this process ends its copy when it gets a core. A peer that is a
//! process may be stopped or dead, so the wait for it is limited. After that, the exposed pages
//! become a private copy of this process.

use crate::shm::epoch::{self, EpochWords};
use crate::shm::heap::SymmetricHeap;
use crate::shm::layout::Layout;
use crate::sync::{AtomicU64, Instant, thread};
use crate::sys::segment::Segment;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use unisono_reducers::{Source, Target};

/// The heaps of all ranks, from the view of one.
#[derive(Debug)]
pub(super) struct HeapGroup {
    pub(super) rank: usize,
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) layout: Layout,
    pub(super) heap: Arc<SymmetricHeap>,
}

impl EpochWords for HeapGroup {
    #[inline]
    fn access(&self, rank: usize) -> &AtomicU64 {
        self.segments[rank].word(Layout::heap_access())
    }

    #[inline]
    fn closed(&self, rank: usize) -> &AtomicU64 {
        self.segments[rank].word(Layout::heap_closed())
    }

    #[inline]
    fn ranks(&self) -> usize {
        self.segments.len()
    }
}

/// The time in which this rank accesses the heaps of its peers.
#[derive(Debug)]
#[must_use = "dropping it ends the access"]
pub struct HeapAccess<'w> {
    group: &'w HeapGroup,
}

impl<'w> HeapAccess<'w> {
    /// Begins an access, or returns a rank whose heap is closed.
    #[inline]
    pub(super) fn begin(group: &'w HeapGroup) -> Result<Self, usize> {
        epoch::begin_access(group, group.rank).map(|()| Self { group })
    }

    /// Returns memory of `rank`'s heap for reading, or `None` if the range is not inside. Such an
    /// offset may come from a peer.
    #[inline]
    pub fn source(&self, rank: usize, offset: usize, bytes: usize) -> Option<Source<'_>> {
        // SAFETY: inside the heap by `pointer`, mapped as long as this lives; only ever reached raw
        // here.
        self.pointer(rank, offset, bytes).map(|pointer| unsafe { Source::from_raw(pointer, bytes) })
    }

    /// Returns memory of `rank`'s heap for writing. The memory is raw, as in
    /// [`Window::target`](super::Window::target).
    #[inline]
    pub fn target(&self, rank: usize, offset: usize, bytes: usize) -> Option<Target<'_>> {
        // SAFETY: inside the heap by `pointer`, mapped as long as this lives. Its owner has called
        // an operation that writes it, and does not touch it before this access has ended.
        self.pointer(rank, offset, bytes).map(|pointer| unsafe { Target::from_raw(pointer, bytes) })
    }

    #[inline]
    fn pointer(&self, rank: usize, offset: usize, bytes: usize) -> Option<*mut u8> {
        let layout = &self.group.layout;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= layout.geometry.heap_bytes);
        is_inside.then(|| self.group.segments[rank].at(layout.heap() + offset, bytes))
    }
}

impl Drop for HeapAccess<'_> {
    #[inline]
    fn drop(&mut self) {
        epoch::end_access(self.group, self.group.rank);
    }
}

/// The time in which peers may access memory of this rank's heap: one operation.
///
/// Dropping it is for an operation that failed, and closes the heap. No peer accesses the memory
/// afterwards.
#[derive(Debug)]
#[must_use = "dropping it closes the heap"]
pub struct HeapExposure {
    group: Arc<HeapGroup>,
    parts: [Range<usize>; 2],
    ended: bool,
}

impl HeapExposure {
    pub(super) fn new(group: &Arc<HeapGroup>, parts: [Range<usize>; 2]) -> Self {
        Self { group: Arc::clone(group), parts, ended: false }
    }

    /// Ends the exposure after an operation that succeeded: all ranks have said that they are done.
    #[inline]
    pub fn end(mut self) {
        self.ended = true;
    }

    /// Returns how long peers are waited for before the memory becomes a private copy. A live peer
    /// has left its copy by then, unless the host is very busy. Longer parts take longer to copy,
    /// in either way.
    fn patience(&self) -> Duration {
        let bytes: usize = self.parts.iter().map(Range::len).sum();
        PATIENCE + PATIENCE_PER_MIB * (bytes >> 20) as u32
    }

    /// Waits until no peer accesses the heap, or makes its parts private if that takes long.
    ///
    /// There is no deadline where the parts cannot be made private, because an earlier return would
    /// give the caller memory that others still access. The wait ends, because a copy in a thread
    /// of this process ends.
    #[cold]
    fn close(&self) {
        let group = &*self.group;
        // New accesses are refused from here on, so the accesses to wait for become fewer.
        epoch::close(group, group.rank);
        let begun = Instant::now();
        let mut private_at = group.heap.is_shared_by_processes().then(|| self.patience());
        let mut warn_at = WARN_INTERVAL;
        while let Some(peer) = epoch::accessing(group, group.rank) {
            let waited = begun.elapsed();
            if private_at.is_some_and(|time| waited >= time) {
                match group.heap.make_private(&self.parts) {
                    Ok(()) => return,
                    Err(error) => {
                        // Without private pages, only the end of the copies makes the memory safe
                        // to return.
                        private_at = None;
                        tracing::warn!(
                            %error,
                            "rank {} waits for rank {peer} in a failed operation: its buffers cannot become private",
                            group.rank
                        );
                    }
                }
            }
            if waited >= warn_at {
                warn_at = waited + WARN_INTERVAL;
                tracing::warn!(
                    "rank {} has waited {:.0} s for rank {peer}, which is still copying in symmetric buffers of a \
                     failed operation; let its thread run, or end the process",
                    group.rank,
                    waited.as_secs_f64()
                );
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for HeapExposure {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.close();
        }
    }
}

const PATIENCE: Duration = Duration::from_millis(20);
const PATIENCE_PER_MIB: Duration = Duration::from_millis(1);
const POLL_INTERVAL: Duration = Duration::from_micros(50);
const WARN_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::shm::{Connected, Layout, Window, connect_shared};
    use crate::sys::segment::{PAGE_BYTES, Segment};
    use crate::{Geometry, HeapAllocation};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;
    use unisono_reducers::{Source, Target, copy};

    const BYTES: usize = 10 * PAGE_BYTES;
    const GEOMETRY: Geometry = Geometry {
        lanes: 1,
        slots: 1,
        slot_bytes: 64,
        signal_lanes: 1,
        window_bytes: 0,
        heap_bytes: 2 * BYTES,
    };

    /// Returns the windows of two ranks, which are threads, or have mappings of their own as
    /// processes do.
    fn windows(processes: bool) -> [Window; 2] {
        let layout = Layout::new(2, &GEOMETRY).unwrap();
        let segment = |_| match processes {
            true => Segment::create_parts(&layout.extents()).unwrap(),
            false => Segment::private_parts(&layout.extents()).unwrap(),
        };
        let segments = [0, 1].map(segment).map(Arc::new);
        let seen_by = |rank: usize| {
            let seen = segments.iter().enumerate().map(|(peer, segment)| {
                if peer == rank || !processes {
                    return Some(Arc::clone(segment));
                }
                let mut attached =
                    Segment::attach_parts(segment.duplicate_fd().unwrap(), &layout.extents()).unwrap();
                attached.close_fd().unwrap();
                Some(Arc::new(attached))
            });
            let Connected { window, .. } = connect_shared(rank, 2, &GEOMETRY, seen.collect()).unwrap();
            window.unwrap()
        };
        [seen_by(0), seen_by(1)]
    }

    /// Allocates a block of ones at the beginning of a heap.
    fn block(window: &Window) -> HeapAllocation {
        let mut block = window.alloc_symmetric(BYTES).unwrap();
        block.as_mut_slice::<u8>().fill(1);
        block
    }

    fn is_all(bytes: &[u8], value: u8) -> bool {
        bytes.iter().all(|&byte| byte == value)
    }

    #[test]
    fn exposure_that_ends_well_leaves_the_heap_open() {
        for processes in [false, true] {
            let [owner, peer] = windows(processes);
            let allocation = block(&owner);
            let exposure = owner.expose_heap([0..BYTES, 0..BYTES]);
            let access = peer.access_heaps().expect("no heap is closed");
            copy(access.target(0, 0, BYTES).unwrap(), Source::from(&[2; BYTES][..]));
            drop(access);
            exposure.end();
            assert!(is_all(allocation.as_slice(), 2) && peer.access_heaps().is_ok());
        }
    }

    #[test]
    fn access_after_a_failed_operation_is_refused() {
        for processes in [false, true] {
            let [owner, peer] = windows(processes);
            let _own = block(&owner);
            drop(owner.expose_heap([0..BYTES, BYTES..BYTES]));
            assert_eq!(peer.access_heaps().map(drop), Err(0));
            // It left no access behind, and the rank that failed closes last.
            drop(peer.expose_heap([0..0, 0..0]));
            assert_eq!(owner.access_heaps().map(drop), Err(0));
        }
    }

    #[test]
    fn failed_operation_waits_for_a_thread_in_its_copy() {
        let [owner, peer] = windows(false);
        let allocation = block(&owner);
        let [begun, left] = [AtomicBool::new(false), AtomicBool::new(false)];
        let exposure = owner.expose_heap([0..BYTES, 0..BYTES]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let access = peer.access_heaps().expect("no heap is closed");
                begun.store(true, SeqCst);
                // Longer than processes would be waited for.
                std::thread::sleep(Duration::from_millis(100));
                copy(access.target(0, 0, BYTES).unwrap(), Source::from(&[2; BYTES][..]));
                left.store(true, SeqCst);
            });
            while !begun.load(SeqCst) {
                std::thread::yield_now();
            }
            drop(exposure);
            assert!(left.load(SeqCst), "the exposure ended before the copy");
            assert!(is_all(allocation.as_slice(), 2));
        });
    }

    /// The peer goes on long after the owner's error, and after the owner has dropped the buffer.
    #[test]
    fn stopped_process_reaches_only_the_old_file() {
        let [owner, peer] = windows(true);
        let mut allocation = block(&owner);
        let (input, output) = (0..PAGE_BYTES + 7, 4 * PAGE_BYTES + 5..BYTES);
        let access = peer.access_heaps().expect("no heap is closed");
        drop(owner.expose_heap([input.clone(), output.clone()]));
        for part in [input.clone(), output] {
            copy(access.target(0, part.start, part.len()).unwrap(), Source::from(&[2; BYTES][..part.len()]));
        }
        assert!(is_all(allocation.as_slice(), 1), "late stores are seen");
        allocation.as_mut_slice::<u8>().fill(3);
        let read = || {
            let mut found = [0; BYTES];
            copy(Target::from(&mut found[..input.len()]), access.source(0, 0, input.len()).unwrap());
            found[..input.len()].to_vec()
        };
        assert!(is_all(&read(), 2), "an input changes under its reader");
        drop(allocation);
        assert!(is_all(&read(), 2), "an input is gone under its reader");
        drop(access);
        assert_eq!(peer.access_heaps().map(drop), Err(0));
    }

    #[test]
    fn panic_in_a_copy_ends_its_access() {
        let [owner, peer] = windows(false);
        let _own = block(&owner);
        let exposure = owner.expose_heap([0..BYTES, 0..BYTES]);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _access = peer.access_heaps().expect("no heap is closed");
                panic!("as it was told");
            });
            assert!(panics.join().is_err());
        });
        // Returns, because nobody is in an access.
        drop(exposure);
    }
}
