//! Optimiser state on disk, but for the bucket whose step is being taken.
//!
//! CPU ranks have no second memory to offload to, so what they offload to is a file. It is read and written at positions, not mapped:
//! a mapping would still be resident while it is touched, and a full disk would end the process where here it is an error.
//!
//! Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021, where the second memory is the host's.

use crate::error::{Error, Result};
use crate::memory::{Class, Floats, Memory, Noted};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file without a name: it is gone when its rank is, however that ends.
pub(super) struct Offload {
    file: File,
    folder: PathBuf,
    memory: Memory,
    /// Where the next place begins.
    end: u64,
}

/// Room for one array.
pub(super) struct Place {
    start: u64,
    _noted: Noted,
}

impl Offload {
    /// In a fresh file in `folder`, which is made if there is none.
    pub(super) fn new(folder: &Path, memory: &Memory) -> Result<Self> {
        let file = nameless(folder).map_err(|error| Error::file(folder, error))?;
        Ok(Self { file, folder: folder.to_owned(), memory: memory.clone(), end: 0 })
    }

    /// Room for `count` numbers.
    pub(super) fn room(&mut self, count: usize) -> Place {
        let bytes = count * size_of::<f32>();
        let place = Place { start: self.end, _noted: self.memory.note(Class::Offloaded, bytes) };
        self.end += bytes as u64;
        place
    }

    /// Writes `numbers` to their place, and gives their memory back to the system.
    pub(super) fn write(&self, place: &Place, numbers: Floats) -> Result<()> {
        let mut bytes = Vec::with_capacity(PIECE * size_of::<f32>());
        let mut at = place.start;
        for piece in numbers.chunks(PIECE) {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|number| number.to_ne_bytes()));
            self.file.write_all_at(&bytes, at).map_err(|error| self.failed(&error))?;
            at += bytes.len() as u64;
        }
        numbers.free();
        Ok(())
    }

    /// Reads the `count` numbers at a place.
    pub(super) fn read(&self, place: &Place, count: usize) -> Result<Floats> {
        let mut numbers = self.memory.take(Class::Optimiser, count);
        let mut bytes = vec![0; PIECE * size_of::<f32>()];
        let mut at = place.start;
        for piece in numbers.chunks_mut(PIECE) {
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
        Error::file(&self.folder, format!("optimiser state that is kept here: {error}"))
    }
}

/// A file that has lost its name again before anything is in it.
fn nameless(folder: &Path) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".optimiser-{}-{number}", process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Numbers that are written or read at once.
const PIECE: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_come_back_as_they_were_and_the_folder_stays_empty() {
        let (folder, memory) = (tempfile::tempdir().unwrap(), Memory::default());
        let below = folder.path().join("state");
        let mut offload = Offload::new(&below, &memory).unwrap();
        let make = |count: usize, first: f32| {
            let mut numbers = memory.zeros(Class::Optimiser, count);
            numbers.iter_mut().enumerate().for_each(|(at, number)| *number = first + at as f32);
            numbers
        };
        let places = [offload.room(PIECE + 3), offload.room(5)];
        offload.write(&places[1], make(5, 7.0)).unwrap();
        offload.write(&places[0], make(PIECE + 3, 0.5)).unwrap();
        assert_eq!(memory.usage(Class::Optimiser).now, 0);
        assert_eq!(memory.usage(Class::Offloaded).now, 4 * (PIECE + 8));
        assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0);
        let back = offload.read(&places[0], PIECE + 3).unwrap();
        assert_eq!(back[..], make(PIECE + 3, 0.5)[..]);
        assert_eq!(offload.read(&places[1], 5).unwrap()[..], make(5, 7.0)[..]);
        drop(places);
        assert_eq!(memory.usage(Class::Offloaded).now, 0);
        let error = Offload::new(Path::new("/proc/nowhere"), &memory).err().unwrap();
        assert!(error.to_string().starts_with("/proc/nowhere: "));
    }
}
