//! Loads GPT-2 weights.

use super::{file_index, is_transposed, shape_in_file};
use crate::checkpoint::{SavedBy, TensorFile};
use crate::error::{Error, Result};
use crate::parallel::{DataParallel, LocalShard};
use crate::parameter::{Inventory, Parameter};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::ops::Range;
use std::path::Path;

/// Optional prefix of all parameter names except the head's.
const PREFIX: &str = "transformer.";

/// Loads the weights of the file at `path` into `strategy`, which may shard them. All ranks must
/// call this.
///
/// # Errors
/// Fails on every rank if the file cannot be read, or belongs to another model.
pub fn load(
    path: &Path,
    who: SavedBy<'_>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<()> {
    let opened = TensorFile::open(path).and_then(|file| check_shapes(&file, inventory).map(|()| file));
    let mut file = who.agree_on_result(opened, "checking a file of weights")?;
    let filled = strategy.for_each_shard(&mut |kept| fill_shard(&mut file, &inventory[kept.parameter], kept));
    who.agree_on_result(filled, "reading a file of weights")?;
    strategy.broadcast_params()
}

/// Checks that the file has the parameters of the model with their shapes, and no others.
fn check_shapes(file: &TensorFile, inventory: &Inventory) -> Result<()> {
    let failed = |what: String| Err(Error::file(file.path(), what));
    for parameter in &inventory.parameters {
        let (name, wanted) = (&parameter.name, shape_in_file(parameter));
        match find(file, name) {
            None => return failed(format!("no {name}, which is {} in the model", format_shape(&wanted))),
            Some(found) if found.shape != wanted => {
                let (found, wanted) = (format_shape(&found.shape), format_shape(&wanted));
                return failed(format!("{name} is {found} in the file, {wanted} in the model"));
            }
            Some(found) if decoder(found.dtype).is_none() => {
                return failed(format!("{name} is of type {}", found.dtype));
            }
            Some(_) => {}
        }
    }
    let is_foreign = |name: &&String| !is_known(name.strip_prefix(PREFIX).unwrap_or(name), inventory);
    match file.metadata().tensors().iter().find(|(name, _)| is_foreign(name)) {
        Some((name, info)) => failed(format!("{name} ({}) is not in the model", format_shape(&info.shape))),
        None => Ok(()),
    }
}

fn is_known(name: &str, inventory: &Inventory) -> bool {
    let is_mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    is_mask || name == "lm_head.weight" || inventory.find(name).is_some()
}

fn format_shape(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
}

fn find<'a>(file: &'a TensorFile, name: &str) -> Option<&'a TensorInfo> {
    let metadata = file.metadata();
    metadata.info(name).or_else(|| metadata.info(&format!("{PREFIX}{name}")))
}

/// Loads the weights of this rank's shard of a parameter. Holds the range of the file from the
/// first of them to the last.
fn fill_shard(file: &mut TensorFile, parameter: &Parameter, kept: LocalShard<'_>) -> Result<()> {
    let info = find(file, &parameter.name).expect("checked");
    let (start, size) = (info.data_offsets.0, info.dtype.bitsize() / 8);
    let number = decoder(info.dtype).expect("checked");
    let span = file_range(parameter, kept.range.clone());
    let bytes = file.read(start + span.start * size, span.len() * size)?;
    for (weight, index) in kept.weights.iter_mut().zip(kept.range) {
        let place = file_index(parameter, index).map(|place| (place - span.start) * size);
        *weight = place.map_or(0.0, |place| number(&bytes[place..place + size]));
    }
    Ok(())
}

/// Returns the range of the file that contains the elements of `range`.
fn file_range(parameter: &Parameter, range: Range<usize>) -> Range<usize> {
    if parameter.shard.is_none() && !is_transposed(parameter) {
        return range;
    }
    let places = range.filter_map(|index| file_index(parameter, index));
    let ends = places.fold((usize::MAX, 0), |(start, end), place| (start.min(place), end.max(place + 1)));
    ends.0.min(ends.1)..ends.1
}

/// Returns the decoder of an element type of weights; `None` for other types.
fn decoder(dtype: Dtype) -> Option<fn(&[u8]) -> f32> {
    match dtype {
        Dtype::F32 => Some(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))),
        Dtype::F16 => Some(|bytes| f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32()),
        Dtype::BF16 => Some(|bytes| bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32()),
        _ => None,
    }
}
