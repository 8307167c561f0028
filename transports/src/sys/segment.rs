//! Memory that several ranks can access. It is anonymous for threads, and a sealed memfd for
//! processes.
//!
//! A memfd has no name, so nothing is left behind when a process ends in any way. Its seals (no
//! shrinking, no growing, no unsealing) make it safe to map the memfd of a peer. If a peer could
//! shorten the file, an access to the mapping could crash this process.

use crate::sync::{AtomicU32, AtomicU64};
use crate::sys::descriptors::off_stdio;
use crate::sys::fork_guard;
use crate::sys::huge_pages::collapse;
use crate::sys::lazy_part::{self, LazyPart};
use crate::sys::rlimit::max_file_bytes;
use crate::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, madvise};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Shared memory of one rank, addressed by offset and zeroed when new. Pages cost nothing until
/// touched.
///
/// The head is mapped from the start. The parts after it take address space when they are first
/// used.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    head_bytes: usize,
    bytes: usize,
    fd: Option<OwnedFd>,
    /// The process that maps the memfd, or `None` for anonymous memory.
    owner_pid: Option<u64>,
    parts: [LazyPart; 2],
}

/// The parts of a segment: a head, and two parts that are mapped at their first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Bytes of the head, in whole pages.
    pub head_bytes: usize,
    /// Offsets of the part that large messages use. It begins on a huge page.
    pub bulk: Range<usize>,
    /// Offsets of the symmetric heap, from a huge page up to the end of the segment.
    pub heap: Range<usize>,
}

impl Extents {
    /// Returns one part of `bytes` bytes, mapped from the start.
    fn whole(bytes: usize) -> Self {
        Self { head_bytes: bytes, bulk: bytes..bytes, heap: bytes..bytes }
    }

