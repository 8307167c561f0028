//! Optimizer state on disk, except for the bucket whose step is being taken.
//!
//! CPU ranks have no second memory, so they offload to a file. The file is read and written by
//! position and not mapped. A mapping would stay resident while in use, and a full disk would kill
//! the process instead of returning an error.
//!
//! Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021, which offloads from a GPU to the host.

use crate::bucket::FlatBuffer;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, process};
use unisono::bf16;
use unisono_nn::allocator::{AllocClass, Allocator, FloatElement, Tracked, TrackedVec};
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::Dtype;

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
    count: usize,
    dtype: Dtype,
    _tracked: Tracked,
}

impl OffloadFile {
    /// Creates a file in `folder`. Creates the folder if it is missing.
    pub(super) fn new(folder: &Path, memory: &Allocator) -> Result<Self> {
        let file = anonymous_file(folder).map_err(|error| Error::file(folder, error))?;
        Ok(Self { file, folder: folder.to_owned(), memory: memory.clone(), end: 0 })
    }

    /// Reserves space for an array of the length and type of `numbers`.
    pub(super) fn reserve(&mut self, numbers: &FlatBuffer) -> FileSlot {
        let (start, count, dtype) = (self.end, numbers.len(), numbers.dtype());
        let bytes = count * dtype.size();
        self.end += bytes as u64;
        FileSlot { start, count, dtype, _tracked: self.memory.track(AllocClass::Offloaded, bytes) }
    }

    /// Writes `numbers`, which are in host memory, to their slot, and frees their memory.
    pub(super) fn write(&self, place: &FileSlot, numbers: FlatBuffer) -> Result<()> {
        match numbers {
            FlatBuffer::F32(numbers) => self.write_elements(place, numbers, f32::to_ne_bytes),
            FlatBuffer::Bf16(numbers) => self.write_elements(place, numbers, bf16::to_ne_bytes),
            FlatBuffer::Device(_) => unreachable!("state in GPU memory is not offloaded"),
        }
    }

    fn write_elements<T: FloatElement, const SIZE: usize>(
        &self,
        place: &FileSlot,
        numbers: TrackedVec<T>,
        to_bytes: impl Fn(T) -> [u8; SIZE],
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(CHUNK_ELEMENTS * SIZE);
        let mut offset = place.start;
        for piece in numbers.chunks(CHUNK_ELEMENTS) {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|&number| to_bytes(number)));
            self.file.write_all_at(&bytes, offset).map_err(|error| self.failed(&error))?;
            offset += bytes.len() as u64;
        }
        // The allocator would cache the vector, and then state would take memory and disk.
        numbers.free();
        Ok(())
    }

    /// Reads the numbers of a slot.
    pub(super) fn read(&self, place: &FileSlot) -> Result<FlatBuffer> {
        Ok(match place.dtype {
            Dtype::F32 => FlatBuffer::F32(self.read_elements(place, f32::from_ne_bytes)?),
            Dtype::Bf16 => FlatBuffer::Bf16(self.read_elements(place, bf16::from_ne_bytes)?),
        })
    }

    fn read_elements<T: FloatElement, const SIZE: usize>(
        &self,
        place: &FileSlot,
        from_bytes: impl Fn([u8; SIZE]) -> T,
    ) -> Result<TrackedVec<T>> {
        let mut numbers = self.memory.alloc(AllocClass::Optimizer, place.count);
        let mut bytes = vec![0; CHUNK_ELEMENTS * SIZE];
        let mut offset = place.start;
        for piece in numbers.chunks_mut(CHUNK_ELEMENTS) {
            let bytes = &mut bytes[..size_of_val(piece)];
            self.file.read_exact_at(bytes, offset).map_err(|error| self.failed(&error))?;
            for (number, bytes) in piece.iter_mut().zip(bytes.chunks_exact(SIZE)) {
                *number = from_bytes(bytes.try_into().expect("as many bytes"));
            }
            offset += bytes.len() as u64;
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
    // The number must be unique in the process, and orders no other memory.
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
        let state_folder = folder.path().join("state");
        let mut offload = OffloadFile::new(&state_folder, &memory).unwrap();
        let make = |dtype, count: usize, first: f32| {
            let mut numbers = FlatBuffer::new(&memory, AllocClass::Optimizer, dtype, count).unwrap();
            let values: Vec<_> = (0..count).map(|index| first + (index % 200) as f32).collect();
            numbers.narrow(0..count, &values).unwrap();
            numbers
        };
        let values = |numbers: FlatBuffer| numbers.view(&memory, 0..numbers.len()).unwrap().to_vec();
        let arrays = || {
            let shapes = [
                (Dtype::F32, CHUNK_ELEMENTS + 3, 0.5),
                (Dtype::F32, 5, 7.25),
                (Dtype::Bf16, CHUNK_ELEMENTS + 1, 1.0),
            ];
            shapes.map(|(dtype, count, first)| make(dtype, count, first))
        };
        let places = arrays().map(|numbers| offload.reserve(&numbers));
        for (place, numbers) in places.iter().zip(arrays()).rev() {
            offload.write(place, numbers).unwrap();
        }
        assert_eq!(memory.usage(AllocClass::Optimizer).current, 0);
        let bytes = 4 * (CHUNK_ELEMENTS + 8) + 2 * (CHUNK_ELEMENTS + 1);
        assert_eq!(memory.usage(AllocClass::Offloaded).current, bytes);
        assert_eq!(std::fs::read_dir(&state_folder).unwrap().count(), 0);
        for (place, expected) in places.iter().zip(arrays()) {
            assert_eq!(values(offload.read(place).unwrap()), values(expected));
        }
        drop(places);
        assert_eq!(memory.usage(AllocClass::Offloaded).current, 0);
        let error = OffloadFile::new(Path::new("/proc/nowhere"), &memory).err().unwrap();
        assert!(error.to_string().starts_with("/proc/nowhere: "));
    }
}
