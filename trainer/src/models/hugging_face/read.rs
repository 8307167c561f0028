//! Loads weights.

use super::files::WeightFiles;
use super::layout::{FileTensor, Layout};
use crate::checkpoint::SavedBy;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Inventory, Parameter};
use unisono_parallel::data_parallel::{DataParallel, LocalShard};

/// Loads the weights at `path`, a file or the folder of a model, into `strategy`, which may shard
/// them. Each rank reads its parts. All ranks must call this.
///
/// # Errors
/// Fails on every rank if a file cannot be read, or belongs to another model.
pub fn load(
    path: &Path,
    layout: Layout,
    who: SavedBy<'_>,
    strategy: &mut dyn DataParallel,
    inventory: &Inventory,
) -> Result<()> {
    let opened = WeightFiles::open(path).and_then(|mut files| {
        check_shapes(&files, layout, inventory)?;
        // It reads both tensors whole, so one rank does it for all.
        if who.rank() == 0 {
            check_tied_head(&mut files, layout, inventory)?;
        }
        Ok(files)
    });
    let mut files = who.agree_on_result(opened, "checking a file of weights")?;
    let filled =
        strategy.for_each_shard(&mut |kept| fill_shard(&mut files, layout, &inventory[kept.parameter], kept));
    who.agree_on_result(filled, "reading a file of weights")?;
    strategy.broadcast_params()
}

/// Checks that the files have the tensors of the model with their shapes, and no others.
pub(super) fn check_shapes(files: &WeightFiles, layout: Layout, inventory: &Inventory) -> Result<()> {
    let failed = |what: String| Err(files.error(what));
    let prefix = layout.optional_prefix();
    let mut known = HashSet::new();
    for tensor in inventory.parameters.iter().flat_map(|parameter| layout.tensors(parameter)) {
        let FileTensor { name, shape: wanted, .. } = &tensor;
        match files.find(name, prefix) {
            None => return failed(format!("no {name}, which is {} in the model", format_shape(wanted))),
            Some((_, found)) if found.shape != *wanted => {
                let (found, wanted) = (format_shape(&found.shape), format_shape(wanted));
                return failed(format!("{name} is {found} in the file, {wanted} in the model"));
            }
            Some((_, found)) if decoder(found.dtype).is_none() => {
                return failed(format!("{name} is of type {}", found.dtype));
            }
            Some(_) => drop(known.insert(tensor.name)),
        }
    }
    let is_foreign = |name: &str| {
        let plain = name.strip_prefix(prefix).unwrap_or(name);
        !known.contains(plain) && !layout.ignores(plain)
    };
    match files.tensors().find(|(name, _)| is_foreign(name)) {
        Some((name, info)) => failed(format!("{name} ({}) is not in the model", format_shape(&info.shape))),
        None => Ok(()),
    }
}

/// Checks that the head of a model whose embedding is also its head has the weights of the
/// embedding, if the files have it. It would be dropped otherwise.
pub(super) fn check_tied_head(files: &mut WeightFiles, layout: Layout, inventory: &Inventory) -> Result<()> {
    if inventory.find(HEAD).is_some() {
        return Ok(());
    }
    let (embedding, prefix) = (layout.embedding(), layout.optional_prefix());
    let found = |name: &str| files.find(name, prefix).map(|(file, info)| (file, info.clone()));
    let (Some(head), Some(tied)) = (found(HEAD), found(embedding)) else { return Ok(()) };
    let remedy =
        "set tie_word_embeddings to false in config.json to keep the head, or remove the head from the file";
    if head.1.shape != tied.1.shape {
        let [head_shape, tied_shape] = [&head, &tied].map(|(_, info)| format_shape(&info.shape));
        let what = format!(
            "{HEAD} is {head_shape}, and {embedding} {tied_shape}, although config.json says that they \
             are tied"
        );
        return Err(files.error(format!("{what}: {remedy}")));
    }
    let count = head.1.shape.iter().product();
    // A head can have gigabytes, so only a piece of each tensor is in memory.
    for start in (0..count).step_by(PIECE) {
        let range = start..count.min(start + PIECE);
        let [head_values, tied_values] =
            [&head, &tied].map(|(file, info)| read_numbers(files, *file, info, range.clone()));
        let (head_values, tied_values) = (head_values?, tied_values?);
        if let Some(index) = head_values.iter().zip(&tied_values).position(|(left, right)| left != right) {
            let what = format!(
                "{HEAD} and {embedding} differ at element {}: {} and {}",
                start + index,
                head_values[index],
                tied_values[index]
            );
            return Err(
                files.error(format!("{what}, although config.json says that they are tied: {remedy}"))
            );
        }
    }
    Ok(())
}

