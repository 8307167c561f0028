//! Parts of a segment that take address space only from their first use on.
//!
//! A communicator that only sends small messages maps little. A process can then have thousands of
//! communicators, even under a limit of address space. A part is mapped once and stays at its
//! address.

use crate::sys::hide_on_fork::HideOnFork;
use crate::sys::segment::{HUGE_PAGE_BYTES, PAGE_BYTES};
use rustix::io::Result;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// A part of a segment: unmapped at first, then mapped until it is dropped.
#[derive(Debug)]
pub(super) struct LazyPart {
    range: Range<usize>,
    /// Null until the part is mapped.
    base: AtomicPtr<u8>,
    /// The first page of the part, mapped in place of a descriptor.
    anchor: Option<NonNull<u8>>,
    /// True if forked children do not have the part, where processes share it.
    hides_on_fork: bool,
    /// Held while the part is being mapped.
    mapping: Mutex<Option<HideOnFork>>,
}

impl LazyPart {
    pub(super) fn new(range: Range<usize>, hides_on_fork: bool) -> Self {
        let base = AtomicPtr::new(null_mut());
        Self { range, base, anchor: None, hides_on_fork, mapping: Mutex::new(None) }
    }

    /// Returns the offsets of the part in the segment.
    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub(super) fn is_mapped(&self) -> bool {
        !self.base.load(Ordering::Acquire).is_null()
    }

    /// Returns the address of `bytes` bytes at `offset` of the segment, if they are in this part
    /// and it is mapped.
    #[inline]
    pub(super) fn at(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let base = self.base.load(Ordering::Acquire);
        // An empty range at the end of a part belongs to the next one.
        let is_inside = self.range.contains(&offset)
            && offset.checked_add(bytes).is_some_and(|end| end <= self.range.end)
            && !base.is_null();
        // In bounds of the mapping by the condition.
        is_inside.then(|| base.wrapping_add(offset - self.range.start))
    }

    /// Keeps the part within reach without `fd`, through one mapped page of it.
    pub(super) fn keep_reachable(&mut self, fd: &OwnedFd) -> Result<()> {
        if !self.range.is_empty() && !self.is_mapped() && self.anchor.is_none() {
            let page = self.range.start..self.range.end.min(self.range.start + PAGE_BYTES);
            self.anchor = Some(map_shared(fd, page)?);
        }
        Ok(())
    }

    /// Maps the part, if it is not mapped: from `fd`, or through its anchor page, or as memory of
    /// this process.
    pub(super) fn map(&self, fd: Option<&OwnedFd>) -> Result<()> {
        let mut hidden = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_mapped() || self.range.is_empty() {
            return Ok(());
        }
        let base = match (fd, self.anchor) {
            (Some(fd), _) => map_shared(fd, self.range.clone())?,
            (None, Some(anchor)) => extend(anchor, self.range.len())?,
            (None, None) => map_private(self.range.len())?,
        };
        if self.hides_on_fork && (fd.is_some() || self.anchor.is_some()) {
            let bytes = self.range.len().next_multiple_of(PAGE_BYTES);
            // SAFETY: just mapped, and unmapped after `hidden` is empty again.
            *hidden = Some(unsafe { HideOnFork::new(base, bytes) });
        }
        self.base.store(base.as_ptr(), Ordering::Release);
        Ok(())
    }
}

impl Drop for LazyPart {
    fn drop(&mut self) {
        *self.mapping.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(base) = NonNull::new(*self.base.get_mut()) {
            // SAFETY: mapped by `map` with this length; everything that points into it holds the
            // segment.
            unsafe { unmap(base, self.range.len()) };
        }
        if let Some(anchor) = self.anchor {
            // SAFETY: mapped by `keep_reachable`, one page; nobody else knows it.
            unsafe { unmap(anchor, self.range.len().min(PAGE_BYTES)) };
        }
    }
}

/// Maps `bytes` bytes of zeros for this process.
pub(super) fn map_private(bytes: usize) -> Result<NonNull<u8>> {
    // Miri knows no other flags.
    let reserved = if cfg!(miri) { MapFlags::empty() } else { MapFlags::NORESERVE };
    let flags = MapFlags::PRIVATE | reserved;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
    address(unsafe { mmap_anonymous(null_mut(), bytes.max(1), READ_WRITE, flags)? })
}

/// Maps `range` of a file, at an address that is a multiple of a huge page's size.
pub(super) fn map_shared(fd: &OwnedFd, range: Range<usize>) -> Result<NonNull<u8>> {
    let (bytes, offset) = (range.len(), range.start as u64);
    let room = reserve_address_space(bytes)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: over address space that was just reserved for it. The seals keep the file at its
    // length, so every page of it can be touched. If it fails, the reservation stays. The kernel
    // may have freed it already, and another mapping may have taken it.
    address(unsafe { mmap(room, bytes.max(1), READ_WRITE, flags, fd, offset)? })
}

/// Maps `bytes` bytes of the file that `anchor` is a page of, from that page on.
fn extend(anchor: NonNull<u8>, bytes: usize) -> Result<NonNull<u8>> {
    let room = reserve_address_space(bytes)?;
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: an old length of zero leaves the page where it is and maps its file a second time.
    // The new address space was just reserved for it. The seals keep the file as long as the part
    // is.
    address(unsafe { mremap_fixed(anchor.as_ptr().cast(), 0, bytes, MremapFlags::MAYMOVE, room)? })
}

