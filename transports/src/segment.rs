//! Memory that several ranks reach: anonymous for threads, a sealed memfd for processes.
//!
//! A memfd has no name, so nothing is left behind however a process ends, and
//! its seals (no shrinking, no growing, no unsealing) are what makes it safe to
//! map a peer's: a mapping of a file that can be cut short is a crash waiting
//! for its moment.

use crate::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

/// A mapped piece of memory, zeroed when new. Pages cost nothing until touched.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    fd: Option<OwnedFd>,
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
        Self::mapped(base, bytes, None)
    }

    /// Memory whose descriptor can be passed to other processes.
    ///
    /// # Errors
    /// The system's, with the size.
    pub fn create(bytes: usize) -> Result<Self> {
        let system = |source: rustix::io::Errno| failed("create", bytes, source);
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
            return Err(Error::Misuse(format!("a shared segment has {found} bytes instead of {bytes}")));
        }
        if !fcntl_get_seals(&fd).map_err(system)?.contains(required_seals()) {
            return Err(Error::Misuse("a shared segment is not sealed against shrinking".to_owned()));
        }
        Self::map(fd, bytes)
    }

    /// The descriptor to pass on, for memory that was created to be passed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Closes the descriptor; the memory stays mapped.
    pub fn forget_fd(&mut self) {
        self.fd = None;
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the byte at `offset`, with at least `bytes` bytes behind it.
    ///
    /// # Panics
    /// If that is not inside.
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} of a segment of {}", self.bytes);
        // SAFETY: in bounds of the mapping by the assertion.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn map(fd: OwnedFd, bytes: usize) -> Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing; the seals keep
        // the file as long as it is, so every page of it can be touched.
        let base = unsafe { mmap(null_mut(), bytes.max(1), protection, flags, &fd, 0) };
        Self::mapped(base, bytes, Some(fd))
    }

    fn mapped(
        base: rustix::io::Result<*mut std::ffi::c_void>,
        bytes: usize,
        fd: Option<OwnedFd>,
    ) -> Result<Self> {
        let base = base.map_err(|source| failed("map", bytes, source))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| Error::Misuse("a mapping at address zero".to_owned()))?;
        // SAFETY: advice about a mapping of our own; it changes no contents.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes.max(1), Advice::LinuxHugepage) };
        Ok(Self { base, bytes, fd })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by us with this length, and nobody can reach it any more:
        // everything that points into it holds the segment.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

fn required_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

fn failed(what: &str, bytes: usize, source: rustix::io::Errno) -> Error {
    Error::System { what: format!("cannot {what} a shared segment of {bytes} bytes"), source: source.into() }
}
