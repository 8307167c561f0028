//! One file of a checkpoint: pieces of parameters, with the cuts they come from.

use super::tensors::Tensors;
use crate::error::{Error, Result};
use crate::parameter::{Cut, Inventory, Parameter, ParameterId};
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, serialize_to_file};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

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
    at: usize,
}

/// A file to read from, with its pieces by parameter.
pub(super) struct Reader {
    file: Tensors,
    pieces: HashMap<String, Vec<Piece>>,
    cuts: HashMap<String, Cut>,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = Tensors::open(path)?;
        let cuts = file.metadata().metadata().as_ref().and_then(|texts| texts.get("cuts"));
        let cuts = serde_json::from_str(cuts.map_or("{}", String::as_str));
        let cuts = cuts.map_err(|error| Error::file(path, error))?;
        let pieces =
            pieces(file.metadata()).ok_or_else(|| Error::file(path, "tensors that no checkpoint has"))?;
        Ok(Self { file, pieces, cuts })
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
            Some(cut) if !cut.is_possible(&saved.shape) => {
                return Err(Error::file(self.file.path(), format!("a cut of {} that cannot be", mine.name)));
            }
            Some(cut) => saved.cut(cut.clone()),
            None => saved,
        };
        let (mut found, all) = (0, saved.count());
        for piece in self.pieces.get(&mine.name).into_iter().flatten().filter(|piece| piece.kind == kind) {
            if piece.start + piece.count > all {
                let what = format!("elements from {} on of {}, which has {all}", piece.start, mine.name);
                return Err(Error::file(self.file.path(), what));
            }
            let as_is = saved.cut == mine.cut;
            let (start, end) = (piece.start.max(range.start), (piece.start + piece.count).min(range.end));
            if as_is && start >= end {
                continue;
            }
            let bytes = self.file.read(piece.at, piece.count * 4)?;
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

/// The pieces of a file by parameter, if their names are those of pieces.
fn pieces(metadata: &Metadata) -> Option<HashMap<String, Vec<Piece>>> {
    let mut pieces: HashMap<String, Vec<Piece>> = HashMap::new();
    for (name, info) in metadata.tensors() {
        let (rest, start) = name.rsplit_once('/')?;
        let (parameter, kind) = rest.rsplit_once('/')?;
        let [count] = info.shape[..] else { return None };
        if info.dtype != Dtype::F32 {
            return None;
        }
        let (kind, start): (usize, usize) = (kind.parse().ok()?, start.parse().ok()?);
        start.checked_add(count)?;
        pieces.entry(parameter.to_owned()).or_default().push(Piece {
            kind,
            start,
            count,
            at: info.data_offsets.0,
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
