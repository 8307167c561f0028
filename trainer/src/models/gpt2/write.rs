//! Saves GPT-2 weights.

use super::{row_major, shape_in_file, strides_in_file};
use crate::checkpoint::{SavedBy, folder};
use crate::error::{Error, Result};
use crate::parallel::DataParallel;
use crate::parameter::{Inventory, Parameter, ParameterId, ShardSpec, UnitId};
use crate::strategy::{Direction, host_weights};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use unisono::Communicator;
use unisono_cuda::{pack, unpack};

/// Saves the weights to the file at `path` in 32 bits. Rank 0 writes, and holds one parameter at a
/// time. All ranks must call this; `tensor` is the tensor parallel group, if there is one.
///
/// # Errors
/// Fails on every rank if the file cannot be written. The previous file at `path` stays intact
/// then.
pub fn save(
    path: &Path,
    who: SavedBy<'_>,
    tensor: Option<&Communicator>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut file = if who.rank() == 0 { create_file(&unfinished, inventory).map(Some) } else { Ok(None) };
    for unit in (0..inventory.units.len()).map(UnitId) {
        strategy.pre_unit(unit, Direction::Forward)?;
        for id in inventory[unit].parameters.clone().map(ParameterId) {
            let parts = gather(tensor, &inventory[id], &host_weights(strategy, id)?)?;
            // After a write error, collectives continue, because other ranks take part in them.
            file = file.and_then(|file| write(file, &unfinished, &inventory[id], &parts));
        }
        strategy.post_unit(unit, Direction::Forward)?;
    }
    strategy.wait_all()?;
    let finished = file.and_then(|file| file.map_or(Ok(()), |_| publish(&unfinished, path)));
    who.agree_on_result(finished, "writing a file of weights")
}

/// Creates the file and writes its header.
fn create_file(path: &Path, inventory: &Inventory) -> Result<File> {
    let mut end = 0;
    let info = |parameter: &Parameter| {
        let shape = shape_in_file(parameter);
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        (parameter.name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
    };
    let tensors = inventory.parameters.iter().map(info).collect();
    // Hugging Face's readers require this entry.
    let texts = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(texts), tensors).map_err(|error| Error::file(path, error))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| Error::file(path, error))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let whole = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
    let file = File::create(path).and_then(|mut file| file.write_all(&whole).map(|()| file));
    file.map_err(|error| Error::file(path, error))
}

/// Gathers the shards of a parameter from all ranks of `tensor`; one copy if it is replicated.
fn gather(tensor: Option<&Communicator>, parameter: &Parameter, part: &[f32]) -> Result<Vec<f32>> {
    let Some(tensor) = tensor.filter(|_| parameter.shard.is_some()) else { return Ok(part.to_vec()) };
    let mut parts = vec![0.0; tensor.size() * part.len()];
    tensor.all_gather(part, &mut parts)?;
    Ok(parts)
}

/// Appends a parameter to the file, if this rank has one.
fn write(file: Option<File>, path: &Path, parameter: &Parameter, parts: &[f32]) -> Result<Option<File>> {
    let Some(mut file) = file else { return Ok(None) };
    let bytes = assemble(parameter, parts);
    file.write_all(&bytes).map_err(|error| Error::file(path, error))?;
    Ok(Some(file))
}

/// Assembles the bytes of a parameter in the file from its shards.
fn assemble(parameter: &Parameter, parts: &[f32]) -> Vec<u8> {
    let strides = strides_in_file(parameter);
    let mut whole = vec![0.0; parameter.global_shape().iter().product()];
    for (number, values) in parts.chunks_exact(parameter.count()).enumerate() {
        for (dimension, (here, there, count)) in shard_runs(parameter, number) {
            let mut shape = parameter.shape.clone();
            let own = row_major(&shape);
            shape[dimension] = count;
            let mut contiguous = vec![0.0; shape.iter().product()];
            let (from, into) = (here * own[dimension], there * strides[dimension]);
            pack(&mut contiguous, &values[from.min(values.len())..], &shape, &own);
            let end = whole.len();
            unpack(&mut whole[into.min(end)..], &contiguous, &shape, &strides);
        }
    }
    whole.iter().flat_map(|value: &f32| value.to_le_bytes()).collect()
}

/// Returns the sharded dimension of part `number` of a parameter, and its runs.
fn shard_runs(parameter: &Parameter, number: usize) -> Vec<(usize, (usize, usize, usize))> {
    match &parameter.shard {
        Some(cut) => {
            ShardSpec { shard_index: number, ..cut.clone() }.runs().map(|run| (cut.dim, run)).collect()
        }
        None => vec![(0, (0, 0, parameter.shape[0]))],
    }
}

/// Renames the complete file to its final name.
fn publish(unfinished: &Path, path: &Path) -> Result<()> {
    folder::fsync(unfinished)?;
    std::fs::rename(unfinished, path).map_err(|error| Error::file(path, error))
}
