//! A file as memory, to read from: pages come as they are touched and are the system's to drop.

use crate::{Error, Result};
use rustix::fs::fstat;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::path::Path;
use std::ptr::{NonNull, copy_nonoverlapping, null_mut};

/// A file mapped for reading.
///
/// It never lends references: other processes may write to the file meanwhile. It copies ranges out, and what is
/// written during a copy may be seen in part. A file that was cut short is noticed before each copy; one that is cut
/// short during a copy ends the process, as it does for every mapping.
#[derive(Debug)]
pub struct MappedFile {
    base: NonNull<u8>,
    bytes: usize,
    file: File,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above; `&MappedFile` only copies out of it.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the whole of the file at `path`.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::System { what: format!("cannot map {}", path.display()), source };
        let file = File::open(path).map_err(failed)?;
        let bytes = file_len(&file).map_err(failed)?;
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(null_mut(), bytes.max(1), protection, flags, &file, 0) };
        let base = base.map_err(|errno| failed(errno.into()))?;
        let base = NonNull::new(base.cast::<u8>());
        let base = base.ok_or_else(|| Error::InvalidUsage("a mapping at address zero".to_owned()))?;
        // SAFETY: advice about a mapping of our own: samples are read in random order. Without it, all works.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes.max(1), Advice::Random) };
        Ok(Self { base, bytes, file })
    }

    /// Length when it was mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies what begins at `offset` into `into`.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if it is not all inside, or the file has been cut short.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let there = file_len(&self.file).map_or(0, |now| now.min(self.bytes));
        if offset.checked_add(into.len()).is_none_or(|end| end > there) {
            let what = format!("{} bytes at {offset} of a file of {there}", into.len());
            return Err(Error::InvalidUsage(what));
        }
        // SAFETY: inside the mapping, and inside the file by its length of a moment ago; `into` is memory of the
        // caller's own, which no fresh mapping overlaps.
        unsafe { copy_nonoverlapping(self.base.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: made by us with this length, and nothing points into it: copies only leave it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

fn file_len(file: &File) -> std::io::Result<usize> {
    Ok(fstat(file)?.st_size as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{OpenOptions, remove_file, write};

    fn file(name: &str, contents: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("unisono-mapped-{}-{name}", std::process::id()));
        write(&path, contents).unwrap();
        path
    }

    #[test]
    fn read_at_checks_range() {
        let path = file("ranges", b"0123456789");
        let mapped = MappedFile::open(&path).unwrap();
        remove_file(&path).unwrap();
        let mut into = [0; 4];
        mapped.read_at(6, &mut into).unwrap();
        assert_eq!((&into, mapped.bytes()), (b"6789", 10));
        assert_eq!(mapped.read_at(7, &mut into).unwrap_err().to_string(), "4 bytes at 7 of a file of 10");
        assert!(mapped.read_at(usize::MAX, &mut into).is_err());
    }

    #[test]
    fn empty_file_can_be_mapped() {
        let path = file("empty", b"");
        let mapped = MappedFile::open(&path).unwrap();
        remove_file(&path).unwrap();
        assert_eq!(mapped.bytes(), 0);
        mapped.read_at(0, &mut []).unwrap();
        assert!(mapped.read_at(0, &mut [0]).is_err());
    }

    #[test]
    fn truncated_file_is_an_error_not_a_signal() {
        let path = file("short", &[7; 20_000]);
        let mapped = MappedFile::open(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        remove_file(&path).unwrap();
        let mut into = [0; 100];
        mapped.read_at(0, &mut into).unwrap();
        assert!(mapped.read_at(19_000, &mut into).is_err());
    }

    #[test]
    fn missing_file_is_named() {
        let error = MappedFile::open(Path::new("/nowhere/tokens.bin")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/tokens.bin"), "{error}");
    }
}
