//! One file of a checkpoint: pieces of parameters, with the cuts they come from.

use crate::error::{Error, Result};
use crate::parameter::{Cut, Inventory, Parameter, ParameterId};
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, serialize_to_file};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What a rank writes: little-endian 32-bit floats, by parameter, element and kind.
#[derive(Default)]
pub(super) struct Writer {
    pieces: Vec<(String, Vec<u8>)>,
    cuts: BTreeMap<String, Cut>,
}

impl Writer {
    /// Adds the elements of a parameter from `start` on: its weights are kind 0, its moments 1, 2, ….
    pub(super) fn add(&mut self, parameter: &Parameter, start: usize, kind: usize, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.pieces.push((format!("{}/{kind}/{start}", parameter.name), bytes));
        if let Some(cut) = &parameter.cut {
            self.cuts.insert(parameter.name.clone(), cut.clone());
        }
    }

    /// Writes the file, down to the disk.
    pub(super) fn write(self, path: &Path) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| Error::file(path, error);
        let cuts = serde_json::to_string(&self.cuts).map_err(|error| failed(&error))?;
        let view = |(name, bytes)| {
            let bytes: &Vec<u8> = bytes;
            TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).map(|view| (name, view))
        };
        let views: std::result::Result<Vec<_>, _> =
            self.pieces.iter().map(|(name, bytes)| view((name, bytes))).collect();
        let metadata = HashMap::from([("cuts".to_owned(), cuts)]);
        serialize_to_file(views.map_err(|error| failed(&error))?, Some(metadata), path)
            .map_err(|error| failed(&error))?;
        super::folder::flush(path)
    }
}

/// Elements of one parameter in a file.
struct Piece {
    kind: usize,
    start: usize,
    count: usize,
    /// Where the file has them.
    at: u64,
}

/// A file to read from: its header is in memory, its numbers are not.
pub(super) struct Reader {
    path: PathBuf,
    file: File,
    pieces: HashMap<String, Vec<Piece>>,
    cuts: HashMap<String, Cut>,
}

/// Longest header that is read.
const HEADER_MAX: u64 = 100 << 20;

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| Error::file(path, error);
        let mut file = File::open(path).map_err(|error| failed(&error))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|error| failed(&error))?;
        let count = u64::from_le_bytes(length);
        if count > HEADER_MAX {
            return Err(failed(&format!("a header of {count} bytes")));
        }
        let mut header = Vec::new();
        file.by_ref().take(count).read_to_end(&mut header).map_err(|error| failed(&error))?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| failed(&error))?;
        let cuts = metadata.metadata().as_ref().and_then(|texts| texts.get("cuts"));
        let cuts = serde_json::from_str(cuts.map_or("{}", String::as_str)).map_err(|error| failed(&error))?;
        let bytes = file.metadata().map_err(|error| failed(&error))?.len();
        let pieces =
            pieces(&metadata, 8 + count, bytes).ok_or_else(|| failed(&"tensors that no checkpoint has"))?;
        Ok(Self { path: path.to_owned(), file, pieces, cuts })
    }

    /// Puts what the file has of the elements `range` of `mine`, of this kind, into `into`; how many that were.
    pub(super) fn fill(
        &mut self,
        mine: &Parameter,
        range: &Range<usize>,
        kind: usize,
        into: &mut [f32],
    ) -> Result<usize> {
        let saved = Parameter { cut: None, shape: mine.whole_shape(), ..mine.clone() };
        let saved = match self.cuts.get(&mine.name) {
            Some(cut)
                if cut.dimension >= saved.shape.len()
                    || cut.parts == 0
                    || cut.grain == 0
                    || cut.blocks == 0 =>
            {
                return Err(Error::file(&self.path, format!("a cut of {} that cannot be", mine.name)));
            }
            Some(cut) => saved.cut(cut.clone()),
            None => saved,
        };
        let mut found = 0;
        for piece in self.pieces.get(&mine.name).into_iter().flatten().filter(|piece| piece.kind == kind) {
            let as_is = saved.cut == mine.cut;
            let (start, end) = (piece.start.max(range.start), (piece.start + piece.count).min(range.end));
            if as_is && start >= end {
                continue;
            }
            let mut bytes = vec![0; piece.count * 4];
            let read =
                self.file.seek(SeekFrom::Start(piece.at)).and_then(|_| self.file.read_exact(&mut bytes));
            read.map_err(|error| Error::file(&self.path, error))?;
            for (value, index) in bytes.chunks_exact(4).zip(piece.start..) {
                let index =
                    if as_is { Some(index) } else { saved.in_whole(index).and_then(|at| mine.in_part(at)) };
                if let Some(index) = index.filter(|index| range.contains(index)) {
                    into[index - range.start] = f32::from_le_bytes(value.try_into().expect("four bytes"));
                    found += 1;
                }
            }
        }
        Ok(found)
    }
}

/// The pieces of a file of `bytes` bytes by parameter, if their names are those of pieces and they lie within it.
fn pieces(metadata: &Metadata, data: u64, bytes: u64) -> Option<HashMap<String, Vec<Piece>>> {
    let mut pieces: HashMap<String, Vec<Piece>> = HashMap::new();
    for (name, info) in metadata.tensors() {
        let (rest, start) = name.rsplit_once('/')?;
        let (parameter, kind) = rest.rsplit_once('/')?;
        let (begin, end) = info.data_offsets;
        let [count] = info.shape[..] else { return None };
        let lies_within = end as u64 <= bytes.saturating_sub(data);
        if info.dtype != Dtype::F32 || end.checked_sub(begin) != count.checked_mul(4) || !lies_within {
            return None;
        }
        let (kind, start) = (kind.parse().ok()?, start.parse().ok()?);
        pieces.entry(parameter.to_owned()).or_default().push(Piece {
            kind,
            start,
            count,
            at: data + begin as u64,
        });
    }
    Some(pieces)
}

/// SHA-256 of a file, in hexadecimal, and its length.
pub(super) fn digest(path: &Path) -> Result<(String, u64)> {
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
    Ok((hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), length))
}

/// Which element of a parameter is padding and in no file: how many of `range` are not.
pub(super) fn elements(inventory: &Inventory, id: ParameterId, range: &Range<usize>) -> usize {
    range.clone().filter(|&index| inventory[id].in_whole(index).is_some()).count()
}
