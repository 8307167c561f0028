//! Optimizer state on disk, except for the bucket whose step is being taken.
//!
//! CPU ranks have no second memory, so they offload to a file. The file is read and written by
//! position and not mapped. A mapping would stay resident while in use, and a full disk would kill
//! the process instead of returning an error.
//!
//! Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021, which offloads from a GPU to the host.

use crate::allocator::{AllocClass, Allocator, F32Vec, Tracked};
use crate::error::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unlinked file. The system deletes it when the rank ends, even after a crash.
pub(super) struct OffloadFile {
    file: File,
    folder: PathBuf,
    memory: Allocator,
    /// Offset of the next slot.
    end: u64,
}

/// Space for one array in the file.
pub(super) struct FileSlot {
    start: u64,
    _tracked: Tracked,
}

impl OffloadFile {
    /// Creates a file in `folder`. Creates the folder if it is missing.
    pub(super) fn new(folder: &Path, memory: &Allocator) -> Result<Self> {
        let file = anonymous_file(folder).map_err(|error| Error::file(folder, error))?;
        Ok(Self { file, folder: folder.to_owned(), memory: memory.clone(), end: 0 })
    }

    /// Reserves space for `count` numbers.
    pub(super) fn reserve(&mut self, count: usize) -> FileSlot {
        let bytes = count * size_of::<f32>();
        let place = FileSlot { start: self.end, _tracked: self.memory.track(AllocClass::Offloaded, bytes) };
        self.end += bytes as u64;
        place
    }

    /// Writes `numbers` to their slot, and frees their memory.
    pub(super) fn write(&self, place: &FileSlot, numbers: F32Vec) -> Result<()> {
        let mut bytes = Vec::with_capacity(CHUNK_ELEMENTS * size_of::<f32>());
        let mut at = place.start;
        for piece in numbers.chunks(CHUNK_ELEMENTS) {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|number| number.to_ne_bytes()));
            self.file.write_all_at(&bytes, at).map_err(|error| self.failed(&error))?;
            at += bytes.len() as u64;
        }
        numbers.free();
        Ok(())
    }

    /// Reads the `count` numbers of a slot.
    pub(super) fn read(&self, place: &FileSlot, count: usize) -> Result<F32Vec> {
        let mut numbers = self.memory.alloc(AllocClass::Optimizer, count);
        let mut bytes = vec![0; CHUNK_ELEMENTS * size_of::<f32>()];
        let mut at = place.start;
        for piece in numbers.chunks_mut(CHUNK_ELEMENTS) {
            let bytes = &mut bytes[..size_of_val(piece)];
            self.file.read_exact_at(bytes, at).map_err(|error| self.failed(&error))?;
            for (number, bytes) in piece.iter_mut().zip(bytes.chunks_exact(size_of::<f32>())) {
                *number = f32::from_ne_bytes(bytes.try_into().expect("four bytes"));
            }
            at += bytes.len() as u64;
        }
        Ok(numbers)
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::file(&self.folder, format!("optimizer state that is kept here: {error}"))
    }
}

/// Creates a file and unlinks it before it holds data.
fn anonymous_file(folder: &Path) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".optimizer-{}-{number}", process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Number of elements per read or write.
const CHUNK_ELEMENTS: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_round_trip_leaves_folder_empty() {
        let (folder, memory) = (tempfile::tempdir().unwrap(), Allocator::default());
        let below = folder.path().join("state");
        let mut offload = OffloadFile::new(&below, &memory).unwrap();
        let make = |count: usize, first: f32| {
            let mut numbers = memory.zeros(AllocClass::Optimizer, count);
            numbers.iter_mut().enumerate().for_each(|(at, number)| *number = first + at as f32);
            numbers
        };
        let places = [offload.reserve(CHUNK_ELEMENTS + 3), offload.reserve(5)];
        offload.write(&places[1], make(5, 7.0)).unwrap();
        offload.write(&places[0], make(CHUNK_ELEMENTS + 3, 0.5)).unwrap();
        assert_eq!(memory.usage(AllocClass::Optimizer).current, 0);
        assert_eq!(memory.usage(AllocClass::Offloaded).current, 4 * (CHUNK_ELEMENTS + 8));
        assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0);
        let back = offload.read(&places[0], CHUNK_ELEMENTS + 3).unwrap();
        assert_eq!(back[..], make(CHUNK_ELEMENTS + 3, 0.5)[..]);
        assert_eq!(offload.read(&places[1], 5).unwrap()[..], make(5, 7.0)[..]);
        drop(places);
        assert_eq!(memory.usage(AllocClass::Offloaded).current, 0);
        let error = OffloadFile::new(Path::new("/proc/nowhere"), &memory).err().unwrap();
        assert!(error.to_string().starts_with("/proc/nowhere: "));
    }
}