    /// Returns the bytes of the whole segment.
    fn bytes(&self) -> usize {
        self.heap.end
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only reached through raw
// pointers and atomics. The value itself is immutable until it is dropped.
unsafe impl Send for Segment {}
// SAFETY: as above: `&Segment` gives out an address and nothing else.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates memory for the threads of this process, mapped from the start.
    ///
    /// # Errors
    /// Returns the system's error, with the size.
    pub fn private(bytes: usize) -> Result<Self> {
        Self::private_parts(&Extents::whole(bytes))
    }

    /// Creates memory for the threads of this process, in parts.
    ///
    /// # Errors
    /// As [`Segment::private`].
    pub fn private_parts(extents: &Extents) -> Result<Self> {
        let bytes = extents.head_bytes;
        let base = lazy_part::map_private(bytes).map_err(|source| failed("map", bytes, source))?;
        Self::from_mapping(base, extents, None)
    }

    /// Creates memory whose descriptor can be passed to other processes, mapped from the start.
    ///
    /// # Errors
    /// Returns the system's error, with the size.
    pub fn create(bytes: usize) -> Result<Self> {
        Self::create_parts(&Extents::whole(bytes))
    }

    /// Creates memory whose descriptor can be passed to other processes, in parts.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create_parts(extents: &Extents) -> Result<Self> {
        let bytes = extents.bytes();
        let system = |source: rustix::io::Errno| failed("create", bytes, source);
        if let Some(most) = max_file_bytes().filter(|most| *most < bytes as u64) {
            // The kernel would answer with a signal, which ends the process.
            let limit = format!("{most} by `ulimit -f`; a smaller UNISONO_SYMMETRIC_HEAP_BYTES needs less");
            let what = format!("cannot create a shared segment of {bytes} bytes ({limit})");
            return Err(Error::System { what, source: rustix::io::Errno::FBIG.into() });
        }
        let fd = memfd_create("unisono", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(system)?;
        let fd = off_stdio(fd).map_err(|source| {
            let what = format!("cannot create a shared segment of {bytes} bytes");
            Error::System { what, source }
        })?;
        ftruncate(&fd, bytes as u64).map_err(system)?;
        fcntl_add_seals(&fd, required_seals()).map_err(system)?;
        Self::map(fd, extents)
    }

    /// Maps the memory of a peer from the start, given the descriptor that the peer sent.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] if its size or its seals are not as agreed, or the system's
    /// error.
    pub fn attach(fd: OwnedFd, bytes: usize) -> Result<Self> {
        Self::attach_parts(fd, &Extents::whole(bytes))
    }

    /// Maps the memory of a peer in parts, given the descriptor that the peer sent.
    ///
    /// # Errors
    /// As [`Segment::attach`].
    pub fn attach_parts(fd: OwnedFd, extents: &Extents) -> Result<Self> {
        let bytes = extents.bytes();
        let system = |source: rustix::io::Errno| failed("inspect", bytes, source);
        let found = fstat(&fd).map_err(system)?.st_size;
        if found != bytes as i64 {
            return Err(Error::InvalidUsage(format!(
                "a shared segment has {found} bytes instead of {bytes}"
            )));
        }
        if !fcntl_get_seals(&fd).map_err(system)?.contains(required_seals()) {
            return Err(Error::InvalidUsage("a shared segment is not sealed against shrinking".to_owned()));
        }
        Self::map(fd, extents)
    }

    /// Maps the part that holds `offset`, if it is not mapped.
    ///
    /// # Errors
    /// Returns the system's error, with the size, if there is no address space for the part.
    pub fn map_part(&self, offset: usize) -> Result<()> {
        match self.parts.iter().find(|part| part.range().contains(&offset)) {
            Some(part) => {
                part.map(self.fd.as_ref()).map_err(|source| failed("map", part.range().len(), source))
            }
            None => Ok(()),
        }
    }

    /// Returns the descriptor to pass on, or `None` for memory of one process.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Returns a duplicate of the descriptor to pass on, owned by the caller.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] for memory that cannot be passed on, or the system's error.
    pub fn duplicate_fd(&self) -> Result<OwnedFd> {
        let fd = self.fd().ok_or_else(|| Error::InvalidUsage("memory of one process only".to_owned()))?;
        fd.try_clone_to_owned()
            .map_err(|source| Error::System { what: "cannot duplicate".to_owned(), source })
    }

    /// Closes the descriptor. The memory stays mapped, and parts can still be mapped later.
    ///
    /// # Errors
    /// Returns the system's error, if the parts that are not mapped yet cannot be kept within
    /// reach.
    pub fn close_fd(&mut self) -> Result<()> {
        if let Some(fd) = self.fd.take() {
            let kept = self.parts.iter_mut().try_for_each(|part| part.keep_reachable(&fd));
            kept.map_err(|source| failed("map", self.bytes, source))?;
        }
        Ok(())
    }

    /// Returns the bytes of the pages that exist, in whichever process they were touched. The
    /// result is zero if the system cannot tell.
    pub fn resident_bytes(&self) -> usize {
        let status = self.fd.as_ref().and_then(|fd| fstat(fd).ok());
        status.map_or(0, |status| status.st_blocks as usize * BLOCK_BYTES)
    }

    /// Returns the length of all parts in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of address space that the mapped parts take.
    pub fn mapped_bytes(&self) -> usize {
        let parts = self.parts.iter().filter(|part| part.is_mapped());
        self.head_bytes + parts.map(|part| part.range().len()).sum::<usize>()
    }

    /// Returns the address of the byte at `offset`, with at least `bytes` bytes behind it in the
    /// same part.
    ///
    /// # Panics
    /// Panics if the bytes are not inside one part. It also panics if the part was not mapped by
    /// [`Segment::map_part`] and cannot be mapped.
    #[inline]
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.head_bytes) {
            // SAFETY: in bounds of the mapping of the head by the condition.
            return unsafe { self.base.as_ptr().add(offset) };
        }
        self.at_in_part(offset, bytes)
    }

    /// Returns the address of bytes that are not in the head.
    ///
    /// The function stays out of line, so that an address in the head costs one comparison.
    #[cold]
    #[inline(never)]
    fn at_in_part(&self, offset: usize, bytes: usize) -> *mut u8 {
        let found = self.parts.iter().find_map(|part| part.at(offset, bytes));
        found.unwrap_or_else(|| self.map_and_find(offset, bytes))
    }

    #[cold]
    fn map_and_find(&self, offset: usize, bytes: usize) -> *mut u8 {
        if let Err(error) = self.map_part(offset) {
            panic!("{error}");
        }
        if bytes == 0 && offset <= self.bytes {
            // An empty range may have any address.
            return self.base.as_ptr();
        }
        let found = self.parts.iter().find_map(|part| part.at(offset, bytes));
        found.unwrap_or_else(|| panic!("{bytes} bytes at {offset} of a segment of {}", self.bytes))
    }

    /// Returns the word at `offset`, a multiple of eight, as all ranks reach it.
    ///
    /// # Panics
    /// Panics if the word is not inside the segment.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let [word] = self.words(offset);
        word
    }

    /// Returns `COUNT` words from `offset` on, a multiple of eight, as all ranks reach them.
    ///
    /// # Panics
    /// Panics if the words are not inside the segment.
    #[inline]
    pub(crate) fn words<const COUNT: usize>(&self, offset: usize) -> &[AtomicU64; COUNT] {
        let pointer = self.at(offset, size_of::<[AtomicU64; COUNT]>());
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "a word at {offset}");
        // SAFETY: mapped for as long as the segment, aligned because mappings begin on pages; all
        // ranks reach words as atomics only.
        unsafe { &*pointer.cast::<[AtomicU64; COUNT]>() }
    }

    /// Returns the half of a word at `offset`, a multiple of four, as all ranks reach it.
    ///
    /// # Panics
    /// Panics if the bytes are not inside the segment.
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        let pointer = self.at(offset, size_of::<AtomicU32>());
        assert!(offset.is_multiple_of(align_of::<AtomicU32>()), "half a word at {offset}");
        // SAFETY: mapped for as long as the segment, aligned because mappings begin on pages; all
        // ranks reach these bytes as an atomic of this size only.
        unsafe { &*pointer.cast::<AtomicU32>() }
    }

    /// Asks for huge pages in a range that will be used densely, if it can hold one.
    ///
    /// Elsewhere small pages are better, because touching one slot should not cost the memory of
    /// many. Shared memory gets huge pages only if the system is set so, and mostly it is not.
    pub(crate) fn prefer_huge_pages(&self, offset: usize, bytes: usize) {
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: advice about a mapping of our own; it changes no contents. If the system does
            // not take it, everything works with small pages.
            let _ = unsafe { madvise(self.at(offset, bytes).cast(), bytes, Advice::LinuxHugepage) };
        }
    }

    /// Makes huge pages wherever a whole one fits into the range.
    ///
    /// Call this for memory that is about to be used and that no process has touched. It then
    /// takes a fraction of the time. If the system has no huge pages, or if its cores are busy,
    /// small ones come on first touch, as in memory of one process.
    pub(crate) fn collapse_huge_pages(&self, offset: usize, bytes: usize) {
        let range =
            offset.next_multiple_of(HUGE_PAGE_BYTES)..(offset + bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if let Some(fd) = &self.fd
            && !range.is_empty()
        {
            collapse(fd, self.at(range.start, range.len()), range);
        }
    }

    /// Makes processes that are forked find zeros here. Returns `false` if the system cannot.
    pub(crate) fn wipe_on_fork(&self) -> bool {
        // SAFETY: advice about a mapping of our own; it changes nothing in this process.
        unsafe { madvise(self.base.as_ptr().cast(), self.head_bytes, Advice::LinuxWipeOnFork) }.is_ok()
    }

    /// Panics in a forked child, which does not have the heap that processes share.
    #[inline]
    pub(crate) fn check_process(&self) {
        self.owner_pid.into_iter().for_each(fork_guard::check_owner);
    }

    /// Returns the memory of whole pages to the system. The pages are zeros when touched again,
    /// except those of a file that is kept.
    ///
    /// # Panics
    /// Panics if the range is not inside the segment.
    pub(crate) fn discard(&self, offset: usize, bytes: usize, keeps_file: bool) {
        let advice = match self.owner_pid {
            // A child has the mapping of its parent, and the parent may still need the contents.
            Some(process) if process != fork_guard::current_pid() => return,
            Some(_) if !keeps_file => Advice::LinuxRemove,
            _ => Advice::LinuxDontNeed,
        };
        // SAFETY: inside the mapping by `at`; the caller owns the contents of these pages and is
        // done with them. If the system does not take the advice, the memory stays in use and
        // nothing else changes.
        let _ = unsafe { madvise(self.at(offset, bytes).cast(), bytes, advice) };
    }

    fn map(fd: OwnedFd, extents: &Extents) -> Result<Self> {
        let bytes = extents.head_bytes;
        let base = lazy_part::map_shared(&fd, 0..bytes).map_err(|source| failed("map", bytes, source))?;
        Self::from_mapping(base, extents, Some(fd))
    }

    fn from_mapping(base: NonNull<u8>, extents: &Extents, fd: Option<OwnedFd>) -> Result<Self> {
        let owner_pid = fd.as_ref().map(|_| fork_guard::current_pid());
        let parts = [LazyPart::new(extents.bulk.clone(), false), LazyPart::new(extents.heap.clone(), true)];
        Ok(Self { base, head_bytes: extents.head_bytes, bytes: extents.bytes(), owner_pid, fd, parts })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by us with this length, and nobody can reach it any more:
        // everything that points into it holds the segment.
        unsafe { lazy_part::unmap(self.base, self.head_bytes) };
    }
}

