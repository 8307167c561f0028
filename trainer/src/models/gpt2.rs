//! GPT-2's weights and extents in Hugging Face's files: `model.safetensors` and `config.json`.
//!
//! Parameters have the names that [`Gpt`](super::Gpt) gives them, with or without `transformer.` before them. Maps within
//! blocks are inputs × outputs there, the transpose of ours. Buffers of masks are not looked at, nor is the head of a model whose head
//! is the token embedding.

mod config;
mod read;
mod write;

pub use config::{read_config, write_config};
pub use read::load;
pub use write::save;

use crate::parameter::Parameter;

/// Whether the file has the transpose of a parameter: it is the weight of a map within a block.
fn is_transposed(parameter: &Parameter) -> bool {
    let mut path = parameter.name.rsplit('.');
    path.next() == Some("weight") && path.next().is_some_and(|map| map.starts_with("c_"))
}

/// Extents of the whole parameter in the file.
fn shape_in_file(parameter: &Parameter) -> Vec<usize> {
    let mut shape = parameter.global_shape();
    if is_transposed(parameter) {
        shape.reverse();
    }
    shape
}

/// How far apart neighbors along each dimension of the whole parameter are in the file.
fn strides_in_file(parameter: &Parameter) -> Vec<usize> {
    let mut strides = row_major(&shape_in_file(parameter));
    if is_transposed(parameter) {
        strides.reverse();
    }
    strides
}

/// How far apart neighbors along each dimension are where the last one is contiguous.
fn row_major(shape: &[usize]) -> Vec<usize> {
    (1..=shape.len()).map(|inner| shape[inner..].iter().product()).collect()
}

/// Where element `index` of this rank's part is in the file; none for padding.
fn file_index(parameter: &Parameter, index: usize) -> Option<usize> {
    let index = parameter.global_index(index)?;
    Some(match parameter.global_shape()[..] {
        [outputs, inputs] if is_transposed(parameter) => index % inputs * outputs + index / inputs,
        _ => index,
    })
}

#[cfg(test)]
mod tests;
