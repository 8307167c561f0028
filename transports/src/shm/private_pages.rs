//! Gives a rank a private copy of memory that it shared, at the same address.
//!
//! A peer that is stopped in the middle of a copy goes on whenever it is resumed. Its stores then
//! reach the file, which nobody reads any more, and not the private copy.

use crate::sys::segment::{PAGE_BYTES, Segment};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap_fixed, munmap};
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

/// Replaces the pages of `parts` by a private copy of their contents. All parts lie in one part of
/// a segment of processes, and belong to the caller.
///
/// Other threads of this process may access the rest of these pages meanwhile. They find the shared
/// page or its copy, and none of their stores is lost.
///
/// # Errors
/// Returns the system's error. The pages may then be shared still.
pub(super) fn make_private(segment: &Segment, parts: &[Range<usize>]) -> Result<()> {
    let fd = segment.fd().ok_or(Errno::NOTSUP)?;
    let pages = whole_pages(parts);
    map_privately(fd, segment, &pages)?;
    pages.iter().try_for_each(|pages| copy_pages(segment, pages)).or_else(|error| match error {
        Errno::INVAL => parts.iter().try_for_each(|part| copy_page_by_page(fd, segment, part)),
        other => Err(other),
    })
}

/// Maps `pages` anew, as a copy that the kernel makes of each page at the first store to it.
fn map_privately(fd: BorrowedFd<'_>, segment: &Segment, pages: &[Range<usize>]) -> Result<()> {
    for pages in pages {
        let (bytes, protection) = (pages.len(), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. The seals
        // keep the file at its length.
        let fresh = unsafe { mmap(null_mut(), bytes, protection, flags, fd, pages.start as u64)? };
        // A mapping over the old one could fail when that is gone already; a move fails before.
        // SAFETY: moved over whole pages of a mapping of our own, which are the same pages of the
        // same file. Contents stay as they are, and the kernel makes concurrent accesses wait.
        let moved = unsafe {
            mremap_fixed(fresh, bytes, bytes, MremapFlags::MAYMOVE, segment.at(pages.start, bytes).cast())
        };
        moved.inspect_err(|_| {
            // SAFETY: it stayed where it was, and nobody else knows it.
            let _ = unsafe { munmap(fresh, bytes) };
        })?;
    }
    Ok(())
}

/// Returns the pages of all parts, without any page twice.
fn whole_pages(parts: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut parts: Vec<_> = parts.iter().filter(|part| !part.is_empty()).collect();
    parts.sort_unstable_by_key(|part| part.start);
    let mut pages: Vec<Range<usize>> = Vec::new();
    for part in parts {
        let next = part.start / PAGE_BYTES * PAGE_BYTES..part.end.next_multiple_of(PAGE_BYTES);
        match pages.last_mut() {
            Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
            _ => pages.push(next),
        }
    }
    pages
}

/// Lets the kernel copy each page of a private mapping, without a change of its contents.
fn copy_pages(segment: &Segment, pages: &Range<usize>) -> Result<()> {
    let address = segment.at(pages.start, pages.len());
    loop {
        // SAFETY: advice about a private mapping of our own; it copies pages and changes no
        // contents.
        if unsafe { libc::madvise(address.cast(), pages.len(), MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        match last_error() {
            Errno::INTR | Errno::AGAIN => {}
            error => return Err(error),
        }
    }
}

/// Copies the pages of `part` on systems before Linux 5.14. Reads one byte of each page from the
/// file to where it already is, which is a store.
///
/// The byte is one of `part`. A byte beside it may be changed by another thread meanwhile.
fn copy_page_by_page(fd: BorrowedFd<'_>, segment: &Segment, part: &Range<usize>) -> Result<()> {
    let first = part.start / PAGE_BYTES * PAGE_BYTES;
    for page in (first..part.end).step_by(PAGE_BYTES) {
        let offset = page.max(part.start);
        // SAFETY: one byte inside the mapping, which belongs to the caller. The kernel stores what
        // it holds, or what a peer has stored since in the file.
        let read =
            unsafe { libc::pread(fd.as_raw_fd(), segment.at(offset, 1).cast(), 1, offset as libc::off_t) };
        if read != 1 {
            return Err(last_error());
        }
    }
    Ok(())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Advice value of Linux 5.14. Not every C library names it.
const MADV_POPULATE_WRITE: c_int = 23;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const PAGES: usize = 64;
    const NOTHING: Range<usize> = 0..0;

    fn segments() -> [Segment; 2] {
        let segment = Segment::create(PAGES * PAGE_BYTES).unwrap();
        let peer = Segment::attach(segment.duplicate_fd().unwrap(), PAGES * PAGE_BYTES).unwrap();
        [segment, peer]
    }

    fn words(segment: &Segment) -> Vec<u64> {
        (0..PAGES * PAGE_BYTES).step_by(8).map(|offset| segment.word(offset).load(Relaxed)).collect()
    }

    #[test]
    fn pages_of_parts_are_named_once() {
        const P: usize = PAGE_BYTES;
        assert_eq!(whole_pages(&[NOTHING, 5 * P + 1..5 * P + 2, 7..9]), [0..P, 5 * P..6 * P]);
        let adjacent = whole_pages(&[3 * P..4 * P + 8, 4 * P + 8..4 * P + 16, 9 * P..9 * P + 1]);
        assert_eq!(adjacent, [3 * P..5 * P, 9 * P..10 * P]);
        assert_eq!(whole_pages(&[8..3 * P, P..2 * P, 4 * P..5 * P]), [0..3 * P, 4 * P..5 * P]);
    }

    /// Both ways to copy: that of the system, and that of old systems.
    #[test]
    fn private_pages_keep_contents_and_late_stores_out() {
        for old_system in [false, true] {
            let [segment, peer] = segments();
            (0..PAGES * PAGE_BYTES)
                .step_by(8)
                .for_each(|offset| peer.word(offset).store(offset as u64, Relaxed));
            let parts = [PAGE_BYTES + 8..9 * PAGE_BYTES, 8 * PAGE_BYTES..20 * PAGE_BYTES - 16];
            match old_system {
                false => make_private(&segment, &parts).unwrap(),
                true => {
                    let fd = segment.fd().unwrap();
                    map_privately(fd, &segment, &whole_pages(&parts)).unwrap();
                    parts.iter().for_each(|part| copy_page_by_page(fd, &segment, part).unwrap());
                }
            }
            let expected = words(&segment);
            assert!(expected.iter().enumerate().all(|(index, &word)| word == 8 * index as u64));
            (0..PAGES * PAGE_BYTES).step_by(8).for_each(|offset| peer.word(offset).store(u64::MAX, Relaxed));
            for (index, (now, expected)) in words(&segment).into_iter().zip(expected).enumerate() {
                let is_private = (1..20).contains(&(8 * index / PAGE_BYTES));
                assert_eq!(now, if is_private { expected } else { u64::MAX }, "word {index}");
            }
        }
    }

    #[test]
    fn neighbors_on_a_page_lose_no_store() {
        for _ in 0..20 {
            let [segment, _peer] = segments();
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let counting = scope.spawn(|| {
                    let mut count = 0;
                    while !done.load(Relaxed) {
                        count += 1;
                        [0, 2 * PAGE_BYTES - 8]
                            .iter()
                            .for_each(|&offset| segment.word(offset).store(count, Relaxed));
                        assert_eq!(
                            [0, 2 * PAGE_BYTES - 8].map(|offset| segment.word(offset).load(Relaxed)),
                            [count; 2]
                        );
                    }
                    count
                });
                make_private(&segment, &[NOTHING, 8..2 * PAGE_BYTES - 8]).unwrap();
                done.store(true, Relaxed);
                let count = counting.join().unwrap();
                assert_eq!(
                    [0, 2 * PAGE_BYTES - 8].map(|offset| segment.word(offset).load(Relaxed)),
                    [count; 2]
                );
            });
        }
    }

    #[test]
    fn memory_of_one_process_cannot_be_made_private() {
        assert_eq!(
            make_private(&Segment::private(PAGE_BYTES).unwrap(), &[NOTHING, 0..8]),
            Err(Errno::NOTSUP)
        );
    }
}