/// Ends a mapping.
///
/// # Safety
/// The mapping was made by this module with this length, and nobody reaches it any more.
pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller promises.
    let _ = unsafe { munmap(base.as_ptr().cast(), bytes.max(1)) };
}

fn address(base: *mut c_void) -> Result<NonNull<u8>> {
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// Reserves address space for a mapping, from a multiple of a huge page's size on. Otherwise a huge
/// page of the file could not be mapped as one.
fn reserve_address_space(bytes: usize) -> rustix::io::Result<*mut c_void> {
    let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let mapping = unsafe { mmap_anonymous(null_mut(), bytes + HUGE_PAGE_BYTES, ProtFlags::empty(), flags)? };
    let head = mapping.addr().next_multiple_of(HUGE_PAGE_BYTES) - mapping.addr();
    let begin = mapping.wrapping_byte_add(head);
    for (part, bytes) in [(mapping, head), (begin.wrapping_byte_add(bytes), HUGE_PAGE_BYTES - head)] {
        if bytes > 0 {
            // SAFETY: part of the mapping above, which nobody else knows; whole pages.
            unsafe { munmap(part, bytes)? };
        }
    }
    Ok(begin)
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

#[cfg(test)]
mod tests {
    use crate::sys::segment::{Extents, HUGE_PAGE_BYTES, Segment};
    use crate::testing::conformance::run_in_forked_child;
    use std::sync::atomic::Ordering::Relaxed;

    const BULK: usize = HUGE_PAGE_BYTES;
    const HEAP: usize = 3 * HUGE_PAGE_BYTES;

    fn extents() -> Extents {
        Extents { head_bytes: 8192, bulk: BULK..HEAP, heap: HEAP..HEAP + (64 << 20) }
    }

    #[test]
    fn parts_map_at_first_use_and_stay_in_place() {
        for segment in [Segment::private_parts(&extents()), Segment::create_parts(&extents())] {
            let segment = segment.unwrap();
            assert_eq!(segment.mapped_bytes(), 8192);
            segment.map_part(HEAP + 5).unwrap();
            assert_eq!(segment.mapped_bytes(), 8192 + (64 << 20));
            segment.word(BULK + 8).store(7, Relaxed);
            assert_eq!(segment.mapped_bytes(), 8192 + (64 << 20) + HEAP - BULK);
            let address = segment.at(BULK, HEAP - BULK);
            segment.map_part(BULK).unwrap();
            assert_eq!((segment.at(BULK, 1), segment.word(BULK + 8).load(Relaxed)), (address, 7));
        }
    }

    #[test]
    fn parts_stay_reachable_without_descriptor() {
        let segment = Segment::create_parts(&extents()).unwrap();
        let mut peer = Segment::attach_parts(segment.duplicate_fd().unwrap(), &extents()).unwrap();
        peer.close_fd().unwrap();
        assert!(peer.fd().is_none() && peer.mapped_bytes() == 8192);
        for offset in [0, BULK, HEAP - 8, HEAP, HEAP + (64 << 20) - 8] {
            segment.word(offset).store(offset as u64 + 1, Relaxed);
            assert_eq!(peer.word(offset).load(Relaxed), offset as u64 + 1, "{offset}");
        }
        assert_eq!(
            [peer.at(BULK, 1), peer.at(HEAP, 1)].map(|address| address.addr() % HUGE_PAGE_BYTES),
            [0, 0]
        );
        drop(segment);
        assert_eq!(peer.word(HEAP).load(Relaxed), HEAP as u64 + 1);
    }

    /// Returns the kinds of access that this process has at an address, as the system lists them.
    fn access_in_maps(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let covers = |line: &&str| {
            let (begin, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
            let [begin, end] = [begin, end].map(|word| usize::from_str_radix(word, 16).unwrap());
            (begin..end).contains(&address)
        };
        maps.lines().find(covers).and_then(|line| line.split(' ').nth(1)).unwrap_or("none").to_owned()
    }

    #[test]
    fn forked_child_has_no_shared_heap() {
        let segment = Segment::create_parts(&extents()).unwrap();
        let mut peer = Segment::attach_parts(segment.duplicate_fd().unwrap(), &extents()).unwrap();
        peer.close_fd().unwrap();
        let heaps = [&segment, &peer].map(|segment| segment.at(HEAP, 8).addr());
        segment.word(HEAP).store(7, Relaxed);
        let access = || heaps.map(access_in_maps).join(" ");
        assert_eq!(access(), "rw-s rw-s");
        assert_eq!(run_in_forked_child(access).unwrap(), "---p ---p");
        assert_eq!((segment.word(HEAP).load(Relaxed), peer.word(HEAP).load(Relaxed)), (7, 7));
        // Later children leave memory alone that their parent has unmapped.
        drop((segment, peer));
        assert_eq!(run_in_forked_child(|| "it lives".to_owned()).unwrap(), "it lives");
    }

    #[test]
    #[should_panic(expected = "bytes at 2097152 of a segment of 73400320")]
    fn access_across_parts_panics() {
        Segment::private_parts(&extents()).unwrap().at(BULK, HEAP);
    }

    #[test]
    #[should_panic(expected = "8 bytes at 8192 of a segment")]
    fn access_between_parts_panics() {
        Segment::private_parts(&extents()).unwrap().word(8192);
    }
}