/// Name of the head in files.
const HEAD: &str = "lm_head.weight";

/// Reads the elements `range` of a tensor of a file.
fn read_numbers(
    files: &mut WeightFiles,
    file: usize,
    info: &TensorInfo,
    range: Range<usize>,
) -> Result<Vec<f32>> {
    let Some(number) = decoder(info.dtype) else {
        return Err(files.error(format!("{HEAD} is of type {}", info.dtype)));
    };
    let size = info.dtype.bitsize() / 8;
    let bytes = files.read(file, info.data_offsets.0 + range.start * size, range.len() * size)?;
    Ok(bytes.chunks_exact(size).map(number).collect())
}

fn format_shape(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
}

/// Number of elements that are read at once.
const PIECE: usize = 1 << 18;

/// Loads the weights of this rank's shard of a parameter, tensor by tensor.
fn fill_shard(
    files: &mut WeightFiles,
    layout: Layout,
    parameter: &Parameter,
    kept: LocalShard<'_>,
) -> Result<()> {
    fill_weights(files, layout, parameter, kept.range, kept.weights)
}

/// Loads the elements `range` of this rank's part of a parameter.
pub(super) fn fill_weights(
    files: &mut WeightFiles,
    layout: Layout,
    parameter: &Parameter,
    range: Range<usize>,
    target: &mut [f32],
) -> Result<()> {
    // Padding has no element in any file, so it keeps this value.
    target.fill(0.0);
    for tensor in layout.tensors(parameter) {
        // Consecutive elements of a transposed tensor are spread over the file.
        let piece = if tensor.is_transposed { target.len().max(1) } else { PIECE };
        for (number, weights) in target.chunks_mut(piece).enumerate() {
            let start = range.start + number * piece;
            fill_piece(files, layout, parameter, &tensor, start, weights)?;
        }
    }
    Ok(())
}

/// Sets the weights from element `start` of this rank's part on, as far as the tensor has them.
/// Holds the range of the file from the first of them to the last.
fn fill_piece(
    files: &mut WeightFiles,
    layout: Layout,
    parameter: &Parameter,
    tensor: &FileTensor,
    start: usize,
    weights: &mut [f32],
) -> Result<()> {
    let place = |index: usize| {
        let index = parameter.global_index(index)?;
        tensor.range.contains(&index).then(|| tensor.file_index(index))
    };
    let places = || (start..start + weights.len()).filter_map(place);
    let Some(first) = places().min() else { return Ok(()) };
    let end = places().max().map_or(first, |last| last + 1);
    let (file, info) = files.find(&tensor.name, layout.optional_prefix()).expect("checked");
    let (offset, size) = (info.data_offsets.0, info.dtype.bitsize() / 8);
    let number = decoder(info.dtype).expect("checked");
    let bytes = files.read(file, offset + first * size, (end - first) * size)?;
    for (weight, index) in weights.iter_mut().zip(start..) {
        if let Some(place) = place(index) {
            *weight = number(&bytes[(place - first) * size..][..size]);
        }
    }
    Ok(())
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
