//! Tensor file of a checkpoint: ranges of parameters, with the shards they come from.

use super::tensors::TensorFile;
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, serialize_to_file};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Inventory, Parameter, ParameterId, ShardSpec};

/// Contents of a rank's file: little-endian 32-bit floats by parameter, element and kind.
#[derive(Default)]
pub(super) struct ShardWriter {
    entries: Vec<(String, Vec<u8>)>,
    shard_specs: BTreeMap<String, ShardSpec>,
}

impl ShardWriter {
    /// Adds the elements of a parameter from `start` on. Kind 0 is weights; 1, 2, … are moments.
    pub(super) fn add(&mut self, parameter: &Parameter, start: usize, kind: usize, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.entries.push((format!("{}/{kind}/{start}", parameter.name), bytes));
        if let Some(cut) = &parameter.shard {
            self.shard_specs.insert(parameter.name.clone(), cut.clone());
        }
    }

    /// Writes the file and flushes it to disk.
    pub(super) fn write(self, path: &Path) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| Error::file(path, error);
        let cuts = serde_json::to_string(&self.shard_specs).map_err(|error| failed(&error))?;
        let view = |(name, bytes)| {
            let bytes: &Vec<u8> = bytes;
            TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).map(|view| (name, view))
        };
        let views: std::result::Result<Vec<_>, _> =
            self.entries.iter().map(|(name, bytes)| view((name, bytes))).collect();
        let metadata = HashMap::from([("shard_specs".to_owned(), cuts)]);
        serialize_to_file(views.map_err(|error| failed(&error))?, Some(metadata), path)
            .map_err(|error| failed(&error))?;
        super::folder::fsync(path)
    }
}

/// Elements of one parameter in a file.
struct ShardEntry {
    kind: usize,
    start: usize,
    count: usize,
    /// Offset in the file.
    offset: usize,
}

/// Open file with an index of its ranges by parameter.
pub(super) struct ShardReader {
    file: TensorFile,
    entries: HashMap<String, Vec<ShardEntry>>,
    shard_specs: HashMap<String, ShardSpec>,
}

impl ShardReader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = TensorFile::open(path)?;
        let cuts = file.metadata().metadata().as_ref().and_then(|texts| texts.get("shard_specs"));
        let cuts = serde_json::from_str(cuts.map_or("{}", String::as_str));
        let cuts = cuts.map_err(|error| Error::file(path, error))?;
        let pieces = parse_entries(file.metadata())
            .ok_or_else(|| Error::file(path, "tensors that no checkpoint has"))?;
        Ok(Self { file, entries: pieces, shard_specs: cuts })
    }

    /// Copies the elements `range` of `mine`, of this kind, into `target`, as far as the file has
    /// them. Returns their number, without padding.
    pub(super) fn fill(
        &mut self,
        mine: &Parameter,
        range: &Range<usize>,
        kind: usize,
        target: &mut [f32],
    ) -> Result<usize> {
        let saved = Parameter { shard: None, shape: mine.global_shape(), ..mine.clone() };
        let saved = match self.shard_specs.get(&mine.name) {
            Some(cut) if !cut.is_valid(&saved.shape) => {
                return Err(Error::file(self.file.path(), format!("an impossible shard of {}", mine.name)));
            }
            Some(cut) => saved.with_shard(cut.clone()),
            None => saved,
        };
        let (mut found, saved_count) = (0, saved.count());
        for piece in self.entries.get(&mine.name).into_iter().flatten().filter(|piece| piece.kind == kind) {
            if piece.start + piece.count > saved_count {
                let what =
                    format!("elements from {} on of {}, which has {saved_count}", piece.start, mine.name);
                return Err(Error::file(self.file.path(), what));
            }
            let as_is = saved.shard == mine.shard;
            let (start, end) = (piece.start.max(range.start), (piece.start + piece.count).min(range.end));
            // With another cut, elements of this piece can be anywhere in the range, so only an
            // equal cut lets a piece be skipped unread.
            if as_is && start >= end {
                continue;
            }
            let bytes = self.file.read(piece.offset, piece.count * 4)?;
            for (value, index) in bytes.chunks_exact(4).zip(piece.start..) {
                // Padding has no place in the whole tensor, and stays as it is.
                let global = saved.global_index(index);
                let index = if as_is {
                    global.map(|_| index)
                } else {
                    global.and_then(|place| mine.local_index(place))
                };
                if let Some(index) = index.filter(|index| range.contains(index)) {
                    target[index - range.start] = f32::from_le_bytes(value.try_into().expect("four bytes"));
                    found += 1;
                }
            }
        }
        Ok(found)
    }
}

/// Parses the ranges of a file by parameter; `None` if a name is not valid.
fn parse_entries(metadata: &Metadata) -> Option<HashMap<String, Vec<ShardEntry>>> {
    let mut pieces: HashMap<String, Vec<ShardEntry>> = HashMap::new();
    for (name, info) in metadata.tensors() {
        let (prefix, start) = name.rsplit_once('/')?;
        let (parameter, kind) = prefix.rsplit_once('/')?;
        let [count] = info.shape[..] else { return None };
        if info.dtype != Dtype::F32 {
            return None;
        }
        let (kind, start): (usize, usize) = (kind.parse().ok()?, start.parse().ok()?);
        // A damaged file can name any position, and readers add the length to it.
        start.checked_add(count)?;
        pieces.entry(parameter.to_owned()).or_default().push(ShardEntry {
            kind,
            start,
            count,
            offset: info.data_offsets.0,
        });
    }
    Some(pieces)
}

/// Reads a file as that of a rank, and fills a parameter and a part of it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(path: &Path) {
    use unisono_nn::parameter::Init;
    let Ok(mut reader) = ShardReader::open(path) else { return };
    let matrix = Parameter::new("w", &[4, 6], Init::Zeros);
    let part = matrix.clone().with_shard(ShardSpec::new(1, 6, 2, 1));
    for parameter in [matrix, part] {
        for range in [0..parameter.count(), 3..5] {
            let mut values = vec![0.0; range.len()];
            let _ = reader.fill(&parameter, &range, 0, &mut values);
        }
    }
}

/// Returns the SHA-256 of a file in hexadecimal, and its length.
pub(super) fn hash_file(path: &Path) -> Result<(String, u64)> {
    let failed = |error| Error::file(path, error);
    let mut file = File::open(path).map_err(failed)?;
    let (mut hash, mut length, mut part) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = file.read(&mut part).map_err(failed)?;
        if count == 0 {
            break;
        }
        hash.update(&part[..count]);
        length += count as u64;
    }
    Ok((hexadecimal(&hash.finalize()), length))
}

/// Formats bytes in hexadecimal.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the number of elements in `range` that are not padding.
pub(super) fn unpadded_count(inventory: &Inventory, id: ParameterId, range: &Range<usize>) -> usize {
    range.clone().filter(|&index| inventory[id].global_index(index).is_some()).count()
}
