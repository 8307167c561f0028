//! Writing.

use super::{in_file, shape_in_file};
use crate::checkpoint::{Who, folder};
use crate::error::{Error, Result};
use crate::parallel::Parallel;
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::Way;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use unisono::Communicator;

/// Writes the weights to the file at `path`, in 32 bits, as rank 0 gets to see them, parameter by parameter. All ranks call it;
/// `tensor` is the group that shares every layer, if there is one.
///
/// # Errors
/// On every rank, if the file cannot be written; of what was at `path` nothing is lost then.
pub fn save(
    path: &Path,
    who: Who<'_>,
    tensor: Option<&Communicator>,
    strategy: &mut dyn Parallel,
    inventory: &Inventory,
) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut file = if who.rank() == 0 { begin(&unfinished, inventory).map(Some) } else { Ok(None) };
    for unit in (0..inventory.units.len()).map(UnitId) {
        strategy.need(unit, Way::Forward)?;
        for id in inventory[unit].parameters.clone().map(ParameterId) {
            let parts = gather(tensor, &inventory[id], strategy.weights(id))?;
            // Who cannot write goes on, for the others' collectives.
            file = file.and_then(|file| write(file, &unfinished, &inventory[id], &parts));
        }
        strategy.done(unit, Way::Forward)?;
    }
    strategy.settle()?;
    let finished = file.and_then(|file| file.map_or(Ok(()), |_| finish(&unfinished, path)));
    who.together(finished, "writing a file of weights")
}

/// Opens the file and writes its header.
fn begin(path: &Path, inventory: &Inventory) -> Result<File> {
    let mut end = 0;
    let info = |parameter: &Parameter| {
        let shape = shape_in_file(parameter);
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        (parameter.name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
    };
    let tensors = inventory.parameters.iter().map(info).collect();
    // Readers of Hugging Face's want to be told that these are PyTorch's.
    let texts = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(texts), tensors).map_err(|error| Error::file(path, error))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| Error::file(path, error))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let whole = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
    let file = File::create(path).and_then(|mut file| file.write_all(&whole).map(|()| file));
    file.map_err(|error| Error::file(path, error))
}

/// What all ranks of `tensor` have of a parameter, one after another; once, if they have the same.
fn gather(tensor: Option<&Communicator>, parameter: &Parameter, part: &[f32]) -> Result<Vec<f32>> {
    let Some(tensor) = tensor.filter(|_| parameter.cut.is_some()) else { return Ok(part.to_vec()) };
    let mut parts = vec![0.0; tensor.ranks() * part.len()];
    tensor.all_gather(part, &mut parts)?;
    Ok(parts)
}

/// Adds a parameter to the file, if this rank has one.
fn write(file: Option<File>, path: &Path, parameter: &Parameter, parts: &[f32]) -> Result<Option<File>> {
    let Some(mut file) = file else { return Ok(None) };
    let bytes = whole(parameter, parts);
    file.write_all(&bytes).map_err(|error| Error::file(path, error))?;
    Ok(Some(file))
}

/// The bytes of a parameter in the file, from all its parts.
fn whole(parameter: &Parameter, parts: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 4 * shape_in_file(parameter).iter().product::<usize>()];
    for (number, values) in parts.chunks_exact(parameter.count()).enumerate() {
        let mut part = parameter.clone();
        if let Some(cut) = &mut part.cut {
            cut.part = number;
        }
        for (index, value) in values.iter().enumerate() {
            if let Some(place) = in_file(&part, index) {
                bytes[4 * place..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    bytes
}

/// Gives a whole file its name.
fn finish(unfinished: &Path, path: &Path) -> Result<()> {
    folder::flush(unfinished)?;
    std::fs::rename(unfinished, path).map_err(|error| Error::file(path, error))
}
