//! Reader of safetensors files that keeps the header in memory, and not the tensors.

use crate::file_kind;
use safetensors::tensor::Metadata;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

/// Maximum length of a header.
const MAX_HEADER: u64 = 100 << 20;

/// Names of a header. Duplicates are rejected, because readers differ in which one they use.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueNames)
    }
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self, A::Error> {
        let mut names: HashSet<String> = HashSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format!("tensor {name} is duplicated")));
            }
        }
        Ok(self)
    }
}

/// Open file.
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Offset of the first tensor, after the header.
    start: u64,
}

impl TensorFile {
    /// Reads the header, and checks that the file has all tensors.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| file_kind::unreadable(path, "a safetensors file", error);
        let mut file = File::open(path).map_err(|error| Error::file(path, error))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|error| failed(&error))?;
        let count = u64::from_le_bytes(length);
        if count > MAX_HEADER {
            return Err(failed(&format!("a header of {count} bytes")));
        }
        let mut header = Vec::new();
        // Memory grows with the bytes that are there, because a damaged length can be far larger.
        file.by_ref().take(count).read_to_end(&mut header).map_err(|error| failed(&error))?;
        let UniqueNames = serde_json::from_slice(&header).map_err(|error| failed(&error))?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| failed(&error))?;
        let bytes = file.metadata().map_err(|error| failed(&error))?.len();
        let (start, end) = (8 + count, metadata.data_len() as u64);
        if bytes.saturating_sub(start) < end {
            return Err(failed(&format!(
                "{bytes} bytes, where the header promises {}",
                start.saturating_add(end)
            )));
        }
        Ok(Self { path: path.to_owned(), file, metadata, start })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the header.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Reads `count` bytes at `offset` of the tensor data.
    pub(crate) fn read(&mut self, offset: usize, count: usize) -> Result<Vec<u8>> {
        self.try_read(offset, count).map_err(|error| Error::file(&self.path, error))
    }

    fn try_read(&mut self, offset: usize, count: usize) -> std::io::Result<Vec<u8>> {
        // A file with holes may be larger than memory.
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count)?;
        bytes.resize(count, 0);
        self.file.seek(SeekFrom::Start(self.start + offset as u64))?;
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Eight tensors that end within eight bytes of the largest number, and no data.
    #[test]
    fn header_that_promises_all_numbers_is_refused() {
        let each = (1usize << 61) - 1;
        let tensor = |index: usize| {
            let data_offsets = [index * each, (index + 1) * each];
            json!({"dtype": "U8", "shape": [each], "data_offsets": data_offsets})
        };
        let header: serde_json::Map<_, _> =
            (0..8).map(|index| (format!("t{index}"), tensor(index))).collect();
        let header = serde_json::to_vec(&header).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [&(header.len() as u64).to_le_bytes()[..], &header].concat()).unwrap();
        let error = TensorFile::open(file.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("promises {}", u64::MAX)), "{error}");
    }
}
