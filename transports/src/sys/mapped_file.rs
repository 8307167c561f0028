//! Files mapped as memory for reading. The system loads pages on first access and may drop them.

use crate::{Error, Result};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::fstat;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::copy_nonoverlapping;

/// A file mapped for reading.
///
/// The type never returns references, because other processes may write to the file at any time. It
/// returns copies of ranges. A copy may contain a part of the data that is written at the same
/// time. A file that was truncated is noticed before each copy. A file that is truncated during a
/// copy ends the process, as with every mapping.
#[derive(Debug)]
pub struct MappedFile {
    mapping: MmapRaw,
    file: File,
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// Returns the system's error, with the path.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::System { what: format!("cannot map {}", path.display()), source };
        let file = File::open(path).map_err(failed)?;
        let mapping = MmapOptions::new().map_raw_read_only(&file).map_err(failed)?;
        // Samples are read in random order. All works without the advice, too.
        let _ = mapping.advise(Advice::Random);
        Ok(Self { mapping, file })
    }

    /// Returns the length of the file when it was mapped.
    pub fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Copies the bytes from `offset` on into `into`.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] if the range is not all inside, or if the file has been
    /// truncated.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check_range(offset, into.len())?;
        // SAFETY: the range is inside the mapping, and inside the file by its length of a moment
        // ago. `into` is memory of the caller's own, which no fresh mapping overlaps.
        unsafe { copy_nonoverlapping(self.mapping.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies as [`MappedFile::read_at`] does, by a call that lets the system load the pages that
    /// follow as well. It is faster for long ranges in order.
    ///
    /// # Errors
    /// Those of [`MappedFile::read_at`], and the system's error.
    pub fn read_in_order(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let count = into.len();
        self.check_range(offset, count)?;
        let failed =
            |source| Error::System { what: format!("cannot read {count} bytes at {offset}"), source };
        self.file.read_exact_at(into, offset as u64).map_err(failed)
    }

    /// Checks that the file has the range now, and that the mapping has it.
    fn check_range(&self, offset: usize, count: usize) -> Result<()> {
        let there = file_len(&self.file).map_or(0, |now| now.min(self.bytes()));
        if offset.checked_add(count).is_none_or(|end| end > there) {
            return Err(Error::InvalidUsage(format!("{count} bytes at {offset} of a file of {there}")));
        }
        Ok(())
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
        let mut bytes = [0; 4];
        mapped.read_at(6, &mut bytes).unwrap();
        assert_eq!((&bytes, mapped.bytes()), (b"6789", 10));
        assert_eq!(mapped.read_at(7, &mut bytes).unwrap_err().to_string(), "4 bytes at 7 of a file of 10");
        mapped.read_in_order(1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"1234");
        assert!(mapped.read_in_order(7, &mut bytes).is_err());
        assert!(mapped.read_at(usize::MAX, &mut bytes).is_err());
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
        let mut bytes = [0; 100];
        mapped.read_at(0, &mut bytes).unwrap();
        assert!(mapped.read_at(19_000, &mut bytes).is_err());
    }

    #[test]
    fn missing_file_is_named() {
        let error = MappedFile::open(Path::new("/nowhere/tokens.bin")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/tokens.bin"), "{error}");
    }
}
