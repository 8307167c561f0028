//! Memory that several ranks reach: anonymous for threads, a sealed memfd for processes.
//!
//! A memfd has no name, so nothing is left behind however a process ends, and
//! its seals (no shrinking, no growing, no unsealing) are what makes it safe to
//! map a peer's: a mapping of a file that can be cut short is a crash waiting
//! for its moment.

use crate::sync::AtomicU64;
use crate::sys::fork_guard;
use crate::sys::rlimit::max_file_bytes;
use crate::{Error, Result};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

/// A mapped piece of memory, zeroed when new. Pages cost nothing until touched.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    fd: Option<OwnedFd>,
    /// Backed by a memfd, mapped by this process.
    owner_pid: Option<u64>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only reached through raw
// pointers and atomics; the value itself is immutable until it is dropped.
unsafe impl Send for Segment {}
// SAFETY: as above: `&Segment` gives out an address and nothing else.
unsafe impl Sync for Segment {}

impl Segment {
    /// Memory for the threads of this process.
    ///
    /// # Errors
    /// The system's, with the size.
    pub fn private(bytes: usize) -> Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap_anonymous(null_mut(), bytes.max(1), protection, flags) };
        Self::from_mapping(base, bytes, None)
    }

    /// Memory whose descriptor can be passed to other processes.
    ///
    /// # Errors
    /// The system's, with the size.
    pub fn create(bytes: usize) -> Result<Self> {
        let system = |source: rustix::io::Errno| failed("create", bytes, source);
        if let Some(most) = max_file_bytes().filter(|most| *most < bytes as u64) {
            // The kernel would answer with a signal.
            let limit = format!("{most} by `ulimit -f`; a smaller UNISONO_SYMMETRIC_HEAP_BYTES needs less");
            let what = format!("cannot create a shared segment of {bytes} bytes ({limit})");
            return Err(Error::System { what, source: rustix::io::Errno::FBIG.into() });
        }
        let fd = memfd_create("unisono", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(system)?;
        ftruncate(&fd, bytes as u64).map_err(system)?;
        fcntl_add_seals(&fd, required_seals()).map_err(system)?;
        Self::map(fd, bytes)
    }

    /// A peer's memory, from the descriptor it sent.
    ///
    /// # Errors
    /// [`Error::Misuse`] if its size or its seals are not as agreed; the system's.
    pub fn attach(fd: OwnedFd, bytes: usize) -> Result<Self> {
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
        Self::map(fd, bytes)
    }

    /// The descriptor to pass on, for memory that was created to be passed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The descriptor to pass on, as one that can be kept.
    ///
    /// # Errors
    /// [`Error::Misuse`] for memory that cannot be passed on, the system's.
    pub fn duplicate_fd(&self) -> Result<OwnedFd> {
        let fd = self.fd().ok_or_else(|| Error::InvalidUsage("memory of one process only".to_owned()))?;
        fd.try_clone_to_owned()
            .map_err(|source| Error::System { what: "cannot duplicate".to_owned(), source })
    }

    /// Closes the descriptor; the memory stays mapped.
    pub fn close_fd(&mut self) {
        self.fd = None;
    }

    /// Bytes of the pages that exist, whichever process touched them; zero if that cannot be told.
    pub fn resident_bytes(&self) -> usize {
        let status = self.fd.as_ref().and_then(|fd| fstat(fd).ok());
        status.map_or(0, |status| status.st_blocks as usize * BLOCK_BYTES)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the byte at `offset`, with at least `bytes` bytes behind it.
    ///
    /// # Panics
    /// If that is not inside.
    #[inline]
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} of a segment of {}", self.bytes);
        // SAFETY: in bounds of the mapping by the assertion.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The word at `offset`, a multiple of eight, as all ranks reach it.
    ///
    /// # Panics
    /// If that is not inside.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let [word] = self.words(offset);
        word
    }

    /// The words from `offset` on, likewise.
    ///
    /// # Panics
    /// If they are not inside.
    #[inline]
    pub(crate) fn words<const COUNT: usize>(&self, offset: usize) -> &[AtomicU64; COUNT] {
        let pointer = self.at(offset, size_of::<[AtomicU64; COUNT]>());
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "a word at {offset}");
        // SAFETY: mapped for as long as the segment, aligned because mappings begin on pages; all ranks
        // reach words as atomics only.
        unsafe { &*pointer.cast::<[AtomicU64; COUNT]>() }
    }

    /// Asks for huge pages in a part that will be used densely, if it is large enough for any: elsewhere
    /// touching one slot should not cost the memory of many. What is shared gets them as the system is set, mostly not.
    pub(crate) fn prefer_huge_pages(&self, offset: usize, bytes: usize) {
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: advice about a mapping of our own; it changes no contents. If the system does not
            // take it, everything works with small pages.
            let _ = unsafe { madvise(self.at(offset, bytes).cast(), bytes, Advice::LinuxHugepage) };
        }
    }

    /// Makes huge pages wherever a whole one is inside, of memory that is about to be used and best has not been touched yet, by
    /// nobody: then it takes a fraction of the time. Where the system has none, small ones come when they are touched, as they do in memory of one process.
    pub(crate) fn collapse_huge_pages(&self, offset: usize, bytes: usize) {
        let inside =
            offset.next_multiple_of(HUGE_PAGE_BYTES)..(offset + bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if let Some(fd) = &self.fd
            && !inside.is_empty()
        {
            collapse(fd, self.at(inside.start, inside.len()), inside);
        }
    }

    /// Sees to it that processes that are forked find zeros here; false if the system cannot.
    pub(crate) fn wipe_on_fork(&self) -> bool {
        // SAFETY: advice about a mapping of our own; it changes nothing in this process.
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxWipeOnFork) }.is_ok()
    }

    /// Gives the memory of whole pages back to the system; they are zeros when touched again.
    ///
    /// # Panics
    /// If that is not inside.
    pub(crate) fn discard(&self, offset: usize, bytes: usize) {
        let advice = match self.owner_pid {
            // A child has the mapping of its parent, who may still need what is in it.
            Some(process) if process != fork_guard::current_pid() => return,
            Some(_) => Advice::LinuxRemove,
            None => Advice::LinuxDontNeed,
        };
        // SAFETY: inside the mapping by `at`; whoever calls this owns these pages' contents and is done with
        // them. If the system does not take it, the memory stays in use and nothing else changes.
        let _ = unsafe { madvise(self.at(offset, bytes).cast(), bytes, advice) };
    }

    fn map(fd: OwnedFd, bytes: usize) -> Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let room = reserve_address_space(bytes).map_err(|source| failed("map", bytes, source))?;
        // SAFETY: over address space that was just reserved for it; the seals keep the file as long as it is, so
        // every page of it can be touched. If it fails, the reservation stays: the kernel may have given it up already,
        // and to somebody else.
        let base = unsafe { mmap(room, bytes.max(1), protection, flags | MapFlags::FIXED, &fd, 0) };
        Self::from_mapping(base, bytes, Some(fd))
    }

    fn from_mapping(
        base: rustix::io::Result<*mut c_void>,
        bytes: usize,
        fd: Option<OwnedFd>,
    ) -> Result<Self> {
        let base = base.map_err(|source| failed("map", bytes, source))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| Error::InvalidUsage("a mapping at address zero".to_owned()))?;
        Ok(Self { base, bytes, owner_pid: fd.as_ref().map(|_| fork_guard::current_pid()), fd })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by us with this length, and nobody can reach it any more:
        // everything that points into it holds the segment.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

