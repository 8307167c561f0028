//! Training data: the order of samples ([`Sampler`]), and the samples (`TokenWindows`).

mod added_tokens;
mod dataset_id;
mod permutation;
mod prepare;
mod sampler;
pub(crate) mod special_tokens;
pub mod text;
mod text_codec;
mod token_layout;
mod tokenizer;
mod tokens;
mod windows;

pub(crate) use crate::data::dataset_id::DatasetId;
pub use permutation::Permutation;
pub use prepare::{Prepared, TokenizeOptions};
pub(crate) use sampler::Position;
pub use sampler::{LastBatch, Sampler};
pub(crate) use text_codec::TextCodec;
pub(crate) use tokenizer::TOKENIZER;
pub use tokenizer::Tokenizer;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use tokenizer::fuzz as fuzz_tokenizer;
pub(crate) use tokens::TokenWidth;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use tokens::fuzz as fuzz_tokens;
pub use tokens::{TokenFile, TokenSource};
pub(crate) use windows::TokenWindows;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_damage_tests;
