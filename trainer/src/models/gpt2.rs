//! GPT-2's weights and dimensions in Hugging Face's files: `model.safetensors` and `config.json`.
//!
//! Parameters have the names that [`Gpt`](super::Gpt) gives them, with or without the prefix
//! `transformer.`. Linear weights within blocks are inputs × outputs in the file, the transpose of
//! ours. Mask buffers are ignored, and so is the head if it is tied to the token embedding.

mod config;
mod read;
mod write;

pub use config::{read_config, write_config};
pub use read::load;
pub use write::save;

use crate::parameter::Parameter;

/// Returns true if the file has the transpose of a parameter: the weight of a linear layer within a
/// block.
fn is_transposed(parameter: &Parameter) -> bool {
    let mut path = parameter.name.rsplit('.');
    path.next() == Some("weight") && path.next().is_some_and(|map| map.starts_with("c_"))
}

/// Returns the shape of the whole parameter in the file.
fn shape_in_file(parameter: &Parameter) -> Vec<usize> {
    let mut shape = parameter.global_shape();
    if is_transposed(parameter) {
        shape.reverse();
    }
    shape
}

/// Returns the strides in the file along each dimension of the whole parameter.
fn strides_in_file(parameter: &Parameter) -> Vec<usize> {
    let mut strides = row_major(&shape_in_file(parameter));
    if is_transposed(parameter) {
        strides.reverse();
    }
    strides
}

/// Returns the strides of a row-major tensor.
fn row_major(shape: &[usize]) -> Vec<usize> {
    (1..=shape.len()).map(|inner| shape[inner..].iter().product()).collect()
}

/// Returns the index in the file of element `index` of this rank's part; `None` for padding.
fn file_index(parameter: &Parameter, index: usize) -> Option<usize> {
    let index = parameter.global_index(index)?;
    Some(match parameter.global_shape()[..] {
        [outputs, inputs] if is_transposed(parameter) => index % inputs * outputs + index / inputs,
        _ => index,
    })
}

#[cfg(test)]
mod tests;