/// Of x86-64, and of others with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;
/// What `st_blocks` counts.
const BLOCK_BYTES: usize = 512;

/// Address space for a mapping, from a multiple of a huge page's size on: else what is one in the file is none here.
fn reserve_address_space(bytes: usize) -> rustix::io::Result<*mut c_void> {
    let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let whole = unsafe { mmap_anonymous(null_mut(), bytes + HUGE_PAGE_BYTES, ProtFlags::empty(), flags)? };
    let before = whole.addr().next_multiple_of(HUGE_PAGE_BYTES) - whole.addr();
    let begin = whole.wrapping_byte_add(before);
    for (part, bytes) in [(whole, before), (begin.wrapping_byte_add(bytes), HUGE_PAGE_BYTES - before)] {
        if bytes > 0 {
            // SAFETY: of the mapping above, which nobody else knows; whole pages.
            unsafe { munmap(part, bytes)? };
        }
    }
    Ok(begin)
}

/// Makes a huge page of each that is in `inside`, bytes of `fd` that are mapped at `pointer`.
///
/// The system collapses small pages, of which there must be one; one that is mapped makes it many times slower.
fn collapse(fd: &OwnedFd, pointer: *mut u8, inside: Range<usize>) {
    for page in inside.clone().step_by(HUGE_PAGE_BYTES) {
        // Where that fails, so does the collapse of this one.
        let _ = fallocate(fd, FallocateFlags::KEEP_SIZE, page as u64, PAGE_BYTES as u64);
    }
    // SAFETY: advice about a mapping of our own; it changes no contents. If the system does not take it, everything
    // works with small pages.
    unsafe { libc::madvise(pointer.cast(), inside.len(), MADV_COLLAPSE) };
}