/// Size of a huge page on x86-64, and on other processors with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;
/// Unit of `st_blocks`.
const BLOCK_BYTES: usize = 512;

fn required_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

fn failed(what: &str, bytes: usize, source: rustix::io::Errno) -> Error {
    let hint = match source {
        rustix::io::Errno::NOMEM => {
            " (of address space by `ulimit -v`; a smaller UNISONO_SYMMETRIC_HEAP_BYTES, \
             UNISONO_FIFO_SLOT_BYTES or UNISONO_SHM_WINDOW_BYTES needs less)"
        }
        _ => "",
    };
    Error::System {
        what: format!("cannot {what} a shared segment of {bytes} bytes{hint}"),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn duplicate(segment: &Segment) -> OwnedFd {
        segment.fd().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn mappings_share_zeroed_memory() {
        let segment = Segment::create(3 * 4096).unwrap();
        let peers = Segment::attach(duplicate(&segment), 3 * 4096).unwrap();
        assert_eq!(peers.word(8192).load(Ordering::Relaxed), 0);
        segment.word(8192).store(7, Ordering::Relaxed);
        assert_eq!(peers.word(8192).load(Ordering::Relaxed), 7);
        drop(segment);
        assert_eq!(peers.word(8192).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        fcntl_add_seals(&unsealed, SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(matches!(Segment::attach(unsealed, 4096), Err(Error::InvalidUsage(_))));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(Segment::attach(pipe.into(), 0).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        assert!(Segment::attach(file.into(), bytes).is_err());
    }

    #[test]
    fn created_segment_is_sealed() {
        let segment = Segment::create(8192).unwrap();
        for bytes in [0, 4096, 8191, 8193, 16384] {
            assert!(Segment::attach(duplicate(&segment), bytes).is_err(), "{bytes}");
        }
        assert!(ftruncate(segment.fd().unwrap(), 4096).is_err());
        assert!(ftruncate(segment.fd().unwrap(), 16384).is_err());
    }

    #[test]
    fn resident_pages_count_all_writers() {
        let segment = Segment::create(64 << 20).unwrap();
        let peers = Segment::attach(duplicate(&segment), 64 << 20).unwrap();
        assert_eq!(segment.resident_bytes(), 0);
        peers.word(40 << 20).store(1, Ordering::Relaxed);
        let page_bytes = segment.resident_bytes();
        assert!(page_bytes > 0 && page_bytes <= HUGE_PAGE_BYTES, "{page_bytes}");
        segment.word(0).store(1, Ordering::Relaxed);
        assert_eq!(segment.resident_bytes(), 2 * page_bytes);
        assert_eq!(Segment::private(64 << 20).unwrap().resident_bytes(), 0);
    }

    #[test]
    fn collapsed_huge_pages_are_zeroed() {
        let segment = Segment::create(16 << 20).unwrap();
        let peers = Segment::attach(duplicate(&segment), 16 << 20).unwrap();
        assert_eq!([segment.at(0, 0), peers.at(0, 0)].map(|base| base.addr() % HUGE_PAGE_BYTES), [0, 0]);
        segment.collapse_huge_pages((1 << 20) + 4096, 6 << 20);
        let made = segment.resident_bytes();
        // Nothing is made while the cores are busy.
        assert!(
            made == 0 || (2 * PAGE_BYTES..=4 << 20).contains(&made),
            "{made}: a page of each, or all of them"
        );
        for offset in (0..16 << 20).step_by(PAGE_BYTES) {
            assert_eq!(peers.word(offset).load(Ordering::Relaxed), 0);
            segment.word(offset).store(offset as u64, Ordering::Relaxed);
        }
        assert!(
            (0..16 << 20)
                .step_by(PAGE_BYTES)
                .all(|offset| peers.word(offset).load(Ordering::Relaxed) == offset as u64)
        );
        assert_eq!(segment.resident_bytes(), 16 << 20);
        // A late collapse changes the contents for no process.
        peers.collapse_huge_pages(0, 16 << 20);
        assert!(
            (0..16 << 20)
                .step_by(PAGE_BYTES)
                .all(|offset| segment.word(offset).load(Ordering::Relaxed) == offset as u64)
        );
        segment.discard(0, 16 << 20, false);
        assert_eq!((segment.resident_bytes(), peers.word(4 << 20).load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn untouched_memory_is_not_resident() {
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let start = resident();
        let bytes = 64 << 30;
        let segments = [Segment::private(bytes).unwrap(), Segment::create(bytes).unwrap()];
        for segment in &segments {
            segment.word(bytes - 8).store(1, Ordering::Relaxed);
        }
        assert!(resident() < start + (256 << 20));
    }

    #[test]
    #[should_panic(expected = "8 bytes at 4092 of a segment of 4096")]
    fn word_across_the_end_panics() {
        Segment::private(4096).unwrap().word(4092);
    }
}