/// Of Linux 6.1; not every C library names it.
const MADV_COLLAPSE: c_int = 25;

fn required_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

fn failed(what: &str, bytes: usize, source: rustix::io::Errno) -> Error {
    let hint = match source {
        rustix::io::Errno::NOMEM => {
            " (of address space by `ulimit -v`; a smaller UNISONO_SYMMETRIC_HEAP_BYTES needs less)"
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
        let own = Segment::create(3 * 4096).unwrap();
        let peers = Segment::attach(duplicate(&own), 3 * 4096).unwrap();
        assert_eq!(peers.word(8192).load(Ordering::Relaxed), 0);
        own.word(8192).store(7, Ordering::Relaxed);
        assert_eq!(peers.word(8192).load(Ordering::Relaxed), 7);
        drop(own);
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
        let own = Segment::create(8192).unwrap();
        for bytes in [0, 4096, 8191, 8193, 16384] {
            assert!(Segment::attach(duplicate(&own), bytes).is_err(), "{bytes}");
        }
        assert!(ftruncate(own.fd().unwrap(), 4096).is_err());
        assert!(ftruncate(own.fd().unwrap(), 16384).is_err());
    }

    #[test]
    fn resident_pages_count_all_writers() {
        let own = Segment::create(64 << 20).unwrap();
        let peers = Segment::attach(duplicate(&own), 64 << 20).unwrap();
        assert_eq!(own.resident_bytes(), 0);
        peers.word(40 << 20).store(1, Ordering::Relaxed);
        let one = own.resident_bytes();
        assert!(one > 0 && one <= HUGE_PAGE_BYTES, "{one}");
        own.word(0).store(1, Ordering::Relaxed);
        assert_eq!(own.resident_bytes(), 2 * one);
        assert_eq!(Segment::private(64 << 20).unwrap().resident_bytes(), 0);
    }

    #[test]
    fn collapsed_huge_pages_are_zeroed() {
        let own = Segment::create(16 << 20).unwrap();
        let peers = Segment::attach(duplicate(&own), 16 << 20).unwrap();
        assert_eq!([own.at(0, 0), peers.at(0, 0)].map(|base| base.addr() % HUGE_PAGE_BYTES), [0, 0]);
        own.collapse_huge_pages((1 << 20) + 4096, 6 << 20);
        let made = own.resident_bytes();
        assert!((2 * PAGE_BYTES..=4 << 20).contains(&made), "{made}: a page of each, or all of them");
        for offset in (0..16 << 20).step_by(PAGE_BYTES) {
            assert_eq!(peers.word(offset).load(Ordering::Relaxed), 0);
            own.word(offset).store(offset as u64, Ordering::Relaxed);
        }
        assert!(
            (0..16 << 20).step_by(PAGE_BYTES).all(|at| peers.word(at).load(Ordering::Relaxed) == at as u64)
        );
        assert_eq!(own.resident_bytes(), 16 << 20);
        // Whoever is late changes nothing, for nobody.
        peers.collapse_huge_pages(0, 16 << 20);
        assert!(
            (0..16 << 20).step_by(PAGE_BYTES).all(|at| own.word(at).load(Ordering::Relaxed) == at as u64)
        );
        own.discard(0, 16 << 20);
        assert_eq!((own.resident_bytes(), peers.word(4 << 20).load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn untouched_memory_is_not_resident() {
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let bytes = 64 << 30;
        let segments = [Segment::private(bytes).unwrap(), Segment::create(bytes).unwrap()];
        for segment in &segments {
            segment.word(bytes - 8).store(1, Ordering::Relaxed);
        }
        assert!(resident() < before + (256 << 20));
    }

    #[test]
    #[should_panic(expected = "8 bytes at 4092 of a segment of 4096")]
    fn word_across_the_end_panics() {
        Segment::private(4096).unwrap().word(4092);
    }
}
